"""Parsers of numbers in commands, by the rules of C's strtoll."""

import re
from typing import Final

_INTEGER: Final = re.compile(rb"[+-]?\d{1,40}")
MOST: Final = (1 << 63) - 1


def integer(word: bytes) -> int | None:
    """Parse a signed number of 64 bits; None if it is none. An empty word is 0."""
    if _INTEGER.fullmatch(word):
        number = int(word)
        return number if -MOST - 1 <= number <= MOST else None
    return None if word else 0


def cursor(word: bytes) -> int | None:
    """Parse a cursor: any number of 64 bits, a negative one modulo 2**64. An empty word is 0."""
    if not _INTEGER.fullmatch(word):
        return None if word else 0
    number = int(word)
    return number % (1 << 64) if abs(number) < 1 << 64 else None
