"""`journal-verify` on spools of running and stopped servers, whole and damaged, and what `--repair` makes of them."""

import json
import os
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from kestreld.journal.kestrel.ops import ADDX, REMOVE, Op, encode
from kestreld.journal.records import find_whole_records
from kestreld.journal.segment import VERSION
from tests.support.daemon import Daemon
from tests.support.engine import Engine
from tests.support.shell import Kestrelctl


def _segment(daemon: Daemon, queue: str) -> Path:
    (segment,) = (daemon.spool / f"{queue}.journal").glob("*.seg")
    return segment


def _segment_name(number: int, first_id: int) -> str:
    return f"{number:010}-{first_id:020}.seg"


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


@pytest.fixture
def in_two_segments(own_daemon: Daemon, own_kestrelctl: Kestrelctl) -> list[Path]:
    """A stopped server's journal of `work`: the first segment is full, in the second there is an item, too."""
    own_daemon.stop()
    own_daemon.settings = [*own_daemon.settings, "max_journal_size=1KiB"]
    own_daemon.start()
    for number in range(4):
        own_kestrelctl("put", "work", str(number) * 400)
    own_daemon.stop()
    segments = sorted((own_daemon.spool / "work.journal").glob("*.seg"))
    assert len(segments) == 2
    return segments


def test_a_full_segment_cut_between_two_records_is_exit_65_as_it_stops_the_queue(
    own_daemon: Daemon, own_kestrelctl: Kestrelctl, in_two_segments: list[Path]
) -> None:
    assert own_kestrelctl("journal-verify", "-q", str(own_daemon.spool)).code == 0
    full = in_two_segments[0]
    written_bytes = full.stat().st_size
    starts = [start for _, start, _ in find_whole_records(full.read_bytes(), 0)]
    os.truncate(full, starts[-1])
    run = own_kestrelctl("journal-verify", "-q", str(own_daemon.spool), "-o", "ndjson")
    row = json.loads(run.out)
    assert (run.code, row["segment"], row["bad_offset"]) == (65, full.name, starts[-1])
    assert row["finding"] == f"corrupt: the file ends here, not at byte {written_bytes}"
    own_daemon.start()
    assert own_kestrelctl("get", "work").code == 84


def test_two_segments_of_one_number_are_exit_65_as_they_stop_the_queue(
    own_daemon: Daemon, own_kestrelctl: Kestrelctl, in_two_segments: list[Path]
) -> None:
    twin = in_two_segments[1].with_name("0000000002-00000000000000000099.seg")
    twin.write_bytes(in_two_segments[1].read_bytes())
    run = own_kestrelctl("journal-verify", "-q", str(own_daemon.spool), "-o", "ndjson")
    row = json.loads(run.out)
    assert (run.code, row["segment"], row["bad_offset"]) == (65, twin.name, 0)
    assert row["finding"] == "corrupt: another segment has the same number"
    own_daemon.start()
    assert own_kestrelctl("get", "work").code == 84


def test_what_a_failed_commit_left_behind_a_full_segment_is_no_finding(
    own_daemon: Daemon, own_kestrelctl: Kestrelctl, in_two_segments: list[Path]
) -> None:
    with in_two_segments[0].open("ab") as file:
        file.write(b"\x40\0\0\0half")
    run = own_kestrelctl("journal-verify", "-q", str(own_daemon.spool))
    assert (run.code, run.out) == (0, b"")
    own_daemon.start()
    assert own_kestrelctl("get", "work").out == b"0" * 400


def test_the_verbs_say_exit_84_of_a_queue_that_the_server_stopped(filled: Daemon, own_kestrelctl: Kestrelctl) -> None:
    filled.stop()
    _flip(_segment(filled, "work"), b"first")
    filled.start()
    for arguments in (["get", "work"], ["peek", "work"], ["put", "work", "x"]):
        run = own_kestrelctl(*arguments)
        assert (run.code, run.out) == (84, b"")
        assert run.err.startswith(f"kestrelctl: {filled.address} has stopped this queue: corrupt")
    assert own_kestrelctl("put", "idle", "x").code == 0


def test_what_is_not_there_is_exit_66(filled: Daemon, own_kestrelctl: Kestrelctl) -> None:
    no_spool = own_kestrelctl("journal-verify", f"{filled.spool}/elsewhere")
    assert (no_spool.code, no_spool.err) == (66, f"kestrelctl: {filled.spool}/elsewhere: no such folder\n")
    no_queue = own_kestrelctl("journal-verify", str(filled.spool), "nope")
    assert (no_queue.code, no_queue.err) == (66, f"kestrelctl: {filled.spool}: no journal of nope\n")


