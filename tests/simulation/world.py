"""A run: clients, servers that live and die, and what goes wrong; all of it from one integer."""

import errno
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from tests.simulation.bindings import Binder
from tests.simulation.checker import Checker
from tests.simulation.clients import Client
from tests.simulation.declaring import NAMES, Declarer
from tests.simulation.disk import Disk, random_power_cut
from tests.simulation.history import KILLED, POWER_CUT, STOPPED, Life, Mode
from tests.simulation.host import STARTS_MAX, STOP_US, GaveUp, Host, family_of
from tests.simulation.imports import kestrel_files
from tests.simulation.overseer import Operator
from tests.simulation.plan import (
    BOUND_FROM,
    DECLARED_FROM,
    LISTED_FROM,
    PRESENT_FROM,
    REASONED_FROM,
    TIMED_FROM,
    Plan,
    add_feeder,
    add_holders,
    add_lists,
    add_times,
    draw,
)
from tests.simulation.process_files import CHANGES, KINDS, ProcessFiles
from tests.simulation.server import Server
from tests.simulation.streams import Follower

FAULTS: Final = (("write",), ("sync",), ("sync", "sync_dir"), ("create", "rename"), tuple(sorted(CHANGES)), KINDS)
COMPACTING: Final = "/compacting.seg.new"
STEPS_MS: Final = (-864_000_000, -3_600_000, -500, 500, 1500, 7_200_000)


@dataclass(slots=True)
class Outcome:
    """What became of a run."""

    seed: int
    violations: list[str]
    figures: dict[str, int] = field(default_factory=dict)


def run(seed: int, trace: Callable[[str], None] | None = None) -> Outcome:
    """The run of that seed; `trace` is told what happens, line by line."""
    return World(seed, trace).run()


def plan_of(seed: int) -> Plan:
    """What a seed decides beforehand. Those below TIMED_FROM are what they were before items had times."""
    plan, aside = draw(Random(f"{seed} plan")), Random(f"{seed} times")
    if seed >= LISTED_FROM:
        add_feeder(plan, Random(f"{seed} feeder"))
    if seed >= TIMED_FROM and aside.random() < 0.8:
        add_times(plan, aside)
        plan.says_why = seed >= REASONED_FROM
        if seed >= LISTED_FROM:
            add_lists(plan, Random(f"{seed} lists"))
        if seed >= PRESENT_FROM:
            add_holders(plan, Random(f"{seed} holders"))
    if seed >= DECLARED_FROM:
        plan.declares = True
        plan.modes |= {name: Mode(sync_ms=None) for name in NAMES}
    return plan


