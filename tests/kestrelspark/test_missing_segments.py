"""Segments that have gone are damage, as journal-verify says; those that were archived meanwhile are read."""

import random
import re
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: make test-spark installs it")

from kestreld.errors import SegmentsMissing
from kestreld.files import FileLayer
from kestreld.journal.discovery import Discovery, discover
from kestreld.journal.verify import verify_spool
from kestrelspark.contents import DamagedStretch
from kestrelspark.job_contents import job_contents, job_files
from kestrelspark.rows import CORRUPT, Mode, RowSelection, batches
from kestrelspark.storage import ENVIRONMENT
from tests.support.damage import FAMILY, Sample
from tests.support.job_engine import JobEngine
from tests.support.segments import JOURNAL_ID, puts, write_segment

SELECTION: Final = ("event", "id", CORRUPT)


def rows(found: Discovery, mode: Mode = Mode.PERMISSIVE, *, missing_is_fine: bool = False) -> list[dict[str, Any]]:
    selection = RowSelection(SELECTION, mode)
    made = batches([*found.files, *found.missing], selection, missing_is_fine=missing_is_fine)
    return [row for batch in made for row in batch.to_pylist()]


def put_ids(found: Iterable[dict[str, Any]]) -> list[int]:
    return [row["id"] for row in found if row["event"] == "put"]


def damage(found: Iterable[dict[str, Any]]) -> list[str]:
    return sorted(row[CORRUPT] for row in found if row[CORRUPT] is not None)


def journal_verify(path: Path) -> list[str]:
    """What it says of what is missing."""
    return sorted(f"{one.path}: {one.reason}" for one in verify_spool(FileLayer(), str(path)) if one.missing)


def spool_in(folder: Path, sample: Sample) -> Path:
    """The sample's journal, with its marker."""
    journal = folder / "spool" / "work.journal"
    journal.mkdir(parents=True)
    for path, content in sample.files.items():
        if f"/{FAMILY}.journal/" in path:
            (journal / Path(path).name).write_bytes(content)
    return journal


def three_segments(folder: Path, *, numbers: tuple[int, int, int] = (1, 2, 3)) -> list[Path]:
    """With ten items each."""
    return [
        write_segment(folder, number, at * 10 + 1, puts(at * 10 + 1, 10), put_items=at * 10)
        for at, number in enumerate(numbers)
    ]


def test_whatever_segments_have_gone_from_a_spool_is_told_as_journal_verify_does(tmp_path: Path) -> None:
    sample = Sample()
    journal = spool_in(tmp_path, sample)
    names = [Path(path).name for path in sample.segments]
    assert damage(rows(discover([str(tmp_path)]))) == []
    told = 0
    several = [*combinations(names, 1), *combinations(names, 2), *combinations(names, len(names))]
    for gone in random.Random(5).sample(several, min(len(several), 60)):
        for name in gone:
            (journal / name).rename(tmp_path / name)
        expected = journal_verify(tmp_path / "spool")
        found = discover([str(tmp_path / "spool")])
        assert damage(rows(found)) == expected, gone
        if expected:
            told += 1
            with pytest.raises(SegmentsMissing):
                rows(found, Mode.FAILFAST)
            assert damage(rows(found, Mode.DROPMALFORMED)) == []
        for name in gone:
            (tmp_path / name).rename(journal / name)
    assert told > 10


