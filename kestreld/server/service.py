"""The running server: its turn, its timers, reload and shutdown, between an event loop and the queues."""

import asyncio
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, TypeVar

from kestreld.clock import Clock
from kestreld.config import Config, exposure_reason
from kestreld.errors import ConfigError, JournalCorrupt
from kestreld.net import Events, ListeningSocket, Network
from kestreld.protocol.memcache import Lines
from kestreld.queues.collection import QueueCollection
from kestreld.queues.handler import Shop
from kestreld.queues.mending import Mender, RepairDone, UndoDone
from kestreld.queues.reader import Reader
from kestreld.queues.upkeep import Upkeep
from kestreld.queues.waiters import Deadlines
from kestreld.server.background import Thinker
from kestreld.server.door import Door
from kestreld.server.listener import BoundListener, Listener
from kestreld.server.loop import EVENTS_MAX, TurnLoop
from kestreld.server.turn import Turn
from kestreld.settings import needs_restart, until_restart
from kestreld.stats import ServerStats
from kestreld.systemd import Notifier
from kestreld.tls import server_context

T = TypeVar("T")
UPKEEP_MS: Final = 1000
SLICE_US: Final = 2000  # long work gives way to a turn after this
SLICE_PAUSE_S: Final = 0.001
LAST_WORDS_MS: Final = 2000  # how long a shutdown waits for clients to read their answers
# Of a hundred descriptors: what clients may hold, and journals together with them. The rest is for passing needs.
CONNECTIONS_SHARE: Final = 60
LENDABLE_SHARE: Final = 90


