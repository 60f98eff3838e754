"""What the commands that read journals say of leases."""

import json
from pathlib import Path

import pytest

from kestrelctl.journals.space import explain
from kestreld.journal.segment import Header, decode_header
from kestreld.queues.leases import lease
from tests.support.clock import START_WALL_MS
from tests.support.engine import Engine, QuickFiles
from tests.support.leased_past import ANN, BOB, STORY, late_confirm, write_compacted, write_leases
from tests.support.shell import Kestrelctl


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The story in one segment but the first, which is of the version that has no leases."""
    return write_leases(tmp_path_factory.mktemp("leases") / "spool").spool


@pytest.fixture(scope="module")
def in_many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The story in many segments."""
    engine = write_leases(tmp_path_factory.mktemp("many") / "spool", max_journal_size_bytes=120)
    assert len(engine.segments("work")) > 4
    return engine.spool


def rows(out: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.splitlines()]


def test_a_dump_has_a_row_for_each_lease_with_its_end_and_holder(own_kestrelctl: Kestrelctl, spool: Path) -> None:
    run = own_kestrelctl("journal", "dump", "work", "--spool", str(spool), "-o", "ndjson")
    assert (run.code, run.err) == (0, "")
    found = rows(run.out)
    leases = [row for row in found if row["type"] == "LEASE"]
    told = [(one, at, at + 60_000, holder) for event, one, at, holder, _ in STORY if event in ("leased", "extended")]
    base = START_WALL_MS
    assert [
        (row["id"], row["at_ms"] - base, row["ends_at_ms"] - base, row["holder"])
        for row in leases  # type: ignore[operator]
    ] == told
    assert {row["queue"] for row in leases} == {"work"}
    assert {row["data_bytes"] for row in leases} == {6}
    attempts = {one: [row["attempt"] for row in leases if row["id"] == one] for one in (1, 2)}
    assert attempts[1][0] == attempts[1][1], "an extension is the same attempt"
    assert attempts[2][1] == attempts[2][0] + 1  # type: ignore[operator]
    assert {row["holder"] for row in found if row["type"] == "HOLDER"} == {ANN, BOB}
    (returned, *_) = [row for row in found if row["type"] == "DUE"]
    assert (returned["id"], returned["attempt"]) == (2, attempts[2][0])


def test_the_rows_of_a_dump_make_up_the_file(own_kestrelctl: Kestrelctl, spool: Path) -> None:
    path = sorted((spool / "work.journal").glob("*.seg"))[-1]
    found = rows(own_kestrelctl("journal", "dump", str(path), "-o", "ndjson").out)
    ends = [row["offset"] + row["bytes"] for row in found]  # type: ignore[operator]
    assert [row["offset"] for row in found] == [0, *ends[:-1]]
    assert ends[-1] == path.stat().st_size


@pytest.mark.parametrize("form", ["table", "csv", "json", "tsv"])
def test_every_form_of_a_dump_names_the_holders(own_kestrelctl: Kestrelctl, spool: Path, form: str) -> None:
    run = own_kestrelctl("journal", "dump", "work", "--spool", str(spool), "-o", form)
    assert run.code == 0, run.err
    assert ANN.encode() in run.out
    assert BOB.encode() in run.out


def test_peek_at_has_what_was_leased_then_with_end_and_holder(
    own_kestrelctl: Kestrelctl, spool: Path, in_many: Path
) -> None:
    def leased(folder: Path, at_ms: int) -> dict[object, tuple[object, object, object]]:
        at = ["--at", str(START_WALL_MS + at_ms), "--empty-ok", "--json"]
        run = own_kestrelctl("journal", "peek", "work", "--spool", str(folder), *at)
        assert run.code == 0, run.err
        return {
            row["id"]: (row["state"], row["due_at_ms"] - START_WALL_MS, row.get("holder"))  # type: ignore[operator]
            for row in rows(run.out)
            if "state" in row
        }

    for folder in (spool, in_many):
        assert leased(folder, 4999) == {1: ("leased", 60_000, ANN), 2: ("leased", 60_000, BOB)}
        assert leased(folder, 9000) == {1: ("leased", 65_000, ANN), 2: ("waiting", 8000, None)}
        assert leased(folder, 14_500) == {3: ("retrying", 15_000, None)}
        assert leased(folder, 45_000) == {4: ("delayed", 81_000, None), 5: ("leased", 100_000, BOB)}
        assert leased(folder, 100_001) == {4: ("waiting", 81_000, None), 5: ("waiting", 100_000, None)}


def test_verify_diff_and_replay_take_a_journal_with_leases(
    own_kestrelctl: Kestrelctl, spool: Path, in_many: Path
) -> None:
    for folder in (spool, in_many):
        run = own_kestrelctl("journal-verify", str(folder))
        assert run.code == 0, run.err
    run = own_kestrelctl("journal", "diff", str(spool), str(in_many))
    assert run.code == 0, run.err + run.out.decode()


def test_what_keeps_a_segment_with_a_leased_item_is_who_has_it(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "spool", QuickFiles(), max_journal_size_bytes=120)
    engine.put("work", b"leased", b"waits")
    engine.end_turn()
    assert lease(engine.reader("work"), engine.clock.wall_ms, 60_000, BOB) is not None
    for number in range(3):
        engine.end_turn()
        engine.put("work", b"item %d" % number)
    engine.end_turn()
    engine.abandon()
    goes = [str(row["goes"]) for row in explain(str(engine.spool), "work", START_WALL_MS + 1000)]
    assert f"item 1 is leased for 59s more by {BOB}" in goes[0]


