"""QItem: an item as the library hands it out."""

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from kestreld.journal.records import PUT_HEADER_BYTES, item_id
from kestreld.library.xid import Xid

_times: Final = struct.Struct("<17xQQ").unpack_from  # when it was added and expires
_new: Final = tuple.__new__  # a quarter of what a call of the class costs


class QItem(NamedTuple):
    """An item of a PersistentQueue or a JournalReader. The first four names are those of Kestrel's guide."""

    add_time: int  # ms since the epoch
    expiry: int  # ms since the epoch; 0 = never
    data: bytes
    xid: int  # id of the open read; 0 = it is not one
    error_count: int = 0  # how often it was given back to a JournalReader


def item_from(record: bytes, errors: Mapping[int, int], owner: object = None) -> QItem:
    """Make an item of a record. `errors`: failures of the reader's items, by id. With an owner it is an open read."""
    add_at_ms, expire_at_ms = _times(record)
    data = record[PUT_HEADER_BYTES:]
    if owner is None and not errors:
        return _new(QItem, (add_at_ms, expire_at_ms, data, 0, 0))
    found = item_id(record)
    xid: object = 0 if owner is None else Xid(found, owner)
    return _new(QItem, (add_at_ms, expire_at_ms, data, xid, errors.get(found, 0)))
