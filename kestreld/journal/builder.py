"""Writes a new journal in one go, from items that come from elsewhere: an import or a repair.

It is built under another name, synced, and only then renamed into place: a crash leaves the old or the new, whole.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from kestreld.clock import Clock
from kestreld.files import FileLayer
from kestreld.journal import records
from kestreld.journal.journal import Journal
from kestreld.journal.open_files import OpenFiles
from kestreld.journal.reader_states import settle

WRITE_BYTES: Final = 1 << 20


class JournalBuilder:
    """Add PUT records in rising order of their ids, then `finish`. Raises JournalFailed."""

    def __init__(
        self,
        files: FileLayer,
        clock: Clock,
        folder: str,
        queue: str,
        journal_id: int,
        readers: Iterable[records.ReaderState],
        *,
        segment_bytes_max: int,
        next_reader: int,
        first_id: int = 1,
        first_segment: int = 1,
        version: int = 1,
        origins: Mapping[int, records.Origin] | None = None,
        failures: Mapping[records.FailedItem, str] | None = None,
        syncs: bool = True,
    ) -> None:
        """Held items, keys and `origins` need `version` 2, `failures` 3; they count for items that are added.

        From `version` 4 on, the holders of leases are kept.

        With `syncs` False the caller must sync the journal before it is used.
        """
        files.make_dir(folder)
        self._syncs = syncs
        self._files = files
        self._journal = Journal(files, clock, OpenFiles(), folder, queue, journal_id)
        self._segment_bytes_max = segment_bytes_max
        self._state = records.Checkpoint(1, 0, first_id, next_reader, readers=list(readers))
        self._state.failures.update(failures or {})
        for reader in self._state.readers:
            reader.items = reader.data_bytes = reader.held_items = reader.held_bytes = 0
            if reader.due:
                settle(reader, [*reader.done, *((one, one) for one in reader.due)])
        self._origins = origins or {}
        self._keys: dict[int, list[records.Key]] = {}
        for key in [key for reader in self._state.readers for key in reader.keys]:
            self._keys.setdefault(key.item_id, []).append(key)
        self._parts: list[bytes] = []
        self._bytes = 0
        self._first_id = first_id
        self._done_at: dict[int, int] = {}  # by reader number, how many of its done ranges are passed
        self._has_holders = version >= records.LEASES_VERSION
        self._journal.need_version(version)
        self._journal.start_segment(self._state, skip=first_segment - 1)

    def note(self, record: bytes) -> None:
        """Add a record about the journal itself, such as an IMPORT, to the first segment."""
        self._parts.append(record)
        self._bytes += len(record)

    def add(self, record: bytes) -> None:
        """Add one item, and count it for its readers, whose done ranges must be set beforehand."""
        added = records.item_id(record)
        if not self._parts:
            self._first_id = added
        self._parts.append(record)
        self._bytes += len(record)
        self._count(record, added)
        for said in self._said_of(added, len(record) - records.PUT_HEADER_BYTES):
            self._state.held_from = self._state.held_from or added
            self._parts.append(said)
            self._bytes += len(said)
        if self._bytes >= WRITE_BYTES:
            self._write()
            if self._journal.grown_bytes() >= self._segment_bytes_max:
                self._sync()
                self._journal.start_segment(self._state)

    def _count(self, record: bytes, added: int) -> None:
        state = self._state
        size = len(record) - records.PUT_HEADER_BYTES
        only = records.item_optional_fields(record)[2]
        for reader in state.readers:
            if reader.kind == records.Kind.STREAM or only not in (0, reader.number):
                continue
            if added < reader.head or self._is_done(reader, added):
                continue
            reader.items += 1
            reader.data_bytes += size
        state.put_items += 1
        state.put_bytes += size
        state.next_id = added + 1

    def _said_of(self, added: int, size: int) -> Iterable[bytes]:
        """DUE, KEY and ORIGIN records of an item, and HOLDERs and LEASEs where the holders of leases are known."""
        leases: list[bytes] = []
        for reader in self._state.readers:
            if (due := reader.due.get(added)) is not None:
                reader.held_items += 1
                reader.held_bytes += size
                if due.holder and self._has_holders:
                    granted_at_ms = due.since_at_ms or due.at_ms
                    leases.append(records.holder_record(1, due.holder))
                    for at_ms in dict.fromkeys((granted_at_ms, due.at_ms)):  # as it was granted, and extended
                        entry = records.lease_entry(added, due.due_at_ms - at_ms, due.data_bytes, due.lease, holder=1)
                        leases.append(records.lease_record(reader.number, at_ms, [entry]))
                    due = replace(due, at_ms=granted_at_ms)
                yield records.due_record(replace(due, reader=reader.number))
        yield from map(records.key_record, self._keys.get(added, ()))
        if (origin := self._origins.get(added)) is not None:
            yield records.origin_record(origin)
        yield from leases

    def _is_done(self, reader: records.ReaderState, added: int) -> bool:
        """True if the item is ahead of the reader's head and done. Ids must rise from call to call."""
        at = self._done_at.get(reader.number, 0)
        while at < len(reader.done) and reader.done[at][1] < added:
            at += 1
        self._done_at[reader.number] = at
        return at < len(reader.done) and reader.done[at][0] <= added

    def _write(self) -> None:
        if self._parts:
            self._journal.write(self._parts, self._first_id)
            self._parts, self._bytes = [], 0

    def _sync(self) -> None:
        if self._syncs:
            self._journal.sync()

    def count_before(self, put_items: int, put_bytes: int) -> None:
        """Add the counts of items that were put earlier and are not added here."""
        self._state.put_items += put_items
        self._state.put_bytes += put_bytes

    def finish(self, next_id: int = 0) -> records.Checkpoint:
        """Sync everything; returns the journal's state. Pass `next_id` if ids above the last item were used before.

        The last segment has only a CHECKPOINT with the whole state, so that startup need not count.
        """
        self._write()
        self._state.next_id = max(self._state.next_id, next_id)
        self._sync()
        self._journal.start_segment(self._state)
        self._sync()
        self._journal.mark(self._journal.segments[0].first_id)
        self._journal.close()
        return self._state

    def abandon(self) -> None:
        """Close a journal that will not be finished; its files stay."""
        self._journal.close()
