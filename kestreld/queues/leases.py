"""Leases by token: any client that has the token may confirm, extend, return or fail the item.

A token is a number from 1 to 2^63 - 1, which clients take for a cas value: 34 bits of the item's id, 17 of a digest, 12
of an attempt number that differs between the leases of an item. The digest is of journal, reader, item, attempt and the
item's earlier failures, so that no invented token is valid, nor one of another server, of another child, or of a queue
that was deleted and created again. Its lowest bits are combined with those of the time at which the item was put, as
the id of one that a power cut took is given again; the others can be checked without reading the item.

After its attempt has ended a token stays valid while the item waits and nobody has had it since: it can confirm the
item, or lease it again. An attempt ends once, so returning or failing it then changes nothing. The failure count at its
beginning tells, even after a restart, whether the attempt's own failure has been counted.
"""

from typing import Any, Final, NamedTuple

from xxhash import xxh3_64_intdigest

from kestreld.journal.records import ADD_OFFSET
from kestreld.queues.held import ATTEMPT_MAX, Held, lease_of
from kestreld.queues.reader import Reader

_ID_BITS: Final = 34
_ID_MASK: Final = (1 << _ID_BITS) - 1
_DIGEST_BITS: Final = 17
_DIGEST_MASK: Final = (1 << _DIGEST_BITS) - 1
_ATTEMPT_BITS: Final = 12
_LOW_BITS: Final = _DIGEST_BITS + _ATTEMPT_BITS
_FAILURES_BITS: Final = 16
_FAILURES_MAX: Final = (1 << _FAILURES_BITS) - 1  # as in records
_STAMP_MASK: Final = 0x1F  # few bits: for one made-up token in 4,096 the disk is read
TOKEN_END: Final = 1 << 63


def lease(reader: Reader, now_ms: int, lease_ms: int, holder: str) -> tuple[int, bytes] | None:
    """Lease the head item to `holder`: token and record. None if nothing waits. Raises JournalCorrupt."""
    found = reader.open_read(now_ms)
    if found is None:
        return None
    one, record = found
    return begin(reader, one, lease_ms, holder), record


def begin(reader: Reader, one: int, lease_ms: int, holder: str) -> int:
    """Turn an open read into a lease; returns the token."""
    leased, held = reader.begin_lease(one, lease_ms, holder), reader.held_items()
    plain = _token(reader, held, one, leased.attempt, reader.retries.get(one, 0))
    leased.token = token = plain ^ _stamp(reader.open[one])
    return token


def lease_head(reader: Reader, lease_ms: int, holder: str) -> tuple[int, bytes]:
    """`lease` for a window that is known to have an item and not to be `slow`."""
    one, leased, record = reader.lease_head(lease_ms, holder)
    held = reader.held
    assert held is not None
    failures = reader.retries.get(one, 0) if reader.retries else 0
    leased.token = token = _token(reader, held, one, leased.attempt, failures) ^ _stamp(record)
    return token, record


def token_of(reader: Reader, one: int) -> int:
    """The token of a running lease, also of one that goes on after a start and whose token nobody has presented."""
    held = reader.held_items()
    leased = held.leases[one]
    if leased.is_seen:
        return leased.token
    failures = max(reader.retries.get(one, 0) - (one in held.counted), 0)
    return _token(reader, held, one, leased.attempt, failures) ^ _stamp(reader.open[one])


def item_of(token: int) -> int:
    """Lowest 34 bits of the item's id, which are all of most ids."""
    return token >> _LOW_BITS


def confirm(reader: Reader, token: int) -> bool:
    """Confirm the item. False if it is done already or somebody else has it. Raises JournalCorrupt."""
    one, held = token >> _LOW_BITS, reader.held
    key: Any = one  # an object: compiled, each use of an int makes one
    leased = held.leases.get(key) if held is not None and key in reader.open and not reader.deleted else None
    if leased is None or leased.token != token:  # unlike most
        found = _find(reader, token)
        one = found.item if found is not None and _take_up(reader, found, token) else 0
    if one:
        reader.close(one)
    elif reader.held is not None:
        reader.held.late_confirms += 1
    return bool(one)


def extend(reader: Reader, token: int, lease_ms: int, holder: str = "") -> bool:
    """Extend the lease to `lease_ms` from now; one that had ended is `holder`'s from then on.

    False if the token is not valid. Raises JournalCorrupt.
    """
    found = _find(reader, token)
    if found is None or not (found.is_leased or _take_up(reader, found, token, holder)):
        return False
    reader.extend_lease(found.item, lease_ms)
    return True


def deliveries_before(reader: Reader, token: int) -> int:
    """Number of deliveries of an item before its running lease, as far as they are known."""
    return reader.deliveries_before(_newest(item_of(token), reader.queue.next_id - 1))


def give_back(reader: Reader, token: int, now_ms: int, delay_ms: int = 0, *, was_delivered: bool = True) -> bool:
    """Return the item to the queue, now or after `delay_ms`, unless the attempt is over. No failure is counted."""
    found = _find(reader, token)
    if found is None:
        return False
    if not found.is_leased and (found.is_over or not delay_ms):
        return reader.waits(found.item)
    if not _take_up(reader, found, token):
        return False
    reader.give_back(found.item, now_ms, delay_ms, was_delivered=was_delivered)
    return True


