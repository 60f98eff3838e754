"""Checksums made right again, so that what is behind them is reached: no change by chance ever would."""

import struct
from typing import Final

from xxhash import xxh3_64_intdigest

from kestreld.journal.records import ADD_FACTOR, FRAME, FRAME_BYTES, PUT, PUT_FIELDS_BYTES, PUT_HEADER_BYTES, Type
from kestreld.journal.records import put_checksum as checksum_of_put

_NUMBER: Final = struct.Struct("<I")
_HEADER_BYTES_AT: Final = 12
_HEADER_BYTES_MIN: Final = 52


def with_true_checksums(segment: bytes) -> bytes:
    """A segment whose header and records, as far as their lengths lead, have the checksums of what is in them."""
    made = bytearray(segment)
    if len(made) < _HEADER_BYTES_MIN:
        return segment
    (at,) = _NUMBER.unpack_from(made, _HEADER_BYTES_AT)
    if not _HEADER_BYTES_MIN <= at <= len(made):
        return segment
    _NUMBER.pack_into(made, at - 4, xxh3_64_intdigest(bytes(made[: at - 4])) & 0xFFFFFFFF)
    while at + FRAME_BYTES <= len(made):
        body_bytes, _, record_type = FRAME.unpack_from(made, at)
        end = at + FRAME_BYTES + body_bytes
        if end > len(made) or not body_bytes:
            break
        _NUMBER.pack_into(made, at + 4, _checksum(bytes(made[at:end]), body_bytes, record_type))
        at = end
    return bytes(made)


def _checksum(record: bytes, body_bytes: int, record_type: int) -> int:
    if record_type != Type.PUT:
        return xxh3_64_intdigest(record[FRAME_BYTES:], body_bytes + (record_type << 56)) & 0xFFFFFFFF
    if body_bytes < PUT_FIELDS_BYTES:
        return 0
    _, _, _, put_id, add_ms, expire_ms, flags, only = PUT.unpack_from(record)
    return checksum_of_put(record[PUT_HEADER_BYTES:], put_id + body_bytes + add_ms * ADD_FACTOR, expire_ms, flags, only)
