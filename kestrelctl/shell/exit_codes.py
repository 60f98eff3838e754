"""How a run of kestrelctl ends: the exit codes, and the two exceptions that carry one to `app.run`.

The numbers are those of sysexits.h and of the shells where they have one, and 80 and up elsewhere.
"""

from enum import IntEnum
from typing import Self


class ExitCode(IntEnum):
    """What `$?` says, and in which words `kestrelctl --help` explains it."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> Self:
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code

    OK = 0, "done"
    NEGATIVE = (
        1,
        "a negative answer: no item, no such queue, a truncated journal tail, items that a repair could not save, "
        "a question answered no, a bench worse than the old one, a warning of doctor",
    )
    USAGE = 2, "the command line is wrong"
    UNKNOWN = 3, "check, which speaks as nagios does: cannot tell; with it 1 is a warning and 2 critical"
    CORRUPT = 65, "journal-verify, journal import or export: a journal is corrupt; import: a line is no item"
    NO_INPUT = 66, "the file, spool, journal or context does not exist; journal-verify: or nothing is in it"
    UNREACHABLE = 69, "the server cannot be reached, or closed the connection"
    INTERNAL = 70, "a mistake in kestrelctl itself"
    CANNOT_CREATE = 73, "there is a journal, file or context of that name already"
    IO = 74, "reading or writing failed, here or on the server's disk"
    TRY_AGAIN = 75, "no answer within --timeout, or a kestreld holds the spool; try again"
    PROTOCOL = 76, "what answered does not speak Kestrel's protocol"
    REFUSED = 77, "the server refused the command, or cannot do it"
    CONFIG = 78, "reload: the configuration is bad, the old one stays in force; the file of contexts is bad"
    FULL = 80, "put, undo, move, copy, import: refused, the queue is full or the item too big"
    PARTLY_STORED = (
        81,
        "put, undo, move, copy, import: some of the items are stored, then one was refused or the server went away",
    )
    AUTHENTICATION = 82, "the server wants a user and password, or did not accept them"
    NO_RIGHTS = 83, "this user may not do that"
    QUEUE_STOPPED = 84, "the server stopped this queue, its journal is corrupt"
    COMMAND_FAILED = 85, "get --exec: the command failed, its item is back at the head of the queue"
    NOT_INTACT = 86, "bench: items were lost, came twice, came damaged or out of order"
    NO_SPARK = 87, "spark: Spark, its extra or Java 17 is not installed"
    CRITICAL = 88, "doctor: something is critical"
    WAIT_EXPIRED = 124, "--wait is over and there was no item; wait: its --timeout is over"
    HANGUP = 129, "stopped by SIGHUP"
    INTERRUPTED = 130, "stopped by SIGINT (Ctrl-C)"
    OUTPUT_CLOSED = 141, "nobody reads standard output any more (| head), or it is closed (>&-)"
    TERMINATED = 143, "stopped by SIGTERM"


class Failure(Exception):
    """The run cannot go on: an exit code, and the words for stderr ("" = say nothing)."""

    def __init__(self, code: ExitCode, words: str) -> None:
        super().__init__(words)
        self.code = code
        self.words = words


class Interrupted(BaseException):
    """A signal asks kestrelctl to stop. Not an Exception, so that no library swallows it."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number
