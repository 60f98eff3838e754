"""Hand-over of an open read to its caller, safe against exceptions of signal handlers."""

from collections.abc import Callable
from threading import get_ident
from typing import TypeVar

from kestreld.library.reading import LEASED, Reading

T = TypeVar("T")


def hand_over(reading: Reading, fetch: Callable[[], T], holder: int = 0) -> T:
    """Return the result of `fetch`. If a foreign exception interrupts that, the opened item returns to the queue.

    `holder` is the loop or block that holds the item; 0 = the caller; LEASED = the caller, until its lease is over.

    The caller must return the result at once: after its last store the interpreter checks for no more signals.
    """
    me, is_there = get_ident(), False
    try:
        found = fetch()
        is_there = True
    finally:
        if is_there:
            xid = reading.on_its_way[me]
            if xid:
                if holder != LEASED:
                    reading.opened[xid] = holder
                elif xid in reading.opened:
                    del reading.opened[xid]
                reading.on_its_way[me] = 0
        else:
            reading.return_to_queue(me)
    return found
