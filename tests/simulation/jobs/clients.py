"""Clients of jobs over a run: each does what its kind does, breaks off now and then, and comes back."""

from itertools import count
from random import Random
from typing import Any, Final, Protocol

from kestreld.jobs.dead_letters import DEAD_SUFFIX
from tests.simulation.jobs.books import Act, Added, Books, Handout, Probe, Seen, WithoutLog
from tests.simulation.jobs.plan import LONG_TTL_S, QUEUES, RETRIES_S, JobPlan
from tests.simulation.jobs.server import JobServer
from tests.simulation.jobs.talk import RespTalk
from tests.simulation.schedule import Schedule
from tests.support.resp import ErrorReply, Status

HELD_MAX: Final = 6
# What a server that is starting, or whose disk refuses, says of a command that it has not carried out.
NOT_DONE: Final = (b"LOADING", b"NOJOB", b"TOOLATE", b"PAUSED", b"OOM", b"NOREPL", b"LEAVING")
Words = list[bytes | int]


class Surroundings(Protocol):
    """What clients see of the world."""

    schedule: Schedule
    books: Books
    plan: JobPlan
    server: JobServer | None
    is_open: bool  # clients may begin something
    numbers: "count[int]"  # of the next jobs

    def say(self, line: str) -> None: ...
    def complain(self, words: str) -> None: ...


