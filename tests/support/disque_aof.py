"""Append-only files as Disque 1.0-rc1 writes them."""

import struct
from collections.abc import Sequence
from typing import Final

from tests.support.clock import START_WALL_MS
from tests.support.resp import request

ACTIVE: Final = 1
QUEUED: Final = 2


def job_id(number: int, field: bytes = b"05a1") -> bytes:
    return b"D-dcb833cf-%024d-%b" % (number, field)


def saved_job(
    number: int = 1,
    *,
    queue: bytes = b"mail",
    body: bytes = b"body",
    state: int = QUEUED,
    gc: int = 0,
    flags: int = 0,
    replicas: int = 1,
    created_ms: int = START_WALL_MS,
    counter: int = 0,
    ttl_s: int = 86_400,
    delay_s: int = 0,
    retry_s: int = 300,
    nacks: int = 0,
    deliveries: int = 0,
    nodes: int = 1,
    node_ids: Sequence[bytes] = (),
    id: bytes = b"",
) -> bytes:
    """The job that a LOADJOB has. Its TTL counts from whole seconds, as there."""
    fields = struct.pack(
        "<40sBBHIQIIHH",
        id or job_id(number, b"05a1" if retry_s else b"05a0"),
        state | gc << 4,
        flags,
        replicas,
        created_ms // 1000 + ttl_s,
        created_ms * 10**6 + counter,
        delay_s,
        retry_s,
        nacks,
        deliveries,
    )
    texts = b"".join([struct.pack("<I", len(text)) + text for text in (queue, body)])
    held_by = list(node_ids) or [b"0123456789abcdef0123456789abcdef01234567"] * nodes
    content = fields + texts + struct.pack("<I", len(held_by)) + b"".join(held_by)
    return struct.pack("<I", len(content)) + content


def load(blob: bytes) -> bytes:
    return request("LOADJOB", blob)


def delete(number: int) -> bytes:
    return request("DELJOB", job_id(number))
