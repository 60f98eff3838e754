"""The scan's operations compiled by numba; importing this raises ImportError if numba is missing or disabled.

numba caches compiled code until the function's file changes, so each function's callees are in its own file.
"""

from collections.abc import Callable
from typing import Any, Final

import numba
import numpy as np
from numba.extending import register_jitable

from kestreld.journal.records import FRAME_BYTES
from kestrelspark import checksums
from kestrelspark.checksums import SIZE_MAX, SIZE_MIN, called, words_of

if numba.config.DISABLE_JIT:
    raise ImportError("numba is disabled by NUMBA_DISABLE_JIT")

for function in (checksums.folded, checksums.mixed, checksums.avalanche, checksums.up_to_128, checksums.up_to_240):
    register_jitable(function)


def _chain(sizes: Any, at: int, last: int, offsets: Any) -> tuple[int, int]:
    count = 0
    while at <= last and count < len(offsets):
        offsets[count] = at
        at += np.int64(sizes[at]) + FRAME_BYTES
        count += 1
    return count, at


def _copy_heads(words: Any, starts: Any, made: Any, size: int) -> None:
    at = 0
    last = size - 8  # the last word overlaps the one before
    for start in starts:
        for behind in range(0, last, 8):
            made[at + behind] = words[start + behind]
        made[at + last] = words[start + last]
        at += size


def _compiled(function: Callable[..., Any]) -> Any:
    try:
        return numba.njit(function, cache=True)
    except RuntimeError:  # no writable cache folder: each process compiles it again
        return numba.njit(function)


_compiled_chain: Final = _compiled(_chain)
_compiled_digests: Final = _compiled(checksums.digest_each)
_compiled_copy_heads: Final = _compiled(_copy_heads)


def chain(buffer: bytes, at: int, end: int, most: int) -> tuple[Any, int]:
    """Offsets of records, following their lengths, and the end of the last one."""
    sizes = np.ndarray((max(len(buffer) - 3, 0),), "<u4", buffer, strides=(1,))
    offsets = np.empty(most, np.int64)
    count, stop = _compiled_chain(sizes, at, end - FRAME_BYTES, offsets)
    return offsets[:count], int(stop)


def digests(buffer: bytes, starts: Any, ends: Any, seeds: Any) -> Any:
    """The checksum of each slice, as `checksums.digests`."""
    made = np.empty(len(starts), np.uint64)
    _compiled_digests(words_of(buffer), starts, ends, seeds, made)
    sizes = ends - starts
    others = np.flatnonzero((sizes < SIZE_MIN) | (sizes > SIZE_MAX))
    made[others] = called(buffer, starts[others], ends[others], seeds[others])
    return made


def heads(buffer: bytes, starts: Any, dtype: Any) -> Any:
    """The first bytes of each record as a structure. All of them must lie within the buffer."""
    made = np.empty(len(starts), dtype)
    if len(starts):
        _compiled_copy_heads(words_of(buffer), starts, words_of(made.view(np.uint8)), dtype.itemsize)
    return made
