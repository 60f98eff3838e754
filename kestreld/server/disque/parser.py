"""Parser of RESP2: arrays of bulk strings, or lines. Limits and errors are those of Redis 3.2.

A command is the list of its words. Input that cannot be parsed is a `Refusal`, after which nothing is parsed.
"""

import re
from typing import Any, Final

from kestreld.server.command_handler import DATA_READ_BYTES, READ_BYTES, Parser
from kestreld.server.disque.commands import WORDS_MAX

WORD_BYTES_MAX: Final = 512 * 1024**2
LINE_BYTES_MAX: Final = 64 * 1024
UNKNOWN_WORDS_MAX: Final = 10  # before the client has logged in
UNKNOWN_WORD_BYTES_MAX: Final = 16 * 1024
LARGE_BYTES: Final = 8192  # a word that is gathered in pieces if it is not there as a whole
UNFINISHED: Final = -1  # in the place of a position to continue at
REFUSED: Final = -2
WORD_COST_BYTES: Final = 64  # memory of a word besides its content

_NUMBER: Final = re.compile(rb"0|-?[1-9]\d{0,18}")
_COUNTS: Final = {b"*%d" % count: count for count in range(1, 65)}
_length: Final = [b"$%d" % length for length in range(1024)].__getitem__
_BLANKS: Final = b" \n\r\t\v\f"
_SPECIAL: Final = re.compile(rb"[\"'\0]")
_PLAIN: Final = re.compile(rb"[^ \n\r\t\v\f\"'\0]+")  # of a word
_QUOTED: Final = {34: re.compile(rb"[^\"\\]+"), 39: re.compile(rb"[^'\\]+")}  # by the quote
_ESCAPES: Final = {110: b"\n", 114: b"\r", 116: b"\t", 98: b"\b", 97: b"\a"}
_HEX: Final = re.compile(rb"x[0-9a-fA-F]{2}")


class Refusal:
    """An error to answer in the place of a command, after which the connection is closed.

    With `is_of_unknown`, parsing can continue instead once the client has logged in.
    """

    __slots__ = ("is_of_unknown", "reason")

    def __init__(self, reason: bytes, *, is_of_unknown: bool = False) -> None:
        self.reason = reason
        self.is_of_unknown = is_of_unknown


class RespParser(Parser):
    """Parser of one connection's input. Until the client is known, it may send little."""

    def __init__(self, *, is_known: bool) -> None:
        super().__init__()
        self._is_known = is_known
        self._rest = b""
        self._words: list[bytes] = []  # of the command that has begun,
        self._missing = 0  # how many it has still to have,
        self._words_bytes = 0
        self._pieces: list[bytes] = []  # and the part of a large one received so far,
        self._wanted = 0  # which is complete, with its line end, after so many bytes more
        self._is_closed = False
        self._is_stopped = False  # until the client is known

    @property
    def mid_command(self) -> bool:
        return bool(self._rest or self._missing or self._wanted)

    @property
    def held_bytes(self) -> int:
        held_bytes = self._words_bytes + len(self._rest)
        return held_bytes if held_bytes > READ_BYTES else 0

    def close(self) -> None:
        self._is_closed = True
        self._rest, self._words, self._pieces = b"", [], []
        self._missing = self._words_bytes = self._wanted = 0
        self.wanted_bytes = READ_BYTES

    def distrust(self) -> None:
        """Limit the input until the client has logged in."""
        self._is_known = False

    def trust(self) -> list[Any]:
        """Return commands received before the login that were too large then: the client has logged in."""
        self._is_known = True
        if not self._is_stopped:
            return []
        self._is_stopped = False
        return self.feed(b"")

    def feed(self, data: bytes) -> list[Any]:
        if self._is_closed:
            return []
        if self._is_stopped:
            self._rest += data
            return []
        commands: list[Any] = []
        if self._wanted and not self._gather(data, commands):
            return commands
        data, self._rest = (self._rest + data if self._rest and not self._pieces else data), b""
        if self._pieces:  # the bytes after a gathered word
            data, self._pieces = self._pieces[0], []
        at, is_fresh = 0, self._is_known
        while at < len(data):
            if is_fresh and not self._missing and data[at] == 42:
                data, at, is_fresh = _usual(data[at:] if at else data, commands), 0, False
                continue
            before = at
            at = self._word(data, at, commands) if self._missing else self._begin(data, at, commands)
            if at == UNFINISHED:
                self._rest = data[before:]
                break
            if at == REFUSED:
                break
        self.wanted_bytes = DATA_READ_BYTES if self.held_bytes else READ_BYTES
        return commands

    def _gather(self, data: bytes, commands: list[Any]) -> bool:
        """Add to a large word; returns True if it is complete. `_pieces` then has the bytes that follow it."""
        self._wanted -= len(data)
        self._words_bytes += len(data)
        self._pieces.append(data)
        if self._wanted > 0:
            return False
        whole = b"".join(self._pieces)
        end = len(whole) + self._wanted
        self._words_bytes += self._wanted - 2
        self._pieces = [whole[end:]]
        self._wanted = 0
        self._add(whole[: end - 2], commands)
        return True

    def _add(self, word: bytes, commands: list[Any]) -> None:
        self._words.append(word)
        self._missing -= 1
        if not self._missing:
            commands.append(self._words)
            self._words = []
            self._words_bytes = 0

    def _begin(self, data: bytes, at: int, commands: list[Any]) -> int:
        """Parse a command's first line; returns where to continue, or UNFINISHED or REFUSED."""
        if data[at] != 42:
            return self._line(data, at, commands)
        end = data.find(b"\r", at)
        if end < 0 or end + 1 >= len(data):
            return self._unfinished(len(data) - at, b"too big mbulk count string", commands)
        count = _number(data[at + 1 : end])
        if count is None or count > WORDS_MAX:
            return self._refuse(b"invalid multibulk length", commands)
        if count > UNKNOWN_WORDS_MAX and not self._is_known:
            return self._stop(b"unauthenticated multibulk length", commands)
        self._missing = max(count, 0)
        return end + 2

    def _word(self, data: bytes, at: int, commands: list[Any]) -> int:
        """Parse a bulk string; returns where to continue, or UNFINISHED or REFUSED."""
        end = data.find(b"\r", at)
        if data[at] != 36:
            return self._refuse(b"expected '$', got '%b'" % data[at : at + 1], commands)
        if end < 0 or end + 1 >= len(data):
            return self._unfinished(len(data) - at, b"too big bulk count string", commands)
        length = _number(data[at + 1 : end])
        if length is None or not 0 <= length <= WORD_BYTES_MAX:
            return self._refuse(b"invalid bulk length", commands)
        if length > UNKNOWN_WORD_BYTES_MAX and not self._is_known:
            return self._stop(b"unauthenticated bulk length", commands)
        start = end + 2
        after = start + length + 2
        if after > len(data):
            if length < LARGE_BYTES:
                return UNFINISHED
            self._pieces = [data[start:]]
            self._wanted = after - len(data)
            self._words_bytes += len(data) - start
            return len(data)
        self._words_bytes += length + WORD_COST_BYTES
        self._add(data[start : start + length], commands)
        return after

    def _line(self, data: bytes, at: int, commands: list[Any]) -> int:
        end = data.find(b"\n", at)
        if end < 0:
            return self._unfinished(len(data) - at, b"too big inline request", commands)
        if end - at > LINE_BYTES_MAX:
            return self._refuse(b"too big inline request", commands)
        words = split_line(data[at:end].removesuffix(b"\r"))
        if words is None:
            return self._refuse(b"unbalanced quotes in request", commands)
        words = [word for word in words if word]
        if words:
            commands.append(words)
        return end + 1

    def _unfinished(self, size_bytes: int, reason: bytes, commands: list[Any]) -> int:
        """Keep a line without an end, unless it is too long."""
        return self._refuse(reason, commands) if size_bytes > LINE_BYTES_MAX else UNFINISHED

    def _refuse(self, reason: bytes, commands: list[Any]) -> int:
        commands.append(Refusal(b"ERR Protocol error: " + reason))
        self.close()
        return REFUSED

    def _stop(self, reason: bytes, commands: list[Any]) -> int:
        """Stop parsing at input that is allowed only after a login, until then."""
        commands.append(Refusal(b"ERR Protocol error: " + reason, is_of_unknown=True))
        self._is_stopped = True
        return UNFINISHED


