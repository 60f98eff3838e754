"""Whose an open read is: items of two queues, or of two readers, have the same numbers."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kestreld.library import PersistentQueue
from kestreld.library.shared_queue import SharedQueue
from tests.support.library import journaled, read_all
from tests.support.shared_spools import new_spool


@pytest.mark.parametrize("end", ["commit", "unget"])
def test_an_item_of_another_queue_is_not_taken_for_its_own(
    tmp_path: Path, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    with journaled(tmp_path, "one") as first, journaled(tmp_path, "two") as second:
        for queue in (first, second):
            queue.put_all([b"same", b"last"])
        items = [queue.reader().get() for queue in (first, second)]
        assert items[0] is not None
        assert items[1] is not None
        assert items[0].xid == items[1].xid
        getattr(second.reader(), end)(items[0])
        assert caplog.messages == ["two: 1 belongs to another queue, reader or object: it stays open"]
        assert first.reader().figures.open_items == 1
        assert second.reader().figures.open_items == 1
        first.reader().commit(items[0]._replace(error_count=3))
        second.reader().commit(items[1])
        assert [read_all(queue.reader()) for queue in (first, second)] == [[b"last"]] * 2


def test_an_item_of_another_reader_is_not_taken_for_its_own(tmp_path: Path) -> None:
    with journaled(tmp_path, "orders") as queue:
        billing, audit = queue.reader("billing"), queue.reader("audit")
        queue.put(b"1")
        item, same = billing.get(), audit.get()
        assert item is not None
        assert same is not None
        audit.commit(item)
        assert audit.figures.open_items == 1
        audit.unget(same)
        billing.commit(item)
        assert (len(billing), read_all(audit)) == (0, [b"1"])


def test_an_item_that_somebody_got_before_the_queue_was_closed_ends_no_open_read(tmp_path: Path) -> None:
    with journaled(tmp_path) as queue:
        queue.put(b"1")
        early = queue.reader().get()
        assert early is not None
    with journaled(tmp_path) as queue:
        again = queue.reader().get()
        assert again is not None
        queue.reader().commit(early)
        assert queue.reader().figures.open_items == 1
        queue.reader().commit(pickle.loads(pickle.dumps(again)))
        assert queue.reader().figures.open_items == 0


def persistent(path: str, name: str) -> PersistentQueue:
    queue = PersistentQueue(path, name)
    queue.setup()
    return queue


@pytest.mark.parametrize("kind", [persistent, SharedQueue])
def test_an_xid_of_another_queue_is_not_taken_for_its_own(kind: Callable[[str, str], Any]) -> None:
    with new_spool() as spool:
        first, second = kind(str(spool), "one"), kind(str(spool), "two")
        for queue in (first, second):
            queue.add(b"1")
        xid, other = first.remove(True).xid, second.remove(True).xid
        assert xid == other
        for end in (second.confirm_remove, second.unremove):
            end(xid)
            assert second.remove() is None
        second.unremove(int(other))  # as from a program that has noted numbers only
        first.confirm_remove(xid)
        assert (first.remove(), second.remove().data) == (None, b"1")
        first.close()
        second.close()
