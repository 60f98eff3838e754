"""Sizes of items and their slab classes, computed as memcached does.

Kestreld has no slab classes, but tools that inspect a memcached expect them.
"""

from bisect import bisect_left
from typing import Final

_HEADER_BYTES: Final = 48 + 8  # with the cas
_CHUNK_BYTES_MIN: Final = 96
_CHUNK_BYTES_MAX: Final = 1 << 19
_FACTOR: Final = 1.25


def _chunk_sizes() -> list[int]:
    sizes, size = [], _CHUNK_BYTES_MIN
    while size < _CHUNK_BYTES_MAX / _FACTOR:
        sizes.append((size + 7) & ~7)
        size = int(sizes[-1] * _FACTOR)
    return [*sizes, _CHUNK_BYTES_MAX]


CHUNK_SIZES: Final = _chunk_sizes()


def item_bytes(key_bytes: int, flags: int, data_bytes: int) -> int:
    """Return the size of an item."""
    return _HEADER_BYTES + key_bytes + 1 + (4 if flags else 0) + data_bytes + 2


def slab_class(size_bytes: int) -> int:
    """Return the number, from 1 on, of the class for items of this size."""
    return min(bisect_left(CHUNK_SIZES, size_bytes) + 1, len(CHUNK_SIZES))
