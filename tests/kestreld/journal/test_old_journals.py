"""Journals as earlier kestrelds wrote them, kept as they were: whatever changes, they are read."""

import json
import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from kestreld.files import FileLayer
from kestreld.journal.records import Type, item_data, item_id, item_optional_fields
from kestreld.journal.segment import decode_header
from kestreld.journal.verify import verify_spool
from kestreld.queues.leases import confirm, item_of, lease
from tests.support.engine import Engine, QuickFiles
from tests.support.kept_journals import LEASES, MAKERS, delivered, holders, started, told, types_in, why

GOLDEN: Final = Path(__file__).parents[2] / "golden"
KEPT: Final = GOLDEN / "journal_version_1"


@pytest.fixture(params=["one_segment", "synced", "segments", "compacted"])
def kept(request: pytest.FixtureRequest) -> Path:
    return KEPT / str(request.param)


@pytest.fixture(params=MAKERS)
def kept_2(request: pytest.FixtureRequest) -> Path:
    """One of version 2."""
    return GOLDEN / "journal_version_2" / str(request.param)


def waiting(engine: Engine, name: str) -> list[Any]:
    """What plain gets bring: id, flags, expiry and data of each item."""
    found = []
    while (record := engine.reader(name).take(engine.clock.wall_ms)) is not None:
        expire_at_ms, flags, _ = item_optional_fields(record)
        found.append([item_id(record), flags, expire_at_ms, item_data(record).decode()])
    return found


def test_a_start_brings_back_what_was_in_them(kept: Path, tmp_path: Path) -> None:
    shutil.copytree(kept, tmp_path / "spool")
    engine = Engine(tmp_path / "spool", QuickFiles())
    expected = json.loads((kept / "expected.json").read_text())
    queue = engine.queue("work")
    assert (queue.next_id, queue.put_items) == (expected["next_id"], expected["put_items"])
    assert {name: stream.head for name, stream in queue.streams.items()} == expected["streams"]
    assert queue.readers[""].retries == {int(one): times for one, times in expected["retries"].items()}
    assert {name: waiting(engine, name) for name in expected["queues"]} == expected["queues"]
    engine.abandon()


@pytest.mark.parametrize("folder", sorted(GOLDEN.glob("journal_version_*/*/")), ids=lambda folder: folder.name)
def test_they_are_sound(folder: Path) -> None:
    reports = list(verify_spool(FileLayer(), str(folder)))
    assert reports
    assert [report for report in reports if report.bad_offset is not None] == []


@pytest.mark.parametrize("version", [1, 2])
def test_one_of_them_stands_in_for_others(version: int) -> None:
    folder = GOLDEN / f"journal_version_{version}" / "compacted" / "work.journal"
    headers = [decode_header(path.read_bytes(), str(path))[0] for path in sorted(folder.glob("*.seg"))]
    assert [bool(header.replaced) for header in headers] == [True, False]


def test_they_take_items(kept: Path, tmp_path: Path) -> None:
    shutil.copytree(kept, tmp_path / "spool")
    engine = Engine(tmp_path / "spool", QuickFiles())
    before = engine.items("work")
    engine.put("work", b"one more")
    assert engine.end_turn() == {}
    engine.crash()
    assert engine.items("work") == before + 1
    assert engine.drain("work")[-1] == b"one more"
    engine.abandon()


# Version 2: items with a time and an owner of their own


def test_a_start_brings_back_what_is_held_back_with_its_times_keys_and_origins(kept_2: Path, tmp_path: Path) -> None:
    shutil.copytree(kept_2, tmp_path / "spool")
    expected = json.loads((kept_2 / "expected.json").read_text())
    engine = started(tmp_path / "spool", expected["stopped_at_ms"])
    found = json.loads(json.dumps(told(engine)))
    assert found == {what: expected[what] for what in found}
    assert delivered(engine) == expected["delivered"]
    engine.abandon()


def test_tokens_of_before_are_good_after_a_start(kept_2: Path, tmp_path: Path) -> None:
    shutil.copytree(kept_2, tmp_path / "spool")
    expected = json.loads((kept_2 / "expected.json").read_text())
    engine = started(tmp_path / "spool", expected["stopped_at_ms"])
    assert [confirm(engine.reader("work"), token) for token in expected["tokens"]] == [True] * len(expected["tokens"])
    engine.end_turn()
    engine.crash()
    ended = [item_of(token) for token in expected["tokens"]]
    assert [one[1] for one in delivered(engine)["work"] if one[1] in ended] == []
    engine.abandon()


