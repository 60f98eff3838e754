"""JobCalls: the calls of JobClient and AsyncJobClient, which carry them out in threads and in an event loop."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Generic, TypeVar

from kestreld import checks
from kestreld.client import job_commands as commands
from kestreld.client.access import checked_addresses, checked_login
from kestreld.client.calls import Call, Pause
from kestreld.client.job_commands import Job, JobCommand, JobName, Shown
from kestreld.client.job_connection import JOBS_PORT_DEFAULT
from kestreld.client.job_nodes import (
    BEAT_AGAIN_S,
    CLOSED,
    Attempts,
    JobNodes,
    acknowledged,
    beat_after_s,
    no_more_beats,
    not_given_back,
    turns,
)
from kestreld.errors import JobRefused, KestrelError, ServersAway

T = TypeVar("T")
IDLE_MAX: Final = 64  # free connections to a node beyond these are closed


@dataclass(frozen=True, slots=True)
class Ask(Generic[T]):
    """A step: send a command to the node at an address. The outcome is the command's result."""

    address: str
    command: JobCommand[T]


JobStep = Ask[Any] | Pause
JobCall = Call[JobStep, T]


class JobCalls:
    """What a client of nodes of jobs can do."""

    def __init__(self, nodes: JobNodes, timeout_ms: int, patience_ms: int) -> None:
        self.nodes = nodes
        self.is_closed = False
        self._timeout_ms = timeout_ms
        self._patience_ms = patience_ms

    def close(self) -> None:
        """Have calls that fail from now on raise ServersAway: the client is closed."""
        self.is_closed = True

    def do(self, command: JobCommand[T]) -> JobCall[T]:
        """Ask nodes until one has carried out the command. Raises like every method of JobClient."""
        attempts = Attempts(self.nodes, command, self._patience_ms)
        while True:
            for address in attempts.addresses():
                try:
                    result: T = yield Ask(address, command)
                except KestrelError as problem:
                    if self.is_closed:
                        raise ServersAway({address: CLOSED}) from problem
                    attempts.failed(address, problem)
                else:
                    return result
            yield Pause(attempts.pause_s())

    def _do_each(
        self, command_of: Callable[[Sequence[JobName]], JobCommand[int]], jobs: Sequence[JobName]
    ) -> JobCall[int]:
        count = 0
        for some in commands.by_node(jobs):
            count += yield from self.do(command_of(some))
        return count

    # Jobs

    def add(
        self,
        queue: str | bytes,
        body: bytes,
        *,
        delay: int = 0,
        ttl: int | None = None,
        retry: int | None = None,
        maxlen: int | None = None,
        retries: int | None = None,
        replicate: int | None = None,
        key: str | bytes | None = None,
    ) -> JobCall[str]:
        """Add a job and return its id. Spans are whole seconds, None = the server's default.

        If the queue knows the `key`, no second job is added, so the call can be repeated. Without a key, ConnectionLost
        means that the job may or may not have been added.
        """
        options = {"ttl": ttl, "retry": retry, "maxlen": maxlen, "retries": retries, "replicate": replicate}
        return self.do(commands.add(queue, body, self._timeout_ms, delay=delay, key=key, **options))

    def get(self, *queues: str | bytes, timeout: float | None = None, pattern: bool = False) -> JobCall[Job | None]:
        """Take the oldest job of the first queue that has one, or wait for one.

        Returns None after `timeout` seconds; `timeout` None = wait forever. With `pattern` the names are patterns such
        as `mail.*`.
        """
        return next(iter((yield from self.get_many(*queues, count=1, timeout=timeout, pattern=pattern))), None)

    def get_many(
        self, *queues: str | bytes, count: int, timeout: float | None = None, pattern: bool = False
    ) -> JobCall[list[Job]]:
        """Take the available jobs, `count` at most, or wait for one, as `get`. Empty after `timeout` seconds."""
        for wait_ms in turns(timeout):
            if found := (yield from self.do(commands.get(queues, count, wait_ms, is_pattern=pattern))):
                self.nodes.fetched(found[0].node, found)
                return found
        return []

    def ack(self, *jobs: JobName) -> JobCall[int]:
        """Acknowledge jobs (Jobs, or their ids): they are done. Return how many of them existed."""
        return self._do_each(commands.ack, jobs)

    def fastack(self, *jobs: JobName) -> JobCall[int]:
        """Acknowledge jobs like `ack`, but without confirmation between the nodes."""
        return self._do_each(commands.fastack, jobs)

    def nack(self, *jobs: JobName, delay: int | None = None) -> JobCall[int]:
        """Give failed jobs back, to be queued now or after `delay` seconds. Return how many of them existed."""
        return self._do_each(lambda some: commands.nack(some, delay), jobs)

    def enqueue(self, *jobs: JobName) -> JobCall[int]:
        """Queue jobs now, which does not count as a failure. Return how many were not queued before."""
        return self._do_each(commands.enqueue, jobs)

    def dequeue(self, *jobs: JobName) -> JobCall[int]:
        """Take jobs out of their queues until their retry times are over. Return how many were queued."""
        return self._do_each(commands.dequeue, jobs)

    def delete(self, *jobs: JobName) -> JobCall[int]:
        """Delete jobs, whatever their states. Return how many of them existed."""
        return self._do_each(commands.delete, jobs)

    def working(self, job: JobName) -> JobCall[int]:
        """Restart a job's retry time, and return it in seconds.

        Raises JobRefused once half of the job's TTL is over, or if there is no such job.
        """
        return self.do(commands.working(job))

    def show(self, job: JobName) -> JobCall[dict[str, Shown] | None]:
        """Return SHOW's fields of a job; `body` is bytes. None if there is no such job."""
        return self.do(commands.show(job))

    def wait(self, job: JobName, timeout: float | None = None) -> JobCall[str | None]:
        """Wait until a job is `acked`, `deleted` or `expired`, and return which. None after `timeout` seconds."""
        for wait_ms in turns(timeout):
            if (end := (yield from self.do(commands.wait(job, wait_ms)))) is not None:
                return end
        return None

    # Queues

    def qlen(self, queue: str | bytes) -> JobCall[int]:
        """Return the number of queued jobs."""
        return self.do(commands.qlen(queue))

    def qstat(self, queue: str | bytes) -> JobCall[dict[str, Shown] | None]:
        """Return QSTAT's fields of a queue. None if there is no such queue."""
        return self.do(commands.qstat(queue))

    def qpeek(self, queue: str | bytes, count: int = 1) -> JobCall[list[Job]]:
        """Return the oldest jobs without taking them; the newest if `count` is negative."""
        return self.do(commands.qpeek(queue, count))

    # Work

    def get_until_closed(self, queues: Sequence[str | bytes], pattern: bool) -> JobCall[Job | None]:
        """`get` for a loop over jobs, which ends when the client is closed: None."""
        try:
            return (yield from self.get(*queues, pattern=pattern))
        except ServersAway:
            if self.is_closed:
                return None
            raise

    def beat(self, job: Job) -> JobCall[float | None]:
        """Send WORKING. Return the seconds until the next one is due; None = none."""
        try:
            return beat_after_s((yield from self.working(job)))
        except JobRefused as refusal:
            no_more_beats(job, refusal)
            return None
        except KestrelError:
            return BEAT_AGAIN_S

    def end_work(self, job: Job, failure: type[BaseException] | None, delay: int | None) -> JobCall[None]:
        """Acknowledge the job of a block that has succeeded, or give it back: at once if it was only interrupted.

        That it could not be given back is only logged: the exception that led here says more.
        """
        if failure is None:
            acknowledged(job, (yield from self.ack(job)))
            return
        has_failed = issubclass(failure, Exception)
        try:
            yield from self.nack(job, delay=delay) if has_failed else self.enqueue(job)
        except KestrelError as problem:
            not_given_back(job, problem)


