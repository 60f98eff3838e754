"""One item put or taken, and written at once: a turn of a queue with which nothing else goes on.

For the library, where every operation is a turn of its own: what is in the journal afterwards, and what has been
counted, is as after any other turn. Where it takes more than to append a record, these do nothing and say so.
"""

from typing import Final

from xxhash import xxh3_64_intdigest

from kestreld.errors import JournalFailed
from kestreld.journal.records import PUT, PUT_FIELDS_BYTES, Reason, got_record, unpack_id_and_add
from kestreld.queues.item import ITEM_HEADER_BYTES
from kestreld.queues.queue import Queue
from kestreld.queues.reader import Reader

_GOT: Final = int(Reason.GOT)
_pack_put: Final = PUT.pack
_checksum: Final = xxh3_64_intdigest


def put_fast(queue: Queue, data: bytes) -> bool:
    """`put` and its commit. False, with nothing done, when that takes a turn. Raises JournalFailed as a turn does."""
    size = len(data)
    if size > queue.put_budget or queue.waiting:
        return False
    added, now_ms = queue.next_id, queue.clock.read_wall()
    seed = queue.seed if now_ms == queue.seeded_at_ms else queue.seed_at(now_ms)
    record = (
        _pack_put(PUT_FIELDS_BYTES + size, _checksum(data, seed + added + size) & 0xFFFFFFFF, 1, added, now_ms, 0, 0, 0)
        + data
    )
    if not _append(queue, record, added):
        return False
    queue.next_id = added + 1
    queue.put_budget -= size
    queue.put_items += 1
    queue.put_bytes += size
    for reader in queue.readers.values():
        reader.total_items += 1
        if reader.attached:
            reader.window.append(record)
            reader.mem_bytes += size
        else:
            reader.behind_items += 1
            reader.behind_bytes += size
        if reader.last_fetched is not None:
            reader.committed(now_ms)
    if queue.followers:
        queue.tell_followers()
    return True


def take_fast(reader: Reader) -> bytes | None:
    """`take` and its commit. None, with nothing done, when there is nothing, or that takes a turn.

    Raises JournalFailed as a turn does.
    """
    if reader.slow or not reader.window or reader.deleted:
        return None
    queue, record = reader.queue, reader.window[0]
    size, now_ms = len(record) - ITEM_HEADER_BYTES, queue.clock.read_wall()
    found, add_at_ms = unpack_id_and_add(record)
    if not _append(queue, got_record(reader.number, now_ms, size, found), queue.next_id):
        return None
    reader.window.popleft()
    reader.mem_bytes -= size
    reader.taken_items += 1
    reader.ended_items[_GOT] += 1
    reader.last_fetched = None
    reader.age_ms = now_ms - add_at_ms if now_ms > add_at_ms else 0
    if len(queue.readers) > 1:
        for other in queue.readers.values():
            if other.last_fetched is not None:
                other.committed(now_ms)
    if queue.followers:
        queue.tell_followers()
    return record


def _append(queue: Queue, record: bytes, next_id: int) -> bool:
    """Write a commit that is one record. False, with nothing done, when that takes a turn."""
    journal = queue.journal
    if journal is None or queue.dirty or queue.sync_ms is not None:
        return False
    try:
        used_bytes = journal.append(record, next_id)
    except JournalFailed as failure:
        queue.review_next_put()
        queue.report(f"{queue.name}: {failure}")
        raise
    if not used_bytes:
        return False
    queue.commits += 1
    if used_bytes >= queue.segment_bytes_max and queue.wants_segment(journal):
        queue.commit_group.rolling.append(queue)
    return True
