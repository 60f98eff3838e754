"""A journal's segments as its server reports them, and checks of its files if they are on this machine."""

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
from tui.admin_queries import Asked

# Replies of an admin port that does not report journals, unlike the reply for a missing queue.
NO_SUCH_PATH: Final = ("not found", "there is nothing of that name")
GIVEN_UP_CHECK_S: Final = 0.2


@dataclass(slots=True)
class Segment:
    """A segment as its server reports it."""

    number: int
    file: str
    state: str  # live, full, compacted, replaced, dead
    first_id: int
    end_id: int  # the first of the next segment
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
class CheckedSegment:
    records: int
    live_items: int
    problem: str  # "" = none


@dataclass(slots=True)
class Check:
    """The result of reading all files of a journal."""

    at_ms: int
    segments: dict[str, CheckedSegment] = field(default_factory=dict)  # by file name
    problems: list[str] = field(default_factory=list)
    failure: str = ""  # why there is no result


@dataclass(slots=True)
class JournalDetails:
    """Everything one server reports about a journal; `failure` = why it reports nothing."""

    server: str
    journal_id: int = 0
    next_id: int = 0
    bytes_on_disk: int = 0
    folder: str = ""  # "" = not reported
    notes: list[str] = field(default_factory=list)  # problems and activity
    segments: list[Segment] = field(default_factory=list)
    readers: list[Reader] = field(default_factory=list)
    failure: str = ""


def ask_journal(asked: Asked, queue: str) -> JournalDetails:
    """Ask a server for a queue's journal. Never raises: errors are in `failure`."""
    try:
        port = asked.admin_port()
        try:
            return read_journal(asked.address, json.loads(port.get(path_of(queue, "journal"))))
        finally:
            port.close()
    except AdminRefused as refusal:
        is_older = refusal.status == 404 and str(refusal) in NO_SUCH_PATH
        return JournalDetails(
            asked.address, failure="not supported by this version of kestreld" if is_older else str(refusal)
        )
    except AdminLost as lost:
        return JournalDetails(asked.address, failure=str(lost))
    except (ValueError, KeyError, TypeError) as error:
        return JournalDetails(asked.address, failure=f"unexpected reply: {error}")


def ask_reasons(asked: Asked, queues: Sequence[str]) -> dict[str, str]:
    """The reasons why queues are stopped or cannot be written; "" = not reported."""
    reasons = dict.fromkeys(queues, "")
    with suppress(AdminLost, ValueError, KeyError, TypeError):
        port = asked.admin_port()
        try:
            for queue in queues:
                try:
                    journal = json.loads(port.get(path_of(queue, "journal")))
                    reasons[queue] = str(journal["stopped"] or journal["failed"] or "")
                except AdminRefused as refusal:  # one that was stopped from the start
                    reasons[queue] = str(refusal) if refusal.status != 404 else ""
        finally:
            port.close()
    return reasons


def read_journal(server: str, journal: dict[str, Any]) -> JournalDetails:
    """Parse the JSON of `/queues/Q/journal`. Raises KeyError or TypeError for anything else."""
    notes = [f"✖ writing fails: {journal['failed']}"] if journal["failed"] else []
    if journal["stopped"]:
        notes.append(f"✖ STOPPED: {journal['stopped']}")
    notes.append("fully synced" if journal["is_synced"] else "not fully synced")
    if journal["is_compacting"]:
        notes.append("being compacted")
    if journal["is_retiring"]:
        notes.append("removing dead segments")
    names = ("segment", "file", "state", "first_id", "end_id", "needed_ids", "bytes", "pins", "pinned_by")
    return JournalDetails(
        server,
        journal["journal_id"],
        journal["next_id"],
        journal["bytes_on_disk"],
        journal.get("folder", ""),
        notes,
        [Segment(*[segment[name] for name in names]) for segment in journal["segments"]],
        [Reader(reader["reader"], reader["kind"], reader["head"]) for reader in journal["readers"]],
    )


def check_journal(details: JournalDetails, queue: str, is_given_up: Callable[[], bool]) -> Check:
    """Read all files of a journal in a separate process: they may be gigabytes. Never raises.

    `is_given_up` is polled; True cancels the check.
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
                check.failure = "cancelled"
                return check
            with suppress(subprocess.TimeoutExpired):
                out, err = process.communicate(timeout=GIVEN_UP_CHECK_S)
    try:
        check.segments, check.problems = read_check(json.loads(out))
    except (ValueError, KeyError, TypeError):
        words = (err or b"").decode("utf-8", "replace").strip().splitlines()
        check.failure = words[-1].removeprefix("kestrelctl: ") if words else f"exit {process.returncode}"
    return check


def read_check(rows: Sequence[dict[str, Any]]) -> tuple[dict[str, CheckedSegment], list[str]]:
    """Parse the rows of `journal-verify`. Raises KeyError or TypeError for anything else."""
    segments = {row["segment"]: CheckedSegment(row["records"], row["live_items"], row["finding"]) for row in rows}
    return segments, [f"{row['segment']}: {row['finding']}".lstrip(": ") for row in rows if row["finding"]]


def _why_not(details: JournalDetails) -> str:
    """The reason why the files cannot be read on this machine; "" = they can."""
    if details.failure:
        return details.failure
    if not details.folder:
        return "the server does not report where its journals are: this requires the admin right on the queue"
    # The import takes 40 ms, and only this check needs it.
    from kestrelctl.journals.local_journals import is_here

    if not is_here(details.folder, details.journal_id):
        return f"{details.folder} is not on this machine; run kestrelctl journal-verify on the server"
    return ""
