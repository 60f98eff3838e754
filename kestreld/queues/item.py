"""Fields of an item, read from its PUT record: one `bytes` that is stored as it is and never re-encoded."""

from collections.abc import Collection
from typing import Final

from kestreld.journal.records import PUT_HEADER_BYTES, item_optional_fields, item_times_ms

ITEM_HEADER_BYTES: Final = PUT_HEADER_BYTES
RELATIVE_EXPIRY_S_MAX: Final = 1_000_000  # Kestrel: fewer seconds than this count from now


def expires_at_ms(record: bytes, max_age_ms: int) -> int:
    """Expiry time: the client's, or add time + max age (0 = off) if that is earlier. 0 = never."""
    add_at_ms, expire_at_ms = item_times_ms(record)
    if max_age_ms and (not expire_at_ms or add_at_ms + max_age_ms < expire_at_ms):
        return add_at_ms + max_age_ms
    return expire_at_ms


def is_expired(record: bytes, max_age_ms: int, now_ms: int) -> bool:
    expire_at_ms = expires_at_ms(record, max_age_ms)
    return expire_at_ms != 0 and expire_at_ms < now_ms


def data_bytes_of(records: Collection[bytes]) -> int:
    """Total data bytes of these items."""
    return sum(map(len, records)) - len(records) * ITEM_HEADER_BYTES


def has_metadata(record: bytes) -> bool:
    """True if the record has an optional field: an expiry, flags, or the one reader that it is for."""
    return item_optional_fields(record) != (0, 0, 0)


def client_expiry_ms(expiry_s: int, now_ms: int) -> int:
    """Kestrel's expiry field as a time in ms: 0 = never, below a million seconds from now, else seconds since 1970."""
    if expiry_s == 0:
        return 0
    if expiry_s < RELATIVE_EXPIRY_S_MAX:
        return max(now_ms + expiry_s * 1000, 1)
    return expiry_s * 1000
