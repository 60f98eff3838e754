"""Names of Kombu's queues as names of queues of the server, which allow fewer bytes, and back."""

import re
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from kombu.exceptions import ChannelError

# The server's own characters, % as it encodes, blanks and control characters, and all beyond ASCII.
_ENCODED: Final = re.compile(rb"[^!-$&-*,\-0-}]")
NAME_BYTES_MAX: Final = 150  # leaves room for a key and a delay in a command
# Behind the name of a queue for items of a lower priority. No encoded name has a % before a p.
_LEVEL: Final = b"%%p%d"


@lru_cache(4096)
def queue_of(name: str) -> bytes:
    """Return the server's name for a queue of Kombu. Raises ChannelError if that is too long."""
    key = _ENCODED.sub(lambda found: b"%%%02X" % found[0][0], name.encode("utf-8", "surrogateescape"))
    if not key or len(key) > NAME_BYTES_MAX:
        raise ChannelError(f"queue name {name!r}: must have from 1 to {NAME_BYTES_MAX} bytes once encoded as {key!r}")
    return key


def level_of(queue: bytes, priority: int) -> bytes:
    """Return the server's queue for items of a priority; 0 is the first to be served, and the queue itself."""
    return queue + _LEVEL % priority if priority else queue


@lru_cache(4096)
def name_of(queue: bytes) -> str:
    """Return Kombu's name for a queue of the server, whatever the priority of its items."""
    return unquote_to_bytes(queue.partition(b"%p")[0]).decode("utf-8", "surrogateescape")
