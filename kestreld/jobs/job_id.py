"""Ids of jobs: D-, 8 hex digits of the node's id, 24 random characters, and the TTL in minutes."""

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
    """Return True if a word has the form of a job id.

    As in Disque, other characters count as digits; here they must be visible, because ids go into replies.
    """
    return _FORM.fullmatch(word) is not None


def ttl_field(ttl_s: int, retry_s: int) -> bytes:
    """Return the last 5 characters of an id: the TTL in minutes, odd for at-least-once delivery, else even."""
    minutes = min(ttl_s // 60, TTL_MINUTES_MAX)
    return b"-%04x" % (minutes | 1 if retry_s else minutes & ~1)


def is_retried(job_id: bytes) -> bool:
    """Return True if the job is delivered until it is acknowledged. An invalid digit counts as 0, as in Disque."""
    return bool(_minutes(job_id) & 1)


def ttl_ms_of(job_id: bytes) -> int:
    """Return a job's TTL according to its id, to a minute or two, ms."""
    return max(_minutes(job_id), 1) * 60_000


def _minutes(job_id: bytes) -> int:
    return int(bytes([digit if digit in b"0123456789abcdefABCDEF" else 48 for digit in job_id[-4:]]), 16)


class JobIds:
    """Generator of ids, which are digests of a counter and `seed`, random bytes of this process."""

    __slots__ = ("_counter", "_prefix", "_random", "_seed")

    def __init__(self, node_id: bytes, seed: bytes) -> None:
        self._counter = 0
        self._seed = seed
        self._random: list[bytes] = []  # of the next ids
        self.use_node_id(node_id)

    def use_node_id(self, node_id: bytes) -> None:
        """Begin ids with this node's id from now on."""
        self._prefix = b"D-%b-" % node_id[:8]

    def next_id(self, field: bytes) -> bytes:
        """Return a new id that ends in this TTL field."""
        if not self._random:
            self._counter += 1
            digest = shake_128(self._seed + self._counter.to_bytes(8, "little"))
            random = b2a_base64(digest.digest(MADE_AT_ONCE * RANDOM_BYTES * 3 // 4), newline=False)
            self._random = [random[at : at + RANDOM_BYTES] for at in range(0, len(random), RANDOM_BYTES)]
        return self._prefix + self._random.pop() + field
