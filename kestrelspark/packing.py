"""Share files out among tasks."""

import math
from collections.abc import Sequence

from kestreld.journal.discovery import JournalFile


def packed(files: Sequence[JournalFile], bytes_max: int) -> list[list[JournalFile]]:
    """The files in order, shared out evenly: about so many bytes together at most, a larger file alone.

    More than one pack are an even number of them, as cores are, so that none of these waits for the last one.
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