def test_a_leased_item_is_not_dropped_by_simulated_limits(own_kestrelctl: Kestrelctl, spool: Path) -> None:
    until = ["--until", str(START_WALL_MS + 44_000)]
    run = own_kestrelctl(
        "retention", "simulate", "work", "--spool", str(spool), "-o", "json", "--max-age", "40s", *until
    )
    assert run.code == 0, run.err
    found = json.loads(run.out)
    assert found["expired_items"] == 1, "item 6, which nobody ever had"


def test_an_offline_repair_keeps_leases_and_their_holders(own_kestrelctl: Kestrelctl, tmp_path: Path) -> None:
    engine = write_leases(tmp_path / "spool")
    path = engine.segments("work")[0]
    content = bytearray(path.read_bytes())
    content[content.index(b"item 6")] ^= 1
    path.write_bytes(content)
    run = own_kestrelctl("journal-verify", "--repair", str(engine.spool))
    assert b"lost: item 6" in run.out + run.err.encode()
    assert own_kestrelctl("journal-verify", str(engine.spool)).code == 0
    engine.start()
    held = engine.reader("work").held_items()
    assert {one: leased.holder for one, leased in held.leases.items()} == {5: BOB}
    assert held.leases[5].ends_at_ms - engine.clock.monotonic_ms == 100_000 - 45_000


def test_history_has_leases_how_they_ended_and_the_time_in_work(
    own_kestrelctl: Kestrelctl, spool: Path, in_many: Path
) -> None:
    for folder in (spool, in_many):
        until = ["--until", str(START_WALL_MS + 60_000), "--step", "20s"]
        run = own_kestrelctl("history", "work", "--spool", str(folder), *until, "-o", "ndjson")
        assert run.code == 0, run.err
        found = [
            [row[name] for name in ("leases", "leases_confirmed", "leases_returned", "leases_failed", "work_p50_ms")]
            for row in rows(run.out)
        ]
        assert found == [[5, 2, 1, 1, 2000], [2, 1, 1, 0, 4000], [0, 0, 0, 0, ""]]


def test_history_by_holder_has_the_time_in_work_of_each(own_kestrelctl: Kestrelctl, spool: Path, in_many: Path) -> None:
    for folder in (spool, in_many):
        run = own_kestrelctl("history", "work", "--spool", str(folder), "--holders", "-o", "csv")
        assert (run.code, run.err) == (0, "")
        head, *lines = run.out.decode().splitlines()
        assert head == (
            "holder,leases,leases_confirmed,leases_returned,leases_failed,"
            "work_p50_ms,work_p95_ms,work_p99_ms,work_max_ms"
        )
        assert lines == [f"{BOB},4,1,1,1,4000,4000,4000,4000", f"{ANN},3,2,1,0,2000,10000,10000,10000"]
        since = ["--since", str(START_WALL_MS + 12_000), "--until", str(START_WALL_MS + 20_000)]
        run = own_kestrelctl("history", "work", "--spool", str(folder), "--holders", *since, "-o", "csv")
        assert run.out.decode().splitlines()[1:] == [f"{BOB},2,0,0,1,,,,", f"{ANN},0,1,0,0,2000,2000,2000,2000"]


def test_history_without_leases_has_no_columns_of_them_and_no_holders(
    own_kestrelctl: Kestrelctl, tmp_path: Path
) -> None:
    engine = Engine(tmp_path / "spool", QuickFiles())
    engine.put("work", b"1")
    engine.end_turn()
    engine.collection.close()
    until = ["--until", str(START_WALL_MS + 60_000)]
    run = own_kestrelctl("history", "work", "--spool", str(engine.spool), *until, "-o", "csv")
    assert run.code == 0, run.err
    assert b"lease" not in run.out
    run = own_kestrelctl("history", "work", "--spool", str(engine.spool), "--holders")
    assert (run.code, run.out) == (1, b"")


def test_a_lease_that_is_extended_after_it_ran_out_is_still_that_lease(
    own_kestrelctl: Kestrelctl, tmp_path: Path
) -> None:
    engine = late_confirm(tmp_path / "spool")
    run = own_kestrelctl("history", "work", "--spool", str(engine.spool), "--holders", "-o", "csv")
    assert run.out.decode().splitlines()[1:] == [f"{BOB},1,1,0,1,40000,40000,40000,40000"]


def test_what_a_compacted_segment_repeats_of_leases_is_known_and_counts_once(
    own_kestrelctl: Kestrelctl, tmp_path: Path
) -> None:
    engine = write_compacted(tmp_path / "spool", tmp_path / "archive")
    (compacted,) = [path for path in engine.segments("work") if header_of_path(path).replaced]
    dumped = rows(own_kestrelctl("journal", "dump", str(compacted), "-o", "ndjson").out)
    assert [row["holder"] for row in dumped if row["type"] == "LEASE"] == [ANN]
    for places in (
        ["--spool", str(engine.spool)],
        ["--spool", str(engine.spool), "--archive", str(tmp_path / "archive")],
    ):
        at = ["--at", str(engine.clock.wall_ms), "--json"]
        (peeked, *_) = rows(own_kestrelctl("journal", "peek", "work", *places, *at).out)
        assert (peeked["id"], peeked["state"], peeked["holder"]) == (1, "leased", ANN)
        (peeked, *_) = rows(own_kestrelctl("journal", "peek", "work+audit", *places, *at).out)
        assert (peeked["id"], peeked["state"], peeked["due_at_ms"]) == (1, "delayed", START_WALL_MS + 60_000)
    run = own_kestrelctl("history", "work", *places, "--holders", "-o", "csv")
    assert run.out.decode().splitlines()[1:] == [f"{ANN},1,0,0,0,,,,"]


def header_of_path(path: Path) -> Header:
    return decode_header(path.read_bytes(), str(path))[0]
