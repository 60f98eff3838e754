"""A write-ahead log of items taken from servers that cannot be read by id; Spark's tasks read its files.

Each server and queue has a folder. A file is named by the first number in it and holds PUT records of the journal
(docs/journal.md) with the item's number as id, and a DONE for each confirmed item. A PUT's `only_reader` is REPEATED if
the log probably has the same item already. Torn records were never confirmed: the server still has their items.
"""

import fcntl
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from xxhash import xxh3_128_digest

from kestreld.journal.records import FRAME_BYTES, PUT_HEADER_BYTES, Done, Reason, done_record, put_record
from kestrelspark.ranges import RangeOfIds, RangeOptions, lose, row_batch
from kestrelspark.readers import RemoteQueue
from kestrelspark.scanning import blocks
from kestrelspark.servers import ServerTrouble

SUFFIX: Final = ".wal"
REPEATED: Final = 1
FIRST_ID: Final = 1
FILE_BYTES: Final = 32 << 20  # a task holds one file in memory at a time
LOCK: Final = "lock"
LOCK_PAUSE_S: Final = 0.1


@dataclass(slots=True, frozen=True)
class Taken:
    """An item as delivered by the server."""

    data: bytes
    flags: int


@dataclass(slots=True)
class Log:
    """The items taken from one queue of one server. Written by one process, which holds the lock of the root folder."""

    remote: RemoteQueue
    folder: Path
    first_id: int = FIRST_ID
    next_id: int = FIRST_ID
    doubtful: Counter[bytes] = field(default_factory=Counter)  # digests of items that may come a second time
    _file: int | None = None  # its descriptor

    @classmethod
    def recovered(cls, root: Path, remote: RemoteQueue) -> "Log":
        """The log as found on disk."""
        log = cls(remote, folder_of(root, remote))
        log.folder.mkdir(parents=True, exist_ok=True)
        for folder in (root, log.folder.parent):
            _sync_folder(folder)
        for first, _, path in wal_files(log.folder, FIRST_ID):
            if log.next_id == FIRST_ID:
                log.first_id = log.next_id = first
            log._recover(path.read_bytes())
        return log

    def _recover(self, content: bytes) -> None:
        """Read a file. Items that were not confirmed may be delivered again."""
        found = list(blocks(content, 0, len(content)))
        confirmed = {number for block in found for number in block.dones["first"].tolist()}
        for block in found:
            heads = zip(
                block.puts["id"].tolist(), block.put_offsets.tolist(), block.puts["body_bytes"].tolist(), strict=True
            )
            for number, offset, body_bytes in heads:
                if number not in confirmed:
                    self.doubtful[_digest(content[offset + PUT_HEADER_BYTES : offset + FRAME_BYTES + body_bytes])] += 1
                self.next_id = number + 1

    def go_on_from(self, next_id: int) -> None:
        """Continue from this number: earlier ones are used, even if their files are gone."""
        self.next_id = max(self.next_id, next_id)

    def append(self, items: list[Taken], at_ms: int) -> range:
        """Write and sync items; return their numbers. `at_ms` is the time at which they were taken."""
        numbers = range(self.next_id, self.next_id + len(items))
        if not items:
            return numbers
        records = []
        for number, item in zip(numbers, items, strict=True):
            records.append(put_record(number, at_ms, 0, item.flags, self._repeat_flag(item), item.data))
        if self._file is not None and os.fstat(self._file).st_size > FILE_BYTES:
            self.end_file()
        if self._file is None:
            self._file = os.open(self._path(), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            _sync_folder(self.folder)
        _write(self._file, b"".join(records))
        os.fsync(self._file)
        self.next_id = numbers.stop
        return numbers

    def _repeat_flag(self, item: Taken) -> int:
        digest = _digest(item.data)
        if not self.doubtful[digest]:
            return 0
        self.doubtful[digest] -= 1
        return REPEATED

    def _path(self) -> Path:
        return self.folder / f"{self.next_id:020d}{SUFFIX}"

    def record_confirmed(self, numbers: list[int], at_ms: int) -> None:
        """Record that these items are confirmed: the server does not deliver them again."""
        if not numbers:
            return
        assert self._file is not None
        dones = [Done(0, Reason.CONFIRMED, at_ms, 1, 0, [(number, number)]) for number in numbers]
        _write(self._file, b"".join(map(done_record, dones)))

    def doubt(self, item: Taken) -> None:
        """Note that the server may deliver this item again."""
        self.doubtful[_digest(item.data)] += 1

    def end_file(self) -> None:
        """Close the file: the next item begins a new one."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def remove_before(self, next_id: int) -> None:
        """Delete the files that hold nothing from `next_id` on."""
        for _, end, path in wal_files(self.folder, self.next_id):
            if end <= next_id:
                path.unlink(missing_ok=True)


def wal_files(folder: Path, next_id: int) -> list[tuple[int, int, Path]]:
    """The files in order, each with the first number that it may hold and the first of the next file."""
    firsts = sorted(int(name.removesuffix(SUFFIX)) for name in os.listdir(folder) if name.endswith(SUFFIX))
    ends = [*firsts[1:], next_id]
    return [(first, end, folder / f"{first:020d}{SUFFIX}") for first, end in zip(firsts, ends, strict=False)]


def folder_of(root: Path, remote: RemoteQueue) -> Path:
    return root / quote(remote.server, safe="") / quote(remote.queue, safe="")


def log_batches(root: Path, what: RangeOfIds, options: RangeOptions) -> Iterator[Any]:
    """The rows of a range. Raises ItemsLost."""
    folder, count = folder_of(root, RemoteQueue(what.server, what.queue)), 0
    for first, end, path in wal_files(folder, what.end) if folder.is_dir() else []:
        if first < what.end and what.first < end:
            content = path.read_bytes()
            batch = row_batch(content, list(blocks(content, 0, len(content))), what, options.columns)
            count += batch.num_rows
            yield batch
    if count != what.end - what.first:
        lose(f"{what}: only {count} of them are in {folder}", options)


def lock(root: Path, patience_ms: int) -> int:
    """Lock a folder against other queries until the descriptor is closed. Raises ServerTrouble."""
    root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    end = time.monotonic() + patience_ms / 1000
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # A killed run releases its lock a moment after its driver ends.
            if time.monotonic() > end:
                os.close(descriptor)
                raise ServerTrouble(f"walPath: another query writes to {root}") from None
            time.sleep(LOCK_PAUSE_S)
        else:
            return descriptor


def _digest(data: bytes) -> bytes:
    return xxh3_128_digest(data)


def _write(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
