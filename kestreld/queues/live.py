"""The items of a family that some reader has yet to finish, in order of id: what compaction keeps."""

from collections.abc import Iterator
from heapq import merge
from itertools import islice

from kestreld.journal.records import Range, item_id, item_optional_fields
from kestreld.queues.queue import Queue
from kestreld.queues.reader import Reader
from kestreld.queues.window import FILL_BYTES


def live_records(queue: Queue, end_id: int) -> Iterator[bytes | None]:
    """PUT records of unfinished items with ids below `end_id`, each once; None now and then, to pause at.

    It is the state at the first step: an item finished later may still come. Raises JournalCorrupt.
    """
    sources: list[Iterator[bytes]] = []
    for reader in queue.readers.values():
        sources.append(iter(sorted([*reader.unfinished(), *reader.ended_in_memory()], key=item_id)))
        sources.append(iter(list(islice(reader.window, reader.returned, None))))
        if not reader.attached:
            sources.append(_on_disk(queue, reader.next_unread, end_id, reader, list(reader.skip)))
    sources.extend([_on_disk(queue, stream.head, end_id, None, []) for stream in queue.streams.values()])
    last = 0
    for record in merge(*sources, key=item_id):
        found = item_id(record)
        if found >= end_id:
            return
        if found != last:
            last = found
            yield record


def _on_disk(queue: Queue, first: int, end_id: int, reader: Reader | None, skip: list[Range]) -> Iterator[bytes]:
    """What a reader that is behind has not loaded yet; of a stream, everything from its position on."""
    assert queue.journal is not None
    for found, record in queue.journal.puts(first, FILL_BYTES):
        if found >= end_id:
            return
        if _wanted(record, found, reader, skip):
            yield record


def _wanted(record: bytes, found: int, reader: Reader | None, skip: list[Range]) -> bool:
    if reader is None:
        return True
    if item_optional_fields(record)[2] not in (0, reader.number):
        return False
    while skip and skip[0][1] < found:
        del skip[0]
    return not (skip and skip[0][0] <= found)
