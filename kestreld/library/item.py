"""An item as the library hands it out."""

from typing import NamedTuple

from kestreld.journal.records import item_data, item_id, item_times_ms


class QItem(NamedTuple):
    """An item of a PersistentQueue. Kestrel's guide has these names."""

    add_time: int  # ms since the epoch
    expiry: int  # ms since the epoch; 0 = never
    data: bytes
    xid: int  # names the open read; 0 = it is not one


def item_from(record: bytes, *, is_open: bool) -> QItem:
    add_at_ms, expire_at_ms = item_times_ms(record)
    return QItem(add_at_ms, expire_at_ms, item_data(record), item_id(record) if is_open else 0)
