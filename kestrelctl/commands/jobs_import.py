"""`kestrelctl jobs import`: import the jobs of a Disque's disque.aof."""

from collections.abc import Iterator
from itertools import islice
from typing import Annotated

from kestrelctl.commands.declared import argument, option
from kestrelctl.commands.options import Answer, RemoteJobs
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import counted, remark, say
from kestreld.client import job_commands as commands
from kestreld.errors import JournalCorrupt
from kestreld.files import FileLayer, must_be_the_systems
from kestreld.journal.disque_aof import AofReader, SavedJob, packed_saved_job

AT_ONCE = 64  # jobs on the way


def jobs_import(
    file: Annotated[str, argument(metavar="FILE", help="The append-only file of a Disque.", show_default=False)],
    answer: Answer,
    remote: RemoteJobs,
    whole: Annotated[bool, option("--whole", help="Import nothing if FILE is cut short at its end.")] = False,
) -> None:
    """Import the jobs in a file of Disque's, disque.aof, and print how many.

    They keep their ids, times and counters. Those that have expired, or that the server knows already, are left out: an
    import can be repeated. FILE stays as it is.

    Exit 65 when FILE is corrupt, and nothing is imported; 66 no such file; 81 some were imported before a refusal.
    """
    jobs = _jobs_in(file, whole=whole)
    client = remote.client()
    client.connect()
    imported, left = 0, iter(jobs)
    try:
        while some := list(islice(left, AT_ONCE)):
            imported += sum(client.ask_each([commands.import_saved(packed_saved_job(job)) for job in some]))
    except Failure as failure:
        if imported and failure.words:
            raise Failure(ExitCode.PARTLY_STORED, f"{failure.words}; imported {counted(imported, 'job')}") from failure
        raise
    answer.write({"jobs": imported, "file": file})
    remark(f"imported {imported} of {counted(len(jobs), 'job')}")


def _jobs_in(file: str, *, whole: bool) -> list[SavedJob]:
    """The jobs of the file that were not deleted. Raises Failure."""
    reader = AofReader(FileLayer(), file)
    try:
        jobs = list(_left(reader))
    except JournalCorrupt as problem:
        raise Failure(ExitCode.CORRUPT, f"{problem}; nothing was imported") from problem
    except FileNotFoundError:
        raise Failure(ExitCode.NO_INPUT, f"{file}: no such file") from None
    except OSError as error:
        must_be_the_systems(error)
        raise Failure(ExitCode.IO, f"{file}: {error.strerror}") from error
    if reader.torn_at is not None:
        words = f"{file}: byte {reader.torn_at}: cut short"
        if whole:
            raise Failure(ExitCode.CORRUPT, f"{words}; nothing was imported")
        left_bytes = reader.bytes_total - reader.torn_at
        say(f"{words}; the last {counted(left_bytes, 'byte')} {'is' if left_bytes == 1 else 'are'} left out")
    return jobs


def _left(reader: AofReader) -> Iterator[SavedJob]:
    found: dict[bytes, SavedJob] = {}
    for one in reader:
        if isinstance(one, SavedJob):
            found.setdefault(one.job_id, one)
        else:
            found.pop(one, None)
    yield from found.values()
