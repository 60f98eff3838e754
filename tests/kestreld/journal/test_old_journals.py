"""Journals as earlier kestrelds wrote them, kept as they were: whatever changes, they are read."""

import json
import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from kestreld.files import FileLayer
from kestreld.journal.records import item_data, item_id, item_optional_fields
from kestreld.journal.segment import decode_header
from kestreld.journal.verify import verify_spool
from tests.support.engine import Engine, QuickFiles

KEPT: Final = Path(__file__).parents[2] / "golden" / "journal_version_1"


@pytest.fixture(params=["one_segment", "synced", "segments", "compacted"])
def kept(request: pytest.FixtureRequest) -> Path:
    return KEPT / str(request.param)


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


def test_they_are_sound(kept: Path) -> None:
    reports = list(verify_spool(FileLayer(), str(kept)))
    assert reports
    assert [report for report in reports if report.bad_offset is not None] == []


def test_one_of_them_stands_in_for_others() -> None:
    folder = KEPT / "compacted" / "work.journal"
    headers = [decode_header(path.read_bytes(), str(path))[0] for path in sorted(folder.iterdir())]
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