def fail(reader: Reader, token: int, now_ms: int, failure: str = "") -> bool:
    """Report that the holder failed with the item, and why. Nothing changes if the attempt is over."""
    found = _find(reader, token)
    if found is None or (not found.is_leased and (found.is_over or not reader.counts_failures)):
        one = _newest(item_of(token), reader.queue.next_id - 1)
        return reader.held_items().has_moved(one, token) or (found is not None and reader.waits(found.item))
    if not _take_up(reader, found, token):
        return False
    if reader.fail(found.item, now_ms, failure):
        reader.held_items().moved_away(found.item, token)
    return True


class _Found(NamedTuple):
    """The item for which a token is valid, provided that it is leased or waits, and the known facts of the attempt."""

    item: int
    is_leased: bool  # by that token, now
    is_over: bool = False  # else it may have ended by a kill of the server
    is_counted: bool = False  # its failure has been counted


def _find(reader: Reader, token: int) -> _Found | None:
    """The item for which a token is valid, or None. Raises JournalCorrupt."""
    one, held = token >> _LOW_BITS, reader.held_items()
    if reader.deleted or not 0 < token < TOKEN_END:
        return None
    leased = held.leases.get(one)
    if leased is not None and leased.token == token and one in reader.open:
        return _Found(one, is_leased=True)  # the usual case
    one, attempt = _newest(one, reader.queue.next_id - 1), token & ATTEMPT_MAX
    failures, last, record = reader.retries.get(one, 0), held.last_attempt(one), reader.open.get(one)
    now = before = _token(reader, held, one, attempt, failures)
    if failures:
        before = _token(reader, held, one, attempt, failures - 1)
    is_likely = (token ^ now) >> _ATTEMPT_BITS <= _STAMP_MASK or (token ^ before) >> _ATTEMPT_BITS <= _STAMP_MASK
    if record is None and one > 0 and is_likely and last in (-1, attempt):
        record = reader.waiting_record(one)
    if record is None:
        return None
    unstamped = token ^ _stamp(record)
    is_counted, is_given = unstamped != now, unstamped in (now, before)
    if one in reader.open:
        leased = held.leases.get(one)
        if leased is None or leased.attempt != attempt or leased.token not in (0, token):
            return None
        if not is_given and not _is_earlier(held, one, attempt, min(failures, _FAILURES_MAX), token):
            return None
        leased.token = token  # of a lease that goes on after a restart
        return _Found(one, is_leased=True)
    if not is_given:
        return None
    if last >= 0:
        return _Found(one, False, True, is_counted)
    return _Found(one, False, is_counted or one in held.later, is_counted)


def _take_up(reader: Reader, found: _Found, token: int, holder: str = "") -> bool:
    """Lease a waiting item by its token again. False if it does not wait. Raises JournalCorrupt."""
    if found.is_leased:
        return True
    if reader.pull_out(found.item) is None:
        return False
    held, now_ms = reader.held_items(), reader.queue.clock.monotonic_ms
    if held.last_attempt(found.item) < 0:
        held.leap_before_next(found.item)
    held.lease(found.item, lease_of(token & ATTEMPT_MAX, now_ms, now_ms, holder, token=token))
    if found.is_counted:
        held.counted.add(found.item)
    return True


def _token(reader: Reader, held: Held, one: int, attempt: int, failures: int) -> int:
    """Token, without its stamp, of an attempt at an item that had failed `failures` times before."""
    journal = reader.queue.journal
    owner = journal.journal_id if journal is not None else held.first_attempt
    if held.owner != owner:
        held.own(owner, reader.number)
    low = one & _ID_MASK
    if failures > _FAILURES_MAX:
        failures = _FAILURES_MAX
    seed = (low << _FAILURES_BITS | failures) << _ATTEMPT_BITS | attempt
    return (low << _DIGEST_BITS | _digest(held, seed)) << _ATTEMPT_BITS | attempt


def _stamp(record: bytes) -> int:
    """The lowest bits of the time at which an item was put, for the lowest of its tokens' digest."""
    return (record[ADD_OFFSET] & _STAMP_MASK) << _ATTEMPT_BITS


def _digest(held: Held, seed: int) -> int:
    """Digest of journal, reader and `seed`."""
    return xxh3_64_intdigest(held.owner_key, seed) & _DIGEST_MASK


def _is_earlier(held: Held, one: int, attempt: int, failures: int, token: int) -> bool:
    """True for a token that an earlier kestreld gave to a lease which was running when it stopped."""
    first = (one & _ID_MASK) << _FAILURES_BITS
    seeds = [0, *((first | times) << _ATTEMPT_BITS | attempt for times in range(max(failures - 1, 0), failures + 1))]
    digest = token >> _ATTEMPT_BITS & _DIGEST_MASK
    return any(_digest(held, seed) == digest for seed in seeds)


def _newest(low: int, last: int) -> int:
    """Highest id up to `last` with these lowest bits; below 1 if there is none."""
    return last - ((last - low) & ((1 << _ID_BITS) - 1))
