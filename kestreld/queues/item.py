"""What an item says about itself. An item *is* its PUT record: one `bytes`, never re-encoded."""

from collections.abc import Collection
from typing import Final

from kestreld.journal.records import PUT_HEADER_BYTES, item_optional_fields, item_times_ms

ITEM_HEADER_BYTES: Final = PUT_HEADER_BYTES
RELATIVE_EXPIRY_S_MAX: Final = 1_000_000  # the guide: fewer seconds than this count from now


def expires_at_ms(record: bytes, max_age_ms: int) -> int:
    """When the item is past use: the earlier of the client's expiry and add time + max age (0 = off). 0 = never."""
    add_at_ms, expire_at_ms = item_times_ms(record)
    if max_age_ms and (not expire_at_ms or add_at_ms + max_age_ms < expire_at_ms):
        return add_at_ms + max_age_ms
    return expire_at_ms


def is_expired(record: bytes, max_age_ms: int, now_ms: int) -> bool:
    expire_at_ms = expires_at_ms(record, max_age_ms)
    return expire_at_ms != 0 and expire_at_ms < now_ms


def data_bytes_of(records: Collection[bytes]) -> int:
    """How much data these items have."""
    return sum(map(len, records)) - len(records) * ITEM_HEADER_BYTES


def has_metadata(record: bytes) -> bool:
    """Whether it carries what most items do not: an expiry, flags, or an address to one reader."""
    return item_optional_fields(record) != (0, 0, 0)


def client_expiry_ms(expiry_s: int, now_ms: int) -> int:
    """The guide's expiry field as an instant: 0 = never, below a million seconds from now, else seconds since 1970."""
    if expiry_s == 0:
        return 0
    if expiry_s < RELATIVE_EXPIRY_S_MAX:
        return max(now_ms + expiry_s * 1000, 1)
    return expiry_s * 1000
