"""Xid: the id of an open read, an int that knows its owner."""

import logging
from typing import Any, Final

from kestreld import checks

_log: Final = logging.getLogger("kestreld.library")


class Xid(int):
    """Id of an open read: an int like any other, and pickled as a plain one."""

    owner: object
    token: int = 0  # of its lease

    def __new__(cls, number: int, owner: object) -> "Xid":
        xid = super().__new__(cls, number)
        xid.owner = owner
        return xid

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (int(self),)


def is_own(xid: int, owner: object, name: str) -> bool:
    """Return True if the xid may be an open read of `owner`, whose name is `name`. A plain int is always accepted."""
    if not isinstance(xid, Xid):
        checks.whole(xid, "xid")
        return True
    if xid.owner is owner:
        return True
    _log.warning("%s: %d belongs to another queue, reader or object: it stays open", name, xid)
    return False