def _usual(data: bytes, commands: list[Any]) -> bytes:
    """Parse whole commands of words without line ends, which most are; returns the rest of `data`."""
    parts = data.split(b"\r\n")
    at, last = 0, len(parts) - 1
    try:
        while at < last:
            end = at + 1 + 2 * _COUNTS[parts[at]]
            if end > last:
                break
            words = parts[at + 2 : end : 2]
            if [*map(_length, map(len, words))] != parts[at + 1 : end : 2]:
                break
            commands.append(words)
            at = end
    except LookupError:  # many words, or a long one
        pass
    if at == last:
        return parts[last]
    return b"\r\n".join(parts[at:]) if at else data


def _number(word: bytes) -> int | None:
    """Parse a length. None if it is none."""
    return int(word) if _NUMBER.fullmatch(word) else None


def split_line(line: bytes) -> list[bytes] | None:
    """Split an inline command into words; None if a quotation does not end, or does not end a word."""
    if _SPECIAL.search(line) is None:
        return line.split()
    words: list[bytes] = []
    at = 0
    while True:
        while at < len(line) and line[at] in _BLANKS:
            at += 1
        if at == len(line):
            return words
        word: list[bytes] = []
        while at < len(line) and line[at] not in _BLANKS and line[at]:
            if line[at] in b"\"'":
                at = _quotation(line, at, word)
                if at < 0:
                    return None
            elif plain := _PLAIN.match(line, at):
                word.append(plain[0])
                at = plain.end()
        words.append(b"".join(word))
        if at < len(line) and not line[at]:
            return words  # the rest is behind a NUL


def _quotation(line: bytes, at: int, word: list[bytes]) -> int:
    """Parse a quotation, which must end its word; returns where to continue, -1 if it is wrong."""
    quote = line[at]
    at += 1
    while at < len(line):
        if plain := _QUOTED[quote].match(line, at):
            word.append(plain[0])
            at = plain.end()
            continue
        char = line[at]
        if char == quote:
            at += 1
            return at if at == len(line) or line[at] in _BLANKS else -1
        if quote == 34 and char == 92 and at + 1 < len(line):
            if _HEX.match(line, at + 1):
                word.append(bytes((int(line[at + 2 : at + 4], 16),)))
                at += 4
                continue
            at += 1
            word.append(_ESCAPES.get(line[at], line[at : at + 1]))
        elif quote == 39 and line[at : at + 2] == b"\\'":
            at += 1
            word.append(b"'")
        else:
            word.append(line[at : at + 1])
        at += 1
    return -1
