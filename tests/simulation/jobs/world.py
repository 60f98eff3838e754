"""A run of jobs: clients, servers that live and die, and what goes wrong; all of it from one integer."""

import errno
import traceback
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Final

from kestreld.errors import SpoolUnusable
from kestreld.journal.job_repair import repair_job_log
from kestreld.journal.segment import UNSYNCED_MARK
from tests.simulation.disk import Disk, random_power_cut
from tests.simulation.history import KILLED, POWER_CUT, STOPPED, History, Life, Mode
from tests.simulation.host import GaveUp
from tests.simulation.jobs.books import FAMILY, Books
from tests.simulation.jobs.checker import JobChecker
from tests.simulation.jobs.clients import Client
from tests.simulation.jobs.plan import JobPlan, draw, redraw, small_steps
from tests.simulation.jobs.server import JobServer
from tests.simulation.plan import SPOOL
from tests.simulation.planted import CAN_BE_PLANTED
from tests.simulation.process_files import CHANGES, KINDS, Faults, ProcessFiles
from tests.simulation.schedule import Schedule
from tests.simulation.world import STEPS_MS, Outcome
from tests.support.mortal_files import Killed

FAULTS: Final = (("write",), ("sync",), ("sync", "sync_dir"), ("create", "rename"), tuple(sorted(CHANGES)), KINDS)
STARTS_MAX: Final = 30
PATIENCE_US: Final = 180_000_000
STOP_US: Final = 4_000_000
CONTROLLED: Final = "controlled restart"
FOLDER: Final = f"{SPOOL}/.jobs"
FETCHED_AT_ONCE: Final = 50
SWITCHED_EVERY: Final = 5  # runs


def run(seed: int, trace: Callable[[str], None] | None = None) -> Outcome:
    """The run of that seed; `trace` is told what happens, line by line."""
    world = JobWorld(seed, trace)
    if not CAN_BE_PLANTED:
        return world.run()
    with small_steps(world.plan):
        return world.run()


