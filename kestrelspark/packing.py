"""Distribution of files among tasks of equal cost, and what a task may need of those of others."""

import math
from collections.abc import Sequence
from typing import Final

from kestreld.journal.discovery import JournalFile

# Cost of opening a file: a small one takes as long to read as a fifth of this, and longer on object storage.
OPENING_BYTES: Final = 1 << 20
# A task looks back so far for leases that its first segment extends.
EARLIER_BYTES: Final = 64 << 20


def input_bytes(files: Sequence[JournalFile], opening_bytes: int = OPENING_BYTES) -> int:
    """Cost of reading all files, in bytes of a large file."""
    return sum(file.size_bytes + opening_bytes for file in files)


def packed(files: Sequence[JournalFile], bytes_max: int, opening_bytes: int = OPENING_BYTES) -> list[list[JournalFile]]:
    """Split files into packs of equal cost: about `bytes_max` at most, a larger file by itself.

    If there are several packs, their number is even, like that of cores, so that no core waits for a last pack.
    """
    total_bytes = input_bytes(files, opening_bytes)
    count = max(math.ceil(total_bytes / bytes_max), 1)
    if count > 1:
        count += count % 2
    packs: list[list[JournalFile]] = [[] for _ in range(count)]
    before_bytes = 0
    for file in files:
        size_bytes = file.size_bytes + opening_bytes
        packs[(before_bytes + size_bytes // 2) * count // max(total_bytes, 1)].append(file)
        before_bytes += size_bytes
    return [pack for pack in packs if pack]


def earlier_files(packs: Sequence[Sequence[JournalFile]]) -> list[list[JournalFile]]:
    """For each pack, the latest segments in the packs before that precede its first one, in order."""
    earlier: list[list[JournalFile]] = []
    before: list[JournalFile] = []
    for pack in packs:
        found: list[JournalFile] = []
        left_bytes = EARLIER_BYTES
        for file in reversed(before):
            left_bytes -= file.size_bytes
            if left_bytes < 0 or not is_later(file, pack[0]):
                break
            found.insert(0, file)
        earlier.append(found)
        before += pack
    return earlier


def is_later(file: JournalFile, later: JournalFile) -> bool:
    """True if `later` is a later segment of the same journal."""
    journal = (file.server, file.queue, file.journal_id)
    return (
        not file.is_kestrel and journal == (later.server, later.queue, later.journal_id) and file.number < later.number
    )
