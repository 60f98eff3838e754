"""Records of journal files as rows: offset, contents, and the state of the checksum."""

import os
from collections.abc import Iterable, Iterator
from typing import Final

from kestrelctl.items.framing import data_fields
from kestrelctl.journals.events import ATTEMPT_MASK, attempt_of
from kestrelctl.journals.job_dumping import job_rows
from kestrelctl.journals.locations import JournalLocation, replaying
from kestrelctl.journals.spools import shown
from kestrelctl.journals.times import written_instant
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.client.blocks import Cell
from kestreld.errors import JournalCorrupt
from kestreld.files import FileLayer
from kestreld.journal import records
from kestreld.journal.job_segments import parse_job_segment_name
from kestreld.journal.kestrel.format import queue_of
from kestreld.journal.kestrel.ops import NAMES, decode
from kestreld.journal.kestrel.salvage import stretches
from kestreld.journal.resync import Resync
from kestreld.journal.segment import TORN_MARK, decode_header, parse_segment_name
from kestreld.journal.segment_scan import find_segments

COLUMNS: Final = ["segment", "offset", "type", "queue", "id", "at", "bytes", "data_bytes", "checksum", "words"]
OK: Final = "ok"
UNUSED: Final = "unused"
CUT_SHORT: Final = "cut short"
Row = dict[str, Cell]


