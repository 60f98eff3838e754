"""A ledger: a small table of keys and values, in memory and in one file of the spool that is appended to.

header = "KESTRLED" | version u16 | flags u16 | header_bytes u32 | whole_bytes u64 | checksum u32
record = u32 body_bytes | u32 checksum | u8 type | body          as in a journal; all little-endian

CHANGES: n * (key_bytes u32 | value_bytes u32 | key | value)     value_bytes 0xFFFFFFFF: the key was removed
SYNC:    everything before this offset is on disk u64            the last record after a stop in good order

Each write is one record, and none is made before the one before it is on disk. So only the last record can be torn by a
crash: damage before it, or within the first `whole_bytes`, which were on disk before the file had its name, is none of
ours. A file in doubt is never appended to, but written anew beside the old one and renamed over it: after a failed
write or sync, after a start behind a kill or a power cut, and when it is long for what it says. So is one that ends
with a SYNC before its first change, as the SYNC itself may not be on disk.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from xxhash import xxh3_64_intdigest

from kestreld.errors import JournalCorrupt, JournalFailed, JournalUnreadable, LaterVersion, LedgerFull
from kestreld.files import DISK_FULL, FileLayer, must_be_the_systems, why_unread
from kestreld.journal.records import FRAME, FRAME_BYTES, framed, read_sync, sync_record, why_bad
from kestreld.journal.recovery import must_be_torn

MAGIC: Final = b"KESTRLED"
VERSION: Final = 1
CHANGES: Final = 1
SYNC: Final = 5  # as in a journal
LONG_BYTES: Final = 64 * 1024
_HEADER: Final = struct.Struct("<8sHHIQ")
_CHECKSUM: Final = struct.Struct("<I")
HEADER_BYTES: Final = _HEADER.size + _CHECKSUM.size
_ENTRY: Final = struct.Struct("<II")
_REMOVED: Final = 0xFFFFFFFF
_U32: Final = 0xFFFFFFFF
_ENTRIES_AT_ONCE: Final = 1000  # about as many are in one record
_ADVICE: Final = "; restore the file from a backup, or move it away to begin with an empty table, and restart"

Changes = Mapping[bytes, bytes | None]  # key -> new value, None = remove it
Done = Callable[[JournalFailed | None], None]  # called once changes are on disk, or with the failure


@dataclass(slots=True)
class _Pending:
    """Changes of one caller that are not on disk yet."""

    changes: Changes
    added: int  # entries, less those removed
    done: Done


class Ledger:
    """A table of at most `entries_max` entries. Changes appear in it once they are on disk.

    `problem` is why the file cannot be used, None = it can be: then the ledger is empty, takes no changes, and leaves
    the file as it is. `doubt` is why the file must be written anew before its next change; "" = it need not be, and
    all that the table shows is on disk. A file shorter than `long_bytes` is not written anew for its length.
    """

    def __init__(
        self,
        files: FileLayer,
        path: str,
        entries_max: int,
        report: Callable[[str], None],
        is_entry: Callable[[bytes, bytes], bool] = lambda key, value: True,
    ) -> None:
        """`report` logs problems. A file with an entry that `is_entry` says is none, of key and value, is damaged."""
        self.path = path
        self.entries_max = entries_max
        self.problem: JournalCorrupt | None = None
        self.doubt = ""
        self.long_bytes = LONG_BYTES
        self._files = files
        self._report = report
        self._is_entry = is_entry
        self._entries: dict[bytes, bytes] = {}  # key -> the entry as in the file
        self._entry_bytes = 0
        self._ahead: dict[bytes, tuple[bytes | None, int]] = {}  # pending: key -> latest value, number of changes
        self._added = 0  # by all pending changes
        self._waiting: list[_Pending] = []  # for the write or sync under way
        self._is_busy = self._is_reported = False
        self._fd = -1
        self._file_bytes = 0  # 0 = there is no file yet
        self._is_sealed = False

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, None if it is not there."""
        entry = self._entries.get(key)
        return None if entry is None else entry[_ENTRY.size + len(key) :]

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all keys with their values. There must be no change meanwhile."""
        for key, entry in self._entries.items():
            yield key, entry[_ENTRY.size + len(key) :]

    # Start and stop

    def read(self) -> None:
        """Read the file, at the start. Damage is reported, and kept as `problem`."""
        try:
            if self._files.exists(self.path):
                self._read(self._files.read_file(self.path))
        except JournalCorrupt as problem:
            self._stop(problem)
        except OSError as error:
            must_be_the_systems(error)
            self._stop(JournalUnreadable(self.path, f"cannot be read: {why_unread(error, self.path)}{_ADVICE}"))

    def _stop(self, problem: JournalCorrupt) -> None:
        self.problem = problem
        self._entries.clear()
        self._entry_bytes = 0
        self._report(str(problem))

    def _read(self, content: bytes) -> None:
        whole_bytes = _whole_bytes(content, self.path)
        at, record_type = HEADER_BYTES, 0
        while at < len(content):
            found, end = checked_ledger_end(content, at)
            if not found:
                break
            record_type = found
            if record_type == CHANGES:
                for key, entry in _entries_of(content[at + FRAME_BYTES : end]):
                    self._apply(key, entry)
            at = end
        if at < whole_bytes:
            why = why_bad(checked_ledger_end(content, at)[1])
            raise _damage(self.path, at, f"{why}, in a part that had been synced")
        if at < len(content):
            try:
                must_be_torn(content, at, self.path, False, checked_ledger_end)
            except JournalCorrupt as problem:
                raise _damage(self.path, at, problem.reason) from problem
            self._report(f"{self.path}: torn tail of {len(content) - at} bytes left out from byte {at} on")
        if (other := next((key for key, value in self.items() if not self._is_entry(key, value)), None)) is not None:
            raise _damage(self.path, 0, f"an entry of another kind: {other[:80]!r}")
        self._file_bytes = at
        self._is_sealed = at == len(content) and record_type == SYNC
        self.doubt = "" if self._is_sealed else "not closed by a stop"
        if self.doubt:
            self._write_anew_now()

    def _write_anew_now(self) -> None:
        """Write the file anew at the start, so that a power cut takes back nothing that clients are shown."""
        rewrite = self._rewrite()
        try:
            rewrite.run()
        except OSError as error:
            must_be_the_systems(error)
            self._note_failure(error)
        else:
            self._go_on_in(rewrite)

    def close(self) -> None:
        """Say in the file that it is whole, and close it."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        if not self.doubt and not self._is_busy and not self._is_sealed:
            with suppress(OSError):  # the next start writes the file anew
                self._files.write(fd, sync_record(self._file_bytes))
        self._files.close(fd)

    # Changes

    def change(self, changes: Changes, done: Done) -> None:
        """Set and remove keys, all or none; `done` is called when that is on disk, or with its failure.

        After a failure it is unknown whether a restart finds the changes. Changes that change nothing are done at once.
        Raises JournalCorrupt if the file is not usable, and LedgerFull if there would be too many entries.
        """
        if self.problem is not None:
            raise self.problem
        changes = {key: value for key, value in changes.items() if key in self._ahead or self.get(key) != value}
        if not changes and not self.doubt:
            done(None)
            return
        added = sum((value is not None) - self._will_be(key) for key, value in changes.items())
        if added > 0 and len(self._entries) + self._added + added > self.entries_max:
            raise LedgerFull(self.path, self.entries_max)
        self._added += added
        for key, value in changes.items():
            self._ahead[key] = (value, self._ahead.get(key, (None, 0))[1] + 1)
        self._waiting.append(_Pending(changes, added, done))
        self._go_on()

    def _will_be(self, key: bytes) -> bool:
        """True if the key is there once all pending changes are made."""
        return self._ahead[key][0] is not None if key in self._ahead else key in self._entries

    def _go_on(self) -> None:
        """Begin what is next, unless something is under way."""
        if self._is_busy:
            return
        long_bytes = max(self.long_bytes, 2 * (HEADER_BYTES + FRAME_BYTES + self._entry_bytes))
        is_fit = self._file_bytes > 0 and not self.doubt and not self._is_sealed
        if (self._waiting and not is_fit) or (is_fit and self._file_bytes > long_bytes):
            self._write_anew()
        elif self._waiting:
            self._append()

    def _append(self) -> None:
        count, entries = 0, 0
        while count < len(self._waiting) and entries < _ENTRIES_AT_ONCE:
            entries += len(self._waiting[count].changes)
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        body = b"".join([_entry(key, value) for one in batch for key, value in one.changes.items()])
        if not body:
            self._made(batch)  # they only waited for the file to be written anew
            self._go_on()
            return
        data = framed(CHANGES, body)

        def finished(error: OSError | None) -> None:
            self._is_busy = False
            if error is None:
                self._file_bytes += len(data)
                self._made(batch)
            else:
                must_be_the_systems(error)
                self._failed(batch, error)
            self._go_on()

        self._is_busy = True
        try:
            if self._fd < 0:
                self._fd = self._files.open_append(self.path)
            _write_all(self._files, self._fd, data)
        except OSError as error:
            finished(error)
            return
        fd = self._fd
        self._files.in_background(lambda: self._files.sync(fd), finished)

    def _made(self, batch: list[_Pending]) -> None:
        for one in batch:
            for key, value in one.changes.items():
                self._apply(key, _entry(key, value))
            self._settle(one)
        for one in batch:
            one.done(None)

    def _failed(self, batch: list[_Pending], error: OSError) -> None:
        failure = self._note_failure(error)
        for one in batch:
            self._settle(one)
        for one in batch:
            one.done(failure)

    def _note_failure(self, error: OSError) -> JournalFailed:
        """From now on the file is in doubt. Reported once, until the file is written anew."""
        reason = error.strerror or str(error)
        self.doubt = reason
        if not self._is_reported:
            self._is_reported = True
            self._report(f"{self.path}: {reason}; the next change writes the file anew, or is refused")
        return JournalFailed(self.path, reason, disk_full=error.errno in DISK_FULL)

    def _apply(self, key: bytes, entry: bytes) -> None:
        before = self._entries.pop(key, b"")
        self._entry_bytes -= len(before)
        if _ENTRY.unpack_from(entry)[1] != _REMOVED:
            self._entries[key] = entry
            self._entry_bytes += len(entry)

    def _settle(self, one: _Pending) -> None:
        """Forget changes as pending: they were made, or have failed."""
        for key in one.changes:
            value, count = self._ahead.pop(key)
            if count > 1:
                self._ahead[key] = (value, count - 1)
        self._added = self._added - one.added if self._ahead else 0

    # The file anew

    def _rewrite(self) -> "_Rewrite":
        return _Rewrite(self._files, self.path, list(self._entries.values()), self._entry_bytes)

    def _write_anew(self) -> None:
        rewrite = self._rewrite()

        def finished(error: OSError | None) -> None:
            self._is_busy = False
            if error is None:
                self._go_on_in(rewrite)
            else:
                must_be_the_systems(error)
                waiting, self._waiting = self._waiting, []
                self._failed(waiting, error)
            self._go_on()

        self._is_busy = True
        self._files.in_background(rewrite.run, finished)

    def _go_on_in(self, rewrite: "_Rewrite") -> None:
        if self._fd >= 0:
            self._files.close(self._fd)
        self._fd, self._file_bytes = rewrite.fd, rewrite.size_bytes
        self.doubt, self._is_reported, self._is_sealed = "", False, False


