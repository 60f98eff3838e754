"""Which task reads which files."""

from kestreld.journal.discovery import JournalFile
from kestrelspark.packing import packed

MB = 1_000_000


def sizes(files_bytes: list[int], bytes_max: int) -> list[list[int]]:
    files = [JournalFile(str(number), "", "work", "", size) for number, size in enumerate(files_bytes)]
    packs = packed(files, bytes_max)
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
