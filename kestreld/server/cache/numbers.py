"""Parsers of numbers on command lines, which accept what memcached's C code accepts.

Blanks and a sign may come before a number, a blank or nothing behind it.
"""

import re
from typing import Final

SHORT: Final = 10  # fewer digits are no more than 31 bits
_NUMBER: Final = re.compile(rb"[ \t\n\v\f\r]*([+-]?)0*(\d{1,20})(?![^ \t\n\v\f\r\0])")


def _number(word: bytes) -> int | None:
    found = _NUMBER.match(word)
    if found is None:
        return None
    return -int(found[2]) if found[1] == b"-" else int(found[2])


def signed_32(word: bytes) -> int | None:
    """Parse an expiry or a length, reduced to 32 bits. None if the word is not a number."""
    if word.isdigit() and len(word) < SHORT:
        return int(word)
    value = _number(word)
    if value is None or not -(1 << 63) <= value < 1 << 63:
        return None
    return ((value + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)


def unsigned_32(word: bytes) -> int | None:
    """Parse flags, reduced to 32 bits. None if the word is not a number."""
    value = unsigned_64(word)
    return None if value is None else value & 0xFFFFFFFF


def unsigned_64(word: bytes) -> int | None:
    """Parse a cas, or an operand of arithmetic. None if the word is not such a number."""
    if word.isdigit() and len(word) < SHORT:
        return int(word)
    value = _number(word)
    return value if value is not None and 0 <= value < 1 << 64 else None
