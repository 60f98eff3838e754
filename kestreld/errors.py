"""Every error kestreld raises on purpose, split by who must act on it.

"No item", "queue full" and "timed out" are answers, not errors, and have no class here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from reprlib import repr as shortened
from typing import Any


class KestrelError(Exception):
    """Anything kestreld raises on purpose. It can be passed between processes as it is."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _unpickled, (type(self), self.args, vars(self))


def _unpickled(kind: type[KestrelError], args: tuple[Any, ...], state: dict[str, Any]) -> KestrelError:
    error = kind.__new__(kind, *args)  # not by what __init__ takes: that is not in the pickle
    vars(error).update(state)
    return error


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One mistake in a configuration and where it stands (line and column from 1; 0 = not in a file)."""

    source: str
    line: int
    column: int
    reason: str

    def __str__(self) -> str:
        if self.line == 0:
            return f"{self.source}: {self.reason}"
        return f"{self.source}:{self.line}:{self.column}: {self.reason}"


class ConfigError(KestrelError):
    """The configuration cannot be used: the operator must correct it. Lists every problem found, not the first."""

    def __init__(self, problems: list[ConfigProblem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class SpoolLocked(KestrelError):
    """Another process holds the spool."""

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(f"{path}: in use by {holder}; stop it first, or set another queue_path")


class SpoolUnusable(KestrelError):
    """The spool cannot be read or written at all."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")


class JournalCorrupt(KestrelError):
    """A journal holds something that was not written by kestreld: the disk's fault. The queue stops."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(f"{path}: byte {offset}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason
        self.remedy = ""  # what reopens the queue that it has stopped: a command; "" = none does

    def with_remedy(self, words: str) -> str:
        """Words about it, and the command that reopens the queue, if there is one."""
        return f"{words}; run: {self.remedy}" if self.remedy else words


class SegmentsMissing(JournalCorrupt):
    """Whole segments of a journal have gone that were on disk and are needed. `path` is its folder. The queue stops."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, 0, reason)
        self.args = (f"{path}: {reason}",)


class LaterVersion(JournalCorrupt):
    """A journal was written by a later kestreld. It is not damaged, and not for this one to touch."""


class JournalUnreadable(JournalCorrupt):
    """A file or folder of a journal cannot be read: the disk's fault, or the rights to it. The queue stops."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, 0, reason)
        self.args = (f"{path}: {reason}",)


class RecordsDisagree(JournalCorrupt):
    """Every record of a journal is whole, but they contradict each other on what is held back. The queue stops."""


class NotImported(JournalCorrupt):
    """Kestrel's files cannot become a journal, or lie beside one that was not made from them. The queue stops."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, 0, reason)
        self.args = (f"{path}: {reason}",)


class JournalFailed(KestrelError):
    """The disk refused a write, a sync or a rename of a journal."""

    def __init__(self, path: str, reason: str, *, disk_full: bool = False) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
        self.disk_full = disk_full


class BadQueueName(KestrelError):
    """A queue cannot have this name."""


class InvalidArgument(KestrelError):
    """An argument that the library cannot use: a programming error. Nothing was done."""

    def __init__(self, argument: str, allowed: str, value: object) -> None:
        super().__init__(f"{argument} must be {allowed}, not {shortened(value)}")
        self.argument = argument


class InvalidType(InvalidArgument, TypeError):
    """An argument of a type that it cannot have."""


class InvalidValue(InvalidArgument, ValueError):
    """An argument with a value that it cannot have."""


class QueueNotMade(KestrelError):
    """There is no such queue, and the client may not make it."""


class TooManyQueues(QueueNotMade):
    """There are `max_queues` already: the operator's to raise, or somebody's to delete some."""

    def __init__(self) -> None:
        super().__init__("too many queues")


class QueueNotOpen(KestrelError):
    """A queue of the library was used before it was opened: a programming error."""

    def __init__(self, queue: str) -> None:
        super().__init__(f"{queue}: not open yet; call setup() first")


class QueueClosed(KestrelError):
    """Something was to be put on a queue that takes nothing any more."""

    def __init__(self, queue: str) -> None:
        super().__init__(f"{queue}: closed, takes no more items")


class LeaseLost(KestrelError):
    """A `with` block of a lease has succeeded too late: the item may be with somebody else, or done by them."""

    def __init__(self, queue: str) -> None:
        super().__init__(f"{queue}: the lease was over before its block was; make it longer, or give it a heartbeat")


