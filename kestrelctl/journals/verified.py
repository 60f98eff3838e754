"""The state file of journal-verify: files that earlier runs found intact, not read again while unchanged.

Runs may overlap: each replaces the whole file, and an entry that one run loses of another only costs a second read.
"""

import json
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, Self

from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import say
from kestreld.journal.verify import CANNOT_TELL, SegmentReport

VERSION: Final = 1
Look = tuple[int, int, int]  # size in bytes, mtime in ns, inode


class Verified:
    """Intact files by path; use as a context manager, which saves the state file at its end.

    `path`: the state file, None = nothing is known or saved. `since_ms`: files last written before this count as known.
    Raises Failure if the state file cannot be read or written.
    """

    def __init__(self, path: str | None, since_ms: int | None = None) -> None:
        self._path = path
        self._since_ms = since_ms
        self._known: dict[str, tuple[Look, int]] = {}
        self._looks: dict[str, Look] = {}  # of the files being read, taken before the read
        self.passed_over = 0
        if path is not None:
            self._load(path)

    def __call__(self, path: str) -> int | None:
        """Number of items put up to the end of a file that need not be read, None for a file to read."""
        try:
            found = os.stat(path)
        except OSError:
            return None  # the read reports the error
        if self._since_ms is not None and found.st_mtime_ns // 1_000_000 < self._since_ms:
            self.passed_over += 1
            return CANNOT_TELL
        look = found.st_size, found.st_mtime_ns, found.st_ino
        known = self._known.get(os.path.realpath(path))
        if known is not None and known[0] == look:
            self.passed_over += 1
            return known[1]
        self._looks[path] = look
        return None

    def noted(self, reports: Iterable[SegmentReport]) -> Iterator[SegmentReport]:
        """Remember the intact files of the reports. A file that grows meanwhile is read again by the next run."""
        for report in reports:
            is_whole = report.bad_offset is None and not (report.torn or report.unreadable or report.missing)
            self.note(report.path, report.put_items, is_whole=is_whole)
            yield report

    def note(self, path: str, put_items: int = CANNOT_TELL, *, is_whole: bool) -> None:
        look = self._looks.get(path)
        if look is not None and is_whole:
            self._known[os.path.realpath(path)] = look, put_items
        else:
            self._known.pop(os.path.realpath(path), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Save even after an error: files found intact before it stay so."""
        self._save()

    def _save(self) -> None:
        """Replace the state file, without files that no longer exist. Raises Failure."""
        if self._path is None:
            return
        files = {path: [*look, put_items] for path, (look, put_items) in self._known.items() if os.path.exists(path)}
        document = {"version": VERSION, "saved_at_ms": time.time_ns() // 1_000_000, "whole": files}
        try:
            descriptor, temporary = tempfile.mkstemp(prefix=f"{self._path}.")
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
                    json.dump(document, file)
                os.replace(temporary, self._path)
            except OSError:
                with suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError as error:
            raise Failure(
                ExitCode.IO, f"cannot write {self._path}: {(error.strerror or str(error)).lower()}"
            ) from error

    def _load(self, path: str) -> None:
        try:
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                document = json.load(file)
        except FileNotFoundError:
            return
        except OSError as error:
            raise Failure(ExitCode.IO, f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error
        except ValueError:
            document = None
        if not isinstance(document, dict) or document.get("version") != VERSION:
            say(f"{path}: not a state file of journal-verify: all files are read and it is overwritten")
            return
        for name, (size_bytes, modified_ns, inode, put_items) in document["whole"].items():
            self._known[name] = (size_bytes, modified_ns, inode), put_items
