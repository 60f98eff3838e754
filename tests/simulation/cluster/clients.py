"""Clients of a cluster over a run: each asks any of the nodes, breaks off now and then, and comes back."""

from collections.abc import Callable
from random import Random
from typing import Any, Final, Protocol

from kestreld.jobs.dead_letters import DEAD_SUFFIX
from tests.simulation.cluster.books import Act, Books, Handout, Sent, Try
from tests.simulation.cluster.machine import Machine
from tests.simulation.cluster.plan import LONG_TTL_S, QUEUES, RETRIES_S, ClusterPlan
from tests.simulation.jobs.talk import RespTalk
from tests.simulation.schedule import Schedule
from tests.support.resp import ErrorReply, Status

HELD_MAX: Final = 6
TRIES_MAX: Final = 5  # ADDJOBs with one key
PATIENCE_US: Final = 12_000_000  # after which a client gives up a connection
WAITS_MS_MAX: Final = 3000
Words = list[bytes | int]


class Surroundings(Protocol):
    """What clients see of the world."""

    schedule: Schedule
    books: Books
    plan: ClusterPlan
    machines: list[Machine]
    is_open: bool  # clients may begin something

    @property
    def is_troubled(self) -> bool: ...
    def next_number(self) -> int: ...
    def complain(self, words: str) -> None: ...
    def is_expected(self, act: Act, error: bytes) -> bool: ...
    def trace_of(self, machine: Machine, who: str) -> Callable[[str], None] | None: ...