class _Rewrite:
    """A new file with all entries. `run` makes it, in any thread, and has it take the place of the old one."""

    def __init__(self, files: FileLayer, path: str, entries: list[bytes], entry_bytes: int) -> None:
        self._files = files
        self._path = path
        self._entries = entries
        self.size_bytes = HEADER_BYTES + entry_bytes + FRAME_BYTES * -(-len(entries) // _ENTRIES_AT_ONCE)
        self.fd = -1  # of the new file, once it is in place

    def run(self) -> None:
        """Raises OSError; the file is then the old one or the new one, which say the same."""
        files, temporary = self._files, f"{self._path}.new"
        if files.exists(temporary):
            files.unlink(temporary)
        fd = files.create(temporary)
        is_in_place = False
        try:
            _write_all(files, fd, ledger_header(self.size_bytes))
            for first in range(0, len(self._entries), _ENTRIES_AT_ONCE):
                _write_all(files, fd, framed(CHANGES, b"".join(self._entries[first : first + _ENTRIES_AT_ONCE])))
            files.sync(fd)
            files.rename(temporary, self._path)
            files.sync_dir(self._path.rpartition("/")[0])
            is_in_place = True
        finally:
            if not is_in_place:
                files.close(fd)
        self.fd = fd


def _write_all(files: FileLayer, fd: int, data: bytes) -> None:
    while data:
        data = data[files.write(fd, data) :]


def _entry(key: bytes, value: bytes | None) -> bytes:
    if value is None:
        return _ENTRY.pack(len(key), _REMOVED) + key
    return _ENTRY.pack(len(key), len(value)) + key + value


def _entries_of(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield each key of a CHANGES record with its entry. Raises ValueError or struct.error if the body is none."""
    at = 0
    while at < len(body):
        key_bytes, value_bytes = _ENTRY.unpack_from(body, at)
        begin = at + _ENTRY.size
        end = begin + key_bytes + (0 if value_bytes == _REMOVED else value_bytes)
        if end > len(body):
            raise ValueError("an entry is longer than its record")
        yield body[begin : begin + key_bytes], body[at:end]
        at = end


def checked_ledger_end(buffer: bytes, at: int) -> tuple[int, int]:
    """`checked_end` (records.py) for the records of a ledger."""
    if at + FRAME_BYTES > len(buffer):
        return 0, -1
    body_bytes, checksum, record_type = FRAME.unpack_from(buffer, at)
    if body_bytes == 0:
        return 0, -3
    end = at + FRAME_BYTES + body_bytes
    if record_type not in (CHANGES, SYNC):
        return 0, -2
    if end > len(buffer):
        return 0, -1
    body = buffer[at + FRAME_BYTES : end]
    if xxh3_64_intdigest(body, body_bytes + (record_type << 56)) & _U32 != checksum:
        return 0, -2
    try:
        if record_type == SYNC:
            read_sync(body)
        else:
            for _ in _entries_of(body):
                pass
    except (struct.error, ValueError):
        return 0, -4
    return record_type, end


def ledger_header(whole_bytes: int) -> bytes:
    """Header of a file that has `whole_bytes` when it gets its name."""
    fields = _HEADER.pack(MAGIC, VERSION, 0, HEADER_BYTES, whole_bytes)
    return fields + _CHECKSUM.pack(xxh3_64_intdigest(fields) & _U32)


def _whole_bytes(content: bytes, path: str) -> int:
    """Read the header: how many bytes the file had when it got its name. Raises JournalCorrupt."""
    if len(content) < HEADER_BYTES:
        raise _damage(path, 0, "the header is cut short")
    fields = content[: _HEADER.size]
    magic, version, _, _, whole_bytes = _HEADER.unpack(fields)
    if magic != MAGIC:
        raise _damage(path, 0, "not a ledger")
    if _CHECKSUM.unpack_from(content, _HEADER.size)[0] != xxh3_64_intdigest(fields) & _U32:
        raise _damage(path, 0, "the header's checksum does not match")
    if version != VERSION:
        raise LaterVersion(path, 8, f"version {version}; this kestreld reads version {VERSION}")
    if len(content) < whole_bytes:
        raise _damage(path, len(content), f"the file ends here, not at byte {whole_bytes}")
    return int(whole_bytes)


def _damage(path: str, at: int, reason: str) -> JournalCorrupt:
    return JournalCorrupt(path, at, reason + _ADVICE)
