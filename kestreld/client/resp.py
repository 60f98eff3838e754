"""RESP2 of a client: encodes commands, and parses replies fed with bytes in any pieces."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kestreld.client.blocks import text
from kestreld.client.replies import LINE_BYTES_MAX, UnparsableReply

BULK_BYTES_MAX: Final = 1 << 29
_NONE: Final = -1  # as a length: a null string or array

Word = bytes | str | int


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """A reply that begins with a minus. Its first word is a code, ERR if there is no better one."""

    words: str

    @property
    def code(self) -> str:
        return self.words.partition(" ")[0]

    @property
    def reason(self) -> str:
        """The words without the code ERR, which says nothing."""
        return self.words.removeprefix("ERR ")


RespValue = bytes | int | None | ErrorReply | list["RespValue"]


def request(words: Sequence[Word]) -> bytes:
    """Encode a command. Text that was decoded from bytes encodes to the same bytes."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogateescape")
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


class RespReader:
    """Parser that is fed bytes by `feed`, which returns the replies that are complete."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._missing_bytes = 0  # of an incomplete string: parsing continues once they are there
        self._arrays: list[tuple[list[RespValue], int]] = []  # incomplete ones, outermost first: items and count

    def feed(self, data: bytes) -> list[RespValue]:
        """Return the replies that are complete with `data`. Raises UnparsableReply."""
        self._pieces.append(data)
        self._missing_bytes -= len(data)
        if self._missing_bytes > 0:
            return []
        buffer, at = b"".join(self._pieces), 0
        replies: list[RespValue] = []
        while (eol := buffer.find(b"\r\n", at)) >= 0:
            kind, rest, end = buffer[at : at + 1], buffer[at + 1 : eol], eol + 2
            value: RespValue
            if kind == b"$":
                size = _length(kind, rest, BULK_BYTES_MAX)
                if size != _NONE:
                    end += size + 2
                if len(buffer) < end:
                    self._missing_bytes = end - len(buffer)
                    break
                value = None if size == _NONE else buffer[eol + 2 : end - 2]
                if not buffer.startswith(b"\r\n", end - 2):
                    raise UnparsableReply(buffer[at:end])
            elif kind == b"*":
                count = _length(kind, rest, 1 << 62)
                if count > 0:
                    self._arrays.append(([], count))
                    at = end
                    continue
                value = None if count == _NONE else []
            elif kind == b"+":
                value = rest
            elif kind == b"-":
                value = ErrorReply(text(rest))
            else:
                value = _number(kind, rest)
            at = end
            self._place(value, replies)
        else:
            if len(buffer) - at > LINE_BYTES_MAX:
                raise UnparsableReply(buffer[at:])
        self._pieces = [buffer[at:]]
        return replies

    def _place(self, value: RespValue, replies: list[RespValue]) -> None:
        """Add a value to the array that it belongs to, which may complete that array and those around it."""
        while self._arrays:
            items, count = self._arrays[-1]
            items.append(value)
            if len(items) < count:
                return
            value = items
            self._arrays.pop()
        replies.append(value)


def _length(kind: bytes, digits: bytes, most: int) -> int:
    length = _number(b":", digits)
    if not _NONE <= length <= most:
        raise UnparsableReply(kind + digits)
    return length


def _number(kind: bytes, digits: bytes) -> int:
    if kind != b":" or len(digits) > 20 or not digits.removeprefix(b"-").isdigit():
        raise UnparsableReply(kind + digits)
    return int(digits)
