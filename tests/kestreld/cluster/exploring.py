"""One job on a few nodes, explored: every order in which messages arrive, with faults at every point.

What a node does with a message depends on the node alone. So each thing that can happen to a node in a state is carried
out once, by a real one on a stage of its own, and is known from then on; orders are put together from that. The orders
that come to an end are then played on a net of real nodes, which is left to itself to see what becomes of the job.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from kestreld.cluster.codec import pack, read
from kestreld.cluster.job_messages import JobMessage
from kestreld.jobs.job import ACKED, QUEUED, WITHOUT_QUEUE
from kestreld.jobs.keys import key_in
from tests.support.clock import START_MONOTONIC_MS
from tests.support.job_net import RETRY_MS, TTL_MS, JobNet, JobNode, Q
from tests.support.object_graph import ObjectGraph

T = TypeVar("T")
SETTLE_MS: Final = 60_000
NOBODY: Final = -1
GOING_ON: Final = ("deliver", "act", "start")
Step = tuple[str, int, int]
Packed = tuple[int, bytes]  # a message
Sent = tuple[tuple[int, Packed], ...]  # to whom, and what
NOT_OF_THE_NODE: Final = frozenset({"net", "others", "chance", "random_bytes", "_random_bytes"})
COUNTED: Final = frozenset({"_count", "_moved", "peak_bytes", "jobs_in", "jobs_out", "used_at_ms", "given", "taken"})


def no_chance(size_bytes: int) -> bytes:
    """All nodes throw the same dice."""
    return b"\x80\x00" * (size_bytes // 2) + b"\0" * (size_bytes % 2)


# What clients do


class Act(NamedTuple):
    """One thing that a client does at a node: `do` says whether it could be done, and changes nothing if not.

    `needs_delivery`: not before a worker has the job.
    """

    node: int
    name: str
    do: Callable[[JobNode, bytes], bool]
    needs_delivery: bool = False


@dataclass
class Scenario:
    """What clients do, one act after the other, each as soon as it can be done or later."""

    acts: list[Act]
    nodes: int = 3
    copies: int = 3
    retry_ms: int = RETRY_MS
    crashes: tuple[int, ...] = (0, 1, 2)  # which nodes may
    has_log: bool = True
    down: tuple[int, ...] = ()  # from the beginning to the end of all acts
    is_fast: bool = False  # it ends with a FASTACK, which not all need learn of
    is_async: bool = False

    @property
    def adder(self) -> int:
        return next(act.node for act in self.acts if act.name == "add")


def add(node: int) -> Act:
    def do(there: JobNode, job_id: bytes) -> bool:
        copies, retry_ms = there.net.copies, there.net.retry_ms  # type: ignore[attr-defined]
        return there.shared.replicating.copies_possible() >= copies and bool(
            there.add(copies, retry_ms=retry_ms, added=there.added.append)
        )

    return Act(node, "add", do)


def add_without_waiting(node: int) -> Act:
    def do(there: JobNode, job_id: bytes) -> bool:
        there.added.append(there.add_without_waiting(there.net.copies, retry_ms=there.net.retry_ms))  # type: ignore[attr-defined]
        return True

    return Act(node, "add", do)


def add_with_key(node: int) -> Act:
    """As ADDJOB ID does."""

    def do(there: JobNode, job_id: bytes) -> bool:
        shared, options = there.shared, (TTL_MS, there.net.retry_ms, 0, -1)  # type: ignore[attr-defined]
        new_id = there.jobs.new_id(there.queue.terms_of(options))

        def found(known: bytes) -> None:
            if known:
                there.added.append(known)
            else:
                shared.replicating.add(
                    there.queue,
                    b"body",
                    options,
                    b"key",
                    there.net.copies,
                    there.added.append,
                    new_id,  # type: ignore[attr-defined]
                )

        shared.keys.find(key_in(Q, b"key"), new_id, found)
        return True

    return Act(node, "add", do)


def get(node: int) -> Act:
    def do(there: JobNode, job_id: bytes) -> bool:
        return bool(there.queue.jobs.count) and there.get() is not None

    return Act(node, "get", do)


def wait(node: int) -> Act:
    def do(there: JobNode, job_id: bytes) -> bool:
        there.wait()
        return True

    return Act(node, "wait", do)


def ack(node: int) -> Act:
    def do(there: JobNode, job_id: bytes) -> bool:
        there.ack(job_id)
        return True

    return Act(node, "ack", do, needs_delivery=True)


def fastack(node: int) -> Act:
    def do(there: JobNode, job_id: bytes) -> bool:
        there.shared.delete_everywhere(job_id)
        return True

    return Act(node, "ack", do, needs_delivery=True)


def nack(node: int, delay_ms: int | None = None) -> Act:
    def do(there: JobNode, job_id: bytes) -> bool:
        job = there.jobs.find(job_id)
        return job is not None and there.jobs.nack(job, delay_ms)

    return Act(node, "nack", do, needs_delivery=True)


def working(node: int) -> Act:
    def do(there: JobNode, job_id: bytes) -> bool:
        job = there.jobs.find(job_id)
        if job is None or not there.jobs.may_be_queued(job):
            return False
        there.jobs.working(job)
        return True

    return Act(node, "working", do, needs_delivery=True)


def bury(node: int) -> Act:
    def do(there: JobNode, job_id: bytes) -> bool:
        job = there.jobs.find(job_id)
        return job is not None and there.jobs.may_be_queued(job) and there.jobs.bury(job, b"asked")

    return Act(node, "bury", do, needs_delivery=True)


# One node


class Bystander:
    """Another node, as far as the one on the stage sees it."""

    def __init__(self, stage: "Stage", number: int, node_id: bytes) -> None:
        self.number = number
        self.id = node_id
        self.is_up = True
        self.is_loading = False
        self._stage = stage

    @property
    def jobs(self) -> Any:
        return self._stage.node.jobs  # all have the same clock

    def link(self, other: JobNode) -> None:
        """It does that by itself."""


class Stage(JobNet):
    """A net with one node, and others that say and hear what they are told to."""

    def __init__(self, scenario: Scenario, number: int) -> None:
        self.now_ms = 5000
        self.rules = ()
        self.skews_ms = (0,) * scenario.nodes
        self.options = {}
        self.chance = no_chance
        self.cut = set()
        self.copies, self.retry_ms = scenario.copies, scenario.retry_ms
        self.out: list[tuple[int, Packed]] = []
        self.node = JobNode(self, number)
        others = [Bystander(self, other, JobNode.id_of(other)) for other in range(scenario.nodes) if other != number]
        self.nodes = sorted([self.node, *others], key=lambda node: node.number)  # type: ignore[assignment, list-item]
        self.node.know(others)  # type: ignore[arg-type]
        for other in others:
            self.node.link(other)  # type: ignore[arg-type]
        self.node.run()
        self.out.clear()
        if scenario.has_log:
            self.node.keep_log()

    def send(self, sender: JobNode, receiver: JobNode, message: JobMessage) -> None:
        self.out.append((receiver.number, pack(message)))

    def happens(self, what: str, other: int, content: Any, job_id: bytes) -> bool:
        """One thing happens to the node; whether it could."""
        node, there = self.node, self.nodes[other]
        if what == "message":
            node.receive(there, read(*content))  # type: ignore[arg-type]
        elif what == "act":
            if not content.do(node, job_id):
                return False
        elif what == "time":
            node.clock.advance(content)
        elif what == "lost":
            node.lose_sight_of(there)
        elif what == "found":
            node.link(there)
        elif what == "relink":
            node.relink(there)
        elif what == "crash":
            node.is_up = False
        else:
            for number in range(len(self.nodes)):
                if number != node.number:
                    self.nodes[number].is_up = number in content
            node.start()
            for number in range(len(self.nodes)):
                if number != node.number:
                    self.nodes[number].is_up = True
        node.run()
        return True


class View(NamedTuple):
    """What is of interest about a node in a state."""

    is_up: bool
    holds_job: bool
    is_queued: bool
    fetched: int
    answers: tuple[bytes | None, ...]
    next_at_ms: int | None


class Moves:
    """What a node does: each thing that happens to it in a state, once. States are numbers."""

    def __init__(self, scenario: Scenario, number: int, job_id: bytes = b"") -> None:
        self._scenario = scenario
        self._number = number
        self._job_id = job_id
        self._numbers: dict[object, int] = {}
        self._paths: list[tuple[tuple[str, int, Any], ...]] = []
        self._known: dict[tuple[int, str, int, object], tuple[int, Sent] | None] = {}
        self._stages: dict[int, Stage] = {}  # that are in these states
        self.views: list[View] = []
        self.first = self._number_of(Stage(scenario, number), ())

    def move(self, state: int, what: str, other: int = -1, content: Any = None) -> tuple[int, Sent] | None:
        """The state that follows, and what is sent; None where that cannot happen."""
        key = (state, what, other, content)
        if key not in self._known:
            self._known[key] = self._carry_out(state, what, other, content)
        return self._known[key]

    def _carry_out(self, state: int, what: str, other: int, content: Any) -> tuple[int, Sent] | None:
        path = self._paths[state]
        stage = self._stages.pop(state, None)
        if stage is None:
            stage = Stage(self._scenario, self._number)
            for before in path:
                stage.happens(*before, self._job_id)
        stage.out.clear()
        if not stage.happens(what, other, content, self._job_id):
            self._stages[state] = stage
            return None
        return self._number_of(stage, (*path, (what, other, content))), tuple(stage.out)

    def _number_of(self, stage: Stage, path: tuple[tuple[str, int, Any], ...]) -> int:
        node = stage.node
        frozen = ObjectGraph(node, _is_skipped).state if node.is_up else (False, _on_disk(node), node.clock.wall_ms)
        known = (frozen, len(node.fetched), tuple(node.added))
        number = self._numbers.get(known)
        if number is None:
            number = self._numbers[known] = len(self._paths)
            self._paths.append(path)
            job = node.jobs.find(self._job_id)
            holds_job = node.is_up and job is not None and job.state not in WITHOUT_QUEUE
            is_queued = holds_job and job is not None and job.state == QUEUED
            next_at_ms = node.agenda.next_at_ms() if node.is_up else None
            self.views.append(View(node.is_up, holds_job, is_queued, len(node.fetched), tuple(node.added), next_at_ms))
            self._stages[number] = stage
        return number


def _is_skipped(owner: object, name: str) -> bool:
    return name in NOT_OF_THE_NODE or name in COUNTED


def _on_disk(node: JobNode) -> object:
    return None if node.disk is None else ObjectGraph(node.disk.saved, _is_skipped).state


# All nodes


class State(NamedTuple):
    """Of all nodes together, and of what is on its way between them: by sender and receiver, n * sender + receiver."""

    nodes: tuple[int, ...]
    links: tuple[tuple[Packed, ...], ...]
    act: int = 0
    faults: int = 0
    ticks: int = 0
    down: int = NOBODY
    span_ms: int = 0  # since the beginning


class Explorer:
    """Finds every order of what can happen, up to so many faults and ticks of the clock."""

    def __init__(self, scenario: Scenario, *, faults_max: int, ticks_max: int = 0) -> None:
        self.scenario = scenario
        self._count = scenario.nodes
        self._faults_max = faults_max
        self._ticks_max = ticks_max
        is_one_job = sum(act.name == "add" for act in scenario.acts) == 1
        self._is_counted = is_one_job and scenario.retry_ms > 0 and not scenario.is_async
        job_id = first_job_id(scenario)
        self.moves = [Moves(scenario, number, job_id) for number in range(scenario.nodes)]
        # By the hash of a state, that of the one before and the step between: states themselves would take gigabytes.
        self._came_from: dict[int, tuple[int, Step] | None] = {}
        self.wrong: list[tuple[list[Step], str]] = []  # what must not be in between, either

    def orders(self) -> Iterator[list[Step]]:
        """The steps to each state in which nothing more happens by itself."""
        todo = [self._first()]
        self._came_from[hash(todo[0])] = None
        while todo:
            state = todo.pop()
            number = hash(state)
            self._look_at(state, number)
            goes_on = False
            for step in self._possible(state):
                following = self._do(state, step)
                if following is None:
                    continue
                goes_on = goes_on or step[0] in GOING_ON
                key = hash(following)
                if key not in self._came_from:
                    self._came_from[key] = (number, step)
                    todo.append(following)
            if not goes_on:
                yield self._steps_to(number)

    def _look_at(self, state: State, number: int) -> None:
        """Without faults it is in one queue at a time, and on as many nodes as it should be once that was answered."""
        if state.faults:
            return
        views = self._views(state)
        acts = [act.name for act in self.scenario.acts[: state.act]]
        if not state.ticks and sum(view.is_queued for view in views) > 1:
            self.wrong.append((self._steps_to(number), "two nodes had queued it at once"))
        if (
            self._is_counted
            and any(view.answers for view in views)
            and "ack" not in acts
            and sum(view.holds_job for view in views) < self.scenario.copies
        ):
            self.wrong.append((self._steps_to(number), "its client was answered before it was on so many nodes"))

    @property
    def states(self) -> int:
        return len(self._came_from)

    def views_after(self, steps: list[Step]) -> list[View]:
        """Of all nodes."""
        state = self._first()
        for step in steps:
            following = self._do(state, step)
            assert following is not None
            state = following
        return self._views(state)

    def _first(self) -> State:
        state = State(tuple(moves.first for moves in self.moves), ((),) * self._count**2)
        for number in self.scenario.down:
            state = self._crash(state, number)
        return state

    def _steps_to(self, number: int) -> list[Step]:
        steps: list[Step] = []
        while (came := self._came_from[number]) is not None:
            number = came[0]
            steps.append(came[1])
        return steps[::-1]

    def _views(self, state: State) -> list[View]:
        return [moves.views[number] for moves, number in zip(self.moves, state.nodes, strict=True)]

    def _possible(self, state: State) -> Iterator[Step]:
        links = [divmod(place, self._count) for place, queue in enumerate(state.links) if queue]
        for sender, receiver in links:
            yield ("deliver", sender, receiver)
        if state.act < len(self.scenario.acts):
            yield ("act", state.act, 0)
        if state.down != NOBODY:
            yield ("start", state.down, 0)
        if state.ticks < self._ticks_max:
            yield ("tick", 0, 0)
        if state.faults < self._faults_max:
            for sender, receiver in links:
                yield ("lose", sender, receiver)
            for number in self.scenario.crashes:
                if state.down == NOBODY and number not in self.scenario.down:
                    yield ("crash", number, 0)

    def _do(self, state: State, step: Step) -> State | None:
        what, one, other = step
        if what == "deliver":
            return self._deliver(state, one, other)
        if what == "act":
            return self._act(state, self.scenario.acts[one])
        if what == "tick":
            return self._tick(state)
        if what == "lose":
            lost = _with(state.links, one * self._count + other, ())
            return self._happens(state, one, "relink", other, None, lost)._replace(faults=state.faults + 1)
        if what == "crash":
            return self._crash(state, one)._replace(faults=state.faults + 1, down=one)
        return self._start(state, one)

    def _happens(
        self, state: State, number: int, what: str, other: int, content: object, links: tuple[tuple[Packed, ...], ...]
    ) -> State:
        moved = self.moves[number].move(state.nodes[number], what, other, content)
        assert moved is not None
        following, sent = moved
        nodes = _with(state.nodes, number, following)
        for receiver, message in sent:
            if self.moves[receiver].views[state.nodes[receiver]].is_up:
                place = number * self._count + receiver
                links = _with(links, place, (*links[place], message))
        return State(nodes, links, state.act, state.faults, state.ticks, state.down, state.span_ms)

    def _deliver(self, state: State, sender: int, receiver: int) -> State:
        place = sender * self._count + receiver
        queue = state.links[place]
        return self._happens(state, receiver, "message", sender, queue[0], _with(state.links, place, queue[1:]))

    def _act(self, state: State, act: Act) -> State | None:
        views = self._views(state)
        if not views[act.node].is_up or (act.needs_delivery and not any(view.fetched for view in views)):
            return None
        if self.moves[act.node].move(state.nodes[act.node], "act", act.node, act) is None:
            return None
        following = self._happens(state, act.node, "act", act.node, act, state.links)
        return following._replace(act=state.act + 1)

    def _tick(self, state: State) -> State | None:
        """Time passes until the first of what is due."""
        due = [view.next_at_ms for view in self._views(state) if view.next_at_ms is not None]
        if not due:
            return None
        span_ms = max(min(due) - START_MONOTONIC_MS - state.span_ms, 0)
        state = state._replace(ticks=state.ticks + 1, span_ms=state.span_ms + span_ms)
        for number in range(self._count):
            state = self._happens(state, number, "time", number, span_ms, state.links)
        return state

    def _crash(self, state: State, number: int) -> State:
        """All its links break, and the others notice."""
        links = state.links
        for other in range(self._count):
            links = _with(_with(links, number * self._count + other, ()), other * self._count + number, ())
        state = self._happens(state, number, "crash", number, None, links)
        for other in range(self._count):
            if other != number and self._views(state)[other].is_up:
                state = self._happens(state, other, "lost", number, None, state.links)
        return state

    def _start(self, state: State, number: int) -> State:
        up = tuple(other for other, view in enumerate(self._views(state)) if view.is_up)
        state = self._happens(state, number, "start", number, up, state.links)._replace(down=NOBODY)
        for other in up:
            state = self._happens(state, other, "found", number, None, state.links)
        return state


def _with(some: tuple[T, ...], place: int, value: T) -> tuple[T, ...]:
    return (*some[:place], value, *some[place + 1 :])


def first_job_id(scenario: Scenario) -> bytes:
    """All that nodes do being without chance, it is the same in each order."""
    stage = Stage(scenario, scenario.adder)
    act = next(act for act in scenario.acts if act.name == "add")
    act.do(stage.node, b"")
    for _, message in stage.out:
        copy = getattr(read(*message), "copy", None)
        if copy is not None:
            return bytes(copy.job_id)
    jobs = list(stage.node.jobs.table)
    return jobs[0].id if jobs else b""


# The end of an order


@dataclass
class Run:
    """One order on a net of nodes."""

    scenario: Scenario
    steps: list[Step]
    net: JobNet = field(init=False)
    acked_at: int = NOBODY
    crashed: list[int] = field(default_factory=list)
    lost: int = 0
    act: int = 0
    down: int = NOBODY

    def __post_init__(self) -> None:
        scenario = self.scenario
        self.net = net = JobNet(scenario.nodes, chance=no_chance)
        net.copies, net.retry_ms = scenario.copies, scenario.retry_ms  # type: ignore[attr-defined]
        if scenario.has_log:
            for node in net.nodes:
                node.keep_log()
        self.job_id = first_job_id(scenario)
        self.began_at_ms = net.now_ms
        net.is_manual = True
        for number in scenario.down:
            net.nodes[number].crash()
        for step in self.steps:
            self.do(step)

    def do(self, step: Step) -> bool:
        what, one, other = step
        net = self.net
        if what == "deliver":
            net.deliver(one, other)
        elif what == "act":
            act = self.scenario.acts[one]
            there = net.nodes[act.node]
            if not there.is_up or (act.needs_delivery and not self.deliveries) or not act.do(there, self.job_id):
                return False
            self.act += 1
            if act.name == "ack":
                self.acked_at = act.node
        elif what == "tick":
            due = [at_ms for node in net.nodes if node.is_up and (at_ms := node.next_at_ms()) is not None]
            net.run(max(min(due) - net.now_ms, 0))
        elif what == "lose":
            self.lost += 1
            net.lose(one, other)
        elif what == "crash":
            self.crashed.append(one)
            self.down = one
            net.nodes[one].crash()
        else:
            self.down = NOBODY
            net.nodes[one].start()
        for node in net.nodes:
            node.run()
        return True

    @property
    def deliveries(self) -> int:
        return sum(len(node.fetched) for node in self.net.nodes)

    @property
    def answers(self) -> list[bytes | None]:
        return [answer for node in self.net.nodes for answer in node.added]

    def problems(self) -> list[str]:
        """All is well again, and time passes: what is wrong?"""
        net, scenario = self.net, self.scenario
        before = self.deliveries
        self._may_expire = net.now_ms - self.began_at_ms + SETTLE_MS >= TTL_MS
        was_acked = self.acked_at != NOBODY
        if self.down != NOBODY:
            net.nodes[self.down].start()
        for number in scenario.down:
            net.nodes[number].start()
        net.is_manual = False
        net.deliver_all()
        net.run(SETTLE_MS)
        for _ in range(3):
            for node in net.nodes:
                for waiter in list(node.jobs.waiters):
                    waiter.leave()
                while node.get() is not None:
                    pass
            net.run(scenario.retry_ms + 3000)
        return [*self._wrong_deliveries(before, was_acked=was_acked), *self._left_over(was_acked=was_acked)]

    def _wrong_deliveries(self, before: int, *, was_acked: bool) -> Iterator[str]:
        scenario, faults = self.scenario, self.lost + len(self.crashed)
        if was_acked and self.deliveries > before and not self._may_be_unknown():
            yield "it was delivered although it was acknowledged"
        if any(self.answers) and not self.deliveries and not (self._may_expire or self._may_be_lost()):
            yield "it was added, and never delivered"
        if not scenario.retry_ms and self.deliveries > 1:
            yield f"it is delivered at most once, and came {self.deliveries} times"
        if not faults and was_acked and self.deliveries > 1 + self._given_back:
            yield f"without a fault it came {self.deliveries} times"
        ticks = sum(what == "tick" for what, _, _ in self.steps)  # who answers too late is not waited for
        if not faults and not ticks and len(set(self.answers)) > 1:
            yield f"one key has several jobs: {self.answers}"

    @property
    def _given_back(self) -> int:
        return sum(act.name in ("nack", "bury") for act in self.scenario.acts)

    def _may_be_lost(self) -> bool:
        """A job that is delivered at most once is not queued again by a start; one on several nodes is lost with all of
        these, if they have no logs.
        """
        if not self.scenario.retry_ms:
            return self.scenario.adder in self.crashed
        return not self.scenario.has_log and len(self.crashed) >= self.scenario.copies

    def _may_be_unknown(self) -> bool:
        """A crash without a log takes the only knowledge of an acknowledgement along where it was given to that node,
        and a FASTACK is remembered by nobody.
        """
        return self.scenario.is_fast or (not self.scenario.has_log and self.acked_at in self.crashed)

    def _left_over(self, *, was_acked: bool) -> Iterator[str]:
        net = self.net
        if not was_acked:
            for node in net.nodes:
                for job in list(node.jobs.table):
                    node.ack(job.id)
        net.run(400_000)
        left = {node.number: [job.state for job in node.jobs.table] for node in net.nodes if node.jobs.table.count}
        if any(ACKED in states for states in left.values()):
            yield f"an acknowledgement is left: {left}"
        if was_acked and left and not self._may_be_unknown():
            yield f"it is left: {left}"


def explored(scenario: Scenario, *, faults_max: int, ticks_max: int = 0) -> Iterator[tuple[list[Step], list[str]]]:
    """Each order that comes to an end, and what is wrong with it."""
    explorer = Explorer(scenario, faults_max=faults_max, ticks_max=ticks_max)
    for steps in explorer.orders():
        yield steps, Run(scenario, steps).problems()
    for steps, problem in explorer.wrong:
        yield steps, [problem]
