"""GET /queues/Q/journal: the segments of a queue's journal, and the readers that need each of them.

All of it comes from memory, without reading a file.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Final

from kestreld.journal.journal import Journal
from kestreld.journal.records import Kind
from kestreld.journal.segment import Segment
from kestreld.queues.queue import Queue
from kestreld.server.admin.answers import Refused, Share, in_slices
from kestreld.server.admin.rows import shown_name

SEGMENTS_MAX: Final = 10_000  # in an answer, the newest of them
PINNED_BY_MAX: Final = 8  # names for a segment: those furthest behind


async def describe_journal(queue: Queue, share: Share, *, is_compacting: bool, with_folder: bool) -> dict[str, Any]:
    """Return the fields of the answer, made with turns of the data ports in between. Raises Refused."""
    queue.flush_counters()
    journal = queue.journal
    if journal is None:
        raise Refused(409, "the queue is in memory only: it has no journal")
    segments = list(journal.segments)
    readers = [
        *((reader.label, Kind.QUEUE, reader.head()) for reader in queue.readers.values()),
        *((stream.name, Kind.STREAM, stream.head) for stream in queue.streams.values()),
    ]
    readers.sort(key=lambda reader: reader[2])
    next_id = queue.next_id
    fields: dict[str, Any] = {
        "queue": shown_name(queue.name),
        "journal_id": journal.journal_id,
        "next_id": next_id,
        "bytes_on_disk": journal.disk_bytes,
        "failed": journal.failed.reason if journal.failed is not None else None,
        "stopped": queue.stopped.reason if queue.stopped is not None else None,
        "is_synced": not journal.unsynced,
        "is_compacting": is_compacting,
        "is_retiring": journal.retiring,
        "readers": [
            {"reader": shown_name(name), "kind": kind.name.lower(), "head": head} for name, kind, head in readers
        ],
    }
    if with_folder:
        fields["folder"] = journal.folder
    heads = [(shown_name(name), head) for name, _, head in readers]
    fields["segments"] = await in_slices(_segments(journal, segments[-SEGMENTS_MAX:], next_id, heads), share)
    return fields


def _segments(
    journal: Journal, segments: list[Segment], next_id: int, heads: list[tuple[str, int]]
) -> Iterator[dict[str, Any]]:
    """Yield the segments, replaced ones first. `heads` rise: a reader needs every segment with ids from its head on."""
    for segment in list(journal.leftover.values()):
        yield _fields(segment, "replaced", segment.first_id, [], 0)
    lowest = heads[0][1] if heads else next_id
    for place, segment in enumerate(segments):
        is_live = place + 1 == len(segments)
        end_id = next_id if is_live else segments[place + 1].first_id
        pins = bisect_left(heads, end_id, key=lambda reader: reader[1])
        needed = max(0, end_id - max(segment.first_id, lowest))
        state = "live" if is_live else "dead" if not pins else "compacted" if segment.compacted else "full"
        yield _fields(segment, state, end_id, [name for name, _ in heads[:pins]], needed)


def _fields(segment: Segment, state: str, end_id: int, pinned_by: list[str], needed_ids: int) -> dict[str, Any]:
    return {
        "segment": segment.number,
        "file": segment.path.rpartition("/")[2],
        "state": state,
        "first_id": segment.first_id,
        "end_id": end_id,
        "needed_ids": needed_ids,
        "bytes": segment.used_bytes,
        "pins": len(pinned_by),
        "pinned_by": pinned_by[:PINNED_BY_MAX],
    }
