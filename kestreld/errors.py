"""Exceptions that kestreld raises on purpose, divided by who must act on them.

"No item", "queue full" and "timed out" are answers, not errors, and have no class here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from reprlib import repr as shortened
from typing import Any


class KestrelError(Exception):
    """Base class of all exceptions that kestreld raises on purpose. They can be pickled."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _unpickled, (type(self), self.args, vars(self))


def _unpickled(kind: type[KestrelError], args: tuple[Any, ...], state: dict[str, Any]) -> KestrelError:
    error = kind.__new__(kind, *args)  # without __init__, whose arguments are not in the pickle
    vars(error).update(state)
    return error


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One mistake in a configuration, and its location (line and column from 1; 0 = not in a file)."""

    source: str
    line: int
    column: int
    reason: str

    def __str__(self) -> str:
        if self.line == 0:
            return f"{self.source}: {self.reason}"
        return f"{self.source}:{self.line}:{self.column}: {self.reason}"


class ConfigError(KestrelError):
    """The configuration cannot be used: the operator must correct it. Lists every problem found, not only the first."""

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
    """A journal has content that kestreld did not write: a fault of the disk. The queue stops."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(f"{path}: byte {offset}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason
        self.remedy = ""  # the command that reopens the stopped queue; "" = there is none

    def with_remedy(self, words: str) -> str:
        """Return `words`, followed by the command that reopens the queue, if there is one."""
        return f"{words}; run: {self.remedy}" if self.remedy else words


class SegmentsMissing(JournalCorrupt):
    """Segments that a journal needs, and that were on disk, are missing. `path` is its folder. The queue stops."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, 0, reason)
        self.args = (f"{path}: {reason}",)


class LaterVersion(JournalCorrupt):
    """A journal was written by a later version of kestreld. It is not damaged, and this version must not change it."""


class JournalUnreadable(JournalCorrupt):
    """A file or folder of a journal cannot be read, because of the disk or of permissions. The queue stops."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, 0, reason)
        self.args = (f"{path}: {reason}",)


class RecordsDisagree(JournalCorrupt):
    """Every record of a journal is intact, but the records contradict each other on held items. The queue stops."""


class NotImported(JournalCorrupt):
    """Kestrel's files cannot be imported, or lie beside a journal that was not made from them. The queue stops."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, 0, reason)
        self.args = (f"{path}: {reason}",)


class JournalFailed(KestrelError):
    """A write, sync or rename of a journal failed."""

    def __init__(self, path: str, reason: str, *, disk_full: bool = False) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
        self.disk_full = disk_full


class LedgerFull(KestrelError):
    """A table on disk has as many entries as it may have: the operator must raise the limit, or entries be removed."""

    def __init__(self, path: str, entries_max: int) -> None:
        super().__init__(f"{path}: has {entries_max} entries, as many as it may have")


class BadQueueName(KestrelError):
    """The name of a queue is invalid."""


class InvalidArgument(KestrelError):
    """An argument that the library cannot use: a programming error. Nothing was done."""

    def __init__(self, argument: str, allowed: str, value: object) -> None:
        super().__init__(f"{argument} must be {allowed}, not {shortened(value)}")
        self.argument = argument


class InvalidType(InvalidArgument, TypeError):
    """An argument of a type that is not allowed."""


class InvalidValue(InvalidArgument, ValueError):
    """An argument with a value that is not allowed."""


class QueueNotMade(KestrelError):
    """The queue does not exist, and the client may not create it."""


class DeclarationRefused(KestrelError):
    """Settings that a client declares for a queue are invalid, or contradict others."""


class TooManyQueues(QueueNotMade):
    """The limit `max_queues` is reached: the operator must raise it, or somebody delete queues."""

    def __init__(self) -> None:
        super().__init__("too many queues")


class QueueNotOpen(KestrelError):
    """A queue of the library was used before it was opened: a programming error."""

    def __init__(self, queue: str) -> None:
        super().__init__(f"{queue}: not open yet; call setup() first")


class QueueClosed(KestrelError):
    """An item was put on a closed queue."""

    def __init__(self, queue: str) -> None:
        super().__init__(f"{queue}: closed; no more items can be put")


class LeaseLost(KestrelError):
    """A lease ended before its `with` block succeeded: another consumer may have the item, or have finished it.

    `is_unsure`: the item may as well have been confirmed by this block, as a confirmation of it was not answered.
    """

    is_unsure = False  # also of one that was pickled before there was this attribute

    def __init__(self, queue: str, reason: str = "", *, is_unsure: bool = False) -> None:
        reason = reason or "the lease expired before its block ended; use a longer lease or a heartbeat"
        super().__init__(f"{queue}: {reason}")
        self.is_unsure = is_unsure


class HolderSilent(KestrelError):
    """Leases were not extended, because the client's `alive` did not say that their holder is alive."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"alive() {reason}")


