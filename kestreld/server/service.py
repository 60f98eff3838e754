"""The running server: turns, timers, long work in slices, reload and shutdown on one event loop.

Turns come first. All long work together runs in slices of 2 ms between them, each of which ends with a commit. A
reload with a bad configuration changes nothing. A shutdown runs the commands received so far, ends all waits, and
gives clients two seconds to read their replies.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from kestreld.clock import Clock
from kestreld.config.config import Config, exposure_reason
from kestreld.config.settings import needs_restart, until_restart
from kestreld.errors import ConfigError
from kestreld.machine import give_back_memory
from kestreld.net import Events, ListeningSocket, Network
from kestreld.queues.collection import QueueCollection
from kestreld.queues.commit import Tally
from kestreld.queues.everywhere import everywhere
from kestreld.queues.maintenance import Maintenance
from kestreld.queues.repairing import RepairDone, Repairer, UndoDone
from kestreld.queues.slices import Slices, Work
from kestreld.server.admission import Admission
from kestreld.server.cpu_worker import CpuWorker
from kestreld.server.descriptors import Descriptors
from kestreld.server.listener import BoundListener, Listener
from kestreld.server.loop import EVENTS_MAX, TurnLoop
from kestreld.server.partial_items import PartialItems
from kestreld.server.parts import Part, QueuesPart
from kestreld.server.state import Reloaded, ServerState
from kestreld.server.turn import Turn
from kestreld.server.wire_protocol import WireProtocol
from kestreld.stats import ServerStats
from kestreld.systemd import Notifier
from kestreld.tls import server_context

T = TypeVar("T")
MAINTENANCE_MS: Final = 1000
SLICE_US: Final = 2000  # longest time that long work delays a turn
SLICE_PAUSE_S: Final = 0.001
STOP_US: Final = 4_000_000  # a stop takes no longer, and leaves the rest undone
LAST_WORDS_MS: Final = 2000  # time for clients to read their replies at a shutdown
WORTH_GIVING_BACK_BYTES: Final = 1 << 24
LEAVE_MS: Final = 2000  # time for a client to notice the end of its session


class Service:
    """A server from its first listener to its last reply."""

    def __init__(
        self,
        loop: TurnLoop,
        network: Network,
        clock: Clock,
        collection: QueueCollection,
        load_config: Callable[[], Config],
        report: Callable[[str], None],
        login_key: bytes = b"",
        context: ssl.SSLContext | None = None,
        notifier: Notifier | None = None,
        note: Callable[[str], None] | None = None,
        inflight_bytes: int = 1 << 30,
        tidy: Callable[[], object] = lambda: None,
    ) -> None:
        """`login_key` is a random secret of this process.

        `report` logs problems that need attention, `note` completed requests. `inflight_bytes` limits the
        memory of unfinished items if the configuration does not. `tidy` is called after each slice of long work.
        """
        self.loop = loop
        self.network = network
        self.clock = clock
        self.collection = collection
        self.started_with = collection.config
        self.load_config = load_config
        self.report = report
        self.note = note or report
        self._tidy = tidy
        self.stats = ServerStats(started_at_ms=clock.monotonic_ms)
        self.agenda = collection.agenda
        self.state = ServerState(collection, self.stats, self)
        self._inflight_bytes = inflight_bytes
        self.inflight = PartialItems(clock, self._inflight_bytes_max(collection.config))
        self.turn = Turn(
            network.poller(),
            clock,
            collection.commit,
            self.agenda,
            self._after_commit,
            self._turn_again,
            self.inflight,
        )
        self.cpu_worker = CpuWorker(loop)
        self.admission = Admission(loop, self.cpu_worker, self.turn, self.state, login_key)
        self.admission.configure(collection.config, context)
        self.notifier = notifier or Notifier({})
        self._tell_ready: Callable[[], None] = lambda: None
        self.listeners: list[BoundListener] = []
        self.stopped: asyncio.Future[None] = loop.create_future()
        self.stop_by_us: int | None = None  # on the stopwatch, once it has been told to stop
        self._stopping = False
        self._again = False
        self._deadline_at_ms: int | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._working = False
        self._sync_planned = False
        self.slices = Slices(clock, self._work_soon)
        self.maintenance = Maintenance(collection, self.slices)
        self._parts: list[Part] = [QueuesPart(collection, self.maintenance)]
        self.repairer = Repairer(collection, self.maintenance, self.slices)
        self._reloads: deque[Callable[[Reloaded], None]] = deque()  # the one under way, and those that wait for it
        self._half_sent: dict[int, tuple[int, int]] = {}  # fd -> batches executed then, and since when
        self._looked_at_ms = clock.monotonic_ms
        self.descriptors = Descriptors(network.descriptor_limit())
        self.stats.connections_max = self.descriptors.connections_max
        collection.open_files.descriptors_max = self.descriptors.lendable
        collection.open_files.lent = self._lent
        collection.commit.wake = self._turn_again
        collection.names_changed.append(self.admission.accounts.forget_commands)
        loop.run_turns(self.turn.poller, self._run_turn)
        loop.call_later(MAINTENANCE_MS / 1000, self._maintenance)
        self._plan_sweep()
        self._turn_again()  # recovery may have left syncs to be planned

    def _lent(self) -> int:
        """Number of descriptors that clients have."""
        of_listeners = sum([listener.connections() for listener in self.listeners])
        return len(self.turn.sessions) + len(self.admission.handshakes) + of_listeners

    def set_aside_descriptors(self) -> None:
        """Set aside the descriptors open now, without those of journals, for kestreld; clients share the rest."""
        open_files = self.collection.open_files
        self.descriptors.set_aside(self.network.open_descriptors() - open_files.held)
        open_files.descriptors_max = self.descriptors.lendable
        self.stats.connections_max = self.descriptors.connections_max

    def _inflight_bytes_max(self, config: Config) -> int:
        return self._inflight_bytes if config.max_inflight_bytes is None else config.max_inflight_bytes

    # Turns

    def listen(
        self, bound: ListeningSocket, protocol: WireProtocol, *, is_tls: bool = False, is_trusted: bool = False
    ) -> Listener:
        """Serve a protocol on a socket; `is_trusted`: only this account and root can connect."""
        listener = Listener(
            bound,
            protocol,
            self.turn,
            self.state,
            self.admission,
            self.descriptors,
            self.report,
            is_tls=is_tls,
            is_trusted=is_trusted,
        )
        self.listeners.append(listener)
        return listener

    # Parts

    def add(self, part: Part) -> None:
        """Make a part one of the server's."""
        self._parts.append(part)

    @property
    def is_ready(self) -> bool:
        """True if all parts are served."""
        return all(part.is_ready for part in self._parts)

    def part_is_ready(self) -> None:
        """Take note that a part has become ready, or cannot be."""
        if self.is_ready:
            self._tell_ready()

    def when_ready(self, tell: Callable[[], None]) -> None:
        """Call `tell` once all parts are served, or now if they are."""
        if self.is_ready:
            tell()
        else:
            self._tell_ready = tell

    def close_parts(self, until_us: int | None) -> None:
        """Have each part write to disk what is left to write; the queues' part leaves that to their collection."""
        for part in self._parts:
            part.close(until_us)

    def _after_commit(self) -> None:
        self.maintenance.after_turn()

    def _run_turn(self, events: Events) -> None:
        self.turn.run(events)
        if self.agenda.heap:
            self._plan_deadline()
        if self.collection.commit.sync_later and not self._sync_planned:
            self._sync_due()

    def _turn_again(self) -> None:
        if not self._again:
            self._again = True
            self.loop.call_soon(self._another_turn)

    def _another_turn(self) -> None:
        self._again = False
        self._run_turn([])

    def _plan_deadline(self) -> None:
        next_at_ms = self.agenda.next_at_ms()
        if next_at_ms == self._deadline_at_ms:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline_at_ms, self._deadline = next_at_ms, None
        if next_at_ms is not None:
            delay_ms = max(next_at_ms - self.clock.monotonic_ms, 0) + 1
            self._deadline = self.loop.call_later(delay_ms / 1000, self._deadline_due)

    def _deadline_due(self) -> None:
        self._deadline_at_ms = self._deadline = None
        self._run_turn([])

    # Timers

    def _sync_due(self) -> None:
        """Start the syncs of journals whose sync_journal time has come, and plan the next."""
        self._sync_planned = False
        self.clock.read()
        next_at_ms = self.maintenance.sync_due()
        if next_at_ms is not None and not self._stopping:
            self._sync_planned = True
            self.loop.call_later(max(next_at_ms - self.clock.monotonic_ms, 1) / 1000, self._sync_due)

    def _maintenance(self) -> None:
        """Run each second: time-outs, paused listeners, and what is due in each part."""
        self.clock.read()
        self.loop.call_later(MAINTENANCE_MS / 1000, self._maintenance)
        self._cut_off_the_slow()
        self.inflight.go_on()
        if self.inflight.take_note() >= WORTH_GIVING_BACK_BYTES:
            give_back_memory()
        for listener in self.listeners:
            listener.resume()
        for part in self._parts:
            part.tick()
        self.turn.finish()
        self.notifier.still_alive()

    def _cut_off_the_slow(self) -> None:
        config, now_ms = self.collection.config, self.clock.monotonic_ms
        elapsed_ms, self._looked_at_ms = now_ms - self._looked_at_ms, now_ms
        half_sent: dict[int, tuple[int, int]] = {}
        for fd, session in list(self.turn.sessions.items()):
            handler = session.handler
            if session.leaving_since_ms is not None and now_ms - session.leaving_since_ms >= LEAVE_MS:
                session.close()
                continue
            if session.active:
                session.active, session.active_at_ms = False, now_ms
            is_held_back = self.inflight.is_waiting(session)
            if (session.half_sent or is_held_back) and config.request_timeout_ms:
                executed, since_ms = self._half_sent.get(fd, (-1, now_ms))
                if executed != session.executed:
                    since_ms = now_ms
                elif is_held_back:
                    since_ms += elapsed_ms  # the server causes this delay, not the client
                half_sent[fd] = (session.executed, since_ms)
                if now_ms - since_ms >= config.request_timeout_ms:
                    session.close()
                    continue
            idle_ms = now_ms - session.active_at_ms
            busy = handler.is_busy or is_held_back
            if config.timeout_ms and idle_ms >= config.timeout_ms and not busy:
                session.close()
        self._half_sent = half_sent
        self.admission.cut_off_the_slow(now_ms)

    def _plan_sweep(self) -> None:
        period_ms = self.collection.config.expiration_timer_ms
        self.loop.call_later(max(period_ms, 1000) / 1000, self._expire)

    def _expire(self) -> None:
        """Sweep every queue for expired items, a slice at a time, if the expiration timer is on."""
        if self.collection.config.expiration_timer_ms and not self._stopping:
            self.slices.take_on(self._sweep())
        else:
            self._plan_sweep()

    def _sweep(self) -> Work:
        swept = self.collection.flush_all_expired()
        yield from everywhere(self.collection.commit, self.finish_turn, swept, Tally(lambda: None))
        self._plan_sweep()

    def _work_soon(self) -> None:
        if not self._working:
            self._working = True
            self.loop.call_soon(self._work)

    def _work(self) -> None:
        """Run a slice of all long work together."""
        self.clock.read()
        self.slices.run(self.clock.stopwatch_us() + SLICE_US)
        self.turn.finish()
        self._tidy()
        self._working = self.slices.is_busy
        if self._working:
            # Not call_soon: waiting for a sync must not spin, and turns come first.
            self.loop.call_later(SLICE_PAUSE_S, self._work)

    # Requests of sessions and signals

    def take_on(self, work: Work) -> None:
        """Do a piece of long work, in slices between turns."""
        self.slices.take_on(work)

    def finish_turn(self) -> None:
        """Commit the changes that long work has made so far."""
        self.turn.finish()

    def reload(self, done: Callable[[Reloaded], None]) -> None:
        """Read the configuration again, in a thread; a bad one changes nothing. Reloads run one after the other."""
        self._reloads.append(done)
        if len(self._reloads) == 1:
            self._reload()

    def _reload(self) -> None:
        self.notifier.tell(f"RELOADING=1\nMONOTONIC_USEC={self.clock.stopwatch_us()}")
        self.loop.run_in_executor(None, self.load_config).add_done_callback(self._loaded)

    def _loaded(self, future: asyncio.Future[Config]) -> None:
        try:
            self.slices.take_on(self._apply(future.result()))
        except ConfigError as error:
            for problem in error.problems:
                self.report(f"reload refused: {problem}")
            self._reloaded(Reloaded(problems=tuple(map(str, error.problems))))

    def _apply(self, config: Config) -> Work:
        """Apply a configuration as far as possible without a restart. Raises ConfigError, with nothing changed."""
        self.clock.read()
        waiting = needs_restart(self.started_with, config)
        running = until_restart(self.started_with, config)
        if (address := running.exposed()) is not None:  # the new addresses take effect only at a restart
            raise ConfigError(
                [config.problem(running.listener_of(address), f"before the restart, {exposure_reason(address)}")]
            )
        context = server_context(running, self.collection.files)
        if context is None and any(address.tls for address in running.addresses):
            raise ConfigError([config.problem("tls_certificate", "required by tls: listeners until the restart")])
        checked = [part.check(running) for part in self._parts]
        configured = [work for put_to_use in checked if (work := put_to_use()) is not None]
        self.admission.configure(running, context)
        self.state.max_open_reads = config.max_open_reads
        self.inflight.configure(self._inflight_bytes_max(config))
        return self._tell_reloaded(config.source, waiting, configured)

    def _tell_reloaded(self, source: str, waiting: list[str], configured: list[Work]) -> Work:
        """Report the reload once all work of it is done. `waiting` are the settings that need a restart."""
        for work in configured:
            yield from work
        self.note(f"reloaded {source}" + (f"; needs a restart: {', '.join(waiting)}" if waiting else ""))
        self._reloaded(Reloaded(needs_restart=tuple(waiting)))

    def _reloaded(self, outcome: Reloaded) -> None:
        self._reloads.popleft()(outcome)
        if self.is_ready:
            self.notifier.tell("READY=1")
        self.turn.finish()
        if self._reloads:
            self._reload()

    def repair(self, name: str, done: RepairDone) -> None:
        """Check a queue's journal and repair it, between turns."""
        self.repairer.repair(name, lambda outcome: self._then_a_turn(done, outcome))

    def undo(self, name: str, done: UndoDone) -> None:
        """Restore the items that the latest delete or flush of a queue dropped, between turns."""
        self.repairer.undo(name, lambda outcome: self._then_a_turn(done, outcome))

    def _then_a_turn(self, done: Callable[[T], None], outcome: T) -> None:
        done(outcome)
        self._turn_again()

    def reload_on_signal(self) -> None:
        self.reload(lambda outcome: None)

    def shutdown(self) -> None:
        """Stop accepting, end every wait, finish the replies, return open reads."""
        if self._stopping:
            return
        self._stopping = self.collection.stopping = True
        self.stop_by_us = self.clock.stopwatch_us() + STOP_US
        self.note("shutting down")
        self.notifier.tell("STOPPING=1")
        for listener in self.listeners:
            listener.close()
        self.listeners.clear()
        self.admission.close()
        self.loop.call_soon(self._last_turn)

    def _last_turn(self) -> None:
        self.turn.run(self.turn.poller.poll(0, EVENTS_MAX))
        for part in self._parts:
            part.stop()
        self.turn.finish()
        self._say_goodbye(self.clock.monotonic_ms + LAST_WORDS_MS)

    def _say_goodbye(self, until_ms: int) -> None:
        """Wait until `until_ms` for clients that still read, then close all sessions."""
        self.clock.read()
        for session in list(self.turn.sessions.values()):
            if not (session.unsent or session.held or session.handler.is_at_work):
                session.close()
        # Puts without a reply may still wait for the sync of the commit before theirs.
        if (self.turn.sessions or self.collection.commit.pending_commits) and self.clock.monotonic_ms < until_ms:
            self.loop.call_later(0.02, self._say_goodbye, until_ms)
            return
        for session in list(self.turn.sessions.values()):
            session.close()
        self.turn.finish()
        if not self.stopped.done():
            self.stopped.set_result(None)

    def close(self) -> None:
        """Detach from the loop. It must have stopped: its callbacks use the poller."""
        self.loop.end_turns()
        self.turn.poller.close()
        self.cpu_worker.stop()
