"""Leases by token: what whoever has leased an item shows to confirm it, extend it or give it back, from anywhere.

A token is a number from 1 to 2^63 - 1, which clients take for a cas value: 34 bits of the item's id, 17 of a digest of
journal and reader, 12 of an attempt number that is another for each lease of the item. One of another server, of
another child, or of a queue that was deleted and made again fits no item here. When a lease is over the token is good
as long as the item waits: nobody else has it then.
"""

import struct
from typing import Final

from xxhash import xxh3_64_intdigest

from kestreld.queues.held import ATTEMPT_MAX, Held, lease_of
from kestreld.queues.reader import Reader

_ID_BITS: Final = 34
_ID_MASK: Final = (1 << _ID_BITS) - 1
_DIGEST_BITS: Final = 17
_ATTEMPT_BITS: Final = 12
_LOW_BITS: Final = _DIGEST_BITS + _ATTEMPT_BITS
TOKEN_END: Final = 1 << 63
_OWNER: Final = struct.Struct("<QI")


def lease(reader: Reader, now_ms: int, lease_ms: int, holder: str) -> tuple[int, bytes] | None:
    """Lease the head item to `holder`, an address; token and record. None when there is none. Raises JournalCorrupt."""
    found = reader.open_read(now_ms)
    if found is None:
        return None
    one, record = found
    return begin(reader, one, lease_ms, holder), record


def begin(reader: Reader, one: int, lease_ms: int, holder: str) -> int:
    """An open read is a lease from now on; its token."""
    attempt = reader.begin_lease(one, lease_ms, holder)
    return (one & _ID_MASK) << _LOW_BITS | _owner_bits(reader, reader.held_items()) | attempt


def lease_head(reader: Reader, lease_ms: int, holder: str) -> tuple[int, bytes]:
    """`lease` where the window is known to have an item and not to be `slow`."""
    one, attempt, record = reader.lease_head(lease_ms, holder)
    held, journal = reader.held, reader.queue.journal
    assert held is not None
    is_known = journal is not None and held.owner == journal.journal_id
    return (one & _ID_MASK) << _LOW_BITS | (
        held.owner_bits if is_known else _owner_bits(reader, held)
    ) | attempt, record


def item_of(token: int) -> int:
    """The lowest bits of the item's id, which most ids have no others than."""
    return token >> _LOW_BITS


def confirm(reader: Reader, token: int) -> bool:
    """The item is done. False when it was already, or somebody else has it. Raises JournalCorrupt."""
    one, held = token >> _LOW_BITS, reader.held
    leased = held.leases.get(one) if held is not None and one in reader.open and not reader.deleted else None
    journal = reader.queue.journal
    # As most are; of others `_found` knows.
    is_known = journal is not None and held is not None and held.owner == journal.journal_id
    if leased is None or held is None or not is_known or token != one << _LOW_BITS | held.owner_bits | leased.attempt:
        one = _found(reader, token)
    if one:
        reader.close(one)
    elif reader.held is not None:
        reader.held.late_confirms += 1
    return bool(one)


def extend(reader: Reader, token: int, lease_ms: int) -> bool:
    """The lease lasts so long from now."""
    one = _found(reader, token)
    if one:
        reader.extend_lease(one, lease_ms)
    return bool(one)


def give_back(reader: Reader, token: int, now_ms: int, delay_ms: int = 0) -> bool:
    """The item waits again, or is delivered after so long. That is not counted as an attempt."""
    one = _found(reader, token)
    if one:
        reader.give_back(one, now_ms, delay_ms)
    return bool(one)


def fail(reader: Reader, token: int, now_ms: int) -> bool:
    """Whoever had the item has failed with it."""
    one = _found(reader, token)
    if one:
        reader.fail(one, now_ms)
    return bool(one)


def _owner_bits(reader: Reader, held: Held) -> int:
    """The digest of journal and reader, where it stands in a token."""
    journal = reader.queue.journal
    owner = journal.journal_id if journal is not None else held.first_attempt
    if held.owner != owner:
        digest = xxh3_64_intdigest(_OWNER.pack(owner, reader.number)) & ((1 << _DIGEST_BITS) - 1)
        held.owner, held.owner_bits = owner, digest << _ATTEMPT_BITS
    return held.owner_bits


def _found(reader: Reader, token: int) -> int:
    """The item that a token is good for, which is leased by it from here on; 0 = there is none."""
    one, held = token >> _LOW_BITS, reader.held_items()
    if reader.deleted or not 0 < token < TOKEN_END:
        return 0
    leased, owner_bits = held.leases.get(one), _owner_bits(reader, held)
    if leased is not None and token == one << _LOW_BITS | owner_bits | leased.attempt and one in reader.open:
        return one  # as most are
    one, attempt = _newest(one, reader.queue.next_id - 1), token & ATTEMPT_MAX
    if one < 1 or token & (((1 << _DIGEST_BITS) - 1) << _ATTEMPT_BITS) != owner_bits:
        return 0
    if one in reader.open:
        leased = held.leases.get(one)
        return one if leased is not None and leased.attempt == attempt else 0
    # Ids that a power cut took away are given again: a token from before it is not good for another item.
    if one >= reader.queue.first_id_here and not held.was_leased(one, attempt):
        return 0
    if reader.pull_out(one) is None:
        return 0
    now_ms = reader.queue.clock.monotonic_ms
    held.lease(one, lease_of(attempt, now_ms, now_ms, ""))
    return one


def _newest(low: int, last: int) -> int:
    """The highest id up to `last` that ends in these bits."""
    return last - ((last - low) & ((1 << _ID_BITS) - 1))