class JobFace:
    """A client of nodes of jobs, without the means to carry out its calls."""

    def __init__(
        self,
        nodes: Iterable[str] = (f"127.0.0.1:{JOBS_PORT_DEFAULT}",),
        *,
        user: str = "",
        password: str = "",
        tls: bool = False,
        ca: str = "",
        cert: str = "",
        key: str = "",
        timeout: float = 5,
        patience: float = 5,
        chance: Random | None = None,
        discover: bool = True,
    ) -> None:
        """`nodes`: HOST:PORT, tls:HOST:PORT or unix:/PATH each. Does not connect yet.

        With `discover` False only these nodes are asked. A node may take `timeout` seconds to answer. A password
        without a user is the node's `requirepass`. Raises ValueError for an invalid address, OSError for certificate
        files that cannot be used.
        """
        self._login = checked_login(user, password, tls=tls, ca=ca, cert=cert, key=key)
        self._timeout_ms = checks.seconds_ms(timeout, "timeout", checks.FAR_MS, 1)
        patience_ms = checks.seconds_ms(patience, "patience", checks.FAR_MS)
        if chance is not None:
            checks.instance(chance, Random, "chance")
        addresses = checked_addresses(nodes, self._login, "nodes")
        discovers = checks.switch(discover, "discover")
        known = JobNodes(addresses, chance if chance is not None else Random(), discovers=discovers)
        self._calls = JobCalls(known, self._timeout_ms, patience_ms)
        self._begin()

    def _begin(self) -> None:
        """Make what carries out the calls."""
        raise NotImplementedError
