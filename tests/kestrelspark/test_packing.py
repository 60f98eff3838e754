"""Which task reads which files, and what it costs to find them."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")

from kestreld.journal.discovery import JournalFile, discover
from kestrelspark.batch import partition_bytes
from kestrelspark.packing import input_bytes, packed
from tests.support.segments import puts, write_segment

MB = 1_000_000


def sizes(files_bytes: list[int], bytes_max: int) -> list[list[int]]:
    files = [JournalFile(str(number), "", "work", "", size) for number, size in enumerate(files_bytes)]
    packs = packed(files, bytes_max, opening_bytes=0)
    assert [file for pack in packs for file in pack] == files
    return [[file.size_bytes for file in pack] for pack in packs]


def test_files_are_shared_out_evenly_among_an_even_number_of_tasks() -> None:
    assert sizes([16] * 18, 64) == [[16] * 3] * 6
    assert [len(pack) for pack in sizes([16 * MB] * 36, 72 * MB)] == [4, 5] * 4


def test_what_is_little_is_for_one_task_and_a_large_file_is_alone() -> None:
    assert sizes([], 64) == []
    assert sizes([0, 0], 64) == [[0, 0]]
    assert sizes([16] * 4, 64) == [[16] * 4]
    assert sizes([16, 16, 1000, 16, 16], 64) == [[16, 16], [1000], [16, 16]]


def test_many_small_files_are_several_tasks_and_a_few_are_one() -> None:
    def tasks(count: int, size_bytes: int) -> list[int]:
        files = [JournalFile(str(number), "", "work", "", size_bytes) for number in range(count)]
        return [len(pack) for pack in packed(files, partition_bytes(input_bytes(files)))]

    assert tasks(60, 1000) == [60]
    assert len(tasks(10_000, 1000)) == 40
    assert tasks(40, 16 * MB) == [5] * 8


def test_planning_costs_each_segment_the_same_however_many_there_are(tmp_path: Path) -> None:
    def calls(count: int) -> int:
        """Of functions and generators, to plan a query."""
        folder = tmp_path / str(count) / "work.journal"
        for number in range(1, count + 1):
            write_segment(folder, number, number, puts(number, 1))
        made = 0

        def count_one(*_: object) -> None:
            nonlocal made
            made += 1

        sys.setprofile(count_one)
        try:
            found = discover([str(folder.parent)])
        finally:
            sys.setprofile(None)
        assert len(found.files) == count
        return made

    assert calls(400) < 2.2 * calls(200)
