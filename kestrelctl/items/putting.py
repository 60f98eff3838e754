"""Puts: sources of data, batches, expiries, and the report if some items were not stored."""

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kestrelctl.items.framing import Framing, split
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import STDIN, counted, is_terminal, read_chunks
from kestreld.client.items import EXPIRY_RELATIVE_S_MAX


@dataclass(slots=True)
class PutReport:
    """Counts and failures of the items given to `put_many` or `put_items`."""

    sent: int = 0
    stored: int = 0
    answered: int = 0
    refused: list[int] = field(default_factory=list)  # their numbers, from 1
    failure: Failure | None = None  # why the putting stopped; None = all are stored

    @property
    def first_refused(self) -> int | None:
        """Number of the first refused item; None = none was refused."""
        return self.refused[0] if self.refused else None

    def note(self, failure: Failure | None) -> None:
        """Count one reply: None = stored."""
        self.answered += 1
        if failure is None:
            self.stored += 1
            return
        self.failure = self.failure or failure
        self.refused.append(self.answered)


def open_source(data: str | None, *, is_literal: bool = False) -> Iterable[bytes]:
    """The bytes of put's DATA: text, `-` or None for stdin, `@FILE`; always text if `is_literal`.

    Raises Failure if there is no DATA and stdin is a terminal.
    """
    if data is None and is_terminal(STDIN):
        raise Failure(ExitCode.USAGE, "nothing to put: specify DATA, @FILE or -, or use a pipe")
    if data is not None and is_literal:
        return [os.fsencode(data)]
    if data is None or data == "-":
        return read_chunks(STDIN, "standard input")
    if data.startswith("@"):
        return _read_file(data[1:])
    return [os.fsencode(data)]


def _read_file(path: str) -> Iterator[bytes]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise Failure(ExitCode.NO_INPUT, f"{path}: no such file") from error
    except OSError as error:
        raise Failure(ExitCode.IO, f"{path}: {(error.strerror or str(error)).lower()}") from error
    try:
        yield from read_chunks(descriptor, path)
    finally:
        os.close(descriptor)


def to_batches(chunks: Iterable[bytes], framing: Framing) -> Iterator[list[bytes]]:
    """The items, a few at a time as they are read. Raw: the whole input is one item."""
    if framing == Framing.RAW:
        yield [b"".join(chunks)]
    else:
        yield from split(chunks, framing)


def expiry_s(expire_ms: int | None) -> int:
    """The expiry as the protocol has it, in seconds. None or 0 = never."""
    if not expire_ms:
        return 0
    from_now_s = -(-expire_ms // 1000)  # up: 0 would mean never
    return from_now_s if from_now_s <= EXPIRY_RELATIVE_S_MAX else int(time.time()) + from_now_s


def expiry_at_s(expire_ms: int) -> int:
    """An expiry in ms since 1970 in seconds, rounded up; 0 = never."""
    return -(-expire_ms // 1000)


def delay_left_ms(due_at_ms: int) -> int:
    """Delay left until `due_at_ms` since 1970; 0 = none, or due already."""
    return max(due_at_ms - time.time_ns() // 1_000_000, 0) if due_at_ms else 0


def explain(report: PutReport, failure: Failure) -> Failure:
    """The failure of a put, with the counts of items stored and unknown."""
    unknown = report.sent - report.answered
    words = failure.words
    if report.sent > 1 and report.first_refused is not None:
        words = f"item {report.first_refused}: {words}"
    if report.stored > 0:
        words = f"{words}; stored {report.stored} of the {counted(report.sent, 'item')} sent"
    if unknown > 0:
        words = f"{words}; {'it' if unknown == 1 else f'{unknown} of them'} may or may not be stored"
    return Failure(ExitCode.PARTLY_STORED if report.stored > 0 else failure.code, words)
