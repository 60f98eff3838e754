"""An item as the library hands it out."""

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from kestreld.journal.records import PUT_HEADER_BYTES, item_id

_times: Final = struct.Struct("<17xQQ").unpack_from  # when it was added and expires
_new: Final = tuple.__new__  # a quarter of what a call of the class costs


class QItem(NamedTuple):
    """An item of a PersistentQueue or a JournalReader. Kestrel's guide has the first four names."""

    add_time: int  # ms since the epoch
    expiry: int  # ms since the epoch; 0 = never
    data: bytes
    xid: int  # names the open read; 0 = it is not one
    error_count: int = 0  # so often a JournalReader was given it back


def item_from(record: bytes, errors: Mapping[int, int], *, is_open: bool) -> QItem:
    """`errors` are those of all its reader's items, by id."""
    add_at_ms, expire_at_ms = _times(record)
    data = record[PUT_HEADER_BYTES:]
    if not (is_open or errors):
        return _new(QItem, (add_at_ms, expire_at_ms, data, 0, 0))
    found = item_id(record)
    return _new(QItem, (add_at_ms, expire_at_ms, data, found if is_open else 0, errors.get(found, 0)))
