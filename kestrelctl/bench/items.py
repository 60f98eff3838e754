"""Distinguishable items of a load test: each names its run, writer and number and has bytes derived from these."""

import random
from typing import Final

# Offsets in the block at which an item's bytes may start. A prime, so that neighbours never share one.
STARTS: Final = 4093


class ItemMaker:
    """Maker and recogniser of the items of one run. The same seed makes the same items."""

    def __init__(self, seed: int, size_bytes: int) -> None:
        self._tag = b"%08x" % (seed & 0xFFFFFFFF)
        self._size_bytes = size_bytes
        self._block = random.Random(seed).randbytes(size_bytes + STARTS)

    def make(self, writer: int, number: int) -> bytes:
        """The item: a head, then bytes up to the configured size. The head alone may be longer than that."""
        head = b"%b/%d/%d/" % (self._tag, writer, number)
        start = (writer * 977 + number) % STARTS
        return head + self._block[start : start + max(0, self._size_bytes - len(head))]

    def read(self, item: bytes) -> tuple[int, int] | None:
        """Writer and number of an item. None if it is not, byte for byte, an item of this run."""
        parts = item.split(b"/", 3)
        if len(parts) < 4 or not (parts[1].isdigit() and parts[2].isdigit()):
            return None
        writer, number = int(parts[1]), int(parts[2])
        return (writer, number) if item == self.make(writer, number) else None

    def is_ours(self, item: bytes) -> bool:
        """True if the item, intact or not, comes from this run."""
        return item.startswith(self._tag)