def test_a_segment_that_has_gone_from_an_archive_is_told_in_each_mode(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "archive" / "work" / str(JOURNAL_ID)
    three_segments(folder)[1].unlink()
    found = discover([str(tmp_path)])
    words = f"{folder}: segment 2 is missing"
    assert journal_verify(tmp_path / "archive") == [words]
    permissive = rows(found)
    assert (damage(permissive), len(put_ids(permissive))) == ([words], 20)
    with pytest.raises(SegmentsMissing, match=re.escape(words)):
        rows(found, Mode.FAILFAST)
    caplog.clear()
    assert len(rows(found, Mode.DROPMALFORMED)) == 20
    assert words in caplog.messages


def test_a_number_that_was_left_free_is_not_missing(tmp_path: Path) -> None:
    folder = tmp_path / "archive" / "work" / str(JOURNAL_ID)
    three_segments(folder, numbers=(1, 3, 7))
    assert damage(rows(discover([str(tmp_path)]))) == journal_verify(tmp_path / "archive") == []


def test_what_is_missing_between_a_spool_and_its_archive_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "archive" / "work" / str(JOURNAL_ID)
    segments = three_segments(folder)
    journal = tmp_path / "spool" / "work.journal"
    journal.mkdir(parents=True)
    segments[2].rename(journal / segments[2].name)
    both = [str(tmp_path / "archive"), str(tmp_path / "spool")]
    assert damage(rows(discover(both))) == []
    segments[1].unlink()
    assert damage(rows(discover(both))) == [f"{folder}: segment 2 is missing"]
    assert damage(rows(discover(both[1:]))) == []  # a spool begins anywhere


def test_segments_that_are_named_are_all_that_is_asked_for(tmp_path: Path) -> None:
    first, _, last = three_segments(tmp_path / "archive" / "work" / str(JOURNAL_ID))
    assert damage(rows(discover([str(first), str(last)]))) == []


class Archiving(FileLayer):
    """A server archives a segment as soon as the archive's folders have been listed."""

    def __init__(self, path: Path, archive: Path) -> None:
        self._path, self._archive = path, archive

    def files_below(self, folder: str) -> Iterator[str]:
        yield from super().files_below(folder)
        if folder == str(self._archive):
            archive(self._path, self._archive)


def archive(path: Path, folder: Path) -> None:
    if path.exists():
        to = folder / "work" / str(JOURNAL_ID)
        to.mkdir(parents=True, exist_ok=True)
        path.rename(to / path.name)


def test_a_segment_that_is_archived_while_folders_are_listed_is_read_once(tmp_path: Path) -> None:
    segments = three_segments(tmp_path / "spool" / "work.journal")
    there = tmp_path / "archive"
    there.mkdir()
    found = discover([str(there), str(tmp_path / "spool")], files=Archiving(segments[0], there))
    assert not segments[0].exists()
    assert put_ids(rows(found)) == list(range(1, 31))


@pytest.mark.parametrize("missing_is_fine", [False, True])
def test_a_segment_that_is_archived_before_its_task_begins_is_read_there(tmp_path: Path, missing_is_fine: bool) -> None:
    segments = three_segments(tmp_path / "spool" / "work.journal")
    there = tmp_path / "archive"
    there.mkdir()
    found = discover([str(there), str(tmp_path / "spool")])
    archive(segments[0], there)
    archive(segments[1], there)
    assert put_ids(rows(found, missing_is_fine=missing_is_fine)) == list(range(1, 31))


def test_a_segment_that_was_deleted_is_left_out_only_where_that_is_asked_for(tmp_path: Path) -> None:
    segments = three_segments(tmp_path / "spool" / "work.journal")
    found = discover([str(tmp_path)])
    segments[0].unlink()
    with pytest.raises(FileNotFoundError):
        rows(found)
    assert put_ids(rows(found, missing_is_fine=True)) == list(range(11, 31))


def test_a_segment_that_has_gone_from_a_log_of_jobs_is_told(tmp_path: Path) -> None:
    engine = JobEngine(tmp_path / "spool")
    assert engine.storage.writer is not None
    for _ in range(3):
        engine.add()
        engine.end_turn()
        engine.storage.writer.roll()
    engine.add()
    engine.end_turn()
    segments = engine.segments()
    folder = segments[0].parent
    assert missing_of_jobs(folder) == []
    segments[1].unlink()
    number = int(segments[1].stem)
    assert missing_of_jobs(folder) == [f"{folder}: segment {number} is missing"]
    (folder / f"{number + 5:010d}-{number - 1:020d}.live").touch()
    words = f"{folder}: segments {int(segments[-1].stem) + 1} to {number + 5} are missing"
    assert missing_of_jobs(folder) == [f"{folder}: segment {number} is missing", words]


def missing_of_jobs(folder: Path) -> list[str]:
    return [
        str(piece.error(file))
        for file in job_files(str(folder))
        for piece in job_contents(ENVIRONMENT.content(file), file)
        if isinstance(piece, DamagedStretch)
    ]


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_verify_finds_what_is_missing_as_journal_verify_does_and_tells_what_was_removed_meanwhile(
    spark: Any, tmp_path: Path
) -> None:
    from kestrelspark.jobs.verify import CORRUPT as CODE
    from kestrelspark.jobs.verify import OK, _verify_pack, verify

    folder, state = tmp_path / "archive" / "work" / str(JOURNAL_ID), str(tmp_path / "state")
    segments = three_segments(folder)
    assert verify(spark, [str(tmp_path / "archive")], state=state).code == OK
    again = verify(spark, [str(tmp_path / "archive")], state=state)
    assert (again.files, again.passed_over) == (0, 3)
    segments[1].rename(tmp_path / "away")
    for _ in range(3):
        found = verify(spark, [str(tmp_path / "archive")], state=state)
        assert found.code == CODE
        assert [f"{one.path}: {one.reason}" for one in found.problems] == journal_verify(tmp_path / "archive")
    with pytest.raises(Exception, match="SegmentsMissing"):
        spark.read.format("kestrel").option("mode", "FAILFAST").load(str(tmp_path)).collect()
    read = discover([str(tmp_path / "archive")]).files
    segments[0].unlink()
    assert _verify_pack(read).removed == [str(segments[0])]
