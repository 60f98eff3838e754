"""Items that can be told apart: which run, which writer, which number, and bytes that follow from these."""

import random
from typing import Final

# How many places of the block an item's bytes may start at. A prime, so that neighbours never share one.
STARTS: Final = 4093


class ItemMaker:
    """Makes the items of one run, and recognizes them. The same seed makes the same items."""

    def __init__(self, seed: int, size_bytes: int) -> None:
        self._tag = b"%08x" % (seed & 0xFFFFFFFF)
        self._size_bytes = size_bytes
        self._block = random.Random(seed).randbytes(size_bytes + STARTS)

    def make(self, writer: int, number: int) -> bytes:
        """The item: a head, and bytes up to the size. It is longer than the size if the head is."""
        head = b"%b/%d/%d/" % (self._tag, writer, number)
        start = (writer * 977 + number) % STARTS
        return head + self._block[start : start + max(0, self._size_bytes - len(head))]

    def read(self, item: bytes) -> tuple[int, int] | None:
        """Writer and number. None = it is not, byte for byte, an item of this run."""
        parts = item.split(b"/", 3)
        if len(parts) < 4 or not (parts[1].isdigit() and parts[2].isdigit()):
            return None
        writer, number = int(parts[1]), int(parts[2])
        return (writer, number) if item == self.make(writer, number) else None

    def is_ours(self, item: bytes) -> bool:
        """Whether it comes from this run, if not intact."""
        return item.startswith(self._tag)
