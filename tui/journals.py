"""What a queue's journal is made of, as its server says, and whether its files are whole, where they can be read."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from kestrelctl.remote.admin import path_of
from tui.admin_port import AdminLost, AdminRefused
from tui.asking import Asked

NO_SUCH_PATH: Final = "there is nothing of that name"  # what an admin port without journals answers
LOOK_S: Final = 0.2


@dataclass(slots=True)
class Segment:
    """A segment as its server knows it."""

    number: int
    file: str
    state: str  # live, full, compacted, replaced, dead
    first_id: int
    end_id: int  # of the next one the first
    needed_ids: int
    bytes: int
    pins: int
    pinned_by: list[str]


@dataclass(slots=True)
class Reader:
    name: str  # "" = the queue itself
    kind: str
    head: int


@dataclass(slots=True)
class Checked:
    """A segment as it was read."""

    records: int
    live_items: int
    finding: str  # "" = all is well


@dataclass(slots=True)
class Check:
    """A reading of all files of a journal."""

    at_ms: int
    segments: dict[str, Checked] = field(default_factory=dict)  # by file name
    findings: list[str] = field(default_factory=list)
    failure: str = ""  # why there is none


@dataclass(slots=True)
class JournalDetails:
    """All that one server says of a journal; `failure` why it says nothing."""

    server: str
    journal_id: int = 0
    next_id: int = 0
    bytes_on_disk: int = 0
    folder: str = ""  # "" = it does not say where
    notes: list[str] = field(default_factory=list)  # what is wrong with it, or going on
    segments: list[Segment] = field(default_factory=list)
    readers: list[Reader] = field(default_factory=list)
    failure: str = ""


def ask_journal(asked: Asked, queue: str) -> JournalDetails:
    """Never raises: what went wrong is in `failure`."""
    try:
        port = asked.admin_port()
        try:
            return read_journal(asked.address, json.loads(port.get(path_of(queue, "journal"))))
        finally:
            port.close()
    except AdminRefused as refusal:
        is_older = refusal.status == 404 and str(refusal) == NO_SUCH_PATH
        return JournalDetails(asked.address, failure="this kestreld is too old for it" if is_older else str(refusal))
    except AdminLost as lost:
        return JournalDetails(asked.address, failure=str(lost))
    except (ValueError, KeyError, TypeError) as error:
        return JournalDetails(asked.address, failure=f"not what a kestreld answers: {error}")


def read_journal(server: str, said: dict[str, Any]) -> JournalDetails:
    """From the JSON of `/queues/Q/journal`. Raises KeyError or TypeError for anything else."""
    notes = [f"✖ cannot be written: {said['failed']}"] if said["failed"] else []
    if said["stopped"]:
        notes.append(f"✖ STOPPED: {said['stopped']}")
    notes.append("all of it is on disk" if said["is_synced"] else "its end is not on disk yet")
    if said["is_compacting"]:
        notes.append("is being compacted")
    if said["is_retiring"]:
        notes.append("dead segments are going")
    names = ("segment", "file", "state", "first_id", "end_id", "needed_ids", "bytes", "pins", "pinned_by")
    return JournalDetails(
        server,
        said["journal_id"],
        said["next_id"],
        said["bytes_on_disk"],
        said.get("folder", ""),
        notes,
        [Segment(*[segment[name] for name in names]) for segment in said["segments"]],
        [Reader(reader["reader"], reader["kind"], reader["head"]) for reader in said["readers"]],
    )


def check_journal(details: JournalDetails, queue: str, is_given_up: Callable[[], bool]) -> Check:
    """Read all of its files, in a process of its own: it may be gigabytes. Never raises.

    `is_given_up` is asked now and then.
    """
    check = Check(time.time_ns() // 1_000_000)
    check.failure = _why_not(details)
    if check.failure:
        return check
    spool = os.path.dirname(details.folder)
    command = [sys.executable, "-m", "kestrelctl", "journal-verify", "-o", "json", "--", spool, queue]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        out = err = None
        while out is None:
            if is_given_up():
                process.terminate()
                check.failure = "given up"
                return check
            with suppress(subprocess.TimeoutExpired):
                out, err = process.communicate(timeout=LOOK_S)
    try:
        check.segments, check.findings = read_check(json.loads(out))
    except (ValueError, KeyError, TypeError):
        words = (err or b"").decode("utf-8", "replace").strip().splitlines()
        check.failure = words[-1].removeprefix("kestrelctl: ") if words else f"exit {process.returncode}"
    return check


def read_check(rows: Sequence[dict[str, Any]]) -> tuple[dict[str, Checked], list[str]]:
    """From the rows of `journal-verify`. Raises KeyError or TypeError for anything else."""
    segments = {row["segment"]: Checked(row["records"], row["live_items"], row["finding"]) for row in rows}
    return segments, [f"{row['segment']}: {row['finding']}".lstrip(": ") for row in rows if row["finding"]]


def _why_not(details: JournalDetails) -> str:
    """Why the files cannot be read from here; "" when they can."""
    if details.failure:
        return details.failure
    if not details.folder:
        return "the server does not say where its journals are: that takes the right admin on the queue"
    # 40 ms, and only whoever asks for it needs it.
    from kestrelctl.journals.local_journals import is_here

    if not is_here(details.folder, details.journal_id):
        return f"{details.folder} cannot be read from here; run kestrelctl journal-verify on the server's machine"
    return ""