def test_together_they_have_every_record_of_version_2(tmp_path: Path) -> None:
    segments = sorted((GOLDEN / "journal_version_2").glob("*/*.journal/*.seg"))
    assert types_in(segments) >= {Type.DUE, Type.KEY, Type.ORIGIN}
    assert {path.parts[-3]: version_of(path) for path in segments if path.parts[-2] == "orders.journal"} == {
        "compacted": 1
    }
    begun = sorted((GOLDEN / "journal_version_2" / "begun_as_version_1").glob("*/*.seg"))
    assert [version_of(path) for path in begun] == [1, 2]


def test_a_journal_that_needs_nothing_of_version_2_is_of_version_1(tmp_path: Path) -> None:
    """What has no use for leases and delays an older kestreld reads, whatever else it is put through."""
    config = {"max_retries": 1, "max_journal_size_bytes": 500, "max_journal_overflow": 2}
    engine = Engine(tmp_path / "spool", QuickFiles(), **config)
    engine.reader("work+audit")
    engine.put("work", b"stays")
    engine.end_turn()
    work = engine.reader("work")
    for _ in range(100):
        engine.put("work", b"flows" * 10, flags=7, expire_at_ms=1 << 42)
        opened = work.open_read(engine.clock.wall_ms)
        assert opened is not None
        work.abort(opened[0], engine.clock.wall_ms)
        engine.end_turn()
        engine.take("work")
        engine.take("work+audit")
        leased = lease(engine.reader("work"), engine.clock.wall_ms, 30_000, "")
        if leased is not None:
            assert confirm(engine.reader("work"), leased[0])
        engine.end_turn()
        engine.work(20)
    engine.restart()
    engine.crash()
    assert {version_of(path) for path in engine.segments("work")} == {1}
    assert types_in(engine.segments("work")) & {Type.DUE, Type.KEY, Type.ORIGIN} == set()
    engine.abandon()


def version_of(path: Path) -> int:
    return decode_header(path.read_bytes(), str(path))[0].version


# Version 3: why items failed


def test_a_start_knows_why_items_failed(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "journal_version_3" / "reasons", tmp_path / "spool")
    expected = json.loads((tmp_path / "spool" / "expected.json").read_text())
    engine = started(tmp_path / "spool", expected["stopped_at_ms"])
    assert json.loads(json.dumps(why(engine))) == expected["failures"]
    assert expected["failures"]["work"]["3"] == "too late"
    assert expected["failures"]["dead"] == {"1": "no room / 100 %"}
    assert delivered(engine) == expected["delivered"]
    segments = sorted((tmp_path / "spool").glob("*.journal/*.seg"))
    assert Type.FAILURE in types_in(segments)
    assert {version_of(path) for path in segments} == {1, 3}
    engine.abandon()


# Version 4: leases that outlive a kill


@pytest.fixture(params=LEASES)
def kept_4(request: pytest.FixtureRequest) -> Path:
    return GOLDEN / "journal_version_4" / str(request.param)


def test_a_start_knows_the_leases_that_a_kill_has_left_and_who_has_them(kept_4: Path, tmp_path: Path) -> None:
    shutil.copytree(kept_4, tmp_path / "spool")
    expected = json.loads((kept_4 / "expected.json").read_text())
    engine = started(tmp_path / "spool", expected["stopped_at_ms"])
    found = json.loads(json.dumps({**told(engine), "failures": why(engine), "holders": holders(engine)}))
    assert found == {what: expected[what] for what in found}
    assert delivered(engine) == expected["delivered"]
    engine.abandon()


def test_tokens_of_before_a_kill_are_good_after_a_start(kept_4: Path, tmp_path: Path) -> None:
    shutil.copytree(kept_4, tmp_path / "spool")
    expected = json.loads((kept_4 / "expected.json").read_text())
    engine = started(tmp_path / "spool", expected["stopped_at_ms"])
    assert [confirm(engine.reader("work"), token) for token in expected["tokens"]] == [True] * len(expected["tokens"])
    engine.end_turn()
    engine.crash()
    ended = [item_of(token) for token in expected["tokens"]]
    assert [one[1] for one in delivered(engine)["work"] if one[1] in ended] == []
    engine.abandon()


def test_both_have_leases_and_holders_and_one_stands_in_for_others() -> None:
    folder = GOLDEN / "journal_version_4"
    for kind in LEASES:
        segments = sorted((folder / kind).glob("*.journal/*.seg"))
        assert types_in(segments) >= {Type.LEASE, Type.HOLDER}
        assert 4 in map(version_of, segments)
    headers = [
        decode_header(path.read_bytes(), str(path))[0]
        for path in sorted((folder / "compacted").glob("*.journal/*.seg"))
    ]
    assert [bool(header.replaced) for header in headers] == [True, False]