def test_a_segment_that_cannot_be_read_is_exit_74_and_the_others_are_read(
    filled: Daemon, own_kestrelctl: Kestrelctl
) -> None:
    folder = _segment(filled, "work").parent / f"{2:010}-{9:020}.seg"
    folder.mkdir()
    run = own_kestrelctl("journal-verify", str(filled.spool), "-o", "ndjson")
    rows = {row["segment"]: row["finding"] for row in map(json.loads, run.out.splitlines()) if row["queue"] == "work"}
    assert (run.code, run.err) == (74, "")
    assert rows == {_segment_name(1, 1): "", folder.name: "cannot be read: it is a folder"}


def test_a_segment_that_is_missing_between_others_is_exit_65(tmp_path: Path, kestrelctl: Kestrelctl) -> None:
    engine = Engine(tmp_path, max_journal_size_bytes=100)
    for number in range(4):
        engine.put("work", b"%d" % number * 100)
        engine.end_turn()
    engine.collection.close()
    first, second, *_ = engine.segments("work")
    assert kestrelctl("journal-verify", str(tmp_path), "--state", str(tmp_path / "state"), "-q").code == 0
    second.unlink()
    for options in ([], ["--state", str(tmp_path / "state")], ["--since", "1h"]):
        run = kestrelctl("journal-verify", str(tmp_path), "-q", "-o", "ndjson", *options)
        row = json.loads(run.out)
        assert (run.code, row["queue"], row["segment"], row["finding"]) == (
            65,
            "work",
            "",
            "missing: segment 2 is missing",
        )
    first.unlink()
    run = kestrelctl("journal-verify", str(tmp_path), "-q", "-o", "ndjson")
    assert (run.code, json.loads(run.out)["finding"]) == (65, "missing: everything before segment 3 is missing")


@pytest.mark.parametrize("options", [[], ["--state", "state"], ["--since", "1h"]])
def test_a_live_segment_that_is_missing_is_exit_65_and_so_is_a_folder_without_any(
    tmp_path: Path, kestrelctl: Kestrelctl, options: list[str]
) -> None:
    options = [str(tmp_path / one) if one == "state" else one for one in options]
    engine = Engine(tmp_path / "spool", max_journal_size_bytes=100)
    for number in range(3):
        engine.put("work", b"%d" % number * 100)
        engine.end_turn()
    engine.collection.close()
    assert kestrelctl("journal-verify", str(tmp_path / "spool"), "-q", *options).code == 0
    first, second, third, live = engine.segments("work")
    live.unlink()
    run = kestrelctl("journal-verify", str(tmp_path / "spool"), "-q", "-o", "ndjson", *options)
    words = f"the marker is {4:010}-{1:020}.live"
    assert (run.code, json.loads(run.out)["finding"]) == (65, f"missing: segment 4 is missing: {words}")
    for path in (first, second, third):
        path.unlink()
    run = kestrelctl("journal-verify", str(tmp_path / "spool"), "-q", "-o", "ndjson", *options)
    row = json.loads(run.out)
    assert (run.code, row["finding"]) == (65, f"missing: segments 1 to 4 are missing: {words}")
    nagios = kestrelctl("journal-verify", str(tmp_path / "spool"), "-o", "nagios")
    assert (nagios.code, b"segments 1 to 4 are missing" in nagios.out) == (2, True)


def test_nothing_to_read_is_exit_66_and_3_for_nagios(tmp_path: Path, kestrelctl: Kestrelctl) -> None:
    (tmp_path / "nothing").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.of.mine").write_text("not a journal")
    for name in ("nothing", "other"):
        for options in ([], ["-q"], ["--repair"], ["--repair", "--dry-run"], ["--since", "1h"]):
            run = kestrelctl("journal-verify", str(tmp_path / name), *options)
            assert (run.code, run.out) == (66, b""), options
            assert run.err.startswith(f"kestrelctl: {tmp_path / name}: no journal found")
        assert kestrelctl("journal-verify", str(tmp_path / name), "-o", "nagios").code == 3
    assert kestrelctl("journal-verify", str(tmp_path / "elsewhere"), "-o", "nagios").code == 3
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "nothing", tmp_path / "other", tmp_path / "other/notes.of.mine"]