class Dump:
    """Rows of a file or of all segments of a queue. `is_damaged` is final once all rows have been read."""

    def __init__(self, *, with_values: bool) -> None:
        self._with_values = with_values
        self.is_damaged = False

    def of(self, source: str, place: JournalLocation | None) -> Iterator[Row]:
        """Rows of `source`: the file of that name if there is one, else the queue in `place`. Raises Failure."""
        if os.path.isfile(source):
            with replaying(source):
                yield from self._file(source, is_newest=True)
            return
        files = (place or JournalLocation.of(None, None)).segments(source)
        for file in files:
            with replaying(source):
                yield from self._file(file.path, is_newest=file.is_live, end=file.end)

    def _file(self, path: str, *, is_newest: bool, end: int | None = None) -> Iterator[Row]:
        name = os.path.basename(path)
        buffer = FileLayer().read_file(path)[:end]
        if parse_segment_name(name) is not None:
            rows = self._segment(path, buffer, is_newest=is_newest)
        elif parse_job_segment_name(name) is not None:
            rows = job_rows(path, buffer, self._bad, with_values=self._with_values)
        elif TORN_MARK in name:
            rows = self._records(_Names(""), buffer, 0, 0, is_newest=True)
        elif (queue := queue_of(name)) is not None:
            rows = self._kestrel(queue, buffer)
        else:
            raise Failure(ExitCode.USAGE, f"{path}: neither a segment nor a Kestrel journal file")
        first: Row = {"segment": name}
        yield from (first | row for row in rows)

    def _segment(self, path: str, buffer: bytes, *, is_newest: bool) -> Iterator[Row]:
        row: Row = {"offset": 0, "type": "HEADER"}
        try:
            header, at = decode_header(buffer, path)
            yield row | {
                "queue": shown(header.queue),
                "id": header.first_id,
                "at_ms": header.created_at_ms,
                "bytes": at,
                "checksum": OK,
                "journal_id": header.journal_id,
                "segment_number": header.segment,
                **({"replaced": " ".join(map(str, header.replaced))} if header.replaced else {}),
            }
            queue, first_id = header.queue, header.first_id
        except JournalCorrupt as problem:
            found = next(one for one in find_segments(FileLayer(), os.path.dirname(path), "") if one.path == path)
            at, queue, first_id = found.records_at, found.header.queue if found.header else "", found.first_id
            yield row | {"bytes": at, "checksum": self._bad(problem.reason)}
        yield from self._records(_Names(queue), buffer, at, first_id, is_newest=is_newest)

    def _records(self, names: "_Names", buffer: bytes, at: int, first_id: int, *, is_newest: bool) -> Iterator[Row]:
        for record_type, start, end in Resync(buffer, at, first_id, None).pieces():
            if record_type < 0:
                continue
            row: Row = {"offset": start, "type": "", "bytes": end - start}
            if record_type == 0:
                names.holders.clear()  # the stretch may have had others of these numbers
                row["checksum"] = self._judge(buffer, start, end, is_newest=is_newest)
                yield row
                continue
            row |= {"type": records.Type(record_type).name, "checksum": OK}
            if record_type == records.Type.LEASE:
                yield from _leases(row, buffer[start:end], names)
            else:
                yield row | self._fields(records.Type(record_type), buffer[start:end], names)

    def _judge(self, buffer: bytes, start: int, end: int, *, is_newest: bool) -> str:
        if not buffer[start:end].strip(b"\0") and end == len(buffer):
            return UNUSED
        code = records.checked_end(buffer, start)[1]
        if is_newest and end == len(buffer) and code == -1:
            return CUT_SHORT
        return self._bad(records.why_bad(code) if code < 0 else "out of place")

    def _bad(self, reason: str) -> str:
        self.is_damaged = True
        return f"bad: {reason}"

    def _fields(self, record_type: records.Type, record: bytes, names: "_Names") -> Row:
        body = record[records.FRAME_BYTES :]
        match record_type:
            case records.Type.PUT:
                add_at_ms, expire_at_ms = records.item_times_ms(record)
                _, flags, only = records.item_optional_fields(record)
                row: Row = {"queue": names.of(only), "id": records.item_id(record), "at_ms": add_at_ms}
                return row | self._item(records.item_data(record), expire_at_ms, flags)
            case records.Type.DONE:
                done = records.read_done(body)
                row = {"queue": names.of(done.reader), "at_ms": done.at_ms, "data_bytes": done.data_bytes}
                reason = done.reason.name.lower()
                return row | {"reason": reason, "items": done.items, "ids": written_ranges(done.ranges)}
            case records.Type.ABORT:
                abort = records.read_abort(body)
                row = {"queue": names.of(abort.reader), "id": abort.item_id, "at_ms": abort.at_ms}
                return row | {"times": abort.times}
            case records.Type.READER:
                change = records.read_reader(body)
                names.learn(change.reader, change.name, change.kind)
                row = {"queue": names.of(change.reader), "id": change.at_id, "at_ms": change.at_ms}
                return row | {"change": "dropped" if change.dropped else "added", "kind": change.kind.name.lower()}
            case records.Type.SYNC:
                return {"synced_bytes": records.read_sync(body)}
            case records.Type.IMPORT:
                return {"files": " ".join(file.name for file in records.read_import(body))}
            case records.Type.DUE:
                due = records.read_due(body)
                row = {"queue": names.of(due.reader), "id": due.item_id, "at_ms": due.at_ms, "due_at_ms": due.due_at_ms}
                if (attempt := attempt_of(due)) is not None:
                    row["attempt"] = attempt
                return row | {"why": due.why.name.lower(), "attempts": due.attempts, "data_bytes": due.data_bytes}
            case records.Type.ORIGIN:
                origin = records.read_origin(body)
                row = {"id": origin.item_id, "origin": shown(origin.queue), "reason": origin.reason_word}
                row |= {"attempts": origin.attempts, "put_at_ms": origin.put_at_ms}
                return row | ({"failure_reason": origin.failure} if origin.failure else {})
            case records.Type.FAILURE:
                (number, one), failure = records.read_failure(body)
                return {"queue": names.of(number), "id": one, "failure_reason": failure}
            case records.Type.KEY:
                key = records.read_key(body)
                row = {"queue": names.of(key.reader), "id": key.item_id, "at_ms": key.at_ms}
                return row | {"key_digest": key.digest.hex(), "until_ms": key.until_ms}
            case records.Type.HOLDER:
                number, holder = records.read_holder(body)
                names.holders[number] = holder
                return {"holder_number": number, "holder": holder}
            case records.Type.LEASE:
                return {}  # `_leases` has a row for each entry
            case records.Type.CHECKPOINT:
                return _checkpoint(body, names)

    def _item(self, data: bytes, expire_at_ms: int, flags: int = 0) -> Row:
        row: Row = {"data_bytes": len(data)}
        if expire_at_ms:
            row["expire_at_ms"] = expire_at_ms
        if flags:
            row["flags"] = flags
        return row | (data_fields(data) if self._with_values else {})

    def _kestrel(self, queue: str, buffer: bytes) -> Iterator[Row]:
        for stretch in stretches(buffer):
            at = stretch.start
            while at < stretch.end:
                op, end = decode(buffer, at)
                row: Row = {"offset": at, "type": NAMES[op.opcode], "queue": shown(queue), "bytes": end - at}
                row["checksum"] = "none"
                if op.xid:
                    row["id"] = op.xid
                if op.add_at_ms:
                    row["at_ms"] = op.add_at_ms
                if NAMES[op.opcode] in ("ADD", "ADDX", "ADD_XID", "CONTINUE"):
                    row |= self._item(op.data, op.expire_at_ms)
                yield row
                at = end
            if (damage := stretch.damage) is not None:
                size_bytes = damage.resume_at - damage.at
                yield {"offset": damage.at, "type": "", "bytes": size_bytes, "checksum": self._bad(damage.reason)}


