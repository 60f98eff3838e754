"""Import of an exported file into a queue, resumable: progress is noted in a file beside it."""

import base64
import binascii
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kestrelctl.items.framing import Framing, split
from kestrelctl.items.inflating import inflated, is_compressed
from kestrelctl.items.item_lines import HEADER, VERSION, failing_to, fields_in, line_of, number_in
from kestrelctl.items.putting import PutReport, delay_left_ms, expiry_at_s, explain
from kestrelctl.remote.client import KestrelClient
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import STDIN, read_chunks
from kestrelctl.shell.progress import Advance, progress
from kestreld.client.items import PutItem

BATCH_ITEMS: Final = 512
BATCH_BYTES: Final = 4 * 1024**2


class ImportPosition(NamedTuple):
    """Position in the file behind an item."""

    end_bytes: int = 0
    line: int = 0
    id: int = 0  # of the item; 0 = it has none


BEGINNING: Final = ImportPosition()


def _behind(count: int, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks without their first `count` bytes."""
    for chunk in chunks:
        yield chunk[count:]
        count = max(count - len(chunk), 0)


@dataclass(slots=True)
class Import:
    """The import of one file, or of standard input. Items are noted beside the file once they are stored."""

    path: str  # "-" = stdin
    queue: str
    stored: int = 0
    expired: int = 0
    _line: int = 0  # the one being read
    _reached: ImportPosition = BEGINNING  # up to here all is stored
    _under_way: list[ImportPosition] = field(default_factory=list)

    @property
    def note_path(self) -> str:
        return f"{self.path}.importing"

    def run(self, client: KestrelClient, *, resume: bool) -> None:
        """Put the items. Raises Failure; the items before the failure are stored."""
        client.must_be_known()  # there may be nothing to put
        if self.path == "-":
            if resume:
                raise Failure(ExitCode.USAGE, "--resume requires a file")
            self._put(client, inflated(read_chunks(STDIN, "standard input"), "standard input"))
            return
        with failing_to(f"read {self.path}"):
            file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._reached = self._noted(resume=resume)
            self._line = self._reached.line
            if is_compressed(os.pread(file, 4, 0)):
                self._put(client, _behind(self._reached.end_bytes, inflated(read_chunks(file, self.path), self.path)))
            else:
                os.lseek(file, self._reached.end_bytes, os.SEEK_SET)
                self._put(client, read_chunks(file, self.path), os.fstat(file).st_size - self._reached.end_bytes)
        finally:
            os.close(file)
        with suppress(FileNotFoundError):
            os.unlink(self.note_path)

    def _put(self, client: KestrelClient, chunks: Iterable[bytes], size_bytes: int | None = None) -> None:
        with progress(f"import {self.queue}", lambda: size_bytes) as advance:
            report = client.put_items(os.fsencode(self.queue), self._batches(chunks, advance))
        if report.failure is not None:
            self._note_some(report)
            failure = explain(report, report.failure)
            code = ExitCode.CORRUPT if report.failure.code == ExitCode.CORRUPT else failure.code
            hint = "; use --resume to continue from there" if self.path != "-" and self.stored else ""
            raise Failure(code, failure.words + hint)

    def _batches(self, chunks: Iterable[bytes], advance: Advance) -> Iterator[list[PutItem]]:
        """Batches of items. A request for the next batch means that the one before is stored."""
        batch: list[PutItem] = []
        at, size_bytes = self._reached.end_bytes, 0
        broken: Failure | None = None
        for line in (line for lines in split(chunks, Framing.LINES) for line in lines):
            self._line += 1
            at += len(line) + 1
            if not line.strip():
                continue
            try:
                found = self._item(line)
            except Failure as failure:
                broken = failure
                break
            if found is None:
                continue
            item, number = found
            batch.append(item)
            self._under_way.append(ImportPosition(at, self._line, number))
            size_bytes += len(item.data)
            if len(batch) == BATCH_ITEMS or size_bytes >= BATCH_BYTES:
                yield from self._stored_by(batch, advance)
                batch, size_bytes = [], 0
        if batch:
            yield from self._stored_by(batch, advance)
        if broken is not None:
            raise broken

    def _stored_by(self, batch: list[PutItem], advance: Advance) -> Iterator[list[PutItem]]:
        before_bytes = self._reached.end_bytes
        yield batch
        self._note(len(batch))
        advance(self._reached.end_bytes - before_bytes)

    def _item(self, line: bytes) -> tuple[PutItem, int] | None:
        """The item of a line and its id in the file; None = the line has no item to put. Raises Failure."""
        fields = fields_in(line, self.path, self._line)
        if HEADER in fields:
            if fields[HEADER] != VERSION:
                raise Failure(
                    ExitCode.CORRUPT, f"{self.path}: written by a newer kestrelctl: {HEADER} is {fields[HEADER]}"
                )
            return None
        expire_ms, flags, number, due_at_ms = (
            number_in(fields, key, self.path, self._line) for key in ("expire_ms", "flags", "id", "due_at_ms")
        )
        try:
            data = base64.b64decode(fields["data_base64"], validate=True) if "data_base64" in fields else None
            data = fields["data"].encode() if data is None else data
        except (KeyError, AttributeError, TypeError, binascii.Error, UnicodeEncodeError) as error:
            reason = "not an item: no valid data or data_base64"
            raise Failure(ExitCode.CORRUPT, f"{self.path}: line {self._line}: {reason}") from error
        if expire_ms and expire_ms <= time.time_ns() // 1_000_000:
            self.expired += 1
            return None
        return PutItem(data, expiry_at_s(expire_ms), flags, delay_left_ms(due_at_ms)), number

    # Progress

    def _noted(self, *, resume: bool) -> ImportPosition:
        """Position at which to begin. Raises Failure if an import was interrupted and `resume` is not set."""
        try:
            with open(self.note_path, "rb") as file:
                note = fields_in(file.read(), self.note_path, 1)
        except FileNotFoundError:
            return BEGINNING
        if not resume:
            words = f"an import of {self.path} stopped at item {note.get('id')}: use --resume to continue after it"
            raise Failure(ExitCode.CANNOT_CREATE, f"{words}, or delete {self.note_path} to start again")
        if note.get("queue") != self.queue:
            raise Failure(ExitCode.USAGE, f"{self.note_path} belongs to the queue {note.get('queue')}")
        return ImportPosition(*(number_in(note, key, self.note_path, 1) for key in ("bytes", "line", "id")))

    def _note(self, count: int) -> None:
        """Note that the first `count` of the items under way are stored."""
        if not count:
            return
        self.stored += count
        self._reached = self._under_way[count - 1]
        del self._under_way[:count]
        if self.path != "-":
            end_bytes, line, number = self._reached
            note = {"queue": self.queue, "id": number, "bytes": end_bytes, "line": line}
            with failing_to(f"write {self.note_path}"):
                with open(f"{self.note_path}.new", "wb") as file:
                    file.write(line_of(note))
                os.replace(f"{self.note_path}.new", self.note_path)

    def _note_some(self, report: PutReport) -> None:
        """Note the items of the last batch that are stored, up to the first that may not be."""
        in_order = report.answered if report.first_refused is None else report.first_refused - 1
        self._note(in_order - self.stored)
