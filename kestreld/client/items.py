"""Items and repair results as values, and the choice of a server for an item with a key."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

EXPIRY_RELATIVE_S_MAX: Final = 999_999  # memcache counts up to here from now, and larger numbers from 1970


class PutItem(NamedTuple):
    """An item to put. `expire_s` as on the wire: see EXPIRY_RELATIVE_S_MAX; 0 = never. `delay_ms` 0 = due at once."""

    data: bytes
    expire_s: int = 0
    flags: int = 0
    delay_ms: int = 0


class OpenItem(NamedTuple):
    """An item that is held open."""

    data: bytes
    flags: int
    id: int  # 0 = the server does not say
    deliveries: int | None = None  # before this one; None = it was not asked, or does not say


class HeldLease(NamedTuple):
    """A lease of a holder that was asked about: from which queue, of which item, and the token that ends it."""

    queue: str
    id: int
    token: int
    left_ms: int
    length_ms: int  # from when the item was taken to the end of the lease


@dataclass(slots=True)
class RepairAnswer:
    """Result of a repair. `items` are those that some reader has yet to get; `kept_at` "" = nothing was changed."""

    damages: list[str] = field(default_factory=list)
    items: int = 0
    lost: int = 0
    kept_at: str = ""


def preference(address: str, item_key: bytes) -> int:
    """Return a server's rank for an item with a key. The lowest gets it: servers know only their own keys."""
    from xxhash import xxh3_64_intdigest  # most commands do not need it

    return xxh3_64_intdigest(address.encode("utf-8", "surrogateescape") + b" " + item_key)
