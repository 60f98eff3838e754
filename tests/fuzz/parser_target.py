"""The memcache parser under bytes of any kind."""

from typing import Final

from kestreld.config.config import Compat, QueueConfig
from kestreld.server.memcache.commands import CommandCache
from tests.support.parsing import parse

LINE_BYTES_MAX: Final = 100
ITEM_BYTES_MAX: Final = 20


def _short(name: str) -> QueueConfig:
    return QueueConfig(max_item_size_bytes=ITEM_BYTES_MAX if name.startswith("s") else None)


def memcache_parser(data: bytes) -> None:
    """A stream means the same in whatever pieces it comes, and the second time as the first.

    The first byte chooses the dialect, the second in pieces of how many bytes it comes.
    """
    if len(data) < 3:
        return
    compat = Compat.KESTREL_1 if data[0] & 1 else Compat.NONE
    short = _short if data[0] & 2 else None
    size_bytes, stream = data[1] % 16 + 1, data[2:]
    lines = CommandCache()
    whole = parse([stream], compat, lines, short, LINE_BYTES_MAX)
    pieces = [stream[at : at + size_bytes] for at in range(0, len(stream), size_bytes)]
    assert parse(pieces, compat, CommandCache(), short, LINE_BYTES_MAX) == whole, "in pieces"
    at = data[1] * len(stream) // 256
    assert parse([stream[:at], stream[at:]], compat, lines, short, LINE_BYTES_MAX) == whole, "cut, and known already"