class Client:
    """One client over a run, with a connection to a node each."""

    def __init__(self, world: Surroundings, kind: str, name: str, chance: Random) -> None:
        self.world = world
        self.books = world.books
        self.chance = chance
        self.kind = kind
        self.name = name
        self.talks: dict[str, RespTalk] = {}
        self.machine: Machine | None = None  # the node it asks now
        self.held: list[Handout] = []
        self.added: list[Sent] = []
        self._pace_us = chance.choice([20_000, 100_000, 400_000])
        self._pending: Act | None = None
        self._habit = {
            "producer": self._produce, "worker": self._work, "meddler": self._meddle, "undertaker": self._bury,
        }.get(kind)  # fmt: skip
        if self._habit is not None:
            self._later()

    @property
    def is_idle(self) -> bool:
        return all(talk.over or not talk.pending for talk in self.talks.values())

    def _later(self, delay_us: int = 0) -> None:
        self.world.schedule.after(delay_us or int(self.chance.expovariate(1 / self._pace_us)) + 1, self._act)

    def _act(self) -> None:
        world = self.world
        if not world.is_open:
            return
        if self.machine is None or not self.machine.is_up or self.chance.random() < 0.25:
            self.machine = self.chance.choice(world.machines)
        if not self.connect(self.machine):
            self.machine = None
            self._later(50_000)
            return
        talk = self.talks[self.machine.host]
        assert self._habit is not None
        self._habit()
        busy = [one for one in self.talks.values() if one.pending and not one.over]
        if not busy:
            self._later()
            return
        for one in busy:
            world.schedule.after(PATIENCE_US, self._lose_patience, one, one.pending[0])
        if world.plan.network_breaks > self.chance.random():
            world.schedule.after(self.chance.randint(0, 300_000), self._break_off, talk)

    def connect(self, machine: Machine) -> bool:
        """Whether it is connected to that node, now at the latest."""
        server = machine.server
        if server is None or not server.is_up:
            return False
        talk = self.talks.get(machine.host)
        if talk is None or talk.over or talk.life is not server.life:
            trace = self.world.trace_of(machine, self.name)
            talk = RespTalk(self.world.schedule, server.network, server.life, self._moved_on, self._over, trace)
            self.talks[machine.host] = talk
        return not talk.over

    def _lose_patience(self, talk: RespTalk, told: object) -> None:
        if not talk.over and talk.pending and talk.pending[0] is told:
            talk.close(abruptly=True)
            self._over()

    def _break_off(self, talk: RespTalk) -> None:
        if not talk.over:
            for act in self.books.acts:
                if act.link is talk.link and act.answered_us < 0:
                    act.is_broken_off = True
            talk.close(abruptly=True)
            self._over()

    def _moved_on(self) -> None:
        if self._habit is not None and self.is_idle:
            self._later()

    def _over(self) -> None:
        if self._habit is not None and self.is_idle:
            self._later(int(self.chance.uniform(1000, 50_000)))

    def leave(self) -> None:
        for talk in self.talks.values():
            if not talk.over:
                talk.close(abruptly=False)

    # What is asked, with the books of it

    def act(self, kind: str, *ids: bytes, queue: bytes = b"", word: bytes = b"") -> Act:
        assert self.machine is not None
        talk = self.talks[self.machine.host]
        assert talk.link is not None
        act = Act(kind, self.machine.host, talk.life, talk.link, self.world.schedule.now_us, ids, queue, word)
        self.books.acts.append(act)
        return act

    def ask(self, act: Act, *words: bytes | int, told: Callable[[Any], None] = lambda reply: None) -> None:
        """Ask for something that is answered with a number, a status, nil or an error."""

        def heard(reply: Any, served_us: int) -> None:
            self._answered(act, reply, served_us)
            told(reply)

        self._send(list(words), heard)

    def _answered(self, act: Act, reply: Any, served_us: int) -> None:
        act.answered_us, act.served_us = self.world.schedule.now_us, served_us
        server = self.world.by_host[act.host].server
        act.is_alone = server is not None and server.node.shared is not None and not server.node.shared.peers.members
        if isinstance(reply, ErrorReply):
            # After MISCONF it is not known whether it was carried out before.
            act.count, act.error = -1 if reply.startswith(b"MISCONF") else 0, bytes(reply)
            if not self.world.is_expected(act, reply):
                self.world.complain(f"{act.kind} {act.ids or act.queue} at {act.host} was answered {bytes(reply)!r}")
        else:
            act.count = reply if isinstance(reply, int) else 1

    def _send(self, words: Words, told: Any) -> None:
        assert self.machine is not None
        self.talks[self.machine.host].send(words, told)

    # Producers

    def _produce(self) -> None:
        chance = self.chance
        if self.added and chance.random() < 0.08:
            job = chance.choice(self.added[-8:])
            if job.ids:
                wait_ms = chance.choice([100, 700, WAITS_MS_MAX])
                act = self.act("wait", *list(job.ids)[:1])
                act.wait_ms = wait_ms
                self.ask(act, b"WAITJOB", act.ids[0], wait_ms, told=lambda reply: self._waited(act, reply))
                return
        for _ in range(chance.choice([1, 1, 1, 3])):
            known = [job for job in self.books.jobs.values() if job.key and len(job.tries) < TRIES_MAX]
            if known and chance.random() < 0.4:
                self.add(chance.choice(known[-6:]))
            elif len(self.books.jobs) < self.world.plan.adds_max:
                self.add(self.new_job())

    def _waited(self, act: Act, reply: Any) -> None:
        """WAITJOB says how a job has ended."""
        if isinstance(reply, Status):
            act.word = bytes(reply)

    def new_job(self, *, retry_s: int = -1) -> Sent:
        """A job to add."""
        chance, plan = self.chance, self.world.plan
        number = self.world.next_number()
        if retry_s < 0:
            retry_s = 0 if chance.random() < 0.25 else chance.choice(RETRIES_S)
        delay_s = chance.choice([0, 0, 0, 0, 1, 3])
        ttl_s = delay_s + chance.choice([2, 5, 9]) if chance.random() < 0.15 else LONG_TTL_S
        retries = chance.choice([0, 1, 3]) if chance.random() < 0.15 else -1
        key = b"key%d" % number if plan.has_keys and chance.random() < 0.4 else b""
        size = chance.choice([1000, 5000]) if chance.random() < 0.04 else chance.randint(0, 60)
        job = Sent(number, chance.choice(QUEUES), b"%d:" % number + b"x" * size, retry_s, ttl_s, delay_s, retries, key)
        self.books.jobs[number] = job
        self.added.append(job)
        return job

    def add(self, job: Sent, *, replicate: int = -1, wait_ms: int = -1) -> Try:
        """Send its ADDJOB, be it again."""
        chance = self.chance
        if replicate < 0:
            replicate = chance.choice([0, 0, 1, 2, 3])
        if not job.retry_s:
            replicate = 1
        if wait_ms < 0:
            wait_ms = chance.choice([0, 300, 1000, WAITS_MS_MAX])
        one = Try(self.act("add", queue=job.queue), replicate, chance.random() < 0.1)
        one.act.wait_ms = wait_ms or PATIENCE_US // 1000
        words: Words = [b"ADDJOB", job.queue, job.body, wait_ms, b"RETRY", job.retry_s, b"TTL", job.ttl_s]
        words += [b"REPLICATE", replicate] if replicate else []
        words += [b"DELAY", job.delay_s] if job.delay_s else []
        words += [b"RETRIES", job.retries] if job.retries >= 0 else []
        words += [b"ID", job.key] if job.key else []
        words += [b"ASYNC"] if one.is_async else []
        job.tries.append(one)

        def told(reply: Any) -> None:
            if isinstance(reply, Status):
                one.outcome, one.job_id = "ok", bytes(reply)
                one.act.ids = (one.job_id,)
                self._knows(job, one.job_id)
                if job.ids[one.job_id] is None:
                    job.ids[one.job_id] = one
            elif reply.startswith((b"NOREPL Timeout", b"NOREPL job removed", b"NOREPL The node stops")):
                one.outcome = "timed out"
            elif not reply.startswith(b"MISCONF"):
                one.outcome = "refused"

        self.ask(one.act, *words, told=told)
        return one

    def _knows(self, job: Sent, job_id: bytes) -> None:
        job.ids.setdefault(job_id, None)
        other = self.books.by_id.setdefault(job_id, job)
        if other is not job:
            self.world.complain(f"jobs {other.number} and {job.number} have the same id {job_id!r}")

    # Workers

    def _work(self) -> None:
        chance = self.chance
        here = self.machine
        while self.held and chance.random() < 0.8:
            self._finish(self.held.pop(chance.randrange(len(self.held))))
            self.machine = here
        if len(self.held) < HELD_MAX:
            queues = list(QUEUES) if chance.random() < 0.5 else [chance.choice(QUEUES)]
            if chance.random() < 0.15:
                queues.append(chance.choice(QUEUES) + DEAD_SUFFIX)
            wait_ms = 0 if chance.random() < 0.3 else chance.choice([100, 500, WAITS_MS_MAX])
            options: Words = [b"TIMEOUT", wait_ms] if wait_ms else [b"NOHANG"]
            self.fetch([*options, b"COUNT", chance.choice([1, 1, 4])], queues, wait_ms)

    def _finish(self, handout: Handout) -> None:
        """Do with a job what workers do, mostly at the node that has delivered it."""
        chance, job_id, at = self.chance, handout.job_id, self.chance.random()
        machines = self.world.machines
        there = next(one for one in machines if one.host == handout.host)
        self.machine = there if chance.random() < 0.6 else chance.choice(machines)
        if not (self.machine.is_up and self.connect(self.machine)):
            self.machine = there
            if not (there.is_up and self.connect(there)):
                return  # its retry time brings it back
        if at < 0.55:
            self.ask(self.act("ack", job_id), b"ACKJOB", job_id)
        elif at < 0.63:
            self.ask(self.act("fastack", job_id), b"FASTACK", job_id)
        elif at < 0.71:
            self.ask(self.act("nack", job_id), b"NACK", job_id)
        elif at < 0.76:
            self.ask(self.act("nack", job_id), b"NACK", job_id, b"DELAY", chance.choice([0, 1, 2]))
        elif at < 0.84:
            self.ask(self.act("working", job_id), b"WORKING", job_id)
            self.held.append(handout)
        elif at < 0.86:
            self.ask(self.act("bury", job_id), b"DEADJOB", job_id)

    def fetch(self, options: Words, queues: list[bytes], wait_ms: int = 0) -> None:
        """GETJOB."""
        request = self.act("get")
        request.wait_ms = wait_ms
        has_counters = self.chance.random() < 0.5

        def told(reply: Any) -> None:
            for item in reply if isinstance(reply, list) else ():
                self._was_given(request, item, has_counters=has_counters)

        details: Words = [b"WITHCOUNTERS"] if has_counters else []
        self.ask(request, b"GETJOB", *options, *details, b"FROM", *queues, told=told)

    def _was_given(self, request: Act, item: list[Any], *, has_counters: bool) -> None:
        queue, job_id, body = item[:3]
        number = body.partition(b":")[0]
        job = self.books.jobs.get(int(number)) if number.isdigit() else None
        if job is None or job.body != body or queue not in (job.queue, job.queue + DEAD_SUFFIX):
            self.world.complain(f"{request.host} delivered what nobody added to {queue!r}: {body[:40]!r}")
            return
        handout = Handout(job, job_id, queue, request.host, request.served_us)
        if has_counters:
            fields = dict(zip(item[3::2], item[4::2], strict=True))
            handout.nacks, handout.deliveries = fields[b"nacks"], fields[b"additional-deliveries"]
        self.books.handouts.append(handout)
        self._knows(job, job_id)
        self.held.append(handout)

    # Those who do other things to jobs and queues

    def _bury(self) -> None:
        """Make dead letters; put them back at whatever node, mostly while something is wrong with another one."""
        chance = self.chance
        ids = [job_id for job in list(self.books.jobs.values())[-8:] for job_id in job.ids]
        if ids and chance.random() < (0.1 if self.world.is_troubled else 0.8):
            job_id = chance.choice(ids)
            self.ask(self.act("bury", job_id), b"DEADJOB", job_id)
            return
        queue = chance.choice(QUEUES)
        for machine in self.world.machines:
            if chance.random() < 0.7 and self.connect(machine):
                self.machine = machine
                self.ask(self.act("redrive", queue=queue), b"REDRIVE", queue + DEAD_SUFFIX)

    def _meddle(self) -> None:
        chance = self.chance
        queue = chance.choice(QUEUES)
        ids = [job_id for job in list(self.books.jobs.values())[-15:] for job_id in job.ids]
        at = chance.random()
        if at < 0.08:
            word = chance.choice([b"in", b"out", b"all", b"none", b"none", b"none"])
            self.ask(self.act("pause", queue=queue, word=word), b"PAUSE", queue, word)
        elif at < 0.13:
            word = chance.choice([b"out", b"none", b"none"])
            self.ask(self.act("pause all", queue=queue, word=word), b"PAUSE", queue, word, b"BCAST")
        elif at < 0.15:
            self.ask(self.act("empty", queue=queue), b"QDEL", queue)
        elif at < 0.16:
            self.ask(self.act("empty", queue=queue, word=b"all"), b"QDEL", queue, b"BCAST")
        elif at < 0.20:
            self.ask(self.act("redrive", queue=queue), b"REDRIVE", queue + DEAD_SUFFIX)
        elif at < 0.25:
            self.ask(self.act("look"), b"BGREWRITEAOF")
        elif ids:
            job_id = chance.choice(ids)
            kind, word = chance.choice(
                [("enqueue", b"ENQUEUE"), ("enqueue", b"ENQUEUE"), ("dequeue", b"DEQUEUE"), ("delete", b"DELJOB"),
                 ("bury", b"DEADJOB"), ("ack", b"ACKJOB"), ("look", b"SHOW")]
            )  # fmt: skip
            self.ask(self.act(kind, job_id), word, job_id)