def test_a_new_spool_has_no_queues_yet_and_that_is_well(own_daemon: Daemon, own_kestrelctl: Kestrelctl) -> None:
    run = own_kestrelctl("journal-verify", str(own_daemon.spool), "--no-headers")
    assert (run.code, run.out, run.err) == (0, b"", f"kestrelctl: {own_daemon.spool}: no queues yet\n")
    quiet = own_kestrelctl("journal-verify", str(own_daemon.spool), "-q")
    assert (quiet.code, quiet.out, quiet.err) == (0, b"", "")
    nagios = own_kestrelctl("journal-verify", str(own_daemon.spool), "-o", "nagios")
    assert (nagios.code, nagios.out.split(b"|")[0].strip()) == (0, b"KESTREL JOURNALS OK - no queues yet")
    own_daemon.stop()
    assert own_kestrelctl("journal-verify", str(own_daemon.spool), "--repair").code == 0


def test_the_folder_of_one_queue_is_verified_and_repaired(filled: Daemon, own_kestrelctl: Kestrelctl) -> None:
    folder = _segment(filled, "work").parent
    run = own_kestrelctl("journal-verify", str(folder), "-o", "ndjson")
    row = json.loads(run.out)
    assert (run.code, row["queue"], row["live_items"]) == (0, "work", 3)
    filled.stop()
    _flip(_segment(filled, "work"), b"second")
    assert own_kestrelctl("journal-verify", str(folder), "-q").code == 65
    run = own_kestrelctl("journal-verify", "--repair", str(folder), "-o", "ndjson")
    row = json.loads(run.out)
    assert (run.code, row["queue"], row["lost_items"]) == (1, "work", 1)
    kept = own_kestrelctl("journal-verify", row["kept_at"], "-o", "ndjson")
    assert (kept.code, json.loads(kept.out)["queue"]) == (65, "work")


def test_the_folder_of_one_queue_that_still_ends_in_half_a_record_while_its_server_runs_is_well(
    filled: Daemon, own_kestrelctl: Kestrelctl
) -> None:
    with _segment(filled, "work").open("ab") as file:
        file.write(b"\x40\0\0\0half")
    assert own_kestrelctl("journal-verify", "-q", str(_segment(filled, "work").parent)).code == 0


@pytest.mark.parametrize(
    ("is_zeroed", "reason"),
    [(False, "the segment header is cut short"), (True, "a record of length zero")],
    ids=["emptied", "zeros"],
)
def test_a_repair_of_an_empty_segment_says_what_may_be_lost(
    filled: Daemon, own_kestrelctl: Kestrelctl, reason: str, *, is_zeroed: bool
) -> None:
    filled.stop()
    segment = _segment(filled, "work")
    size_bytes = segment.stat().st_size
    os.truncate(segment, 0)
    os.truncate(segment, size_bytes * is_zeroed)
    assert own_kestrelctl("journal-verify", "-q", str(filled.spool)).code == 65
    run = own_kestrelctl("journal-verify", "--repair", str(filled.spool), "-q", "-o", "ndjson")
    assert (run.code, json.loads(run.out)["queue"]) == (1, "work")
    assert f"{reason}; items from 1 on may be lost\n" in run.err
    filled.start()
    assert own_kestrelctl("put", "work", "more").code == 0
    assert own_kestrelctl("get", "work").out == b"more"


def test_a_queue_name_outside_ascii_is_found_and_shown_as_it_was_typed(
    filled: Daemon, own_kestrelctl: Kestrelctl
) -> None:
    own_kestrelctl("put", "café", "x")
    run = own_kestrelctl("journal-verify", str(filled.spool), "café", "--no-headers")
    assert (run.code, run.out.decode().split("\t")[0]) == (0, "café")


# Repair


def test_repair_delivers_what_can_be_read_in_order_and_says_what_is_lost_where(
    filled: Daemon, own_kestrelctl: Kestrelctl
) -> None:
    filled.stop()
    segment = _segment(filled, "work")
    damaged_at = _flip(segment, b"second")
    damaged = segment.read_bytes()
    run = own_kestrelctl("journal-verify", "--repair", str(filled.spool), "-o", "ndjson")
    rows = {row["queue"]: row for row in map(json.loads, run.out.splitlines())}
    kept_at = rows["work"].pop("kept_at")
    assert (run.code, rows["idle"]["finding"]) == (1, "")
    assert rows["work"] == {"queue": "work", "finding": "repaired", "damages": 1, "items": 2, "lost_items": 1}
    found, done = run.err.splitlines()
    offset = found.removeprefix(f"kestrelctl: work: {segment}: byte ").partition(":")[0]
    assert damaged_at - 64 < int(offset) < damaged_at
    assert found.endswith("PUT: the checksum does not match; lost: item 2")
    assert done == f"kestrelctl: work: repaired; the damaged journal is kept in {kept_at}"
    assert Path(kept_at, segment.name).read_bytes() == damaged
    assert own_kestrelctl("journal-verify", "-q", str(filled.spool)).code == 0
    filled.start()
    assert own_kestrelctl("get", "work", "--all").out == b"first\nthird\n"
    assert own_kestrelctl("put", "work", "more").code == 0


