"""Leases by token: what whoever has leased an item shows to confirm it, extend it or give it back, from anywhere.

A token is a number from 1 to 2^63 - 1, which clients take for a cas value: 34 bits of the item's id, 17 of a digest, 12
of an attempt number that is another for each lease of the item. The digest is of journal, reader, item, attempt and how
often the item had failed before: what was never given fits nothing, as does a token of another server, of another
child, or of a queue that was deleted and made again.

When an attempt is over its token is good as long as the item waits and nobody has had it since: to confirm the item, or
to lease it again. An attempt has one end, so that to give it back or to have failed changes nothing more then. What the
count of failures was at its beginning tells, after a start too, whether the attempt's own has been counted.
"""

import struct
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from kestreld.queues.held import ATTEMPT_MAX, Held, lease_of
from kestreld.queues.reader import Reader

_ID_BITS: Final = 34
_ID_MASK: Final = (1 << _ID_BITS) - 1
_DIGEST_BITS: Final = 17
_DIGEST_MASK: Final = (1 << _DIGEST_BITS) - 1
_ATTEMPT_BITS: Final = 12
_LOW_BITS: Final = _DIGEST_BITS + _ATTEMPT_BITS
_FAILURES_BITS: Final = 16
_FAILURES_MAX: Final = (1 << _FAILURES_BITS) - 1  # as records have it
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
    leased, held = reader.begin_lease(one, lease_ms, holder), reader.held_items()
    leased.token = token = _token(reader, held, one, leased.attempt, reader.retries.get(one, 0))
    return token


def lease_head(reader: Reader, lease_ms: int, holder: str) -> tuple[int, bytes]:
    """`lease` where the window is known to have an item and not to be `slow`."""
    one, leased, record = reader.lease_head(lease_ms, holder)
    held = reader.held
    assert held is not None
    failures = reader.retries.get(one, 0) if reader.retries else 0
    leased.token = token = _token(reader, held, one, leased.attempt, failures)
    return token, record


def item_of(token: int) -> int:
    """The lowest bits of the item's id, which most ids have no others than."""
    return token >> _LOW_BITS


def confirm(reader: Reader, token: int) -> bool:
    """The item is done. False when it was already, or somebody else has it. Raises JournalCorrupt."""
    one, held = token >> _LOW_BITS, reader.held
    leased = held.leases.get(one) if held is not None and one in reader.open and not reader.deleted else None
    if leased is None or leased.token != token:  # as most are
        found = _find(reader, token)
        one = found.item if found is not None and _take_up(reader, found, token) else 0
    if one:
        reader.close(one)
    elif reader.held is not None:
        reader.held.late_confirms += 1
    return bool(one)


def extend(reader: Reader, token: int, lease_ms: int) -> bool:
    """The lease lasts so long from now."""
    found = _find(reader, token)
    if found is None or not _take_up(reader, found, token):
        return False
    reader.extend_lease(found.item, lease_ms)
    return True


def give_back(reader: Reader, token: int, now_ms: int, delay_ms: int = 0) -> bool:
    """The item waits again, or is delivered after so long, unless the attempt is over. That is not counted as one."""
    found = _find(reader, token)
    if found is None:
        return False
    if not found.is_leased and (found.is_over or not delay_ms):
        return reader.waits(found.item)
    if not _take_up(reader, found, token):
        return False
    reader.give_back(found.item, now_ms, delay_ms)
    return True


def fail(reader: Reader, token: int, now_ms: int, failure: str = "") -> bool:
    """Whoever had the item has failed with it, for that reason. Nothing changes where the attempt is over."""
    found = _find(reader, token)
    if found is None or (not found.is_leased and (found.is_over or not reader.counts_failures)):
        return reader.held_items().has_moved(token) or (found is not None and reader.waits(found.item))
    if not _take_up(reader, found, token):
        return False
    if reader.fail(found.item, now_ms, failure):
        reader.held_items().moved_away(token)
    return True


class _Found(NamedTuple):
    """The item that a token is good for, if it waits where it is not `is_leased`, and what is known of the attempt."""

    item: int
    is_leased: bool  # by that token, now
    is_over: bool = False  # else a kill has ended it, as far as is known
    is_counted: bool = False  # its failure


def _find(reader: Reader, token: int) -> _Found | None:
    """What a token is good for; None = nothing."""
    one, held = token >> _LOW_BITS, reader.held_items()
    if reader.deleted or not 0 < token < TOKEN_END:
        return None
    leased = held.leases.get(one)
    if leased is not None and leased.token == token and one in reader.open:
        return _Found(one, is_leased=True)  # as most are
    one, attempt = _newest(one, reader.queue.next_id - 1), token & ATTEMPT_MAX
    if one < 1:
        return None
    failures = reader.retries.get(one, 0)
    is_counted = token != _token(reader, held, one, attempt, failures)
    is_given = not is_counted or (failures > 0 and token == _token(reader, held, one, attempt, failures - 1))
    if one in reader.open:
        leased = held.leases.get(one)
        if leased is None or leased.attempt != attempt or leased.token not in (0, token):
            return None
        if not is_given and token >> _ATTEMPT_BITS & _DIGEST_MASK != _digest(held, 0):  # nor by an earlier kestreld
            return None
        leased.token = token  # of one that goes on since a start
        return _Found(one, is_leased=True)
    if not is_given:
        return None
    last = held.last_attempt(one)
    if last >= 0:
        return _Found(one, False, True, is_counted) if attempt == last else None
    # Ids that a power cut took away are given again: a token from before it is not good for another item.
    if one >= reader.queue.first_id_here and not held.may_have_leased(attempt):
        return None
    return _Found(one, False, is_counted or one in held.later, is_counted)


def _take_up(reader: Reader, found: _Found, token: int) -> bool:
    """Have the item leased by its token again, if it waits. Raises JournalCorrupt."""
    if found.is_leased:
        return True
    if reader.pull_out(found.item) is None:
        return False
    held, now_ms = reader.held_items(), reader.queue.clock.monotonic_ms
    held.lease(found.item, lease_of(token & ATTEMPT_MAX, now_ms, now_ms, "", token=token))
    if found.is_counted:
        held.counted.add(found.item)
    return True


def _token(reader: Reader, held: Held, one: int, attempt: int, failures: int) -> int:
    """The token of an attempt at an item that had failed so often before."""
    journal = reader.queue.journal
    owner = journal.journal_id if journal is not None else held.first_attempt
    if held.owner != owner:
        held.owner, held.owner_key = owner, _OWNER.pack(owner, reader.number)
    low = one & _ID_MASK
    seed = (low << _FAILURES_BITS | min(failures, _FAILURES_MAX)) << _ATTEMPT_BITS | attempt
    return (low << _DIGEST_BITS | _digest(held, seed)) << _ATTEMPT_BITS | attempt


def _digest(held: Held, seed: int) -> int:
    """Of journal and reader and, by the seed, of what a token is for; without one in tokens of earlier kestrelds."""
    return xxh3_64_intdigest(held.owner_key, seed) & _DIGEST_MASK


def _newest(low: int, last: int) -> int:
    """The highest id up to `last` that ends in these bits."""
    return last - ((last - low) & ((1 << _ID_BITS) - 1))
