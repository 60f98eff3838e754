"""Ids of jobs: D-, 8 hex digits of the node's id, 24 characters that are different each time, the TTL in minutes."""

import re
from binascii import b2a_base64
from hashlib import shake_128
from typing import Final

ID_BYTES: Final = 40
NODE_ID_BYTES: Final = 40
TTL_MINUTES_MAX: Final = 0xFFFF
RANDOM_BYTES: Final = 24  # of an id, in characters
MADE_AT_ONCE: Final = 256
_FORM: Final = re.compile(rb"D-[!-~]{8}-[!-~]{24}-[!-~]{4}")


def is_job_id(word: bytes) -> bool:
    """Whether it has the form of one. As in Disque, other characters count as digits; here they must be visible ones:
    ids are lines of replies, and go to other nodes.
    """
    return _FORM.fullmatch(word) is not None


def ttl_field(ttl_s: int, retry_s: int) -> bytes:
    """The last 5 characters: the TTL in minutes, odd where the job is delivered at least once, even where at most."""
    minutes = min(ttl_s // 60, TTL_MINUTES_MAX)
    return b"-%04x" % (minutes | 1 if retry_s else minutes & ~1)


def is_retried(job_id: bytes) -> bool:
    """Whether the job is delivered until it is acknowledged. A digit that is none counts as 0, as in Disque."""
    return bool(_minutes(job_id) & 1)


def ttl_ms_of(job_id: bytes) -> int:
    """How long a job lives at most, to a minute or two."""
    return max(_minutes(job_id), 1) * 60_000


def _minutes(job_id: bytes) -> int:
    return int(bytes([digit if digit in b"0123456789abcdefABCDEF" else 48 for digit in job_id[-4:]]), 16)


class JobIds:
    """Makes ids. `seed` is random bytes of this process; ids are digests of it and a counter."""

    __slots__ = ("_counter", "_prefix", "_random", "_seed")

    def __init__(self, node_id: bytes, seed: bytes) -> None:
        self._counter = 0
        self._seed = seed
        self._random: list[bytes] = []  # of the next ids
        self.use_node_id(node_id)

    def use_node_id(self, node_id: bytes) -> None:
        """From now on ids begin with that of this node."""
        self._prefix = b"D-%b-" % node_id[:8]

    def next_id(self, field: bytes) -> bytes:
        """A new id that ends in this TTL field."""
        if not self._random:
            self._counter += 1
            digest = shake_128(self._seed + self._counter.to_bytes(8, "little"))
            random = b2a_base64(digest.digest(MADE_AT_ONCE * RANDOM_BYTES * 3 // 4), newline=False)
            self._random = [random[at : at + RANDOM_BYTES] for at in range(0, len(random), RANDOM_BYTES)]
        return self._prefix + self._random.pop() + field
