"""Clients of a cluster over a time of trouble, what they were told, and whether that is what the cluster promises."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Final

from tests.support.resp import NIL_ARRAY, ErrorReply, RespClient, Status

QUEUE: Final = "work"
RETRIES_S: Final = (3, 5, 8)
HELD_UP_S: Final = 12.0  # so long after its end trouble explains that a node did not know something
JITTER_S: Final = 0.5
ALL: Final = range(100)  # nodes


@dataclass(slots=True)
class Delivery:
    """To a client of that node. `asked_at` is when it had asked, `came_at` when it had the job."""

    node: int
    asked_at: float
    came_at: float


@dataclass(slots=True)
class Job:
    """What became of one ADDJOB. `answered_at` 0 = unknown: it may be there or not."""

    body: bytes
    retry_s: int
    node: int
    sent_at: float
    answered_at: float = 0.0
    is_refused: bool = False
    job_id: bytes = b""
    deliveries: list[Delivery] = field(default_factory=list)
    acked: list[tuple[float, float, int]] = field(default_factory=list)  # asked, answered (0 = unknown), node


@dataclass(slots=True)
class Trouble:
    """Something was wrong with these nodes, from then until then."""

    kind: str
    nodes: frozenset[int]
    from_s: float
    until_s: float = 0.0

    def touches(self, nodes: set[int], from_s: float, until_s: float) -> bool:
        ended_s = (self.until_s or time.monotonic()) + HELD_UP_S
        return bool(self.nodes & nodes) and self.from_s <= until_s and ended_s >= from_s


@dataclass
class History:
    """All that clients were told."""

    jobs: dict[bytes, Job] = field(default_factory=dict)
    troubles: list[Trouble] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    healed_at: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, kind: str, *nodes: int) -> Trouble:
        trouble = Trouble(kind, frozenset(nodes), time.monotonic())
        self.troubles.append(trouble)
        return trouble

    def end(self, trouble: Trouble) -> None:
        trouble.until_s = time.monotonic()


class Client(threading.Thread):
    """One that goes from node to node. `task` does one thing there; it may raise OSError or EOFError."""

    def __init__(
        self, history: History, addresses: list[str], chance: Random, task: "Callable[[Client, RespClient], None]"
    ) -> None:
        super().__init__(daemon=True)
        self.history = history
        self.chance = chance
        self.node = 0
        self.is_over = threading.Event()
        self._addresses = addresses
        self._task = task
        self.start()

    def run(self) -> None:
        while not self.is_over.is_set():
            self.node = self.chance.randrange(len(self._addresses))
            try:
                client = RespClient(self._addresses[self.node], patience_s=4.0)
            except OSError:
                self.is_over.wait(0.05)
                continue
            try:
                for _ in range(self.chance.randint(1, 40)):
                    if not self.is_over.is_set():
                        self._task(self, client)
            except (OSError, EOFError, ValueError):
                pass  # the node is away
            finally:
                client.close()

    def at_another_node(self, use: Callable[[RespClient], None]) -> int:
        """Use a connection to any node; which one, -1 = it was away."""
        node = self.chance.randrange(len(self._addresses))
        try:
            client = RespClient(self._addresses[node], patience_s=4.0)
        except OSError:
            return -1
        try:
            use(client)
        except (OSError, EOFError, ValueError):
            return -1
        finally:
            client.close()
        return node


_numbers = count(1)


def add(client: Client, talk: RespClient) -> None:
    """ADDJOB, with the default number of copies."""
    history = client.history
    body = b"%d" % next(_numbers)
    is_once = client.chance.random() < 0.1
    retry_s = 0 if is_once else client.chance.choice(RETRIES_S)
    job = Job(body, retry_s, client.node, time.monotonic())
    with history.lock:
        history.jobs[body] = job
    once = ("REPLICATE", 1) if is_once else ()
    reply = talk("ADDJOB", QUEUE, body, 2000, "RETRY", retry_s, *once)
    if isinstance(reply, Status):
        job.job_id, job.answered_at = bytes(reply), time.monotonic()
    elif isinstance(reply, ErrorReply):
        with history.lock:
            history.refused[bytes(reply).split()[0].decode()] += 1
        if b"Timeout" not in reply:  # which leaves open what became of it
            job.is_refused = True
        if not reply.startswith((b"NOREPL", b"LOADING", b"LEAVING", b"MISCONF")):
            history.strange.append(f"ADDJOB was answered {reply!r}")
    time.sleep(client.chance.random() * 0.02)


def work(client: Client, talk: RespClient, *, always: bool = False) -> None:
    """GETJOB, and mostly ACKJOB, there or elsewhere."""
    history, asked_at = client.history, time.monotonic()
    found = talk("GETJOB", "TIMEOUT", 300, "COUNT", 3, "FROM", QUEUE)
    came_at = time.monotonic()
    if isinstance(found, ErrorReply) and not found.startswith((b"LOADING", b"LEAVING", b"MISCONF")):
        history.strange.append(f"GETJOB was answered {found!r}")
    if isinstance(found, ErrorReply) or found == NIL_ARRAY:
        return
    for _, job_id, body in found:
        job = history.jobs.get(body)
        if job is None:
            history.strange.append(f"a job that nobody has added: {body!r}")
            continue
        job.job_id = job_id
        job.deliveries.append(Delivery(client.node, asked_at, came_at))
        if always or client.chance.random() < 0.9:
            acknowledge(client, talk, job, elsewhere=0.0 if always else 0.2)


def finish(client: Client, talk: RespClient) -> None:
    """GETJOB, and always ACKJOB there."""
    work(client, talk, always=True)


def acknowledge(client: Client, talk: RespClient, job: Job, *, elsewhere: float) -> None:
    asked_at = time.monotonic()
    place = len(job.acked)
    job.acked.append((asked_at, 0.0, -1))
    if client.chance.random() >= elsewhere:
        node = client.node
        answered = isinstance(talk("ACKJOB", job.job_id), int)
    else:
        replies: list[object] = []
        node = client.at_another_node(lambda other: replies.append(other("ACKJOB", job.job_id)))
        answered = node >= 0 and isinstance(replies[0], int)
    if answered:
        job.acked[place] = (asked_at, time.monotonic(), node)


class Judge:
    """Goes through a history. `found` are broken promises; `figures` are for people."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.found = list(history.strange)
        self.figures: Counter[str] = Counter()

    def judge(self) -> list[str]:
        for job in self._history.jobs.values():
            job.deliveries.sort(key=lambda one: one.came_at)
            self.figures["jobs"] += job.answered_at > 0
            self.figures["deliveries"] += len(job.deliveries)
            self.figures["acknowledged"] += bool(job.acked)
            self._judge_kept(job)
            self._judge_doubled(job)
            self._judge_acknowledged(job)
        self.figures["refused"] = sum(self._history.refused.values())
        return self.found

    def _was_trouble(self, nodes: set[int], from_s: float, until_s: float) -> bool:
        return any(trouble.touches(nodes, from_s, until_s) for trouble in self._history.troubles)

    def _judge_kept(self, job: Job) -> None:
        if job.deliveries or not job.answered_at or job.acked:
            return
        if not job.retry_s and self._was_trouble(set(ALL), job.sent_at, time.monotonic()):
            self.figures["delivered at most once: not at all"] += 1  # its node died with it, or with a reply
            return
        self.found.append(f"lost: {job}")

    def _judge_doubled(self, job: Job) -> None:
        for before, one in zip(job.deliveries, job.deliveries[1:], strict=False):
            self.figures["doubled"] += 1
            if not job.retry_s:
                self.found.append(f"a job that is delivered at most once came twice: {job}")
            elif one.came_at - job.sent_at >= job.retry_s - JITTER_S and not any(
                ack[0] < one.came_at for ack in job.acked
            ):
                self.figures["doubled: its retry time was over"] += 1
            elif self._was_trouble(set(ALL), job.sent_at, one.came_at):
                self.figures["doubled: a node was killed, stopped or cut off"] += 1
            elif one.came_at - before.came_at >= job.retry_s - JITTER_S:
                self.figures["doubled: its acknowledgement came late"] += 1
            else:
                self.found.append(f"doubled without a reason: {job}")

    def _judge_acknowledged(self, job: Job) -> None:
        for _, answered_at, _ in job.acked:
            if not answered_at:
                continue
            for one in job.deliveries:
                if one.asked_at <= answered_at:
                    continue
                self.figures["delivered again after ACKJOB"] += 1
                # A holder that was away at that time does not know, whoever it gave the job to since.
                is_after_all = 0 < self._history.healed_at < one.asked_at
                if is_after_all or not self._was_trouble(set(ALL), answered_at, one.asked_at):
                    self.found.append(f"acknowledged at {answered_at:.2f}, and delivered again: {job}")
