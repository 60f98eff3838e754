"""XXH3-64 with a seed for many slices of a buffer at once: 17 to 128 bytes with numpy, other sizes by xxhash.

Functions of `words` take numbers as well as arrays, because `kestrelspark.compiled` compiles them.
"""

from typing import Any, Final

import numpy as np
from xxhash import xxh3_64_intdigest

SIZE_MIN: Final = 17
SIZE_MAX: Final = 240
FEW: Final = 256  # below this number of slices of a size, single calls are faster than numpy

_SECRET: Final = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_SECRET_AT: Final = np.array([int.from_bytes(_SECRET[at : at + 8], "little") for at in range(185)], np.uint64)
_PRIME: Final = np.uint64(0x9E3779B185EBCA87)
_AVALANCHE: Final = np.uint64(0x165667919E3779F9)
_HALF: Final = np.uint64(0xFFFFFFFF)
_32: Final = np.uint64(32)
_37: Final = np.uint64(37)


def folded(one: Any, other: Any) -> Any:
    """The two halves of a 128-bit product, XORed."""
    low, high, other_low, other_high = one & _HALF, one >> _32, other & _HALF, other >> _32
    across = high * other_low
    middle = (low * other_low >> _32) + (across & _HALF) + low * other_high
    return (one * other) ^ (high * other_high + (across >> _32) + (middle >> _32))


def mixed(words: Any, at: Any, secret: Any, seed: Any) -> Any:
    """Mix 16 bytes."""
    return folded(words[at] ^ (_SECRET_AT[secret] + seed), words[at + 8] ^ (_SECRET_AT[secret + 8] - seed))


def avalanche(total: Any) -> Any:
    total = (total ^ (total >> _37)) * _AVALANCHE
    return total ^ (total >> _32)


def up_to_128(words: Any, start: Any, end: Any, size: Any, seed: Any, pairs: int) -> Any:
    """Digest of 17 to 128 bytes. `pairs`: size / 32, rounded up. `words[n]`: the 8 bytes at offset n."""
    total = size * _PRIME
    for pair in range(pairs):
        total += mixed(words, start + 16 * pair, 32 * pair, seed)
        total += mixed(words, end - 16 * (pair + 1), 32 * pair + 16, seed)
    return avalanche(total)


def up_to_240(words: Any, start: Any, end: Any, size: Any, seed: Any, pieces: int) -> Any:
    """Digest of 129 to 240 bytes. `pieces`: size / 16, rounded down."""
    total = size * _PRIME
    for piece in range(8):
        total += mixed(words, start + 16 * piece, 16 * piece, seed)
    total = avalanche(total)
    for piece in range(8, pieces):
        total += mixed(words, start + 16 * piece, 16 * (piece - 8) + 3, seed)
    total += mixed(words, end - 16, 119, seed)
    return avalanche(total)


def digest_each(words: Any, starts: Any, ends: Any, seeds: Any, made: Any) -> None:
    """Digests of slices of 17 to 240 bytes one by one, other sizes skipped. This function is meant to be compiled."""
    for n in range(len(starts)):
        start, end = starts[n], ends[n]
        size = end - start
        if SIZE_MIN <= size <= 128:
            made[n] = up_to_128(words, start, end, np.uint64(size), seeds[n], (size + 31) // 32)
        elif 128 < size <= SIZE_MAX:
            made[n] = up_to_240(words, start, end, np.uint64(size), seeds[n], size // 16)


def words_of(buffer: bytes) -> Any:
    """The eight bytes at each offset of a buffer as a number."""
    return np.ndarray((max(len(buffer) - 7, 0),), "<u8", buffer, strides=(1,))


def digests(buffer: bytes, starts: Any, ends: Any, seeds: Any) -> Any:
    """The checksum of each slice."""
    made = np.empty(len(starts), np.uint64)
    words, sizes = words_of(buffer), ends - starts
    # Above 128 bytes a call for each is faster.
    pairs = np.where((sizes >= SIZE_MIN) & (sizes <= 128), (sizes + 31) // 32, 0)
    for kind, count in enumerate(np.bincount(pairs).tolist()):
        which = np.flatnonzero(pairs == kind)
        if kind == 0 or count < FEW:
            made[which] = called(buffer, starts[which], ends[which], seeds[which])
            continue
        size = sizes[which].astype(np.uint64)
        made[which] = up_to_128(words, starts[which], ends[which], size, seeds[which], kind)
    return made


def called(buffer: bytes, starts: Any, ends: Any, seeds: Any) -> Any:
    """The checksum of each slice, with a call of xxhash for each."""
    stretches = map(buffer.__getitem__, map(slice, starts.tolist(), ends.tolist()))
    return np.fromiter(map(xxh3_64_intdigest, stretches, seeds.tolist()), np.uint64, len(starts))