def test_repair_refuses_while_a_kestreld_holds_the_spool_and_names_it(
    filled: Daemon, own_kestrelctl: Kestrelctl
) -> None:
    for arguments in (["--repair"], ["--repair", "--dry-run"]):
        run = own_kestrelctl("journal-verify", *arguments, str(filled.spool))
        assert (run.code, run.out) == (75, b"")
        assert run.err.startswith(f"kestrelctl: {filled.spool}: in use by pid {filled.pid}, memcache={filled.address}")


def test_a_sound_spool_is_left_as_it_is(filled: Daemon, own_kestrelctl: Kestrelctl) -> None:
    filled.stop()
    before = {path: path.read_bytes() for path in filled.spool.rglob("*.seg")}
    run = own_kestrelctl("journal-verify", "--repair", "-q", str(filled.spool))
    assert (run.code, run.out, run.err) == (0, b"", "")
    assert {path: path.read_bytes() for path in filled.spool.rglob("*.seg")} == before


def test_a_dry_run_repairs_nothing(filled: Daemon, own_kestrelctl: Kestrelctl) -> None:
    filled.stop()
    _flip(_segment(filled, "work"), b"second")
    before = {path: path.read_bytes() for path in filled.spool.rglob("*.seg")}
    run = own_kestrelctl("journal-verify", "--repair", "--dry-run", "-q", str(filled.spool), "-o", "ndjson")
    row = json.loads(run.out)
    assert (run.code, row["queue"], row["finding"], row["lost_items"]) == (65, "work", "damaged", 1)
    assert "lost: item 2" in run.err
    assert {path: path.read_bytes() for path in filled.spool.rglob("*.seg")} == before
    assert own_kestrelctl("journal-verify", "--dry-run", str(filled.spool)).code == 2


def test_repair_cuts_off_a_truncated_tail_as_a_start_does(filled: Daemon, own_kestrelctl: Kestrelctl) -> None:
    filled.kill()
    with _segment(filled, "work").open("ab") as file:
        file.write(b"\x40\0\0\0half")
    run = own_kestrelctl("journal-verify", "--repair", str(filled.spool))
    assert run.code == 0
    assert "torn tail of 8 bytes cut off" in run.err
    assert own_kestrelctl("journal-verify", str(filled.spool)).code == 0


def test_only_the_named_queue_is_repaired(filled: Daemon, own_kestrelctl: Kestrelctl) -> None:
    filled.stop()
    _flip(_segment(filled, "work"), b"second")
    untouched = _segment(filled, "work").read_bytes()
    assert own_kestrelctl("journal-verify", "--repair", str(filled.spool), "idle").code == 0
    assert _segment(filled, "work").read_bytes() == untouched
    assert own_kestrelctl("journal-verify", "--repair", str(filled.spool), "nope").code == 66
    assert own_kestrelctl("journal-verify", "--repair", str(filled.spool), "work").code == 1


def test_a_journal_of_a_later_version_is_not_repaired(filled: Daemon, own_kestrelctl: Kestrelctl) -> None:
    filled.stop()
    segment = _segment(filled, "work")
    content = bytearray(segment.read_bytes())
    header_bytes = int.from_bytes(content[12:16], "little")
    content[8] = VERSION + 1
    content[header_bytes - 4 : header_bytes] = (
        xxh3_64_intdigest(bytes(content[: header_bytes - 4])) & 0xFFFFFFFF
    ).to_bytes(4, "little")
    segment.write_bytes(content)
    run = own_kestrelctl("journal-verify", "--repair", str(filled.spool), "-o", "ndjson")
    rows = {row["queue"]: row["finding"] for row in map(json.loads, run.out.splitlines())}
    assert (run.code, rows) == (65, {"work": "not repaired", "idle": ""})
    assert "not repaired" in run.err
    assert f"journal version {VERSION + 1}" in run.err
    assert segment.read_bytes() == content


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files in somebody else's spool")
def test_what_root_repairs_belongs_to_the_spools_owner(filled: Daemon, own_kestrelctl: Kestrelctl) -> None:
    filled.stop()
    _flip(_segment(filled, "work"), b"second")
    os.chown(filled.spool, 4711, 4712)
    assert own_kestrelctl("journal-verify", "--repair", str(filled.spool)).code == 1
    folder = filled.spool / "work.journal"
    made = [folder, *folder.iterdir(), filled.spool / ".damaged", filled.spool / ".lock"]
    assert {(path.stat().st_uid, path.stat().st_gid) for path in made} == {(4711, 4712)}


