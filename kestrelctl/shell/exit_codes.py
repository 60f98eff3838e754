"""Exit codes of kestrelctl, and Failure, Ended and Interrupted, the exceptions that end a run.

Codes follow sysexits.h and the shells where they define one; the others are 80 and up.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, Self


class ExitCode(IntEnum):
    """An exit code and its explanation in the help and the man pages."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> Self:
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code

    OK = 0, "done"
    NEGATIVE = (
        1,
        "a negative answer: no item, no such queue or job, no value in the cache, a truncated journal tail, items that "
        "a repair could not recover, a question answered no, a benchmark worse than the one compared with, a warning "
        "of doctor",
    )
    USAGE = 2, "the command line is wrong"
    UNKNOWN = (
        3,
        "check and cluster status, which use the codes of nagios: unknown; with them 1 is a warning and 2 critical",
    )
    CORRUPT = (
        65,
        "journal-verify, journal import, export or ship, jobs import: a journal or file is corrupt; journal ship: an "
        "object has other contents; import: a line is not an item",
    )
    NO_INPUT = 66, "the file, spool, journal, bucket, context or node does not exist; journal-verify: or it is empty"
    UNREACHABLE = 69, "the server cannot be reached, or closed the connection"
    INTERNAL = 70, "an internal error of kestrelctl"
    CANNOT_CREATE = 73, "a journal, file or context of that name already exists"
    IO = 74, "a read or write failed, here or on the server's disk"
    TRY_AGAIN = 75, "no answer within --timeout, a kestreld holds the spool, or a queue of jobs is paused; try again"
    PROTOCOL = 76, "the address is not a Kestrel server (with cache: a memcached; with jobs: a node of jobs)"
    REFUSED = 77, "the server refused the command, or does not support it"
    CONFIG = 78, "reload: the new configuration is invalid and the old one stays in force; the contexts file is invalid"
    FULL = (
        80,
        "put, undo, move, copy, import: refused: the queue is full, or the item is larger than max_item_size; jobs "
        "add: the queue has --maxlen jobs, memory is full, or not enough nodes take a copy",
    )
    PARTLY_STORED = (
        81,
        "put, undo, move, copy, import, jobs add or import: some were stored before a refusal or a lost connection",
    )
    AUTHENTICATION = 82, "authentication is required, or the server did not accept the user and password"
    NO_RIGHTS = 83, "the user does not have the right to do that"
    QUEUE_STOPPED = 84, "the server has stopped this queue, or all jobs, because the journal is corrupt"
    COMMAND_FAILED = 85, "get --exec, jobs get --exec: the command failed; its item is delivered again"
    NOT_INTACT = 86, "bench: items were lost, duplicated, damaged or out of order"
    NO_SPARK = 87, "spark: Spark, its extra or Java 17 is not installed"
    CRITICAL = 88, "doctor: at least one check is critical"
    WAIT_EXPIRED = 124, "no item or job arrived within --wait; wait: the condition was not met within --timeout"
    HANGUP = 129, "stopped by SIGHUP"
    INTERRUPTED = 130, "stopped by SIGINT (Ctrl-C)"
    OUTPUT_CLOSED = 141, "standard output was closed by its reader (| head), or is closed (>&-)"
    TERMINATED = 143, "stopped by SIGTERM"


# Codes that scripts meet; `kestrelctl --help` lists these, and `kestrelctl help exit-codes` all.
COMMON: Final = (
    *(ExitCode.OK, ExitCode.NEGATIVE, ExitCode.USAGE, ExitCode.UNREACHABLE, ExitCode.IO, ExitCode.TRY_AGAIN),
    *(ExitCode.REFUSED, ExitCode.FULL, ExitCode.AUTHENTICATION, ExitCode.NO_RIGHTS, ExitCode.QUEUE_STOPPED),
    *(ExitCode.COMMAND_FAILED, ExitCode.WAIT_EXPIRED),
)


def table_of(codes: Iterable[ExitCode]) -> str:
    """A line for each code and its meaning."""
    return "\n".join(f"  {code.value:>3}  {code.meaning}" for code in codes)


class Failure(Exception):
    """The run cannot continue: an exit code, and a message for stderr ("" = none).

    A quiet message ("work is empty") is printed only if stderr is a terminal: a script uses the exit code. `is_quiet`
    None = the default of the code.
    """

    def __init__(self, code: ExitCode, words: str, *, is_quiet: bool | None = None) -> None:
        super().__init__(words)
        self.code = code
        self.words = words
        self.is_quiet = code in (ExitCode.NEGATIVE, ExitCode.WAIT_EXPIRED) if is_quiet is None else is_quiet


class Ended(Exception):
    """The run is over, with this exit code, and all is said."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Interrupted(BaseException):
    """A signal asks kestrelctl to stop. Not an Exception, so that no library swallows it."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number
