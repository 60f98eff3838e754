"""A script on a server, and the server after it: with a disk that fails at one call, or after a crash at one call."""

from collections.abc import Iterator, MutableSequence, MutableSet
from contextlib import contextmanager
from random import Random
from typing import Any

from kestreld.config.config import LEASE_GRACE_MS_MIN, Config, QueueConfig
from kestreld.journal.verify import verify_journal
from tests.simulation.checker import Checker
from tests.simulation.client import Talk
from tests.simulation.disk import Disk
from tests.simulation.excuses import Rules
from tests.simulation.history import KILLED, STOPPED, Mode, Request
from tests.simulation.host import GaveUp, Host
from tests.simulation.imports import kestrel_files
from tests.simulation.plan import IMPORTED, SPOOL, Plan
from tests.simulation.process_files import ProcessFiles
from tests.simulation.requests import change
from tests.simulation.scripts import FLIP, HANG_UP, STOP, Meanwhile, Script, Show, Step
from tests.simulation.server import Server


class Scripted(Host):
    """The script on a machine of its own. `dies_at` a change of the disk, counted from the first start; 0 = never.

    `beside` are queues that the script does nothing with.
    """

    def __init__(self, script: Script, sync_ms: int | None, dies_at: int = 0, beside: tuple[str, ...] = ()) -> None:
        readers = [*script.readers, *beside]
        families = [name for name in readers if "+" not in name]
        plan = Plan(
            readers=readers,
            modes={family: Mode(sync_ms=sync_ms) for family in families},
            rules=Rules(moves_to=script.moves_to, has_times=script.has_times),
            is_timed=script.has_times,
        )
        super().__init__(plan, lambda what: Random(f"{script.name} {what}"))
        self._script = script
        self._sync_ms = sync_ms
        self._dies_at = dies_at
        self._talk: Talk | None = None
        self._other: Talk | None = None
        self.is_stopped = False

    def config(self) -> Config:
        queues = {
            name: {"sync_journal_ms": self._sync_ms, **self._script.settings, **self._script.own.get(name, {})}
            for name in self.plan.families
        }
        defaults = QueueConfig(lease_grace_ms=LEASE_GRACE_MS_MIN)
        return Config(queue_path=SPOOL, defaults=defaults, queues=queues, source="a script")

    def before_start(self, server: Server) -> None:
        server.files.dies_in = self._dies_at if server.life.number == 1 else 0

    def stop_time_us(self) -> int:
        assert self.server is not None
        self.server.files.takes_too_long = not self._script.stop_time_us
        return self._script.stop_time_us

    def play(self) -> bool:
        """The script to its end; False when the server has died on the way, and its clients know."""
        self.lay_out()
        if IMPORTED in self.plan.readers:
            kestrel_files(ProcessFiles(self.disk), self.plan, self.history, self.puts, Random(self._script.name))
        self.boot()
        if self.server is not None:
            self.make_queues()
        for step in self._script.steps(self.puts):
            if self.server is not None:
                self._take(self.server, step)
        if self.server is not None or self.is_stopped:
            return True
        self.schedule.run(self.schedule.now_us + 1_000_000)
        return False

    def _take(self, server: Server, step: Step) -> None:
        if isinstance(step, int):
            self.run_for(step * 1000)
        elif step == STOP:
            self.end_life(STOPPED)
            self.is_stopped = not self.figures.get("deaths in a call")
        elif step == FLIP:
            self._flip_a_bit()
        elif step == HANG_UP:
            if self._talk is not None:
                self._talk.close(abruptly=False)
            self.run_for(1000)
        elif isinstance(step, Meanwhile):
            self.schedule.after(step.us, self._ask_meanwhile, server, step.asked)
        else:
            if self._talk is None or self._talk.over:
                self._talk = server.talk(next(self.connections), lambda: None, lambda: None)
            talk = self._talk
            asked = step if isinstance(step, list) else self._shown(step)
            if not talk.over and asked:
                talk.send(asked)
                self.wait_until(lambda: talk.over or not talk.pending, "an answer")

    def _ask_meanwhile(self, server: Server, asked: list[Request]) -> None:
        if self.server is server and not server.files.dead:
            if self._other is None or self._other.over:
                self._other = server.talk(next(self.connections), lambda: None, lambda: None)
            self._other.send(asked)

    def _shown(self, step: Show) -> list[Request]:
        """The command with the token; none where the lease was not answered."""
        leases = self.history.leases
        return [change(leases[step.which], step.kind, step.ms)] if step.which < len(leases) else []

    def _flip_a_bit(self) -> None:
        """In an item that waits: nobody may get it any more, but for whoever finds it as it was."""
        for put in self.history.puts.values():
            for path, file in self.disk.walk():
                at = file.data.find(put.data) if path.endswith(".seg") else -1
                if at >= 0:
                    file.flip(at * 8 + 3)
                    self.history.destroyed.add(put)
                    self.flipped.add(put.family)
                    return

    def knowledge(self) -> tuple[object, ...]:
        """What clients know by now: two disks that are alike have to keep the same promises if this is the same."""
        history = self.history
        puts = tuple(put.outcome for put in history.puts.values())
        ended = sum(delivery.ending_answered_us >= 0 for delivery in history.deliveries)
        wiped = sum(wipe.answered_us >= 0 for wipe in history.wipes)
        asked = len(history.unanswered), len(history.wipes), len(history.undone), len(history.repairs)
        return puts, len(history.deliveries), ended, wiped, asked

    def verdict(self, disk: Disk, how: str) -> list[str]:
        """What is wrong with what a start makes of that disk, left when the last server ended so."""
        with self._started_from(disk, how):
            return Checker(self.history, self.plan.rules).violations()

    def stopped(self, disk: Disk, how: str) -> set[str]:
        """The families that a start on that disk stops, or whoever reads on until there is nothing left."""
        before = set(self.history.stopped)
        self.history.stopped.clear()
        with self._started_from(disk, how):
            stopped = set(self.history.stopped)
        self.history.stopped.update(before)
        return stopped

    def found_bad(self, disk: Disk) -> set[str]:
        """The families of which verify says so."""
        bad = set()
        for family in self.plan.families:
            reports = verify_journal(ProcessFiles(disk), f"{SPOOL}/{family}.journal", family)
            if any(one.missing or (one.bad_offset is not None and not one.torn) for one in reports):
                bad.add(family)
        return bad

    @contextmanager
    def _started_from(self, disk: Disk, how: str) -> Iterator[None]:
        """The life after the last server's, which ended so. The history is then as it was."""
        mark = _Mark(self)
        self.history.lives[-1].how = how
        self.disk = disk
        try:
            self.start()
            self.drain()
        except GaveUp:
            pass
        if self.server is not None:
            self.end_life(KILLED)
        yield
        mark.restore()


class _Mark:
    """How far the history had come."""

    def __init__(self, run: Scripted) -> None:
        history = run.history
        lists: list[MutableSequence[Any]] = [
            history.lives,
            history.deliveries,
            history.unanswered,
            history.leases,
            history.problems,
            *history.touched.values(),
        ]
        sets: list[MutableSet[str]] = [history.repaired, history.damaged, history.stopped, history.from_inside]
        self._lengths = [(one, len(one)) for one in lists]
        self._contents = [(one, set(one)) for one in sets]
        self._touched, self._readers = history.touched, set(history.touched)

    def restore(self) -> None:
        for one, length in self._lengths:
            del one[length:]
        for kept, content in self._contents:
            kept.clear()
            kept |= content
        for reader in set(self._touched) - self._readers:
            del self._touched[reader]
