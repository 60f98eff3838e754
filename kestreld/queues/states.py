"""Items of one queue by state (waiting, delayed, leased, retrying): a page of them, found in steps.

Nothing is consumed, and no reader changed.
"""

from collections.abc import Generator, Iterator
from enum import StrEnum
from itertools import islice
from typing import Final

from kestreld.journal.records import item_id
from kestreld.queues.held import Held, Lease
from kestreld.queues.id_ranges import waiting_in
from kestreld.queues.ranges import Wanted
from kestreld.queues.reader import Reader

STEP_ITEMS: Final = 500  # looked at in a step: less than a millisecond


class State(StrEnum):
    """State of an item."""

    WAITING = "waiting"  # to be taken
    DELAYED = "delayed"  # for its time
    LEASED = "leased"  # for the end of its lease
    RETRYING = "retrying"  # for its time after a failure


Place = tuple[int, int]  # sort key of a page: due time or start of the lease, on the monotonic clock; id


def state_of(reader: Reader, one: int) -> State | None:
    """State of an item that is delayed, retrying or leased, or waits because its time has come; None for any other."""
    held = reader.held
    if held is None:
        return None
    if one in held.later:
        return State.RETRYING if one in held.failed else State.DELAYED
    if one in held.ready:
        return State.WAITING
    return State.LEASED if reader.is_leased(one) and one in reader.open else None


def lease_of(reader: Reader, one: int) -> Lease | None:
    """The lease of an item, or None if it is not leased."""
    return reader.held.leases.get(one) if reader.held is not None and reader.is_leased(one) else None


def held_places(reader: Reader, state: State, after: Place, limit: int) -> Generator[None, None, list[Place]]:
    """The first `limit` items after a place, by due time or start of the lease; yields often."""
    found: list[Place] = []
    last: Place | None = None  # once there are enough: no place after it is on the page
    for some in _places(reader, state):
        found += [place for place in some if place > after and (last is None or place < last)]
        if len(found) >= 2 * limit:
            found = sorted(found)[:limit]
            last = found[-1]
        yield
    return sorted(found)[:limit]


def _places(reader: Reader, state: State) -> Iterator[list[Place]]:
    """Places of all items that are delayed, retrying or leased, in batches."""
    held = reader.held
    if held is None:
        return
    if state is State.LEASED:
        ids = iter(list(held.leases))
        while some := list(islice(ids, STEP_ITEMS)):
            leases = [(held.leases.get(one), one) for one in some]
            yield [(lease.since_ms, one) for lease, one in leases if lease is not None and lease.attempt >= 0]
        return
    has_failed = state is State.RETRYING
    if has_failed and not held.failed:
        return
    for part in held.later.parts():
        ids = iter(list(part))
        while some := list(islice(ids, STEP_ITEMS)):
            values = [(part.get(one), one) for one in some if (one in held.failed) == has_failed]
            yield [(Held.due_of(value), one) for value, one in values if value is not None]


def undone_in(reader: Reader) -> Wanted:
    """Return a function of an id that is True if the item is not done for a reader now, even if held or open."""
    is_waiting, held = waiting_in(reader.state()), reader.held
    if held is None:
        return is_waiting

    def is_undone(found: int) -> bool:
        return held.has(found) or is_waiting(found)

    return is_undone


def first_deliverable(reader: Reader) -> int:
    """An id that no item waiting to be taken is below."""
    back = [item_id(record) for record in islice(reader.window, reader.returned)]
    ready = reader.held.first_ready() if reader.held is not None else 0
    return min([reader.fresh_id(), *back, *([ready] if ready else [])])


def deliverable_in(reader: Reader) -> Wanted:
    """Return a function of an id that is True if the item waits to be taken from a reader now."""
    is_waiting, held, opened = waiting_in(reader.state()), reader.held, set(reader.open)
    back = {item_id(record) for record in islice(reader.window, reader.returned)}

    def is_deliverable(found: int) -> bool:
        if found in opened:
            return False
        if held is None or not held.has(found):
            return is_waiting(found)
        return found in held.ready or found in back

    return is_deliverable
