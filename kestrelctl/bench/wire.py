"""Memcache answers, from bytes that come in any pieces."""

from typing import Final

from kestrelctl.shell.exit_codes import ExitCode, Failure

# A line, or the items that stand before an END: () = there was none.
Reply = bytes | tuple[bytes, ...]
EMPTY: Final[Reply] = ()


class ReplyParser:
    """Push bytes with `feed`, which gives back the replies that are complete by then."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._missing_bytes = 0  # of an item that has begun: no need to look before they are there
        self._items: list[bytes] = []

    def feed(self, data: bytes) -> list[Reply]:
        """Raises Failure when it is not the protocol."""
        self._pieces.append(data)
        self._missing_bytes -= len(data)
        if self._missing_bytes > 0:
            return []
        buffer = b"".join(self._pieces)
        replies: list[Reply] = []
        at = 0
        while (eol := buffer.find(b"\r\n", at)) >= 0:
            if buffer.startswith(b"VALUE ", at):
                end = eol + 2 + _size_bytes(buffer[at:eol])
                if len(buffer) < end + 2:
                    self._missing_bytes = end + 2 - len(buffer)
                    break
                if not buffer.startswith(b"\r\n", end):
                    raise _not_the_protocol(buffer[at:eol])
                self._items.append(buffer[eol + 2 : end])
                at = end + 2
                continue
            line = buffer[at:eol]
            if line == b"END":
                replies.append(tuple(self._items))
                self._items.clear()
            elif self._items:
                raise _not_the_protocol(line)
            else:
                replies.append(line)
            at = eol + 2
        self._pieces = [buffer[at:]]
        return replies


def _size_bytes(line: bytes) -> int:
    """Of `VALUE <key> <flags> <bytes>`."""
    size = line[line.rindex(b" ") + 1 :]
    if not size.isdigit():
        raise _not_the_protocol(line)
    return int(size)


def _not_the_protocol(line: bytes) -> Failure:
    return Failure(ExitCode.PROTOCOL, f"the server does not speak Kestrel's protocol, it answered {line[:80]!r}")
