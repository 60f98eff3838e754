"""Parser for memcache replies, fed with bytes in any pieces."""

from collections import deque
from typing import Final

LINE_BYTES_MAX: Final = 65_536  # longer than any reply
# A line, or the items before an END: () = none.
Reply = bytes | tuple[bytes, ...]
EMPTY: Final[Reply] = ()


class UnparsableReply(Exception):
    """The line is not in this protocol."""

    def __init__(self, line: bytes) -> None:
        super().__init__(line[:80].decode("utf-8", "backslashreplace"))


class ReplyParser:
    """Parser that is fed bytes by `feed`, which returns the replies that are complete."""

    def __init__(self, *, keeps_headers: bool = False) -> None:
        """`keeps_headers`: `headers` gets the header of each item, for a client that pipelines and takes them out."""
        self.header = b""  # of the last item: VALUE <key> <flags> <bytes>, and its id and deliveries if requested
        self.headers: deque[bytes] | None = deque() if keeps_headers else None
        self._pieces: list[bytes] = []
        self._missing_bytes = 0  # of an incomplete item: parsing continues once they are there
        self._items: list[bytes] = []

    @property
    def unread(self) -> bytes:
        """The part that has come of an incomplete reply."""
        return b"".join(self._pieces)

    def feed(self, data: bytes) -> list[Reply]:
        """Return the replies that are complete with `data`. Raises UnparsableReply."""
        self._pieces.append(data)
        self._missing_bytes -= len(data)
        if self._missing_bytes > 0:
            return []
        buffer = b"".join(self._pieces)
        replies: list[Reply] = []
        at = 0
        while (eol := buffer.find(b"\r\n", at)) >= 0:
            if buffer.startswith(b"VALUE ", at):
                header = buffer[at:eol]
                size = header[header.rindex(b" ") + 1 :] if header.count(b" ") == 3 else _size(header)
                if not size.isdigit():
                    raise UnparsableReply(header)
                end = eol + 2 + int(size)
                if len(buffer) < end + 2:
                    self._missing_bytes = end + 2 - len(buffer)
                    break
                self.header = header
                if not buffer.startswith(b"\r\n", end):
                    raise UnparsableReply(header)
                self._items.append(buffer[eol + 2 : end])
                if self.headers is not None:
                    self.headers.append(header)
                at = end + 2
                continue
            line = buffer[at:eol]
            if line == b"END":
                replies.append(tuple(self._items))
                self._items.clear()
            elif self._items:
                raise UnparsableReply(line)
            else:
                replies.append(line)
            at = eol + 2
        else:
            if len(buffer) - at > LINE_BYTES_MAX:
                raise UnparsableReply(buffer[at:])
        self._pieces = [buffer[at:]]
        return replies


def _size(header: bytes) -> bytes:
    """Return the size in a header that ends with an id, or that and deliveries; b"" if there is none."""
    fields = header.split(b" ")
    return fields[3] if 5 <= len(fields) <= 6 else b""
