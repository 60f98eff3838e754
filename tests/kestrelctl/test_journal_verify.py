"""`journal-verify` on the spools of running and stopped servers, whole and damaged."""

import json
from pathlib import Path

import pytest

from tests.support.daemon import Daemon
from tests.support.shell import Kestrelctl


def _segment(daemon: Daemon, queue: str) -> Path:
    (segment,) = (daemon.spool / f"{queue}.journal").glob("*.seg")
    return segment


def _flip(path: Path, data: bytes) -> int:
    """Damage the first place where `data` stands; returns its offset."""
    content = bytearray(path.read_bytes())
    at = content.index(data)
    content[at] ^= 1
    path.write_bytes(content)
    return at


@pytest.fixture
def filled(own_daemon: Daemon, own_kestrelctl: Kestrelctl) -> Daemon:
    """A running server with three items in `work` and one, already taken, in `idle`."""
    own_kestrelctl("put", "work", "--lines", stdin=b"first\nsecond\nthird\n")
    own_kestrelctl("put", "idle", "x")
    own_kestrelctl("get", "idle")
    return own_daemon


def test_a_row_for_each_segment_says_what_it_holds(filled: Daemon, own_kestrelctl: Kestrelctl) -> None:
    for _ in ("running", "stopped"):
        run = own_kestrelctl("journal-verify", str(filled.spool), "-o", "ndjson")
        rows = {row["queue"]: row for row in map(json.loads, run.out.splitlines())}
        assert (run.code, run.err, set(rows)) == (0, "", {"work", "idle"})
        assert (rows["work"]["live_items"], rows["idle"]["live_items"]) == (3, 0)
        assert rows["work"]["records"] >= 4
        assert rows["work"]["bytes"] == _segment(filled, "work").stat().st_size
        assert (rows["work"]["bad_offset"], rows["work"]["finding"]) == ("", "")
        if filled.process is not None:
            filled.stop()


def test_quiet_says_nothing_of_a_clean_spool_and_one_queue_may_be_named(
    filled: Daemon, own_kestrelctl: Kestrelctl
) -> None:
    quiet = own_kestrelctl("journal-verify", "-q", str(filled.spool))
    assert (quiet.code, quiet.out, quiet.err) == (0, b"", "")
    named = own_kestrelctl("journal-verify", str(filled.spool), "idle", "--no-headers")
    assert (named.code, named.out.split(b"\t")[0]) == (0, b"idle")


def test_a_half_written_record_is_no_finding_while_the_server_runs_and_exit_1_after(
    filled: Daemon, own_kestrelctl: Kestrelctl
) -> None:
    segment = _segment(filled, "work")
    with segment.open("ab") as file:
        file.write(b"\x40\0\0\0half")
    assert own_kestrelctl("journal-verify", "-q", str(filled.spool)).code == 0
    filled.kill()
    run = own_kestrelctl("journal-verify", "-q", str(filled.spool), "-o", "ndjson")
    row = json.loads(run.out)
    assert (run.code, row["queue"], row["live_items"]) == (1, "work", 3)
    assert row["bad_offset"] == segment.stat().st_size - len(b"\x40\0\0\0half")
    assert row["finding"].startswith("truncated tail: ")


def test_a_changed_byte_is_exit_65_with_the_offset_of_its_record(filled: Daemon, own_kestrelctl: Kestrelctl) -> None:
    filled.stop()
    at = _flip(_segment(filled, "work"), b"second")
    run = own_kestrelctl("journal-verify", str(filled.spool), "-o", "ndjson")
    rows = {row["queue"]: row for row in map(json.loads, run.out.splitlines())}
    assert run.code == 65
    assert at - 64 < rows["work"]["bad_offset"] < at
    assert rows["work"]["finding"].startswith("corrupt: ")
    assert rows["idle"]["finding"] == ""
    quiet = own_kestrelctl("journal-verify", "-q", "--no-headers", str(filled.spool))
    assert (quiet.code, quiet.out.split(b"\t")[0]) == (65, b"work")


def test_the_verbs_say_exit_84_of_a_queue_that_the_server_stopped(filled: Daemon, own_kestrelctl: Kestrelctl) -> None:
    filled.stop()
    _flip(_segment(filled, "work"), b"first")
    filled.start()
    for arguments in (["get", "work"], ["peek", "work"], ["put", "work", "x"]):
        run = own_kestrelctl(*arguments)
        assert (run.code, run.out) == (84, b"")
        assert run.err.startswith(f"kestrelctl: {filled.address} answered: corrupt")
    assert own_kestrelctl("put", "idle", "x").code == 0


def test_what_is_not_there_is_exit_66(filled: Daemon, own_kestrelctl: Kestrelctl) -> None:
    no_spool = own_kestrelctl("journal-verify", f"{filled.spool}/elsewhere")
    assert (no_spool.code, no_spool.err) == (66, f"kestrelctl: {filled.spool}/elsewhere: no such folder\n")
    no_queue = own_kestrelctl("journal-verify", str(filled.spool), "nope")
    assert (no_queue.code, no_queue.err) == (66, f"kestrelctl: {filled.spool}: no journal of nope\n")


def test_a_segment_that_cannot_be_read_is_exit_74(filled: Daemon, own_kestrelctl: Kestrelctl) -> None:
    (_segment(filled, "work").parent / f"{2:010}-{9:020}.seg").mkdir()
    run = own_kestrelctl("journal-verify", str(filled.spool))
    assert (run.code, run.out) == (74, b"")
    assert run.err == f"kestrelctl: cannot read {filled.spool}: is a directory\n"


def test_a_queue_name_outside_ascii_is_found_and_shown_as_it_was_typed(
    filled: Daemon, own_kestrelctl: Kestrelctl
) -> None:
    own_kestrelctl("put", "café", "x")
    run = own_kestrelctl("journal-verify", str(filled.spool), "café", "--no-headers")
    assert (run.code, run.out.decode().split("\t")[0]) == (0, "café")
