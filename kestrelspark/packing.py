"""Distribute files among tasks."""

import math
from collections.abc import Sequence

from kestreld.journal.discovery import JournalFile


def packed(files: Sequence[JournalFile], bytes_max: int) -> list[list[JournalFile]]:
    """Split files into packs of even size: about `bytes_max` at most, a larger file by itself.

    If there are several packs their number is even, like that of cores, so that no core waits for a last pack.
    """
    total_bytes = sum(file.size_bytes for file in files)
    count = max(math.ceil(total_bytes / bytes_max), 1)
    if count > 1:
        count += count % 2
    packs: list[list[JournalFile]] = [[] for _ in range(count)]
    before_bytes = 0
    for file in files:
        middle = before_bytes + file.size_bytes // 2
        packs[middle * count // max(total_bytes, 1)].append(file)
        before_bytes += file.size_bytes
    return [pack for pack in packs if pack]
