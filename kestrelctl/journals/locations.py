"""Locations of journals: a queue's folders in a spool and an archive, and their segments in order.

`kestreld.journal.discovery` decides which segments count, and how much of each.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kestrelctl.journals.spools import on_disk, reading
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.config.queue_names import encode_queue_name, queue_name_problem
from kestreld.errors import ConfigError, JournalCorrupt
from kestreld.files import FileLayer
from kestreld.journal.discovery import JournalFile, discover
from kestreld.journal.verify import archived_folders, journal_folders


@dataclass(frozen=True, slots=True)
class JournalLocation:
    """A spool, and an archive if there is one; `spool` None = only the archive."""

    spool: str | None
    archive: str | None

    @classmethod
    def of(cls, spool: str | None, archive: str | None) -> "JournalLocation":
        """The folders of the command line, or else those of kestreld's configuration. Raises Failure."""
        for folder in (spool, archive):
            if folder is not None and not os.path.isdir(folder):
                raise Failure(ExitCode.NO_INPUT, f"{folder}: no such folder")
        if spool is not None or archive is not None:
            return cls(spool, archive)
        # Reading YAML takes longer to import than everything else here.
        from kestreld.config.config_file import find_config_path, load_file

        files = FileLayer()
        try:
            config = load_file(files, find_config_path(files, None, os.environ))
        except ConfigError as error:
            raise Failure(ExitCode.NO_INPUT, f"no spool specified: use --spool DIR; {error}") from error
        if not os.path.isdir(config.queue_path):
            raise Failure(ExitCode.NO_INPUT, f"{config.queue_path}: no such folder; use --spool DIR")
        archived = config.archive_path
        return cls(config.queue_path, archived if archived is not None and os.path.isdir(archived) else None)

    def __str__(self) -> str:
        return " and ".join(folder for folder in (self.spool, self.archive) if folder is not None)

    def segments(self, queue: str) -> list[JournalFile]:
        """The segments that count of each journal the queue has had, oldest first.

        Raises Failure if there are none or the name is invalid.
        """
        name = checked_name(queue)
        files = FileLayer()
        folders: list[str] = []
        with reading(str(self)):
            if self.spool is not None:
                folders += [folder for _, folder in journal_folders(files, self.spool, name)]
            if self.archive is not None:
                folders += [folder for _, folder in archived_folders(files, self.archive, name)]
            found = discover(folders).files
        if not found:
            raise no_journal(str(self), queue)
        return sorted(found, key=lambda file: (file.journal_id or 0, file.number))


def checked_name(queue: str) -> str:
    """A queue's name as on disk. Raises Failure if it is not a valid name."""
    name = on_disk(queue)
    if problem := queue_name_problem(name):
        raise Failure(ExitCode.USAGE, f"{queue!r}: {problem}")
    return name


def folder_of(spool: str, queue: str) -> str:
    """The folder of a queue's journal in a spool. Raises Failure if there is none."""
    folder = f"{spool}/{encode_queue_name(checked_name(queue).partition('+')[0])}.journal"
    if not os.path.isdir(folder):
        raise no_journal(spool, queue)
    return folder


def no_journal(place: str, queue: str) -> Failure:
    return Failure(ExitCode.NO_INPUT, f"{place}: no journal of {queue}")


@contextmanager
def replaying(what: str) -> Iterator[None]:
    """Turn damage, and files that a running server deletes meanwhile, into Failures."""
    try:
        with reading(what):
            yield
    except JournalCorrupt as problem:
        raise Failure(ExitCode.CORRUPT, f"corrupt: {problem}; run journal-verify for details") from problem
    except Failure as failure:
        if isinstance(failure.__cause__, FileNotFoundError):
            words = f"{failure.words}: its server has deleted it meanwhile; try again"
            raise Failure(ExitCode.TRY_AGAIN, words) from failure
        raise