class JobWorld:
    """One run."""

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.plan: JobPlan = draw(self._chance("plan"))
        self.plan.is_switched = seed % SWITCHED_EVERY == SWITCHED_EVERY - 1
        self.schedule = Schedule()
        self.history = History()
        self.books = Books(self.history)
        self.disk = Disk()
        self.faults = Faults(self._chance("faults"))
        self.faults.struck = self._struck
        self._has_unnoted_sync = False  # one has failed of which the server has yet to make a note
        self._is_unmarked = False  # a server has ended that could not make a note of one
        self.server: JobServer | None = None
        self.is_open = False
        self.numbers = count(1)
        self.figures: dict[str, int] = {}
        self.trace = None if trace is None else lambda line: trace(f"{self.schedule.now_us / 1000:12.3f} {line}")
        self._fate = self._chance("fate")
        self._how_it_dies = KILLED
        self._clients: list[Client] = []
        self._overseer = Client(self, "overseer", self._chance("overseer"))
        self._fetched_us = 0

    def _chance(self, what: str) -> Random:
        return Random(f"{self.seed} jobs {what}")

    def say(self, line: str) -> None:
        if self.trace is not None:
            self.trace(f"-- {line}")

    def complain(self, words: str) -> None:
        self.history.problems.append(f"at {self.schedule.now_us}: {words}")

    def add(self, what: str, times: int = 1) -> None:
        """To the figures of the run."""
        self.figures[what] = self.figures.get(what, 0) + times

    def run(self) -> Outcome:
        """From the first start to the last check."""
        self.say(f"plan {self.plan}")
        try:
            self._live()
        except GaveUp:
            pass
        except Exception:  # noqa: BLE001 - whatever it is, it is what this run has found
            self.complain(traceback.format_exc())
        lives = self.history.lives
        if lives and lives[-1].ended_us < 0:
            lives[-1].ended_us = self.schedule.now_us
        violations = self.history.problems
        if not violations:
            violations = JobChecker(self.books, self.plan, self._fetched_us).violations()
        self.add("jobs", sum(job.answered is not None for job in self.books.jobs.values()))
        self.add("deliveries", sum(len(job.handouts) for job in self.books.jobs.values()))
        self.add("looks", len(self.books.probes))
        self.add("times without a log", len(self.books.without_log))
        self.add("starts", len(lives))
        self.add("virtual seconds", self.schedule.now_us // 1_000_000)
        self.add("events", self.schedule.events)
        return Outcome(self.seed, violations, self.figures)

    def _live(self) -> None:
        files = ProcessFiles(self.disk)
        files.make_dir(SPOOL)
        for path in ("/", SPOOL):
            files.sync_dir(path)
        self._clients = [Client(self, kind, self._chance(f"client {n}")) for n, kind in enumerate(self.plan.clients)]
        for life in range(self.plan.lives):
            self._start()
            self.is_open = True
            self._plan_trouble()
            self._run_for(int(self._fate.uniform(200, 3000)) * 1000)
            self.is_open = False
            if life + 1 < self.plan.lives or self._fate.random() < 0.5:
                self._end_life(self._fate.choice([KILLED, KILLED, POWER_CUT, POWER_CUT, STOPPED, CONTROLLED]))
        self._settle()
        self._fetch_all()
        self._end_life(self._fate.choice([KILLED, POWER_CUT, STOPPED]))
        self._start()
        self._fetch_all()
        self._end_life(STOPPED)

    # Time

    def _run_for(self, time_us: int) -> None:
        self.schedule.run(self.schedule.now_us + time_us, lambda: self.server is None)

    def _wait_until(self, enough: Callable[[], bool], what: str) -> None:
        self.schedule.run(self.schedule.now_us + PATIENCE_US, lambda: enough() or self.server is None)
        if not enough() and self.server is not None:
            self.complain(f"waited in vain for {what}")
            raise GaveUp

    # Starts

    def _start(self) -> None:
        """Start servers until one is up and has loaded its jobs; then look at these."""
        for _ in range(STARTS_MAX):
            self._boot()
            server = self.server
            if server is not None:
                self._wait_until(lambda server=server: not server.storage.is_loading, "the jobs")  # type: ignore[misc]
            if self.server is None:
                continue
            assert server is not None
            if server.storage.stopped is not None:
                self._repair_log(str(server.storage.stopped))
                continue
            self.books.loaded_us[server.life.number] = self.schedule.now_us
            if self._look():
                return
        self.complain("it does not start")
        raise GaveUp

    def _boot(self) -> None:
        """Start one server, which may die of it."""
        number = len(self.history.lives) + 1
        life = Life(number, self.schedule.now_us, {FAMILY: Mode(sync_ms=self.plan.sync_ms)})
        self.history.lives.append(life)
        self.books.begin(life)
        self.say(f"life {number}: {life.modes}")
        config = self.plan.config()
        server = self.server = JobServer(
            self.schedule, self.history, life, self.disk, self.faults, config, self.plan.config,
            self._chance(f"life {number}"), self._died, self.trace,
        )  # fmt: skip
        server.files.created = self._created
        if self._fate.random() < 0.15:
            self._dies_soon(self._fate.randint(1, 20))
        try:
            server.start()
        except Killed:
            self._died()
        except (OSError, SpoolUnusable) as problem:
            self.say(f"does not start: {problem}")
            if not self.faults.failed:
                self.complain(f"does not start: {problem}")
            self._heal()
            self._over(KILLED)

    def _repair_log(self, why: str) -> None:
        """The log cannot be read. Where a power cut may have left it so an operator repairs it."""
        self.say(f"the log is stopped: {why}")
        assert self.server is not None
        if FAMILY in self.server.life.faulty_since:
            self._heal()
            self._over(KILLED)
            return
        # A hole in what was not on disk yet looks like damage where no SYNC tells; nothing that was synced is missing.
        has_hole = self._was_cut() and "intact records follow" in why
        # Where a sync has failed, and so did the note of it, the next process has believed what is not on disk.
        is_unmarked = self._was_cut() and self._is_unmarked
        if not (has_hole or is_unmarked or self._has_lost_unsynced()):
            self.complain(f"the log was stopped: {why}")
            raise GaveUp
        self.add("logs repaired")
        clock = self.server.clock
        self._over(KILLED)
        report = repair_job_log(ProcessFiles(self.disk), clock, FOLDER)
        if not report.kept_at:
            self.complain(f"the repair found nothing wrong where the log was stopped: {why}")
            raise GaveUp
        self.books.repaired.append(len(self.history.lives) + 1)
        if not has_hole or self._has_lost_unsynced():
            self.books.sound_from = len(self.history.lives) + 1

    def _was_cut(self) -> bool:
        """Whether the power was cut since a server last had its jobs."""
        last = max(self.books.loaded_us, default=0)
        return any(life.how == POWER_CUT for life in self.history.lives if life.number >= last)

    def _has_lost_unsynced(self) -> bool:
        """Whether it was, where not all need have been synced."""
        return self._was_cut() and any(life.modes[FAMILY].sync_ms != 0 for life in self.history.lives[:-1])

    def _look(self) -> bool:
        """Have the overseer look at all jobs; False where that could not be."""
        before = len(self.books.probes)
        return self._oversee(self._overseer.probe) and len(self.books.probes) > before

    def _oversee(self, ask: Callable[[], None]) -> bool:
        """Have the overseer ask for something; whether there was an answer."""
        for _ in range(20):
            if self.server is not None and self._overseer.connect():
                talk = self._overseer.talk
                assert talk is not None
                ask()
                self._wait_until(lambda talk=talk: talk.over or not talk.pending, "an answer")  # type: ignore[misc]
                if not talk.over:
                    return True
            if self.server is None:
                return False
            self._run_for(50_000)
        return False

    # Ends

    def _died(self) -> None:
        """Killed in the middle of a call."""
        self.add("deaths in a call")
        self._over(self._how_it_dies)

    def _end_life(self, how: str) -> None:
        server = self.server
        if server is None:
            return
        if how == CONTROLLED and self.books.off_in(server.life) is not None:
            how = STOPPED  # CONFIG REWRITE would save that there is no log
        if how not in (STOPPED, CONTROLLED) or not server.is_up:
            self._over(how if how == POWER_CUT else KILLED)
            return
        if how == CONTROLLED:
            self._run_for(400_000)  # nobody waits for a job any more
            self._look()
            if self.server is not server:
                return
            self._stop_for_restart()
        else:
            self.say("SIGTERM")
            server.loop.run(server.shutdown)
        self._wait_until(lambda: server.has_stopped, "the end of a shutdown")
        if self.server is None:
            return
        server.files.takes_too_long = self._fate.random() < 0.1
        try:
            server.close(STOP_US)
        except Killed:
            self._died()
            return
        is_in_order = not server.files.takes_too_long and FAMILY not in server.life.faulty_since
        self._over(STOPPED if is_in_order else KILLED)
        if is_in_order and how == CONTROLLED:
            self.add("controlled restarts")
            self.books.controlled.add(len(self.history.lives) + 1)
        if is_in_order and self._fate.random() < 0.4:
            self._cut_after_stop()

    def _stop_for_restart(self) -> None:
        """As an operator does."""
        server, overseer = self.server, self._overseer
        assert server is not None
        for words in ((b"CONFIG", b"SET", b"aof-enqueue-jobs-once", b"yes"), (b"CONFIG", b"REWRITE")):
            self._oversee(lambda words=words: overseer.command(*words))  # type: ignore[misc]
        if self.server is server and overseer.connect():
            self.say("SHUTDOWN REWRITE-AOF")
            overseer.command(b"SHUTDOWN", b"REWRITE-AOF")
            talk = overseer.talk
            assert talk is not None
            self._wait_until(lambda: talk.over or not talk.pending or server.has_stopped, "the end of a shutdown")
        if self.server is server and not server.has_stopped:
            server.loop.run(server.shutdown)  # the disk did not let it save the jobs, or it is under way

    def _cut_after_stop(self) -> None:
        """What is on disk after a stop does not need the machine any more."""
        self.say("the power is cut")
        self.add("power cuts after a stop")
        self.disk = self._cut_power()
        self.disk.locked.clear()

    def _over(self, how: str) -> None:
        """The process is gone."""
        server = self.server
        assert server is not None
        server.end(power_cut=how == POWER_CUT)
        server.life.ended_us, server.life.how = self.schedule.now_us, how
        self._is_unmarked, self._has_unnoted_sync = self._is_unmarked or self._has_unnoted_sync, False
        self.add(how)
        self.say(f"life {server.life.number} {how}")
        self.server = None
        if how == POWER_CUT:
            self.disk = self._cut_power()
        self.disk.locked.clear()
        self.schedule.now_us += self._fate.choice([1000, 100_000, 1_500_000])
        if self._fate.random() < 0.25:
            redraw(self.plan, self._fate)

    def _cut_power(self) -> Disk:
        return random_power_cut(self.disk, self._fate)

    # The last look

    def _settle(self) -> None:
        """All is well again: every client gets its answers, and leaves."""
        self._heal()
        self.faults.short_writes = 0
        for _ in range(STARTS_MAX):
            if self.server is None:
                self._start()
            assert self.server is not None
            self.server.files.dies_in = 0
            self._wait_until(lambda: all(client.is_idle for client in self._clients), "the clients' last answers")
            if self.server is not None:
                break
        for client in self._clients:
            client.leave()
        self._run_for(2_500_000)  # the log takes what the disk has refused

    def _fetch_all(self) -> None:
        """Fetch and acknowledge all there is, until everything has had its time to come."""
        overseer, plan = self._overseer, self.plan
        delays_s = [job.delay_s for job in self.books.jobs.values()]
        until_us = self.schedule.now_us + (plan.wait_max_ms + 1500 + 1000 * max(delays_s, default=0)) * 1000
        for _ in range(STARTS_MAX):
            if self.server is None:
                self._start()
            assert self.server is not None
            server = self.server
            server.files.dies_in = 0
            for queue in plan.all_queues:
                self._oversee(lambda queue=queue: overseer.command(b"PAUSE", queue, b"none"))  # type: ignore[misc]
            while self.server is server and self.schedule.now_us < until_us:
                if not self._fetch_some():
                    self._run_for(200_000)
            if self.server is server:
                self._fetched_us = self.schedule.now_us
                self._look()
                return
        self.complain("the jobs cannot be fetched")
        raise GaveUp

    def _fetch_some(self) -> bool:
        """Whether there was any job."""
        overseer = self._overseer
        options: list[bytes | int] = [b"NOHANG", b"COUNT", FETCHED_AT_ONCE]
        self._oversee(lambda: overseer.fetch(options, self.plan.all_queues, has_details=True))
        held = overseer.take_held()
        for one in held:
            if not self._oversee(lambda one=one: overseer.ask(overseer.act("ack", one.job_id), b"ACKJOB", one.job_id)):  # type: ignore[misc]
                return False
        return bool(held)

    # Fate

    def _struck(self, kind: str, path: str) -> None:
        """A call has failed."""
        self.add("failed calls")
        self.say(f"{kind} of {path} fails")
        self._has_unnoted_sync = self._has_unnoted_sync or kind == "sync"
        if self.server is not None:
            self.server.life.faulty_since.setdefault(FAMILY, self.schedule.now_us)

    def _created(self, path: str) -> None:
        """New segments are rare, and so would be deaths between one and what follows."""
        if path.endswith(UNSYNCED_MARK):
            self._has_unnoted_sync = False
        if self.is_open and self._fate.random() < 0.04:
            self._dies_soon(self._fate.randint(1, 6))

    def _dies_soon(self, changes: int) -> None:
        assert self.server is not None
        self.server.files.dies_in = changes
        self._how_it_dies = self._fate.choice([KILLED, POWER_CUT])

    def _plan_trouble(self) -> None:
        plan, fate, server = self.plan, self._fate, self.server
        assert server is not None
        server.disk_delay_us = fate.choice([200, 3000, 3000, 150_000])
        if fate.random() < 0.3:
            self._later(lambda: self._dies_soon(fate.randint(1, 30)), server)
        if plan.disk_fails and fate.random() < 0.6:
            self._later(self._disk_fails, server)
        if plan.disk_fills and fate.random() < 0.6:
            self._later(self._disk_fills, server)
        if plan.clock_steps and fate.random() < 0.7:
            self._later(self._step_clock, server)
        self.faults.short_writes = fate.choice([0, 0, 0.1])

    def _later(self, trouble: Callable[[], None], server: JobServer) -> None:
        def strike() -> None:
            if self.server is server and self.is_open:
                trouble()

        self.schedule.after(int(self._fate.uniform(0, 2000)) * 1000, strike)

    def _disk_fails(self) -> None:
        fate, faults = self._fate, self.faults
        faults.error = fate.choice([errno.EIO, errno.EIO, errno.ENOSPC])
        faults.kinds = frozenset(fate.choice(FAULTS))
        faults.probability = fate.choice([0.02, 0.2, 1.0])
        self.say(f"the disk begins to fail: {sorted(faults.kinds)} {faults.probability}")
        self.schedule.after(int(fate.uniform(1, 1500)) * 1000, self._heal)

    def _disk_fills(self) -> None:
        self.disk.capacity_bytes = self.disk.used_bytes() + self._fate.choice([0, 100, 1000])
        self.say("the disk fills")
        self.schedule.after(int(self._fate.uniform(1, 2000)) * 1000, self._heal)

    def _heal(self) -> None:
        self.say("the disk is well")
        self.faults.heal()
        self.disk.capacity_bytes = None

    def _step_clock(self) -> None:
        step_ms = self._fate.choice(STEPS_MS)
        self.history.steps.append((self.schedule.now_us, self.history.steps[-1][1] + step_ms))
        self.say(f"the clock steps by {step_ms} ms")