class Service:
    """kestreld from the first listener to the last reply."""

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
    ) -> None:
        """`login_key` is chance that nobody else knows, for as long as the process lives.

        `report` is told what somebody should look into, `note` what has been done as asked.
        """
        self.loop = loop
        self.network = network
        self.clock = clock
        self.collection = collection
        self.started_with = collection.config
        self.load_config = load_config
        self.report = report
        self.note = note or report
        self.stats = ServerStats(started_at_ms=clock.monotonic_ms)
        self.deadlines = Deadlines()
        self.lines = Lines()
        self.shop = Shop(collection, self.stats, self.deadlines, self)
        self.turn = Turn(
            network.poller(), clock, collection.commit, self.deadlines, self._after_commit, self._turn_again
        )
        self.thinker = Thinker(loop)
        self.door = Door(loop, self.thinker, self.turn, self.shop, self.lines, login_key)
        self.door.configure(collection.config, context)
        self.notifier = notifier or Notifier({})
        self.listeners: list[BoundListener] = []
        self.stopped: asyncio.Future[None] = loop.create_future()
        self._stopping = False
        self._again = False
        self._deadline_at_ms: int | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._working = False
        self._sync_planned = False
        self.upkeep = Upkeep(collection, self._work_soon)
        self.mender = Mender(collection, self.upkeep)
        self._half_sent: dict[int, tuple[int, int]] = {}  # fd -> batches executed then, and since when
        collection.open_files.descriptors_max = network.descriptor_limit() * LENDABLE_SHARE // 100
        collection.open_files.lent = lambda: len(self.turn.sessions) + len(self.door.greetings)
        collection.commit.wake = self._turn_again
        collection.names_changed += [self.lines.clear, self.door.accounts.forget_lines]
        loop.run_turns(self.turn.poller, self._run_turn)
        loop.call_later(UPKEEP_MS / 1000, self._upkeep)
        self._plan_sweep()
        self._turn_again()  # recovery may have left syncs to be planned

    # Turns

    def listen(self, bound: ListeningSocket, *, is_tls: bool = False, is_trusted: bool = False) -> Listener:
        """Let people in there; `is_trusted` says that only this account and root can get there."""
        connections_max = self.network.descriptor_limit() * CONNECTIONS_SHARE // 100
        listener = Listener(
            bound,
            self.turn,
            self.shop,
            self.door,
            connections_max,
            self.report,
            is_tls=is_tls,
            is_trusted=is_trusted,
        )
        self.listeners.append(listener)
        return listener

    def _after_commit(self) -> None:
        self.upkeep.after_turn()

    def _run_turn(self, events: Events) -> None:
        self.turn.run(events)
        if self.deadlines.pending:
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
        next_at_ms = self.deadlines.next_at_ms()
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
        next_at_ms = self.upkeep.sync_due()
        if next_at_ms is not None and not self._stopping:
            self._sync_planned = True
            self.loop.call_later(max(next_at_ms - self.clock.monotonic_ms, 1) / 1000, self._sync_due)

    def _upkeep(self) -> None:
        """Once a second: time-outs, syncs that are due, dead segments, paused listeners."""
        self.clock.read()
        self.loop.call_later(UPKEEP_MS / 1000, self._upkeep)
        self._cut_off_the_slow()
        self.upkeep.start_round()
        for listener in self.listeners:
            listener.resume()
        self.turn.finish()
        self.notifier.still_alive()

    def _cut_off_the_slow(self) -> None:
        config, now_ms = self.collection.config, self.clock.monotonic_ms
        half_sent: dict[int, tuple[int, int]] = {}
        for fd, session in list(self.turn.sessions.items()):
            handler = session.handler
            if session.heard:
                session.heard, session.heard_at_ms = False, now_ms
            if session.half_sent and config.request_timeout_ms:
                executed, since_ms = self._half_sent.get(fd, (-1, now_ms))
                if executed != session.executed:
                    since_ms = now_ms
                half_sent[fd] = (session.executed, since_ms)
                if now_ms - since_ms >= config.request_timeout_ms:
                    session.close()
                    continue
            idle_ms = now_ms - session.heard_at_ms
            busy = handler.waiter is not None or handler.open_reads or handler.held
            if config.timeout_ms and idle_ms >= config.timeout_ms and not busy:
                session.close()
        self._half_sent = half_sent
        self.door.cut_off_the_slow(now_ms)

    def _plan_sweep(self) -> None:
        period_ms = self.collection.config.expiration_timer_ms
        self.loop.call_later(max(period_ms, 1000) / 1000, self._expire)

    def _expire(self) -> None:
        """The expiration timer: sweep every queue, a slice at a time."""
        if self.collection.config.expiration_timer_ms and not self._stopping:
            self.clock.read()
            self._sweep_queues(iter(list(self.collection.readers.values())))
        else:
            self._plan_sweep()

    def _sweep_queues(self, readers: Iterator[Reader]) -> None:
        self.clock.read()
        until_us = self.clock.stopwatch_us() + SLICE_US
        for reader in readers:
            with suppress(JournalCorrupt):  # it has stopped its queue, and was reported
                self.collection.sweep(reader)
            if self.clock.stopwatch_us() > until_us:
                self.loop.call_soon(self._sweep_queues, readers)
                self.turn.finish()
                return
        self.turn.finish()
        self._plan_sweep()

    def _work_soon(self) -> None:
        if not self._working:
            self._working = True
            self.loop.call_soon(self._work)

    def _work(self) -> None:
        """A slice of the journals' upkeep."""
        self._working = self.upkeep.slice(self.clock.stopwatch_us() + SLICE_US)
        if self._working:
            # Not call_soon: waiting for a sync must not spin, and turns come first.
            self.loop.call_later(SLICE_PAUSE_S, self._work)

    # What sessions and signals ask for

    def reload(self, done: Callable[[bytes], None]) -> None:
        """Read the configuration again, off the loop; a bad one changes nothing."""
        self.notifier.tell(f"RELOADING=1\nMONOTONIC_USEC={self.clock.stopwatch_us()}")
        loading = self.loop.run_in_executor(None, self.load_config)

        def loaded(future: asyncio.Future[Config]) -> None:
            try:
                reply = self._apply(future.result())
            except ConfigError as error:
                for problem in error.problems:
                    self.report(f"reload refused: {problem}")
                more = f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
                done(f"SERVER_ERROR config {error.problems[0]}{more}\r\n".encode("latin-1", "replace"))
            else:
                done(reply)
            self.notifier.tell("READY=1")
            self.turn.finish()

        loading.add_done_callback(loaded)

    def _apply(self, config: Config) -> bytes:
        """Make it the configuration, as far as that goes without a restart. Raises ConfigError."""
        self.clock.read()
        waiting = needs_restart(self.started_with, config)
        running = until_restart(self.started_with, config)
        if (address := running.exposed()) is not None:  # with the new addresses it would not be
            raise ConfigError([config.problem("memcache", f"until the restart {exposure_reason(address)}")])
        context = server_context(running, self.collection.files)
        if context is None and any(address.tls for address in (*running.memcache, running.admin) if address):
            raise ConfigError([config.problem("tls_certificate", "tls: listeners need one until the restart")])
        self.collection.configure(running)
        self.door.configure(running, context)
        self.shop.max_open_reads = config.max_open_reads
        if not waiting:
            self.note(f"reloaded {config.source}")
            return b"Reloaded config.\r\n"
        self.note(f"reloaded {config.source}; needs a restart: {', '.join(waiting)}")
        if self.shop.strict:
            return b"Reloaded config.\r\n"
        return f"Reloaded config. Needs a restart: {', '.join(waiting)}\r\n".encode("latin-1", "replace")

    def repair(self, name: str, done: RepairDone) -> None:
        """Check a queue's journal and mend it, between turns."""
        self.mender.repair(name, lambda outcome: self._then_a_turn(done, outcome))

    def undo(self, name: str, done: UndoDone) -> None:
        """Put back what the latest delete or flush of a queue dropped, between turns."""
        self.mender.undo(name, lambda outcome: self._then_a_turn(done, outcome))

    def _then_a_turn(self, done: Callable[[T], None], outcome: T) -> None:
        done(outcome)
        self._turn_again()

    def reload_on_signal(self) -> None:
        self.reload(lambda reply: None)

    def shutdown(self) -> None:
        """Stop accepting, end every wait, finish the answers, give open reads back."""
        if self._stopping:
            return
        self._stopping = self.collection.stopping = True
        self.note("shutting down")
        self.notifier.tell("STOPPING=1")
        for listener in self.listeners:
            listener.close()
        self.listeners.clear()
        self.door.close()
        self.loop.call_soon(self._last_turn)

    def _last_turn(self) -> None:
        self.turn.run(self.turn.poller.poll(0, EVENTS_MAX))
        for reader in list(self.collection.readers.values()):
            reader.line.send_away(None)
        self.turn.finish()
        self._say_goodbye(self.clock.monotonic_ms + LAST_WORDS_MS)

    def _say_goodbye(self, until_ms: int) -> None:
        """Wait a little for clients that still read, then leave."""
        self.clock.read()
        for session in list(self.turn.sessions.values()):
            if not session.unsent and not session.held:
                session.close()
        # What was put without asking for an answer may still wait for the sync of the commit before it.
        if (self.turn.sessions or self.collection.commit.tickets) and self.clock.monotonic_ms < until_ms:
            self.loop.call_later(0.02, self._say_goodbye, until_ms)
            return
        for session in list(self.turn.sessions.values()):
            session.close()
        self.turn.finish()
        if not self.stopped.done():
            self.stopped.set_result(None)

    def close(self) -> None:
        """Let go of the loop. Not before it has stopped: what is planned on it still looks at the poller."""
        self.loop.end_turns()
        self.turn.poller.close()
        self.thinker.stop()
