"""Ids of jobs: D-, 8 hex digits of the node's id, 24 characters that are different each time, the TTL in minutes."""

from binascii import b2a_base64
from hashlib import sha1
from typing import Final

ID_BYTES: Final = 40
NODE_ID_BYTES: Final = 40
TTL_MINUTES_MAX: Final = 0xFFFF
_RANDOM_BYTES: Final = 18


def is_job_id(word: bytes) -> bool:
    """Whether it has the form of one. As in Disque, what is between the dashes is not checked."""
    return len(word) == ID_BYTES and word[0:2] == b"D-" and word[10] == 45 and word[35] == 45


def ttl_field(ttl_s: int, retry_s: int) -> bytes:
    """The last 4 characters: the TTL in minutes, odd where the job is delivered at least once, even where at most."""
    minutes = min(ttl_s // 60, TTL_MINUTES_MAX)
    return b"%04x" % (minutes | 1 if retry_s else minutes & ~1)


class JobIds:
    """Makes ids. `seed` is random bytes of this process; ids are digests of it and a counter."""

    __slots__ = ("_counter", "_digest", "_prefix")

    def __init__(self, node_id: bytes, seed: bytes) -> None:
        self._counter = 0
        self._digest = sha1(seed)
        self.use_node_id(node_id)

    def use_node_id(self, node_id: bytes) -> None:
        """From now on ids begin with that of this node."""
        self._prefix = b"D-%b-" % node_id[:8]

    def next_id(self, field: bytes) -> bytes:
        """A new id that ends in this TTL field."""
        self._counter += 1
        digest = self._digest.copy()
        digest.update(self._counter.to_bytes(8, "little"))
        return b"%b%b-%b" % (self._prefix, b2a_base64(digest.digest()[:_RANDOM_BYTES], newline=False), field)
