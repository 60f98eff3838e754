"""A machine with a disk, on which one server after the other lives and dies; and the last look at what they kept."""

from collections.abc import Callable
from itertools import count
from random import Random
from typing import Final

from kestreld.config.config import Config
from kestreld.errors import JournalCorrupt, JournalFailed, SpoolUnusable
from kestreld.journal.records import Reason, item_data, item_id
from kestreld.journal.repair import repair
from kestreld.journal.segment import UNSYNCED_MARK
from tests.simulation.client import INSIDE_OTHERS, NUMBER, Talk
from tests.simulation.disk import Disk
from tests.simulation.history import KILLED, POWER_CUT, STOPPED, History, Life, Request
from tests.simulation.plan import ARCHIVE, HOLD_MS_MAX, LATE, SPOOL, Plan
from tests.simulation.process_files import Faults, ProcessFiles
from tests.simulation.requests import read
from tests.simulation.schedule import Schedule
from tests.simulation.server import Server, SimulatedClock
from tests.support.engine import read_range
from tests.support.mortal_files import Killed

PATIENCE_US: Final = 180_000_000  # after so much virtual time a client has waited too long
STARTS_MAX: Final = 30
STOP_US: Final = 4_000_000
HOLD_US_MAX: Final = (HOLD_MS_MAX + 2000) * 1000  # a lease that runs out, the back-off behind it, and a little more
# What recovery says when something is gone that was on disk.
SYNCED_LOST: Final = (
    "that had been synced",
    "the file ends here",
    "shorter than what was written",
    "past the end",
    "byte 0: item",  # is missing: one that was held back
)
# What it says when whole segments have gone, which no power cut may bring about, whatever was not synced.
NAMES_LOST: Final = ("the marker is", "everything before")


class GaveUp(Exception):
    """It cannot go on; why is in the history's problems."""


