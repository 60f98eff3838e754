"""The library's queues in tests: instants, spools that close, what an item holds."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kestreld.library import JournaledQueue, JournalReader, QItem, QueueConfig

LONG_MS = 60_000  # no test waits so long
LONG_S = LONG_MS / 1000


def at_ms(ms_from_now: int) -> int:
    return time.time_ns() // 1_000_000 + ms_from_now


def data_of(item: QItem | None) -> bytes | None:
    return None if item is None else item.data


@contextmanager
def journaled(
    spool: Path, name: str = "test", archive_path: str | None = None, **settings: Any
) -> Iterator[JournaledQueue]:
    with JournaledQueue(str(spool), name, QueueConfig(**settings), archive_path=archive_path) as queue:
        yield queue


def read_all(reader: JournalReader) -> list[bytes]:
    """Everything it has, which is done then."""
    found = []
    while (item := reader.get()) is not None:
        reader.commit(item)
        found.append(item.data)
    return found
