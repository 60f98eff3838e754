"""A run of a cluster: nodes that live and die, clients at all of them, what goes wrong; all of it from one integer."""

import traceback
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Final

from kestreld.cluster.job_messages import JobMessage, LendJob, LetGo, ReplJob, SetAck, Stored, YourJobs
from kestreld.cluster.nodes import Flag
from kestreld.errors import SpoolUnusable
from kestreld.journal.job_repair import repair_job_log
from tests.simulation.cluster.books import Act, Books
from tests.simulation.cluster.checker import ClusterChecker
from tests.simulation.cluster.clients import Client
from tests.simulation.cluster.inspecting import Inspector
from tests.simulation.cluster.machine import Machine
from tests.simulation.cluster.operators import Operator
from tests.simulation.cluster.plan import ClusterPlan, draw, small_steps
from tests.simulation.cluster.troubles import Troubles
from tests.simulation.cluster.watching import DISK_LOST, Watch
from tests.simulation.fabric import Fabric
from tests.simulation.history import KILLED, POWER_CUT, STOPPED, Mode
from tests.simulation.host import GaveUp
from tests.simulation.jobs.server import BUS_PORT, PORT, JobServer
from tests.simulation.jobs.world import FOLDER, STOP_US
from tests.simulation.process_files import ProcessFiles
from tests.simulation.schedule import Schedule
from tests.simulation.world import Outcome
from tests.support.mortal_files import Killed

LOOK_US: Final = 100_000  # between looks whether all is well
STORM_MESSAGES: Final = 3000  # between two looks: nodes say some 200 at most where all is as it should be
PATIENCE_US: Final = 60_000_000
QUIET_US: Final = 3_000_000
STARTS_MAX: Final = 40
CHANGING: Final = (ReplJob, YourJobs, SetAck, LendJob, LetGo, Stored)  # what a message leads to that is logged


def run(seed: int, trace: Callable[[str], None] | None = None) -> Outcome:
    """The run of that seed; `trace` is told what happens, line by line."""
    plan = draw(Random(f"{seed} cluster plan"))
    with small_steps(plan):
        return ClusterWorld(seed, plan, trace).run()


