"""Segment files made by hand, and the rows that a plain reading of them gives."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from kestreld.journal.kestrel.ops import (
    ADD,
    ADD_XID,
    ADDX,
    CONFIRM_REMOVE,
    CONTINUE,
    REMOVE,
    UNREMOVE,
    decode,
)
from kestreld.journal.records import (
    FRAME_BYTES,
    LAST_ATTEMPT,
    Checkpoint,
    Done,
    Kind,
    ReaderState,
    Reason,
    Type,
    Why,
    checkpoint_record,
    done_record,
    item_add_at_ms,
    item_data,
    item_id,
    item_optional_fields,
    put_record,
    read_abort,
    read_checkpoint,
    read_done,
    read_due,
    read_leases,
    read_reader,
    whole_records,
)
from kestreld.journal.segment import Header, decode_header, encode_header, segment_name

JOURNAL_ID = 1_700_000_000_000
BEGIN_MS = 1_700_000_000_000
# server, queue, reader, event, id, at_ms, expire_ms, flags, size, journal_id, value
Row = tuple[
    str, str, str | None, str, int | None, int | None, int | None, int | None, int | None, int | None, bytes | None
]


def write_segment(
    folder: Path,
    number: int,
    first_id: int,
    records: Sequence[bytes],
    *,
    queue: str = "work",
    replaced: tuple[int, ...] = (),
    previous_bytes: int | None = None,
    backlog_items: int = 0,
    created_at_ms: int = BEGIN_MS,
    journal_id: int = JOURNAL_ID,
    readers: Sequence[ReaderState] | None = None,
    put_items: int = 0,
) -> Path:
    """A segment whose CHECKPOINT knows `readers`: None = the queue's own, number 1, and the child `audit`, number 2.

    `previous_bytes` None = all of the segment before it, where that is in the folder.
    """
    if previous_bytes is None:
        previous_bytes = sum(path.stat().st_size for path in folder.glob(f"{number - 1:010d}-*.seg"))
    if readers is None:
        readers = [
            ReaderState(1, Kind.QUEUE, "", items=backlog_items),
            ReaderState(2, Kind.QUEUE, "audit", items=backlog_items),
        ]
    header = Header(journal_id, number, first_id, created_at_ms, queue, replaced)
    checkpoint = Checkpoint(number, previous_bytes, first_id, 3, put_items, readers=list(readers))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / segment_name(number, first_id)
    path.write_bytes(encode_header(header) + checkpoint_record(checkpoint) + b"".join(records))
    return path


def puts(first_id: int, count: int, data: bytes = b"x" * 64, *, every_ms: int = 1) -> list[bytes]:
    """PUT records of items that came one after the other."""
    return [
        put_record(number, BEGIN_MS + number * every_ms, 0, 0, 0, data) for number in range(first_id, first_id + count)
    ]


def got(first_id: int, last_id: int, at_ms: int, *, reader: int = 1, reason: Reason = Reason.GOT) -> bytes:
    count = last_id - first_id + 1
    return done_record(Done(reader, reason, at_ms, count, 0, [(first_id, last_id)]))


def plain_rows(path: Path, server: str = "", leases: dict[tuple[int, int], int] | None = None) -> Iterator[Row]:
    """What is in a sound segment, record by record. `leases`: attempts by reader and id, of the segments before."""
    leases = {} if leases is None else leases
    buffer = path.read_bytes()
    header, at = decode_header(buffer, str(path))
    names: dict[int, str] = {}
    last_id = header.first_id - 1
    for record_type, start, end in whole_records(buffer, at, str(path)):
        record, body = buffer[start:end], buffer[start + FRAME_BYTES : end]
        if record_type == Type.CHECKPOINT:
            names.update((state.number, state.name) for state in read_checkpoint(body).readers)
        elif record_type == Type.READER:
            change = read_reader(body)
            names[change.reader] = change.name
        elif record_type == Type.PUT:
            last_id = item_id(record)
            expire_at_ms, flags, only = item_optional_fields(record)
            data = item_data(record)
            yield (
                server, header.queue, names[only] if only else None, "put", item_id(record), item_add_at_ms(record),
                expire_at_ms or None, flags, len(data), header.journal_id, data,
            )  # fmt: skip
        elif record_type == Type.DONE:
            done = read_done(body)
            for first, last in done.ranges:
                for number in range(first, last + 1):
                    yield _ended(server, header, names[done.reader], done.reason.name.lower(), number, done.at_ms)
        elif record_type == Type.ABORT:
            abort = read_abort(body)
            yield _ended(server, header, names[abort.reader], "aborted", abort.item_id, abort.at_ms)
        elif record_type == Type.DUE and not header.replaced:
            due = read_due(body)
            if due.why != Why.DELAYED or due.item_id <= last_id:  # what precedes its PUT is a column of that
                event = {Why.DELAYED: "delayed", Why.FAILED: "aborted", Why.LEASED: "leased"}[due.why]
                if due.why == Why.DELAYED and due.lease & LAST_ATTEMPT and due.due_at_ms <= due.at_ms:
                    event = "returned"
                yield _ended(server, header, names.get(due.reader), event, due.item_id, due.at_ms)
        elif record_type == Type.LEASE and not header.replaced:
            for due in read_leases(body):
                attempt, key = due.lease & 0xFFF, (due.reader, due.item_id)
                event = "extended" if leases.get(key) == attempt else "leased"
                leases[key] = attempt
                yield _ended(server, header, names[due.reader], event, due.item_id, due.at_ms)


def _ended(server: str, header: Header, reader: str | None, event: str, number: int, at_ms: int) -> Row:
    return server, header.queue, reader, event, number, at_ms, None, None, None, header.journal_id, None


def plain_kestrel_rows(path: Path, queue: str, server: str = "") -> Iterator[Row]:
    """What is in a sound file of Kestrel's, op by op."""
    buffer = path.read_bytes()
    family, _, child = queue.partition("+")
    at = 0
    while at < len(buffer):
        op, at = decode(buffer, at)
        events = {REMOVE: ["got"], CONFIRM_REMOVE: ["confirmed"], UNREMOVE: ["aborted"], CONTINUE: ["confirmed"]}
        for event in events.get(op.opcode, []):
            yield server, family, child, event, None, None, None, None, None, None, None
        if op.opcode in (ADD, ADDX, ADD_XID, CONTINUE):
            add_at_ms = None if op.opcode == ADD else op.add_at_ms
            yield (
                server, family, child, "put", None, add_at_ms, op.expire_at_ms or None, 0, len(op.data), None, op.data
            )  # fmt: skip