class TaskUnknown(KestrelError, ValueError):
    """`task_done` was called more often than items were put: a programming error."""

    def __init__(self) -> None:
        super().__init__("task_done: called more often than items were put")


class QueueInUse(KestrelError, RuntimeError):
    """A function that a queue calls during an operation used the same queue: a programming error."""

    def __init__(self, queue: str) -> None:
        super().__init__(f"{queue}: used by the predicate of its own poll_if; the predicate may only look at its item")


class QueueForked(KestrelError):
    """A queue of the library was used in a child of the process that opened it: a programming error."""

    def __init__(self, queue: str) -> None:
        advice = "open it again in the child, or share it with open_shared"
        super().__init__(f"{queue}: opened before a fork by the parent process; {advice}")


class ThreadDied(KestrelError):
    """A thread of the library ended with an exception, so that the calls it had to make are not made."""

    def __init__(self, name: str, cause: str) -> None:
        super().__init__(f"{name}: its thread died: {cause}; close and reopen it")


class ReaderUnknown(KestrelError):
    """The queue has no such reader, and cannot have one of that name."""


class ServersAway(KestrelError):
    """Servers could not be reached, and did nothing. `reasons` has the error by address."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("no kestreld at " + ", ".join(f"{address} ({why})" for address, why in reasons.items()))
        self.reasons = dict(reasons)


class ConnectionLost(KestrelError):
    """A connection ended before the reply: it is unknown whether the server has executed the request."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address} did not answer ({reason}); it may have executed the command")
        self.address = address


class ServerRefused(KestrelError):
    """A server refused a request: missing right, failing disk, damaged journal."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address} answered: {reason}")
        self.address = address
        self.reason = reason


class ServerUnfit(ServerRefused):
    """A server refused a request that another may accept, and did nothing: too many clients, or not a kestreld."""

    @property
    def is_of_queue(self) -> bool:
        """True if only this queue's journal is at fault."""
        return self.reason.startswith(("journal ", "corrupt "))


class LoginRefused(ServerUnfit):
    """A server did not accept a user or their password."""


class UnexpectedReply(ServerUnfit):
    """The reply is not of the protocol: the address is not that of a Kestrel server."""


class OtherServer(UnexpectedReply):
    """A server of another kind: one with queues where a cache was expected, or the reverse."""


class JobRefused(ServerRefused):
    """A job server refused a command. `code` of its reply: PAUSED, MAXLEN, NOREPL, OOM, NOJOB, TOOLATE, NOPERM, ERR."""

    def __init__(self, address: str, code: str, reason: str) -> None:
        super().__init__(address, reason)
        self.code = code


class LeasesUnknown(ServerRefused):
    """A server does not support leases, delays and keys: it is older than its client, or another kind of server."""

    def __init__(self, address: str) -> None:
        super().__init__(address, "leases, delays and keys are not supported: it is an older server, or compat is set")


class UnknownCommand(ServerRefused):
    """A server does not know the command: it is older than its client, or another kind of server."""

    def __init__(self, address: str, command: str) -> None:
        super().__init__(address, f"unknown command: {command}")
        self.command = command


class CacheAway(KestrelError):
    """A memcached server could not be reached, and did nothing."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"no memcached at {address} ({reason})")
        self.address = address


class CacheRefused(KestrelError):
    """A memcached server refused a request: value too large, out of memory, missing right."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address} answered: {reason}")
        self.address = address
        self.reason = reason


class LockTimeout(KestrelError, TimeoutError):
    """Another client held the lock for the whole timeout. Nothing was done."""

    def __init__(self, lock: str) -> None:
        super().__init__(f"{lock}: held by another client until the time-out")


class LockLost(KestrelError):
    """A lock expired while it was held. Writes made under it before that stand; no others were made."""

    def __init__(self, lock: str) -> None:
        super().__init__(f"{lock}: expired while it was held; hold it for less time, or use a longer expiry")


class ClaimLost(KestrelError):
    """A message was not written: it came after readers had passed its number or given it up."""

    def __init__(self, queue: str, number: str) -> None:
        super().__init__(
            f"{queue}: number {number} was closed before its message was written; write it under a new number"
        )


class TooManyWaiting(KestrelError):
    """A queue in memcached has more waiting messages than allowed, or its counters contradict each other."""

    def __init__(self, queue: str, waiting: int, most: int) -> None:
        super().__init__(f"{queue}: {waiting} messages are waiting, more than {most}; check that a reader is running")
        self.waiting = waiting