class Client:
    """One client over a run, with a connection at a time."""

    def __init__(self, world: Surroundings, kind: str, chance: Random) -> None:
        self.world = world
        self.books = world.books
        self.chance = chance
        self.kind = kind
        self.talk: RespTalk | None = None
        self._pace_us = chance.choice([10_000, 40_000, 120_000])
        self._held: list[Handout] = []
        self._habit = {"producer": self._produce, "worker": self._work, "operator": self._operate}.get(kind)
        if self._habit is not None:
            self._later()

    @property
    def is_idle(self) -> bool:
        return self.talk is None or self.talk.over or not self.talk.pending

    def _later(self, delay_us: int = 0) -> None:
        self.world.schedule.after(delay_us or int(self.chance.expovariate(1 / self._pace_us)), self._act)

    def _act(self) -> None:
        world = self.world
        if not world.is_open or not self.connect():
            self._later(50_000)
            return
        talk = self.talk
        assert talk is not None
        assert self._habit is not None
        if talk.pending:
            return
        self._habit()
        if not talk.pending:
            self._later()
        elif world.plan.network_breaks > self.chance.random():
            world.schedule.after(self.chance.randint(0, 20_000), self._break_off, talk)

    def connect(self) -> bool:
        """Whether it is connected, now at the latest."""
        server = self.world.server
        if server is None or not server.is_up:
            return False
        if self.talk is None or self.talk.over:
            trace = server.trace_of(self.kind)
            self.talk = RespTalk(self.world.schedule, server.network, server.life, self._moved_on, self._over, trace)
        return not self.talk.over

    def _break_off(self, talk: RespTalk) -> None:
        if not talk.over:
            talk.close(abruptly=True)
            self._over()

    def _moved_on(self) -> None:
        if self._habit is not None:
            self._later()

    def _over(self) -> None:
        if self._habit is not None:
            self._later(int(self.chance.uniform(1000, 50_000)))

    def leave(self) -> None:
        if self.talk is not None and not self.talk.over:
            self.talk.close(abruptly=False)

    # What is asked, with the books of it

    def ask(self, act: Act, *words: bytes | int) -> None:
        """Ask for something that is answered with a number, a status or an error."""

        def told(reply: Any, served_us: int) -> None:
            if isinstance(reply, ErrorReply):
                if reply.startswith(NOT_DONE):
                    act.count = 0
                    self._answered(act, served_us)
                    return
                if not reply.startswith(b"MISCONF"):
                    self.world.complain(f"{words} was answered {reply!r}")
                act.answered_us = self.world.schedule.now_us  # it is not known whether it was carried out before
                return
            act.count = reply if isinstance(reply, int) else 1
            self._answered(act, served_us)

        self.books.acts.append(act)
        self._send(list(words), told)

    def _answered(self, act: Act, served_us: int) -> None:
        act.answered_us, act.served_us = self.world.schedule.now_us, served_us

    def _send(self, words: Words, told: Any) -> None:
        assert self.talk is not None
        self.talk.send(words, told)

    def act(self, kind: str, *ids: bytes, queue: bytes = b"") -> Act:
        assert self.talk is not None
        assert self.talk.link is not None
        return Act(kind, self.talk.life, self.talk.link, self.world.schedule.now_us, ids, queue)

    # Producers

    def _produce(self) -> None:
        for _ in range(self.chance.choice([1, 1, 1, 3])):
            known = [job for job in self.books.jobs.values() if job.key]
            if known and self.chance.random() < 0.3:
                self.add(self.chance.choice(known[-12:]))
            elif len(self.books.jobs) < self.world.plan.adds_max:
                self.add(self._new_job())

    def _new_job(self) -> Added:
        chance, plan = self.chance, self.world.plan
        number = next(self.world.numbers)
        retry_s = 0 if chance.random() < 0.2 else chance.choice(RETRIES_S)
        delay_s = chance.choice([0, 0, 0, 1, 2, 4])
        ttl_s = delay_s + chance.choice([2, 4, 7]) if chance.random() < 0.2 else LONG_TTL_S
        retries = chance.choice([0, 1, 3]) if chance.random() < 0.2 else -1
        key = b"key%d" % number if plan.has_keys and chance.random() < 0.4 else b""
        size = chance.choice([600, 3000]) if plan.big_bodies and chance.random() < 0.2 else chance.randint(0, 60)
        body = b"%d:" % number + b"x" * size
        job = Added(number, chance.choice(QUEUES), body, retry_s, ttl_s, delay_s, retries, key)
        self.books.jobs[number] = job
        return job

    def add(self, job: Added) -> None:
        """Send its ADDJOB, be it again."""
        act = self.act("add", queue=job.queue)
        words: Words = [b"ADDJOB", job.queue, job.body, 0, b"RETRY", job.retry_s, b"TTL", job.ttl_s]
        words += [b"DELAY", job.delay_s] if job.delay_s else []
        words += [b"RETRIES", job.retries] if job.retries >= 0 else []
        words += [b"ID", job.key] if job.key else []
        job.tries.append(act)
        self.books.acts.append(act)

        def told(reply: Any, served_us: int) -> None:
            if isinstance(reply, Status):
                act.count, act.ids = 1, (bytes(reply),)
                self._answered(act, served_us)
                if job.ids.get(bytes(reply)) is None:
                    job.ids[bytes(reply)] = act
            elif reply.startswith(NOT_DONE):
                job.tries.remove(act)
            elif reply.startswith(b"MISCONF"):
                act.answered_us = self.world.schedule.now_us
            else:
                self.world.complain(f"ADDJOB was answered {reply!r}")

        self._send(words, told)

    # Workers

    def _work(self) -> None:
        chance = self.chance
        while self._held and chance.random() < 0.8:
            self._finish(self._held.pop(chance.randrange(len(self._held))))
        if len(self._held) < HELD_MAX:
            queues = list(QUEUES) if chance.random() < 0.5 else [chance.choice(QUEUES)]
            if chance.random() < 0.1:
                queues.append(chance.choice(QUEUES) + DEAD_SUFFIX)
            options: Words = [b"NOHANG"] if chance.random() < 0.4 else [b"TIMEOUT", chance.choice([50, 300])]
            self.fetch([*options, b"COUNT", chance.choice([1, 1, 4])], queues)

    def _finish(self, handout: Handout) -> None:
        at, job_id = self.chance.random(), handout.job_id
        if at < 0.6:
            self.ask(self.act("ack", job_id), self.chance.choice([b"ACKJOB", b"FASTACK"]), job_id)
        elif at < 0.52:
            self.ask(self.act("nack", job_id), b"NACK", job_id)
        elif at < 0.74:
            self.ask(self.act("nack", job_id), b"NACK", job_id, b"DELAY", self.chance.choice([0, 1, 2]))
        elif at < 0.84:
            self.ask(self.act("working", job_id), b"WORKING", job_id)
            self._held.append(handout)

    def fetch(self, options: Words, queues: list[bytes], *, has_details: bool = False) -> None:
        """GETJOB."""
        request = self.act("get")
        self.books.fetches.append(request)

        def told(reply: Any, served_us: int) -> None:
            request.count = 1
            self._answered(request, served_us)
            for item in reply if isinstance(reply, list) else ():
                queue, job_id, body = item[:3]
                number = body.partition(b":")[0]
                job = self.books.jobs.get(int(number)) if number.isdigit() else None
                if job is None or job.body != body:
                    self.world.complain(f"{queue!r} delivered what nobody added: {body[:40]!r}")
                    continue
                handout = Handout(job, job_id, queue, request, served_us)
                if has_details:
                    fields = dict(zip(item[3::2], item[4::2], strict=True))
                    handout.nacks = fields[b"nacks"]
                    handout.origin, handout.reason = fields[b"origin"], fields[b"reason"] or b""
                job.handouts.append(handout)
                job.ids.setdefault(job_id, None)
                self._held.append(handout)
            if isinstance(reply, ErrorReply) and not reply.startswith((*NOT_DONE, b"MISCONF")):
                self.world.complain(f"GETJOB was answered {reply!r}")

        details: Words = [b"WITHCOUNTERS", b"WITHORIGIN"] if has_details else []
        self._send([b"GETJOB", *options, *details, b"FROM", *queues], told)

    def take_held(self) -> list[Handout]:
        """What it was given so far, and has nothing more to do with."""
        held, self._held = self._held, []
        return held

    # Operators

    def _switch(self) -> bool:
        """Have the log turned off or on, or ask whether it is on; whether it came to that."""
        assert self.talk is not None
        chance, books, life = self.chance, self.books, self.talk.life
        off = books.off_in(life)
        if off is None:
            if chance.random() >= 0.1:
                return False
            off = WithoutLog(life, self.world.schedule.now_us)
            books.without_log.append(off)
            self._set_log(off, b"no")
            return True
        at = chance.random()
        if at < 0.25 and off.is_settled():
            self._ask_for_log(off)
        elif at < 0.5:
            self._set_log(off, b"no" if chance.random() < 0.15 else b"yes")
        return at < 0.55  # nor are jobs loaded from a log that is not there

    def _set_log(self, off: WithoutLog, word: bytes) -> None:
        act = self.act("switch")
        off.asked.append(act)

        def told(reply: Any, served_us: int) -> None:
            expected = (*NOT_DONE, b"MISCONF", b"ERR Unable to turn on")
            if isinstance(reply, ErrorReply) and not reply.startswith(expected):
                self.world.complain(f"appendonly {word!r} was answered {reply!r}")
            self._answered(act, served_us)

        self._send([b"CONFIG", b"SET", b"appendonly", word], told)

    def _ask_for_log(self, off: WithoutLog) -> None:
        def told(reply: Any, served_us: int) -> None:
            if isinstance(reply, bytes) and b"aof_state:on\r\n" in reply:
                off.until_us = self.world.schedule.now_us

        self._send([b"INFO", b"persistence"], told)

    def _operate(self) -> None:
        assert self.talk is not None
        if self.world.plan.is_switched and self._switch():
            return
        chance = self.chance
        queue = chance.choice(QUEUES)
        ids = [job_id for job in list(self.books.jobs.values())[-40:] for job_id in job.ids]
        at = chance.random()
        if at < 0.1:
            self.probe()
        elif at < 0.3:
            self.command(b"BGREWRITEAOF")
        elif at < 0.34 and self.books.off_in(self.talk.life) is None:
            self.books.reloaded_us.append(self.world.schedule.now_us)
            self.command(b"DEBUG", b"LOADAOF")
        elif at < 0.45:
            self.ask(self.act("pause", queue=queue), b"PAUSE", queue, chance.choice([b"in", b"out", b"none", b"none"]))
        elif at < 0.52:
            self.ask(self.act("redrive", queue=queue), b"REDRIVE", queue + DEAD_SUFFIX)
        elif at < 0.55:
            self.command(b"CONFIG", b"SET", b"auto-aof-rewrite-min-size", chance.choice([500, 4000]))
        elif at < 0.59 and self.world.plan.is_flushed:
            if chance.random() < 0.5:
                self.ask(self.act("flush"), b"DEBUG", b"FLUSHALL")
            else:
                self.ask(self.act("empty", queue=queue), b"QDEL", queue)
        elif ids:
            job_id = chance.choice(ids)
            kind, word = chance.choice(
                [("enqueue", b"ENQUEUE"), ("dequeue", b"DEQUEUE"), ("delete", b"DELJOB"), ("bury", b"DEADJOB")]
            )
            self.ask(self.act(kind, job_id), word, job_id)

    def command(self, *words: bytes | int) -> None:
        """Something that ends no job."""

        def told(reply: Any, served_us: int) -> None:
            if words[1:] == (b"LOADAOF",):
                self.books.reloaded_us.append(self.world.schedule.now_us)

        self._send(list(words), told)

    def probe(self) -> None:
        """Look at all jobs."""
        assert self.talk is not None
        sent_us, life = self.world.schedule.now_us, self.talk.life

        def told(reply: Any, served_us: int) -> None:
            if isinstance(reply, ErrorReply):
                return
            probe = Probe(life, sent_us, self.world.schedule.now_us)
            for fields in reply[1]:
                said = dict(zip(fields[::2], fields[1::2], strict=True))
                within = said[b"next-requeue-within"]
                probe.jobs[said[b"id"]] = Seen(
                    said[b"id"], said[b"queue"], said[b"state"], said[b"ttl"], -1 if within is None else within,
                    said[b"nacks"], said[b"additional-deliveries"],
                )  # fmt: skip
            self.books.probes.append(probe)

        self._send([b"JSCAN", b"BUSYLOOP", b"REPLY", b"all"], told)