class TaskUnknown(KestrelError, ValueError):
    """`task_done` was called for more items than there were: a programming error."""

    def __init__(self) -> None:
        super().__init__("task_done: called more often than items were put")


class QueueInUse(KestrelError, RuntimeError):
    """A function that a queue calls in the middle of an operation used that queue: a programming error."""

    def __init__(self, queue: str) -> None:
        super().__init__(f"{queue}: used by the predicate of its own poll_if; the predicate may only look at its item")


class QueueForked(KestrelError):
    """A queue of the library was used in a child of the process that opened it: a programming error."""

    def __init__(self, queue: str) -> None:
        advice = "open it again in the child, or share it with open_shared"
        super().__init__(f"{queue}: opened before a fork by the parent process; {advice}")


class ThreadDied(KestrelError):
    """A thread of the library has ended by an exception: nobody would make the calls any more that it had to make."""

    def __init__(self, name: str, cause: str) -> None:
        super().__init__(f"{name}: its thread died: {cause}; close and reopen it")


class ReaderUnknown(KestrelError):
    """A queue has no such reader, and cannot have it."""


class ServersAway(KestrelError):
    """Servers could not be reached, and nothing was done there: why, by address."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("no kestreld at " + ", ".join(f"{address} ({why})" for address, why in reasons.items()))
        self.reasons = dict(reasons)


class ConnectionLost(KestrelError):
    """A server was gone before it had answered: whether it has done what it was asked to is unknown."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address} did not answer ({reason}): whether it has done it is unknown")
        self.address = address


class ServerRefused(KestrelError):
    """A server said no: a user without the right, a disk that takes nothing, a damaged journal."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address} answered: {reason}")
        self.address = address
        self.reason = reason


class ServerUnfit(ServerRefused):
    """A server refused what another one may take, and has done nothing: it is full of clients, or is no kestreld."""

    @property
    def is_of_queue(self) -> bool:
        """Whether only this queue's journal is the trouble."""
        return self.reason.startswith(("journal ", "corrupt "))


class LoginRefused(ServerUnfit):
    """A server did not accept a user or their password."""


class UnexpectedReply(ServerUnfit):
    """What replied does not speak the protocol: it is not a Kestrel server."""


class OtherServer(UnexpectedReply):
    """A server of another kind: it keeps queues where a cache was expected, or the other way round."""


class JobRefused(ServerRefused):
    """A node of jobs said no. `code` is its reply's: PAUSED, MAXLEN, NOREPL, OOM, NOJOB, TOOLATE, NOPERM, ERR."""

    def __init__(self, address: str, code: str, reason: str) -> None:
        super().__init__(address, reason)
        self.code = code


class LeasesUnknown(ServerRefused):
    """A server knows no leases, delays or keys: it is older than its client, or another kind of server."""

    def __init__(self, address: str) -> None:
        super().__init__(address, "it knows no leases, delays or keys: it is older, or imitates a Kestrel (compat)")


class UnknownCommand(ServerRefused):
    """A server does not know the command: it is older than its client, or another kind of server."""

    def __init__(self, address: str, command: str) -> None:
        super().__init__(address, f"it does not know {command}")
        self.command = command


class CacheAway(KestrelError):
    """A memcached server could not be reached, and nothing was done there."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"no memcached at {address} ({reason})")
        self.address = address


class CacheRefused(KestrelError):
    """A memcached server said no: a value too large, no memory, a user without the right."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address} answered: {reason}")
        self.address = address
        self.reason = reason


class LockTimeout(KestrelError, TimeoutError):
    """Somebody else had the lock for as long as the caller would wait. Nothing was done."""

    def __init__(self, lock: str) -> None:
        super().__init__(f"{lock}: held by another for the whole timeout")


class LockLost(KestrelError):
    """A lock expired before its holder was done. What was done with it already stands; nothing else was."""

    def __init__(self, lock: str) -> None:
        super().__init__(f"{lock}: expired while it was held; do less with it, or give it a longer expiry")


class ClaimLost(KestrelError):
    """A message came so late that readers have passed its number, or given it up. It was not written."""

    def __init__(self, queue: str, number: str) -> None:
        super().__init__(f"{queue}: number {number} was closed before it was written; write under a new one")


class TooManyWaiting(KestrelError):
    """A queue in memcached has as many messages waiting as it may, or its counters contradict each other."""

    def __init__(self, queue: str, waiting: int, most: int) -> None:
        super().__init__(f"{queue}: {waiting} messages are waiting, more than {most}; is it read?")
        self.waiting = waiting
