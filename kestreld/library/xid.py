"""The names of open reads: numbers that know whose they are."""

import logging
from typing import Any, Final

from kestreld import checks

_log: Final = logging.getLogger("kestreld.library")


class Xid(int):
    """A number as any other, and a plain one where it comes from a pickle."""

    owner: object
    token: int = 0  # of a lease

    def __new__(cls, number: int, owner: object) -> "Xid":
        xid = super().__new__(cls, number)
        xid.owner = owner
        return xid

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (int(self),)


def is_own(xid: int, owner: object, name: str) -> bool:
    """Whether it can be an open read of the owner's, which has that name. A plain number is taken at its word."""
    if not isinstance(xid, Xid):
        checks.whole(xid, "xid")
        return True
    if xid.owner is owner:
        return True
    _log.warning("%s: %d belongs to another queue, reader or object: it stays open", name, xid)
    return False
