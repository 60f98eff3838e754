"""What goes wrong in a run of a cluster, one thing or several at once, and how each of it ends."""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from tests.simulation.cluster.machine import Machine
from tests.simulation.cluster.watching import DISK_LOST
from tests.simulation.history import KILLED, POWER_CUT
from tests.simulation.process_files import CHANGES, KINDS

if TYPE_CHECKING:
    from tests.simulation.cluster.world import ClusterWorld

FAULTS: Final = (("write",), ("sync",), ("sync", "sync_dir"), ("create", "rename"), tuple(sorted(CHANGES)), KINDS)
STEPS_MS: Final = (-3_600_000, -5_000, -500, 500, 5_000, 7_200_000)
DELAYS_US: Final = (5_000, 60_000, 300_000)


@dataclass(slots=True)
class LinkSpan:
    """When something was wrong with a link; `until_us` -1 = it still is."""

    hosts: frozenset[str]
    since_us: int
    until_us: int = -1


class Troubles:
    """Draws what happens, and has it done to the machines of a world.

    `spans` are from when something was wrong until all nodes knew each other and were up again; the last one may be
    open (-1).
    """

    def __init__(self, world: "ClusterWorld", chance: Random) -> None:
        self._world = world
        self._chance = chance
        self.spans: list[tuple[int, int]] = []
        self.on_links: list[LinkSpan] = []
        self.active = 0  # not over yet
        self.worst_delay_us = 0
        self.stepped: set[str] = set()  # hosts whose system clocks were set

    # Spans

    def begins(self) -> None:
        """From now on something is wrong."""
        if not self.spans or self.spans[-1][1] >= 0:
            self.spans.append((self._world.schedule.now_us, -1))

    def is_over(self) -> None:
        """All is well, as far as can be seen."""
        if self.spans and self.spans[-1][1] < 0:
            self.spans[-1] = (self.spans[-1][0], self._world.schedule.now_us)

    def was_trouble(self, from_us: int, until_us: int, aftermath_us: int = 0) -> bool:
        """Whether anything was wrong in between."""
        return any(
            since_us <= until_us and (end_us < 0 or end_us + aftermath_us >= from_us) for since_us, end_us in self.spans
        )

    # What happens

    def plan(self, kinds: tuple[str, ...], count: int, within_ms: int) -> None:
        """Have so many things go wrong in that time."""
        for _ in range(count):
            at_us = int(self._chance.uniform(0, within_ms)) * 1000
            kind = self._chance.choice(kinds)
            span_us = int(min(self._chance.expovariate(1 / 2500), 9000) + 50) * 1000
            self._world.schedule.after(at_us, self._strike, kind, span_us)

    def _strike(self, kind: str, span_us: int) -> None:
        world = self._world
        if not world.is_open:
            return
        machine = self._chance.choice(world.machines)
        undo = _KINDS[kind](self, machine)
        world.say(f"{kind} at {machine.name} for {span_us // 1000} ms" if undo else f"{kind} comes to nothing")
        if undo is None:
            return
        self.begins()
        self.active += 1
        world.count(kind)

        def end() -> None:
            self.active -= 1
            world.say(f"the end of {kind} at {machine.name}")
            undo()

        world.schedule.after(span_us, end)

    def _other(self, machine: Machine) -> Machine:
        return self._chance.choice([one for one in self._world.machines if one is not machine])

    # Links

    def _cut(self, *ways: tuple[str, str]) -> Callable[[], None]:
        fabric = self._world.fabric
        ways = tuple(way for way in ways if way not in fabric.cut)
        for way in ways:
            fabric.cut_way(*way)
        end = self._begin_on_links(*ways)

        def undo() -> None:
            for way in ways:
                fabric.cut.discard(way)
            self._world.go_on_wires()
            end()

        return undo

    def _begin_on_links(self, *ways: tuple[str, str]) -> Callable[[], None]:
        """Something is wrong with these links until what is returned is called."""
        spans = [LinkSpan(frozenset(way), self._world.schedule.now_us) for way in ways]
        self.on_links += spans

        def end() -> None:
            for span in spans:
                span.until_us = self._world.schedule.now_us

        return end

    def was_on_link(self, one: str, other: str, from_us: int, until_us: int) -> bool:
        """Whether something was wrong with the link between two hosts in between."""
        hosts = frozenset((one, other))
        return any(
            span.hosts == hosts and span.since_us <= until_us and not 0 <= span.until_us < from_us
            for span in self.on_links
        )

    def _cut_link(self, machine: Machine) -> Callable[[], None]:
        other = self._other(machine)
        return self._cut((machine.host, other.host), (other.host, machine.host))

    def _cut_one_way(self, machine: Machine) -> Callable[[], None]:
        other = self._other(machine)
        ways = [(machine.host, other.host)]
        if self._chance.random() < 0.5:
            ways = [(machine.host, one.host) for one in self._world.machines if one is not machine]
        return self._cut(*ways)

    def _part(self, machine: Machine) -> Callable[[], None]:
        machines = self._world.machines
        count = self._chance.randint(1, len(machines) // 2)
        inside = {machine.host, *[one.host for one in self._chance.sample(machines, count - 1)]}
        hosts = [one.host for one in machines]
        return self._cut(*[(a, b) for a in hosts for b in hosts if (a in inside) != (b in inside)])

    def _break(self, machine: Machine) -> Callable[[], None]:
        others = [one for one in self._world.machines if one is not machine]
        for other in others if self._chance.random() < 0.3 else [self._chance.choice(others)]:
            self._world.fabric.break_links(machine.host, other.host)
            self._begin_on_links((machine.host, other.host))()
        return lambda: None

    def _delay(self, machine: Machine) -> Callable[[], None]:
        fabric, delay_us = self._world.fabric, self._chance.choice(DELAYS_US)
        others = [one for one in self._world.machines if one is not machine]
        ways = [(machine.host, self._chance.choice(others).host)]
        if self._chance.random() < 0.5:
            ways += [(one.host, machine.host) for one in others]
        for way in ways:
            fabric.delays_us[way] = delay_us
        self.worst_delay_us = max(self.worst_delay_us, delay_us)
        end = self._begin_on_links(*ways)

        def undo() -> None:
            end()
            for way in ways:
                fabric.delays_us.pop(way, None)

        return undo

    # Processes

    def _down(self, machine: Machine, how: str) -> Callable[[], None] | None:
        world, chance = self._world, self._chance
        server = machine.server
        if server is None or machine.is_stopped:
            return None
        loses_disk = chance.random() < 0.1
        machine.how_it_dies = how
        if chance.random() < 0.6 and not loses_disk:
            # In the middle of a call, maybe of one that a message leads to; else in a while.
            if chance.random() < 0.5:
                machine.dies_at_message = True
            else:
                server.files.dies_in = chance.choice([1, 1, 2, 3, 8])

            def at_last() -> None:
                machine.dies_at_message = False
                if machine.server is server:
                    world.over(machine, how)

            world.schedule.after(chance.randint(100_000, 1_500_000), at_last)
        else:
            world.over(machine, DISK_LOST if loses_disk else how)

        def undo() -> None:
            if machine.server is server:
                world.over(machine, how)
            world.start(machine)

        return undo

    def _kill(self, machine: Machine) -> Callable[[], None] | None:
        return self._down(machine, KILLED)

    def _cut_power(self, machine: Machine) -> Callable[[], None] | None:
        return self._down(machine, POWER_CUT)

    def _kill_all(self, machine: Machine) -> Callable[[], None] | None:
        world = self._world
        chance, how = self._chance, self._chance.choice([KILLED, POWER_CUT])
        for one in world.machines:
            if one.server is not None:
                one.how_it_dies = how
                if chance.random() < 0.4:
                    one.dies_at_message = True  # if one comes within the blink of an eye
                    world.schedule.after(chance.randint(1, 30_000), self._down_by_now, one, one.server, how)
                else:
                    world.over(one, how)
                world.schedule.after(chance.randint(100_000, 3_000_000), world.start, one)
        return lambda: None

    def _down_by_now(self, machine: Machine, server: object, how: str) -> None:
        if machine.server is server:
            self._world.over(machine, how)

    def _restart(self, machine: Machine) -> Callable[[], None] | None:
        """SIGTERM, and a start."""
        if not machine.serves:
            return None
        self._world.shut_down(machine)
        return lambda: self._world.start(machine)

    def _stop(self, machine: Machine) -> Callable[[], None] | None:
        if not machine.is_up:
            return None
        machine.stop()
        return machine.go_on

    # Disks and clocks

    def _slow_disk(self, machine: Machine) -> Callable[[], None]:
        machine.set_disk_delay(self._chance.choice([30_000, 400_000]))
        return lambda: machine.set_disk_delay(200)

    def _disk_fails(self, machine: Machine) -> Callable[[], None]:
        chance, faults = self._chance, machine.faults
        faults.error = chance.choice([errno.EIO, errno.EIO, errno.ENOSPC])
        faults.kinds = frozenset(chance.choice(FAULTS))
        faults.probability = chance.choice([0.05, 0.3, 1.0])
        machine.was_disk_bad = True
        return machine.heal_disk

    def _disk_fills(self, machine: Machine) -> Callable[[], None]:
        machine.was_disk_bad = True
        machine.disk.capacity_bytes = machine.disk.used_bytes() + self._chance.choice([0, 100, 1000])
        return machine.heal_disk

    def _clock(self, machine: Machine) -> Callable[[], None]:
        step_ms = self._chance.choice(STEPS_MS)
        machine.step_clock(step_ms)
        self.stepped.add(machine.host)
        self._world.say(f"the clock of {machine.name} is set by {step_ms} ms")
        return lambda: None

    # Operators

    def _leave(self, machine: Machine) -> Callable[[], None] | None:
        operator = self._world.operator
        if not operator.tell(machine, b"CLUSTER", b"LEAVING", b"yes"):
            return None

        def undo() -> None:
            operator.tell(machine, b"CLUSTER", b"LEAVING", b"no")

        return undo

    def _forget(self, machine: Machine) -> Callable[[], None] | None:
        """As one that has failed for good; or by mistake."""
        world, chance = self._world, self._chance
        others = [one for one in world.machines if one is not machine and one.is_up]
        everywhere = chance.random() < 0.6
        is_down = everywhere and machine.server is not None and not machine.is_stopped and chance.random() < 0.5
        if is_down:
            world.over(machine, KILLED)
        for other in others if everywhere else others[:1]:
            world.operator.tell(other, b"CLUSTER", b"FORGET", machine.node_id)

        def undo() -> None:
            if is_down:
                world.start(machine)
            world.mend_tables()

        return undo

    def _reset(self, machine: Machine) -> Callable[[], None] | None:
        kind = self._chance.choice([b"SOFT", b"HARD"])
        if not self._world.operator.tell(machine, b"CLUSTER", b"RESET", kind):
            return None
        return self._world.mend_tables

    def _reload(self, machine: Machine) -> Callable[[], None] | None:
        if not self._world.plan.nodes[machine.number].has_log:
            return None
        if not self._world.operator.tell(machine, b"DEBUG", b"LOADAOF"):
            return None
        return lambda: None

    def _flush(self, machine: Machine) -> Callable[[], None] | None:
        if not self._world.operator.tell(machine, b"DEBUG", b"FLUSHALL"):
            return None
        return lambda: None

    def _memory(self, machine: Machine) -> Callable[[], None] | None:
        """Over 75 % of what there may be, so that it takes no copies."""
        if not machine.serves or machine.server is None:
            return None
        used_bytes = machine.server.node.jobs.memory.used_bytes
        operator = self._world.operator
        operator.tell(machine, b"CONFIG", b"SET", b"maxmemory", int(used_bytes / 0.78))

        def undo() -> None:
            operator.tell(machine, b"CONFIG", b"SET", b"maxmemory", 1 << 30)

        return undo


_KINDS: Final = {
    "cut": Troubles._cut_link,
    "cut one way": Troubles._cut_one_way,
    "part": Troubles._part,
    "break": Troubles._break,
    "delay": Troubles._delay,
    "kill": Troubles._kill,
    "power": Troubles._cut_power,
    "kill all": Troubles._kill_all,
    "restart": Troubles._restart,
    "stop": Troubles._stop,
    "slow disk": Troubles._slow_disk,
    "disk fails": Troubles._disk_fails,
    "disk fills": Troubles._disk_fills,
    "clock": Troubles._clock,
    "leave": Troubles._leave,
    "forget": Troubles._forget,
    "reset": Troubles._reset,
    "reload": Troubles._reload,
    "memory": Troubles._memory,
    "flush": Troubles._flush,
}
