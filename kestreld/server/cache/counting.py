"""Arithmetic of incr and decr, for text and meta commands."""

from kestreld.cache.dictionary import Dictionary
from kestreld.cache.entries import CAS_MASK, Item
from kestreld.server.cache.numbers import unsigned_64


def count(dictionary: Dictionary, name: bytes, item: Item, delta: int, *, goes_up: bool) -> bytes | None:
    """Add to a number or subtract from it, and count the hit; returns the result, None if it is not a number.

    A sum wraps at 64 bits, a difference stops at 0. A number that has become shorter is padded with blanks.
    """
    value = unsigned_64(item.data)
    if value is None:
        return None
    if goes_up:
        dictionary.counts.incr_hits += 1
        value = (value + delta) & CAS_MASK
    else:
        dictionary.counts.decr_hits += 1
        value = max(value - delta, 0)
    text = b"%d" % value
    if len(text) > len(item.data):
        item.state = 0
    item.data = text.ljust(len(item.data))
    dictionary.put(name, item)
    return text
