"""Client for a node of jobs that raises Failures with exit codes, and operations of several commands."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from typing import Final, TypeVar

from kestrelctl.remote.access import parse_address, tls_context
from kestrelctl.remote.client import ServerWords, failure_of
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld import errors
from kestreld.client import job_commands as commands
from kestreld.client.access import Login
from kestreld.client.job_commands import Job, JobCommand, JobName, Shown
from kestreld.client.job_connection import JobConnection

T = TypeVar("T")
NODE: Final = ServerWords("a node of jobs", "is listen.disque set? (-s HOST:PORT or KESTRELCTL_JOBS)")
SAVE_MS: Final = 86_400_000  # all jobs are written
AT_ONCE: Final = 64  # commands in flight, whose replies must fit in the socket's buffers
_CODES: Final = {
    "NOJOB": ExitCode.NEGATIVE,
    "BADID": ExitCode.USAGE,
    "MISCONF": ExitCode.IO,
    "PAUSED": ExitCode.TRY_AGAIN,
    "MAXLEN": ExitCode.FULL,
    "OOM": ExitCode.FULL,
    "NOREPL": ExitCode.FULL,
    "NOPERM": ExitCode.NO_RIGHTS,
}


class JobsClient(JobConnection):
    """A connection whose errors are Failures."""

    def __init__(self, address: str, timeout_ms: int, login: Login) -> None:
        """Raises Failure for an invalid address."""
        self._uses_tls = login.uses_tls(parse_address(address))
        self.answer_ms = timeout_ms  # longest time the node may take to reply
        super().__init__(address, login, timeout_ms)

    def _connect(self) -> None:
        if self._uses_tls:
            tls_context(self._login)
        super()._connect()

    def failure_of(self, problem: errors.KestrelError) -> Failure:
        if isinstance(problem, errors.JobRefused):
            words = f"{problem.address} refused: {problem.reason}"
            if problem.code == "MISCONF" and "cannot be read" in problem.reason:
                return Failure(ExitCode.QUEUE_STOPPED, words)
            return Failure(_CODES.get(problem.code, ExitCode.REFUSED), words)
        is_of_node = isinstance(problem, (errors.LoginRefused, errors.UnexpectedReply))
        if isinstance(problem, errors.ServerUnfit) and not is_of_node:  # it is loading, or leaves
            return Failure(ExitCode.TRY_AGAIN, f"{problem.address} refused: {problem.reason}")
        return failure_of(problem, self._timeout_ms, NODE)

    def ask_on_any(self, command: JobCommand[T]) -> T:
        """Ask over this connection or, if that fails, over a new one to the node."""
        if self.is_usable:
            with suppress(Failure):
                return self.ask(command)
        with closing(JobsClient(self.address, self.answer_ms, self._login)) as another:
            return another.ask(command)

    def ask_all(self, asked: Sequence[JobCommand[T]]) -> Iterator[T]:
        """Replies to any number of commands, AT_ONCE of them in flight."""
        for first in range(0, len(asked), AT_ONCE):
            yield from self.ask_each(asked[first : first + AT_ONCE])

    def scan(self, step: Callable[[str], JobCommand[tuple[str, list[T]]]]) -> Iterator[T]:
        """All results of a scan, from cursor to cursor."""
        cursor = ""
        while cursor != "0":
            cursor, found = self.ask(step(cursor or "0"))
            yield from found

    def figures(self, queues: Sequence[bytes]) -> Iterator[dict[str, Shown]]:
        """All figures of each of the queues that exist."""
        counted = self.ask_all(
            [command for name in queues for command in (commands.qstat(name), commands.qcount(name))]
        )
        for stat, count in zip(counted, counted, strict=True):
            if stat is not None and count is not None:
                yield stat | count

    def letters(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, dict[str, Shown]]]:
        """The dead letters among the jobs, each with all its figures."""
        shown = self.ask_all([command for job in jobs for command in (commands.deadshow(job), commands.show(job))])
        for job, dead, life in zip(jobs, shown, shown, strict=False):
            if dead is not None and life is not None:
                put_at_ms = int(str(life["ctime"])) // 1_000_000
                yield job, {**dead, "put_at_ms": put_at_ms, "dead_at_ms": dead["dead-since"]}

    def dead_letters(self, jobs: Sequence[JobName]) -> Iterator[dict[str, Shown]]:
        """Origin of each job that is a dead letter; {} for any other job."""
        for known in self.ask_all([commands.deadshow(job) for job in jobs]):
            yield {} if known is None else {name: value for name, value in known.items() if name not in ("id", "queue")}
