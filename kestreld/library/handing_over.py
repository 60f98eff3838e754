"""How an open read gets to who asked for it."""

from collections.abc import Callable
from threading import get_ident
from typing import TypeVar

from kestreld.library.reading import LEASED, Reading

T = TypeVar("T")


def hand_over(reading: Reading, fetch: Callable[[], T], holder: int = 0) -> T:
    """What `fetch` gives. Where an exception of somebody else's comes in its place, what it has opened returns.

    `holder` is the loop or block that has it; 0 = the caller; LEASED = the caller, until its lease is over.

    Whoever calls this returns it at once: behind the last store the interpreter looks for signals no more.
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