class _Names:
    """Names of readers and of holders by number, as learned from the records read so far."""

    def __init__(self, family: str) -> None:
        self.holders: dict[int, str] = {}
        self._family = family
        self._names: dict[int, str] = {0: family}

    def learn(self, number: int, name: str, kind: records.Kind) -> None:
        self._names[number] = self._family if not name else f"{self._family}{'+:'[kind]}{name}"

    def of(self, number: int) -> str:
        return shown(self._names.get(number, f"#{number}"))


def _leases(row: Row, record: bytes, names: _Names) -> Iterator[Row]:
    """A row for each entry of a LEASE record, the first with the record's beginning."""
    leases = records.read_leases(record[records.FRAME_BYTES :], names.holders)
    at = len(record) - len(leases) * records.LEASE_ENTRY_BYTES
    offset, size_bytes = int(str(row["offset"])), at + records.LEASE_ENTRY_BYTES
    for due in leases:
        fields: Row = {"queue": names.of(due.reader), "id": due.item_id, "at_ms": due.at_ms}
        fields |= {"ends_at_ms": due.due_at_ms, "attempt": due.lease & ATTEMPT_MASK, "holder": due.holder}
        yield row | {"offset": offset, "bytes": size_bytes} | fields | {"data_bytes": due.data_bytes}
        offset, size_bytes = offset + size_bytes, records.LEASE_ENTRY_BYTES


def _checkpoint(body: bytes, names: _Names) -> Row:
    checkpoint = records.read_checkpoint(body)
    readers = []
    for state in checkpoint.readers:
        names.learn(state.number, state.name, state.kind)
        done = f" done={written_ranges(state.done)}" if state.done else ""
        held = f" held_items={state.held_items}" if state.held_items else ""
        readers.append(f"{names.of(state.number)} head={state.head} items={state.items}{held}{done}")
    return {
        "id": checkpoint.next_id,
        "previous_bytes": checkpoint.previous_bytes,
        "put_items": checkpoint.put_items,
        "readers": "; ".join(readers),
        **({"held_from": checkpoint.held_from} if checkpoint.held_from else {}),
        **({"failure_reasons": len(checkpoint.failures)} if checkpoint.failures else {}),
    }


def written_ranges(ranges: Iterable[records.Range]) -> str:
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)


def for_people(rows: Iterable[Row]) -> Iterator[Row]:
    """Rows with a readable time, and with all fields without a column in `words`."""
    for row in rows:
        words = " ".join(f"{name}={value}" for name, value in row.items() if name not in (*COLUMNS, "at_ms"))
        at_ms = row.get("at_ms")
        yield row | {"at": written_instant(at_ms) if isinstance(at_ms, int) else "", "words": words}