# Kestrel's files


def _items(*datas: bytes) -> bytes:
    return b"".join([encode(Op(ADDX, 0, 1_700_000_000_000, 0, data)) for data in datas])


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A spool of Kestrel's: `work` with a rotated file, its child, and files of somebody else's."""
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "work.100").write_bytes(_items(b"one", b"two"))
    (folder / "work").write_bytes(_items(b"three") + encode(Op(REMOVE)))
    (folder / "work+audit").write_bytes(_items(b"two"))
    (folder / "read.me").write_bytes(b"words")
    (folder / "NOTES").write_bytes(b"words, too")
    return folder


def test_kestrels_files_have_a_row_each(kestrelctl: Kestrelctl, old: Path) -> None:
    run = kestrelctl("journal-verify", str(old), "-o", "ndjson")
    rows = [tuple(row.values()) for row in map(json.loads, run.out.splitlines())]
    assert (run.code, run.err) == (0, "")
    assert rows == [
        ("work", "work.100", 2, 0, 48, "", ""),
        ("work", "work", 2, 2, 27, "", ""),
        ("work+audit", "work+audit", 1, 1, 24, "", ""),
    ]


def test_a_kestrel_file_that_ends_inside_an_operation_is_exit_1(kestrelctl: Kestrelctl, old: Path) -> None:
    with (old / "work").open("ab") as file:
        file.write(_items(b"cut short")[:-4])
    run = kestrelctl("journal-verify", "-q", str(old), "work", "-o", "ndjson")
    row = json.loads(run.out)
    assert (run.code, row["segment"], row["bad_offset"], row["live_items"]) == (1, "work", 27, 2)
    assert row["finding"].startswith("truncated tail: ADDX declares")
    assert kestrelctl("journal-verify", "-q", str(old / "work")).code == 1


def test_a_damaged_kestrel_file_is_exit_65_with_the_offset(kestrelctl: Kestrelctl, old: Path) -> None:
    path = old / "work.100"
    path.write_bytes(_items(b"one") + b"\x55" * 40 + _items(b"two", b"three", b"four"))
    run = kestrelctl("journal-verify", "-q", str(old), "-o", "ndjson")
    row = json.loads(run.out)
    assert (run.code, row["segment"], row["bad_offset"]) == (65, "work.100", 24)
    assert row["finding"].startswith("corrupt: ")
    assert kestrelctl("journal-verify", str(path)).code == 65


def test_one_kestrel_file_can_be_named_and_then_it_has_to_be_one(kestrelctl: Kestrelctl, old: Path) -> None:
    run = kestrelctl("journal-verify", str(old / "work+audit"), "--no-headers")
    assert (run.code, run.out.split(b"\t")[:2]) == (0, [b"work+audit", b"work+audit"])
    assert kestrelctl("journal-verify", str(old / "NOTES")).code == 65
    assert kestrelctl("journal-verify", str(old / "read.me")).code == 2
    assert kestrelctl("journal-verify", str(old), "nope").code == 66


def test_it_takes_a_folder_of_spools_and_archives_a_glob_and_a_segment(tmp_path: Path, kestrelctl: Kestrelctl) -> None:
    engines = [Engine(tmp_path / f"server={name}" / "spool", max_journal_size_bytes=100) for name in "ab"]
    for engine in engines:
        for number in range(3):
            engine.put("work", b"%d" % number * 100)
            engine.end_turn()
        engine.collection.close()
    segments = engines[0].segments("work")
    for paths in ([str(tmp_path)], [str(tmp_path), "work"], [f"{tmp_path}/server=*/spool"], [f"{tmp_path}/*"]):
        run = kestrelctl("journal-verify", *paths, "-o", "ndjson")
        assert (run.code, len(run.out.splitlines())) == (0, 2 * len(segments)), paths
    run = kestrelctl("journal-verify", str(segments[0]), "-o", "ndjson")
    assert (run.code, json.loads(run.out)["segment"]) == (0, segments[0].name)
    segments[1].unlink()
    assert kestrelctl("journal-verify", str(segments[0]), "-q").code == 0  # of the others nothing is asked
    assert kestrelctl("journal-verify", str(tmp_path), "-q").code == 65
    assert kestrelctl("journal-verify", str(tmp_path), "nope").code == 66
    assert kestrelctl("journal-verify", f"{tmp_path}/other*").code == 66