class ClusterWorld:
    """One run."""

    def __init__(self, seed: int, plan: ClusterPlan, trace: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.plan = plan
        self.schedule = Schedule()
        self.fabric = Fabric(self.schedule, self._chance("fabric"))
        self.books = Books()
        self.trace = None if trace is None else lambda line: trace(f"{self.schedule.now_us / 1000:12.3f} {line}")
        self.watch = Watch(self.schedule, self.complain)
        if trace is not None:
            self.watch.say = lambda host, line: self.say(f"{self._name(host)}: {line}")
        self.machines = [
            Machine(
                self.schedule, self.fabric, number, self._chance(f"machine {number}"), node.wall_skew_ms, node.drift_ppm
            )
            for number, node in enumerate(plan.nodes)
        ]
        self.by_host = {machine.host: machine for machine in self.machines}
        self.watch.is_reloading = self._is_loading
        self.watch.keeps = self._keeps
        self.troubles = Troubles(self, self._chance("troubles"))
        self.operator = Operator(self, self._chance("operator"))
        self.inspector = Inspector(self)
        self.watch.taken = self.inspector.note_take
        self.watch.woken = self.inspector.note_woken
        self.watch.received = self._received
        self.is_open = False
        self.figures: dict[str, int] = {}
        self.settled_us = -1
        self._messages_seen = 0
        self._numbers = count(1)
        self._clients: list[Client] = []

    def _chance(self, what: str) -> Random:
        return Random(f"{self.seed} cluster {what}")

    # What others use

    def next_number(self) -> int:
        return next(self._numbers)

    def say(self, line: str) -> None:
        if self.trace is not None:
            self.trace(f"-- {line}")

    def complain(self, words: str) -> None:
        self.books.problems.append(f"at {self.schedule.now_us}: {words}")
        self.say(f"PROBLEM: {words}")

    def count(self, what: str, times: int = 1) -> None:
        """To the figures of the run."""
        self.figures[what] = self.figures.get(what, 0) + times

    @property
    def is_troubled(self) -> bool:
        return self.troubles.active > 0

    def _name(self, host: str) -> str:
        return self.by_host[host].name if host in self.by_host else "?"

    def _received(self, host: str, sender: str, message: JobMessage) -> None:
        """A node is about to do what a message says."""
        machine = self.by_host[host]
        if machine.dies_at_message and isinstance(message, CHANGING) and machine.server is not None:
            machine.server.files.dies_in, machine.dies_at_message = 1, False
        if self.trace is not None:
            self._say_received(host, sender, message)

    def _say_received(self, host: str, sender: str, message: JobMessage) -> None:
        job_id = getattr(message, "job_id", None) or getattr(getattr(message, "copy", None), "job_id", b"")
        more = [
            f"{field} {value}"
            for field in ("word", "after_ms", "is_known", "count", "is_waiting", "queue")
            if (value := getattr(message, field, None))
        ]
        more += [job_id[11:17].decode() for job_id in getattr(message, "job_ids", ())]
        more += [copy.job_id[11:17].decode() for copy in getattr(message, "copies", ())]
        if (owners := getattr(message, "owners", None)) is not None:
            more.append("owners " + " ".join(self._name(self.watch.hosts.get(owner, "")) for owner in owners))
        what = f"{type(message).__name__} {job_id[11:17].decode()} {' '.join(more)}"
        self.say(f"{self._name(host)} has from {self._name(sender)}: {what}")

    def trace_of(self, machine: Machine, who: str) -> Callable[[str], None] | None:
        """What tells the trace what somebody says to a node."""
        trace = self.trace
        return None if trace is None else lambda line: trace(f"{who}@{machine.name} {line}")

    def is_expected(self, act: Act, error: bytes) -> bool:
        """Whether that may be the answer."""
        return self.inspector.is_expected(act, error)

    def _keeps(self, host: str, crash: str) -> bool:
        """Whether what a node had written before its process ended like that is there at its next start."""
        machine = self.by_host[host]
        is_well = not machine.repairs and not machine.was_disk_bad
        return self.plan.nodes[machine.number].has_log and is_well and crash in (KILLED, STOPPED)

    def _is_loading(self, host: str) -> bool:
        server = self.by_host[host].server
        return server is not None and server.is_up and server.storage.is_loading

    # The run

    def run(self) -> Outcome:
        """From the first start to the last check."""
        self.say(f"plan {self.plan}")
        try:
            self._live()
        except GaveUp:
            pass
        except Exception:  # noqa: BLE001 - whatever it is, it is what this run has found
            self.complain(traceback.format_exc())
        violations = self.books.problems
        if not violations:
            violations = ClusterChecker(self).violations()
        self.count("jobs", sum(any(one.outcome == "ok" for one in job.tries) for job in self.books.jobs.values()))
        self.count("deliveries", sum(map(len, self.watch.takes.values())))
        for why, times in self.watch.moved.items():
            self.count(f"dead letters {why}", times)
        self.count("starts", sum(len(machine.lives) for machine in self.machines))
        self.count("messages", sum(self.watch.messages.values()))
        self.count("virtual seconds", self.schedule.now_us // 1_000_000)
        self.count("events", self.schedule.events)
        self.count(f"runs of {len(self.machines)} nodes")
        return Outcome(self.seed, violations, self.figures)

    def _live(self) -> None:
        self.form()
        self.troubles.is_over()
        self._clients = [
            Client(self, kind, f"{kind}{number}", self._chance(f"client {number}"))
            for number, kind in enumerate(self.plan.clients)
        ]
        self.is_open = True
        self._look()
        self.troubles.plan(self.plan.kinds, self.plan.troubles, self.plan.run_ms)
        self._run_for(self.plan.run_ms * 1000)
        self.is_open = False
        self._settle()
        self._end_all("the jobs' end")
        if self.plan.reboots_at_end:
            self._reboot()
            self._end_all("the jobs' end after a reboot")
        self.operator.leave()
        self._probe()
        self._be_quiet()

    def form(self) -> None:
        self.troubles.begins()
        for machine in self.machines:
            self.start(machine)
        first = self.machines[0].server
        assert first is not None
        for machine in self.machines[1:]:
            first.loop.run(first.node.cluster.meet, machine.host, PORT, BUS_PORT, lambda is_found: None)
        self.wait_until(self.is_well, "a cluster")

    def _run_for(self, time_us: int) -> None:
        self.schedule.run(self.schedule.now_us + time_us)

    def wait_until(self, enough: Callable[[], bool], what: str, patience_us: int = PATIENCE_US) -> None:
        until_us = self.schedule.now_us + patience_us
        while not enough():
            if self.schedule.now_us >= until_us:
                self.complain(f"waited in vain for {what}: {self.inspector.state()}")
                raise GaveUp
            self._run_for(50_000)

    # Starts and ends

    def start(self, machine: Machine) -> None:
        """Start a server; if it does not come up, try again later."""
        if machine.server is not None:
            return
        node = self.plan.nodes[machine.number]
        trace = self.trace
        named = None if trace is None else lambda line: trace(f"{machine.name} {line}")
        server = machine.new_server(
            self.plan.config(machine.number), lambda: self._died(machine), named, Mode(node.has_log, node.sync_ms)
        )
        self.say(f"{machine.name} starts")
        if len(machine.lives) > STARTS_MAX:
            self.complain(f"{machine.name} does not stay up")
            raise GaveUp
        try:
            server.start()
        except Killed:
            self._died(machine)
        except (OSError, SpoolUnusable) as problem:
            self.say(f"{machine.name} does not start: {problem}")
            if not machine.faults.failed:
                self.complain(f"{machine.name} does not start: {problem}")
            self.over(machine, KILLED)
            self.schedule.after(500_000, self.start, machine)
        else:
            store = server.node.jobs
            self.watch.begins(machine.host, store, machine.life.number)  # type: ignore[arg-type]
            machine.ids.append(store.node_id)
            if not node.has_log:
                self.watch.restored(store, None)  # type: ignore[arg-type]

    def _died(self, machine: Machine) -> None:
        """Killed in the middle of a call."""
        self.count("deaths in a call")
        self.over(machine, machine.how_it_dies or KILLED)
        self.schedule.after(1_000_000, self.start, machine)

    def over(self, machine: Machine, how: str) -> None:
        """The process is gone."""
        self.troubles.begins()
        self.say(f"{machine.name} {how}")
        self.watch.ends(machine.host, how)
        machine.over(POWER_CUT if how == DISK_LOST else how)
        if how == DISK_LOST:
            machine.replace_disk()

    def shut_down(self, machine: Machine) -> None:
        """SIGTERM."""
        server = machine.server
        assert server is not None
        self.say(f"{machine.name} is to stop")
        server.loop.run(server.shutdown)
        self.schedule.after(50_000, self._look_for_end, machine, server, self.schedule.now_us + STOP_US)

    def _look_for_end(self, machine: Machine, server: JobServer, until_us: int) -> None:
        if machine.server is not server:
            return
        if not server.has_stopped and self.schedule.now_us < until_us:
            self.schedule.after(50_000, self._look_for_end, machine, server, until_us)
            return
        if not server.has_stopped:
            self.over(machine, KILLED)
            return
        try:
            server.close(STOP_US)
        except Killed:
            self.over(machine, machine.how_it_dies or KILLED)
        else:
            self.over(machine, STOPPED)
        self.schedule.after(500_000, self.start, machine)

    def go_on_wires(self) -> None:
        """Ways are open again."""
        for wire in self.fabric.wires:
            wire.go_on()

    def _repair(self, machine: Machine, why: str) -> None:
        """The log cannot be read. Where a power cut may have left it so an operator repairs it."""
        server = machine.server
        assert server is not None
        self.say(f"{machine.name}: the log is stopped: {why}")
        clock = server.clock
        was_cut = any(life.how == POWER_CUT for life in machine.lives)
        is_faulty = bool(machine.faults.failed)
        self.over(machine, KILLED)
        if not was_cut and not is_faulty:
            self.complain(f"{machine.name}: the log was stopped: {why}")
            raise GaveUp
        machine.repairs += 1
        self.count("logs repaired")
        if machine.is_disk_well:
            repair_job_log(ProcessFiles(machine.disk), clock, FOLDER)
        self.schedule.after(300_000, self.start, machine)

    # Whether all is well

    def is_well(self) -> bool:
        """Whether all nodes are up, and each is that for all others."""
        if self.fabric.cut or self.fabric.delays_us or self.troubles.active:
            return False
        ids = {machine.node_id for machine in self.machines if machine.serves}
        if len(ids) < len(self.machines):
            return False
        for machine in self.machines:
            assert machine.server is not None
            node = machine.server.node
            table = node.cluster.table
            if (
                {one.id for one in table} != ids
                or node.is_leaving
                or node.jobs.memory.level
                or not machine.is_disk_well
            ):
                return False
            if len(table.reachable()) < len(ids) - 1 or table.myself.flags & (Flag.LOADING | Flag.LEAVING):
                return False
            if node.shared is None or node.shared.returning.is_held_back() or node.persistence.failure:
                return False
        return True

    def _look(self) -> None:
        """Every so often."""
        self.inspector.look_at_links()
        self._look_for_storm()
        self.schedule.after(LOOK_US, self._look)
        if not self.is_open:
            return
        for machine in self.machines:
            if machine.serves or machine.server is None or machine.is_stopped:
                continue
            if machine.server.storage.stopped is not None:
                self._repair(machine, str(machine.server.storage.stopped))
        if self.troubles.spans and self.troubles.spans[-1][1] < 0 and self.is_well():
            self.troubles.is_over()
            self.say("all is well")
        self.inspector.look()

    def _look_for_storm(self) -> None:
        """Nodes that answer each other without an end would keep a run going for hours."""
        messages = sum(self.watch.messages.values())
        new, self._messages_seen = messages - self._messages_seen, messages
        if new > STORM_MESSAGES:
            self.complain(f"nodes told each other {new:,} things within {LOOK_US // 1000} ms")
            raise GaveUp

    def mend_tables(self) -> None:
        """As operators do: nodes that are no more are forgotten, those that do not know each other are introduced."""
        ids = {machine.node_id for machine in self.machines}
        for machine in self.machines:
            if not machine.serves or machine.server is None:
                continue
            table = machine.server.node.cluster.table
            for node in table.members():
                if node.id not in ids:
                    self.operator.tell(machine, b"CLUSTER", b"FORGET", node.id)
            for other in self.machines:
                known = table.get(other.node_id)
                if other is not machine and other.serves and (known is None or not known.knows_us):
                    self.operator.tell(machine, b"CLUSTER", b"MEET", other.host.encode(), PORT, BUS_PORT)

    # The end

    def _settle(self) -> None:
        """All is well again: nodes find each other, every client gets its answers, and leaves."""
        self.say("the end: all is made well")
        self.fabric.cut.clear()
        self.fabric.delays_us.clear()
        self.go_on_wires()
        for machine in self.machines:
            machine.heal_disk()
            machine.set_disk_delay(200)
            machine.go_on()
            machine.faults.short_writes = 0
        # An ADDJOB without a timeout waits as long as a queue is paused, or a node unknown, where a copy is to be.
        self._bring_up()
        self.wait_until(lambda: all(client.is_idle for client in self._clients), "the clients' last answers")
        for client in self._clients:
            client.leave()
        self.settled_us = self.schedule.now_us
        self.say("settled")

    def _bring_up(self) -> None:
        until_us = self.schedule.now_us + PATIENCE_US
        self._run_for(100_000)
        while not self.is_well():
            for machine in self.machines:
                machine.heal_disk()
                if machine.server is None:
                    self.start(machine)
                elif machine.server.is_up and machine.server.storage.stopped is not None:
                    self._repair(machine, str(machine.server.storage.stopped))
                elif machine.serves:
                    machine.server.files.dies_in = 0
                    if machine.server.node.is_leaving:
                        self.operator.tell(machine, b"CLUSTER", b"LEAVING", b"no")
                    if machine.server.node.jobs.memory.level:
                        self.operator.tell(machine, b"CONFIG", b"SET", b"maxmemory", 1 << 30)
            self.mend_tables()
            self._run_for(1_000_000)
            if self.schedule.now_us > until_us:
                self.complain(f"the nodes do not find each other: {self.inspector.state()}")
                raise GaveUp
        self.troubles.is_over()
        for machine in self.machines:
            for queue in self.plan.all_queues:
                self.operator.tell(machine, b"PAUSE", queue, b"none")
        self._run_for(500_000)

    def _end_all(self, what: str) -> None:
        """Fetch and acknowledge all there is, until no node holds anything."""
        until_us = self.schedule.now_us + PATIENCE_US
        while self.inspector.left():
            self.operator.drain()
            self._run_for(300_000)
            if self.schedule.now_us > until_us:
                self.complain(f"waited in vain for {what}: {self.inspector.left()}")
                raise GaveUp

    def _reboot(self) -> None:
        """Every process is killed at once, or the power is cut; nothing that has ended comes back."""
        self.say("all are killed")
        fate = self._chance("reboot")
        how = fate.choice([KILLED, POWER_CUT])
        for machine in self.machines:
            self.over(machine, how)
        for machine in self.machines:
            self.schedule.after(fate.randint(1, 2_000_000), self.start, machine)
        self._run_for(2_500_000)
        self._bring_up()

    def _probe(self) -> None:
        """A job that comes where nobody waits stays there, and is served there."""
        self.operator.connect_all()
        self._run_for(6_000_000)  # interest ends soon after the last who waited, and imports cease after 5 s
        self.operator.probe()
        self.operator.leave()

    def _be_quiet(self) -> None:
        """Where nothing happens nodes tell each other nothing."""
        self._run_for(2_000_000)
        before = dict(self.watch.messages)
        self._run_for(QUIET_US)
        after = self.watch.messages
        said = {name: number - before.get(name, 0) for name, number in after.items() if number != before.get(name, 0)}
        if said:
            self.complain(f"nodes have nothing to say, and said {said}")
        if not self.is_well():
            self.complain(f"not all is well at the end: {self.inspector.state()}")
        self.inspector.check_books()