class World(Host):
    """One run."""

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        def chance(what: str) -> Random:
            return Random(f"{seed} {what}")

        super().__init__(plan_of(seed), chance, trace)
        self.seed = seed
        self.is_open = False
        self._fate = chance("fate")
        self._aside = chance("aside")
        self._ends = chance("ends")
        self._clients: list[Client] = []
        self._followers: dict[str, Follower] = {}
        self._binder: Binder | None = None

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
        violations = Checker(self.history, self.plan.rules).violations()
        self.add("puts", sum(put.outcome == "stored" for put in self.history.puts.values()))
        self.add("deliveries", len(self.history.deliveries))
        if self.plan.is_timed:
            self.add("leases", len(self.history.leases))
            self.add("tokens shown", sum(len(one.changes) for one in self.history.leases))
            self.add("tokens made up", len(self.history.forged))
            self.add("reasons looked at", len(self.history.reasons))
            self.add("delayed puts", sum(put.delay_ms > 0 for put in self.history.puts.values()))
            self.add("puts with keys", sum(bool(put.key) for put in self.history.puts.values()))
        if self.history.presences:
            self.add("presences", len(self.history.presences))
        if self.history.listed:
            self.add("leases from lists", sum(bool(one.reader) for one in self.history.listed))
            self.add("lists found empty", sum(not one.reader for one in self.history.listed))
        self.add("starts", len(lives))
        self.add("virtual seconds", self.schedule.now_us // 1_000_000)
        self.add("events", self.schedule.events)
        return Outcome(self.seed, violations, self.figures)

    def _live(self) -> None:
        self.lay_out()
        if self.plan.has_imports:
            kestrel_files(ProcessFiles(self.disk), self.plan, self.history, self.puts, self._chance("imports"))
        self._clients = [
            Client(self, kind, self._chance(f"client {number}")) for number, kind in enumerate(self.plan.clients)
        ]
        if self.plan.is_timed:
            Operator(self, self._chance("operator"))
        declarer = Declarer(self, self._chance("declarer")) if self.plan.declares else None
        self._followers = {name: Follower(self, name, self._chance(f"stream {name}")) for name in self.plan.streams}
        if self.seed >= BOUND_FROM:
            self._binder = Binder(self, self.connections, self._chance("bindings"))
        for life in range(self.plan.lives):
            self.start()
            if declarer is not None and self.server is not None:
                declarer.look(self.server)
            self.is_open = True
            self._plan_trouble()
            self.run_for(int(self._fate.uniform(200, 2500)) * 1000)
            self.is_open = False
            if life + 1 < self.plan.lives or self._fate.random() < 0.5:
                self.end_life(self._fate.choice([KILLED, KILLED, POWER_CUT, POWER_CUT, STOPPED]))
        self._settle()
        self._look_at_bindings()
        self.drain()  # not after a restart only: that would bring back what was lost in memory
        self.end_life(self._fate.choice([KILLED, POWER_CUT, STOPPED]))
        self.start()
        self._look_at_bindings()
        self.drain()
        self.end_life(STOPPED)

    def _look_at_bindings(self) -> None:
        if self._binder is not None:
            self._binder.look_at_the_end()

    def _settle(self) -> None:
        """All is well again: every client gets its answers, and leaves."""
        self._heal()
        self.faults.short_writes = 0
        for _ in range(STARTS_MAX):
            if self.server is None:
                self.start()
            assert self.server is not None
            self.server.files.dies_in = 0
            self.wait_until(lambda: all(one.is_idle for one in self._asking()), "the clients' last answers")
            if self.server is not None:
                break
        for client in self._asking():
            client.leave()
        self.run_for(2_500_000)
        self._check_writable()

    def _asking(self) -> list[Client | Binder]:
        return [*self._clients, *([self._binder] if self._binder is not None else [])]

    def _check_writable(self) -> None:
        """Once a full disk has room again every queue takes puts, also where nobody has put to it since."""
        collection = self.server.collection if self.server is not None else None
        for queue in list(collection.families.values()) if collection is not None else ():
            failed = queue.journal.failed if queue.journal is not None else None
            if failed is not None and failed.disk_full and queue.stopped is None:
                self.complain(f"{queue.name} takes no puts, and the disk has had room for 2.5 s")

    def drain_one(self, name: str) -> bool:
        return self._followers[name].drain() if name in self._followers else super().drain_one(name)

    # Fate

    def before_start(self, server: Server) -> None:
        if self._fate.random() < 0.15:
            self._dies_soon(self._fate.randint(1, 40))

    def created(self, path: str) -> None:
        """Compactions are rare, and so would be deaths in the middle of one."""
        super().created(path)
        if path.endswith(COMPACTING) and self.is_open and self._fate.random() < 0.2:
            self._dies_soon(self._fate.randint(1, 12))

    def flushed_in_use(self) -> None:
        """A queue is flushed of which somebody holds an item: whether that one survives, a death will tell."""
        if self._aside.random() < 0.5:
            self._dies_soon(self._aside.randint(2, 8))

    def _dies_soon(self, changes: int) -> None:
        assert self.server is not None
        self.server.files.dies_in = changes
        self._how_it_dies = self._fate.choice([KILLED, POWER_CUT])

    def over(self, how: str) -> None:
        super().over(how)
        self.schedule.now_us += self._fate.randint(1000, 300_000)
        if self._fate.random() < 0.3:
            self.plan.redraw_modes(self._fate)

    def stop_time_us(self) -> int:
        assert self.server is not None
        self.server.files.takes_too_long = self._ends.random() < 0.1
        return self._ends.choice([STOP_US] * 5 + [0, 1000, 3000])

    def end_life(self, how: str) -> None:
        super().end_life(how)
        if how == STOPPED and self.server is None and self._ends.random() < 0.4:
            self._cut_after_stop(self.history.lives[-1])

    def _cut_after_stop(self, life: Life) -> None:
        if life.how == STOPPED:
            life.was_last = True  # what is on disk after a stop does not need the machine any more
        else:
            life.how = POWER_CUT
        self.say("the power is cut")
        self.add("power cuts after a stop")
        self.disk = self.cut_power()
        self.disk.locked.clear()

    def cut_power(self) -> Disk:
        disk = random_power_cut(self.disk, self._fate)
        if self.plan.flips_bits and self._fate.random() < 0.5:
            self._flip_a_bit(disk)
        return disk

    def _flip_a_bit(self, disk: Disk) -> None:
        files = [(path, file) for path, file in disk.walk() if path.endswith(".seg") and file.data]
        if files:
            path, file = self._fate.choice(files)
            at = self._fate.randrange(len(file.data))
            file.flip(at * 8 + self._fate.randrange(8))
            # One in the trash may be linked: it is a journal's too.
            links = [link for link, linked in files if linked is file and ".journal/" in link]
            self.history.damaged.update(family_of(link) for link in links)
            self.add("bits flipped")
            self.say(f"a bit flips in {path} at {at}")

    def _plan_trouble(self) -> None:
        plan, fate = self.plan, self._fate
        server = self.server
        assert server is not None
        server.disk_delay_us = fate.choice([200, 3000, 3000, 150_000])
        if fate.random() < 0.4:
            self._later(lambda: self._dies_soon(fate.randint(1, 30)), server)
        if plan.disk_fails and fate.random() < 0.7:
            self._later(self._disk_fails, server)
        if plan.disk_fills and fate.random() < 0.7:
            self._later(self._disk_fills, server)
        if plan.clock_steps and fate.random() < 0.7:
            self._later(self._step_clock, server)
        if fate.random() < 0.1:
            server.network.descriptors_run_out = 0.7
        if plan.halts:
            self._later(self._halt, server)
        self.faults.short_writes = fate.choice([0, 0, 0.1])

    def _later(self, trouble: Callable[[], None], server: Server) -> None:
        def strike() -> None:
            if self.server is server and self.is_open:
                trouble()

        self.schedule.after(int(self._fate.uniform(0, 1500)) * 1000, strike)

    def _halt(self) -> None:
        """SIGSTOP, and SIGCONT a while later."""
        server, now_us = self.server, self.schedule.now_us
        assert server is not None
        until_us = now_us + int(self._aside.uniform(50, 1500)) * 1000
        self.say("the server is stopped")
        self.history.halts.append((now_us, until_us))
        server.loop.stop()
        self.schedule.after(until_us - now_us, self._go_on, server)

    def _go_on(self, server: Server) -> None:
        self.say("the server goes on")
        server.loop.go_on()

    def _disk_fails(self) -> None:
        fate, faults = self._fate, self.faults
        faults.error = fate.choice([errno.EIO, errno.EIO, errno.ENOSPC])
        faults.kinds = frozenset(fate.choice(FAULTS))
        faults.probability = fate.choice([0.02, 0.2, 1.0])
        self.say(f"the disk begins to fail: {sorted(faults.kinds)} {faults.probability}")
        self.schedule.after(int(fate.uniform(1, 500)) * 1000, self._heal)

    def _disk_fills(self) -> None:
        self.disk.capacity_bytes = self.disk.used_bytes() + self._fate.choice([0, 100, 1000])
        self.say("the disk fills")
        self.schedule.after(int(self._fate.uniform(1, 1500)) * 1000, self._heal)

    def _heal(self) -> None:
        self.say("the disk is well")
        self.faults.heal()
        self.disk.capacity_bytes = None

    def _step_clock(self) -> None:
        step_ms = self._fate.choice(STEPS_MS)
        self.history.steps.append((self.schedule.now_us, self.history.steps[-1][1] + step_ms))
        self.say(f"the clock steps by {step_ms} ms")