class Host:
    """Servers on one disk, one at a time. `trace` is told what happens, line by line."""

    def __init__(self, plan: Plan, chance: Callable[[str], Random], trace: Callable[[str], None] | None = None) -> None:
        self.plan = plan
        self.schedule = Schedule()
        self.history = History()
        self.disk = Disk()
        self.faults = Faults(chance("faults"))
        self.faults.struck = self._struck
        self.server: Server | None = None
        self.trace = self._stamped(trace) if trace is not None else None
        self.connections = count(1)
        self.puts = count(1)
        self.figures: dict[str, int] = {}
        self._chance = chance
        self._configs = chance("configuration")
        self._broken: dict[str, str] = {}  # families that were stopped, and why
        self.flipped: set[str] = set()  # families that may be stopped, for an item of theirs is damaged
        self._unsynced: set[str] = set()  # families of which a sync has failed
        self._unnoted: set[str] = set()  # those of them of which the server has yet to make a note
        self._how_it_dies = KILLED

    def _stamped(self, trace: Callable[[str], None]) -> Callable[[str], None]:
        return lambda line: trace(f"{self.schedule.now_us / 1000:12.3f} {line}")

    def say(self, line: str) -> None:
        if self.trace is not None:
            self.trace(f"-- {line}")

    def complain(self, words: str) -> None:
        self.history.problems.append(f"at {self.schedule.now_us}: {words}")

    def add(self, what: str, times: int = 1) -> None:
        """To the figures of the run."""
        self.figures[what] = self.figures.get(what, 0) + times

    def lay_out(self) -> None:
        """The folders that are there before the first start."""
        files = ProcessFiles(self.disk)
        files.make_dir(SPOOL)
        files.make_dir(ARCHIVE)
        for path in ("/", SPOOL):
            files.sync_dir(path)

    # Time

    def run_for(self, time_us: int) -> None:
        self.schedule.run(self.schedule.now_us + time_us, lambda: self.server is None)

    def wait_until(self, enough: Callable[[], bool], what: str) -> None:
        self.schedule.run(self.schedule.now_us + PATIENCE_US, lambda: enough() or self.server is None)
        if not enough() and self.server is not None:
            self.complain(f"waited in vain for {what}")
            raise GaveUp

    # Starts

    def config(self) -> Config:
        """What the next start, or a reload, reads."""
        return self.plan.config(self._configs)

    def start(self) -> None:
        """Start servers until one is up and knows all queues."""
        for _ in range(STARTS_MAX):
            self.boot()
            if self.server is not None and self._repair_what_is_broken():
                continue
            if self.server is not None:
                self.make_queues()
            if self.server is not None:
                return
        self.complain("it does not start")
        raise GaveUp

    def make_queues(self) -> None:
        """Every queue is there before anything is put: a get of one that is not takes nothing and makes it."""
        assert self.server is not None
        assert self.server.collection is not None
        there = self.server.collection.readers
        self.ask([read(name) for name in self.plan.readers if name not in there])

    def new_server(self, life: Life) -> Server:
        chance = self._chance(f"life {life.number}")
        return Server(
            self.schedule,
            self.history,
            life,
            self.disk,
            self.faults,
            self.config(),
            self.config,
            chance,
            self._died,
            self.trace,
        )

    def boot(self) -> None:
        """Start one server, which may die of it."""
        number = len(self.history.lives) + 1
        life = Life(number, self.schedule.now_us, dict(self.plan.modes))
        self.history.lives.append(life)
        self.say(f"life {number}: {life.modes}")
        server = self.server = self.new_server(life)
        server.files.created = self.created
        self.before_start(server)
        try:
            server.start()
        except Killed:
            self._died()
        except (OSError, SpoolUnusable) as problem:
            self.say(f"does not start: {problem}")
            if not self.faults.failed:
                self.complain(f"does not start: {problem}")
            self.faults.heal()
            self.disk.capacity_bytes = None
            self.end_life(KILLED)
        life.ready_us = self.schedule.now_us

    def before_start(self, server: Server) -> None:
        """For trouble during a start."""

    def ask(self, requests: list[Request]) -> Talk | None:
        """Have it all answered on a connection of its own; None when that could not be."""
        for _ in range(20):
            if self.server is None:
                return None
            talk = self.server.talk(next(self.connections), lambda: None, lambda: None)
            if not talk.over:
                talk.send(requests)
                self.wait_until(lambda talk=talk: talk.over or not talk.pending, "an answer")  # type: ignore[misc]
                if talk.errors or not talk.over:
                    return talk
            self.run_for(100_000)
        return None

    # Ends

    def _died(self) -> None:
        """Killed in the middle of a call."""
        self.add("deaths in a call")
        self.over(self._how_it_dies)

    def end_life(self, how: str) -> None:
        server = self.server
        if server is None:
            return
        if how != STOPPED or not server.is_up:
            self.over(KILLED if how == STOPPED else how)
            return
        self.say("SIGTERM")
        server.loop.run(server.shutdown)
        self.wait_until(lambda: server.has_stopped, "the end of a shutdown")
        if self.server is None:
            return
        try:
            was_time = server.close(self.stop_time_us())
        except Killed:
            self._died()
        else:
            self.over(STOPPED if was_time else KILLED)

    def stop_time_us(self) -> int:
        """How long the next stop may take once all has been answered."""
        return STOP_US

    def over(self, how: str) -> None:
        """The process is gone."""
        server = self.server
        assert server is not None
        server.end(power_cut=how == POWER_CUT)
        server.life.ended_us, server.life.how = self.schedule.now_us, how
        self.history.unmarked |= self._unnoted
        self._unnoted.clear()
        self.add(how)
        self.say(f"life {server.life.number} {how}")
        self.server = None
        if how == POWER_CUT:
            self.disk = self.cut_power()
        self.disk.locked.clear()

    def cut_power(self) -> Disk:
        """The disk that is left."""
        return self.disk.after_power_cut(self.disk.name_changes, lambda file, change: change.whole)

    def _struck(self, kind: str, path: str) -> None:
        """A call has failed."""
        self.add("failed calls")
        self.say(f"{kind} of {path} fails")
        if self.server is None:
            return
        families = [family_of(f"{path}/")] if ".journal/" in f"{path}/" else [*self.plan.modes]
        if kind == "sync":
            # The kernel has forgotten that what a failed sync covered is not on disk: a new process cannot know.
            self._unsynced.update(families)
            self._unnoted.update(families)
        for family in families:
            self.server.life.faulty_since.setdefault(family, self.schedule.now_us)

    def created(self, path: str) -> None:
        """The server has made a file."""
        if path.endswith(UNSYNCED_MARK):
            self._unnoted.discard(family_of(path))

    # Damage

    def _repair_what_is_broken(self) -> bool:
        """Look at the queues that a start has stopped, and repair them; whether there were any."""
        server = self.server
        assert server is not None
        assert server.collection is not None
        broken = {family: str(problem) for family, problem in server.collection.broken.items()} | self._broken
        self._broken = {}
        for family, why in broken.items():
            self._judge_stop(family, why)
        if any("cannot be" in why for why in broken.values()):  # read: the disk is repaired first
            self.faults.heal()
            self.disk.capacity_bytes = None
        if broken:
            self.over(KILLED)
            self.add("repairs", len(broken))
            for family, why in broken.items():
                if "was not imported from this Kestrel file" in why:
                    # A bit of what said so was flipped. What was imported is in front of it, and whole.
                    ProcessFiles(self.disk).unlink(why.partition(":")[0])
                else:
                    self._repair(family)
        return bool(broken)

    def _judge_stop(self, family: str, why: str) -> None:
        """A queue may be stopped where bits were flipped, where the disk could not be read, or after a power cut."""
        self.say(f"{family} is stopped: {why}")
        history = self.history
        history.stopped.add(family)
        faulty = any(family in life.faulty_since for life in history.lives)
        if family in history.damaged | self.flipped or (faulty and "cannot be" in why):  # read, or opened
            return
        was_cut = any(life.how == POWER_CUT or life.was_last for life in history.lives)
        if was_cut and family in self._unsynced:
            history.repaired.add(family)  # a sync failed in an earlier life: what it covered is gone by now
            return
        # But where a sync has failed, and so did the note of it, the next process has believed what is not on disk.
        if any(words in why for words in NAMES_LOST) and family not in history.unmarked:
            self.complain(f"{family} was stopped: {why}")
            return
        cut = any(life.lost(family) for life in history.lives)
        if cut and any(life.modes[family].sync_ms != 0 for life in history.lives):
            history.repaired.add(family)
            return
        # A hole in what was not on disk yet looks like damage where no SYNC tells; nothing else may be missing.
        if cut and (family in self._unsynced or not any(words in why for words in SYNCED_LOST)):
            return
        # So does an item with records in its data that was cut short while it was written.
        if "intact records follow" in why and any(
            put.family == family and not put.outcome and INSIDE_OTHERS in put.data for put in history.puts.values()
        ):
            return
        self.complain(f"{family} was stopped: {why}")

    def _repair(self, family: str) -> None:
        clock = SimulatedClock(self.schedule, self.history, self._chance("repair"))
        try:
            report = repair(ProcessFiles(self.disk), clock, f"{SPOOL}/{family}.journal")
        except JournalFailed as failure:
            self.complain(f"{family} cannot be repaired: {failure}")
            raise GaveUp from failure
        self.say(f"repaired {report}")
        lives = self.history.lives
        if report.damages and any(life.lost(family) and life.modes[family].sync_ms != 0 for life in lives):
            self.history.repaired.add(family)  # by a power cut, whatever it was stopped for

    # The last look

    def drain(self) -> None:
        """Take what is there, as far as queues can be read; repair those that cannot."""
        for _ in range(STARTS_MAX):
            if self.server is None:
                self.start()
            assert self.server is not None
            self.server.files.dies_in = 0
            if self.plan.is_timed and not self._await_what_is_held(self.server):
                continue
            if self.plan.says_why:
                self._look_at_reasons(self.server)
            stopped = [name for name in [*self.plan.readers, *self.plan.streams] if not self.drain_one(name)]
            if not stopped:
                self._check_figures()
                return
            assert self.server.collection is not None
            for family in dict.fromkeys(name.partition("+")[0] for name in stopped):
                queue = self.server.collection.families.get(family)
                if queue is None or queue.stopped is None:
                    self.complain(f"{family} does not answer")
                    raise GaveUp
                self._broken[family] = str(queue.stopped)
            self.end_life(KILLED)
        self.complain("a queue cannot be drained")
        raise GaveUp

    def _await_what_is_held(self, server: Server) -> bool:
        """Nothing waits for its time longer than it may; False when the server has died meanwhile."""
        until_us = self.schedule.now_us + HOLD_US_MAX
        while (held := self._held(server)) and self.server is server:
            if self.schedule.now_us > until_us:
                self.complain(f"still waits for its time: {', '.join(held)}")
                raise GaveUp
            self.run_for(100_000)
        if LATE in self.plan.readers and self.server is server:
            self._check_origins(server)
        return self.server is server

    def _held(self, server: Server) -> list[str]:
        """The readers that hold something back."""
        assert server.collection is not None
        readers = server.collection.readers.values()
        return [
            reader.name
            for reader in readers
            if reader.held is not None and (reader.held.later or reader.held.leases) and reader.queue.stopped is None
        ]

    def _check_origins(self, server: Server) -> None:
        """What was moved because it had failed or expired says where it comes from, and how often it was tried."""
        assert server.collection is not None
        reader = server.collection.readers.get(LATE)
        excused = self.history.damaged | self.history.repaired | self.history.stopped
        if reader is None or reader.queue.stopped is not None or LATE in excused:
            return
        queue, limits = reader.queue, self.plan.rules.max_retries
        try:
            records = read_range(queue, reader.head(), 1 << 20)
        except JournalCorrupt as problem:
            queue.stop(problem)
            return
        for record in records:
            mark = NUMBER.match(item_data(record))
            put = self.history.puts.get(int(mark[1])) if mark else None
            if put is None or put.name == LATE:
                continue
            self.add("dead letters looked at")
            origin = queue.origins.get(item_id(record))
            if origin is None:
                self.complain(f"item {put.number} does not say where it was before it came to {LATE}")
            elif origin.queue.partition("+")[0] != put.family:
                self.complain(f"item {put.number} of {put.name} says that it was in {origin.queue}")
            elif origin.reason == Reason.MOVED and origin.attempts <= limits.get(put.family, 0):
                self.complain(f"item {put.number} says that it has failed {origin.attempts} times")

    def _look_at_reasons(self, server: Server) -> None:
        """Why items have failed that wait."""
        assert server.collection is not None
        for reader in server.collection.readers.values():
            if reader.queue.stopped is not None:
                continue
            held = reader.held
            ready = [held.ready.get(one) or b"" for one in held.ready] if held is not None else []
            records = [held.record_of(value) for value in ready if held is not None and held.is_in_memory(value)]
            for record in [*reader.window, *records]:
                mark = NUMBER.match(item_data(record))
                put = self.history.puts.get(int(mark[1])) if mark else None
                if put is not None:
                    failure = reader.queue.failure_of(reader.number, item_id(record))
                    self.history.reasons.append((reader.name, put, failure))

    def drain_one(self, name: str) -> bool:
        """Take all that a queue has; False when it is stopped."""
        while True:
            talk = self.ask([read(name) for _ in range(20)])
            if talk is None or talk.errors:
                return False
            talk.close(abruptly=False)
            if talk.items < 20:
                return True

    def _check_figures(self) -> None:
        """An empty queue has nothing left in its books, and these had never to be set right."""
        assert self.server is not None
        assert self.server.collection is not None
        for name in self.plan.readers:  # a repair may have had to add others
            reader = self.server.collection.readers[name]
            reader.queue.flush_counters()
            figures = [reader.items, reader.data_bytes, reader.mem_bytes, reader.open_bytes, len(reader.open)]
            if (held := reader.held) is not None:
                # What expired in a commit that failed is said by the next one, if there is one.
                unsaid = {item_id(record) for records in reader.gone.values() for record in records}
                figures += [len(held.later), len(held.ready), len(held.leases), len(held.out.keys() - unsaid)]
                figures += [held.data_bytes, held.ready_bytes, held.memory_bytes, len(held.unnoted)]
            if any(figures):
                self.complain(f"{name} is empty, and has in its books: {figures}")
        # Without a journal to say so in gets go on, and the segments of what they took may go too. Of one that is
        # not synced, a power cut may take what was done and leave that the segments are gone.
        lives = self.history.lives
        excused = self.history.damaged.union(*(life.faulty_since for life in lives))
        cut = {family for family in self.plan.modes if any(life.lost(family) for life in lives)}
        excused.update(family for life in lives for family in cut if life.modes[family].sync_ms != 0)
        for line in self.server.log:
            if "corrected" in line and line.partition("+")[0].partition(":")[0] not in excused:
                self.complain(line)


def family_of(path: str) -> str:
    """The family whose journal a path is in."""
    return path.partition(".journal/")[0].rpartition("/")[2]
