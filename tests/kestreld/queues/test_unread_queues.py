"""`idle_delete`: queues that nobody reads are deleted with their items, and no others."""

import errno
import os
from pathlib import Path

import pytest

from kestreld.queues import leases
from kestreld.queues.agenda import TimedWait
from kestreld.queues.reader import Reader
from kestreld.queues.waiters import TAKE, Waiter
from tests.support.engine import Engine, QuickFiles

IDLE_MS = 10_000


class Client:
    """Somebody who waits for an item."""

    def served(self, waiter: TimedWait, record: bytes | None) -> None:
        """The wait is over."""

    def refused(self, waiter: TimedWait, reason: str) -> None:
        """The wait is over."""


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path, QuickFiles(), idle_delete_ms=IDLE_MS)


def pass_time(engine: Engine, ms: int = IDLE_MS + 1) -> None:
    """Rounds of maintenance, one a second, for so long."""
    for passed in range(0, ms, 1000):
        engine.clock.advance(min(1000, ms - passed))
        engine.work(5)
        engine.end_turn()


def is_there(engine: Engine, name: str = "mail") -> bool:
    return engine.collection.find(name) is not None


def test_a_queue_that_nobody_reads_is_deleted_with_its_items_and_puts_do_not_count(engine: Engine) -> None:
    engine.put("mail", b"1")
    engine.end_turn()
    for _ in range(9):
        pass_time(engine, 1000)
        engine.put("mail", b"more")
    assert is_there(engine)
    pass_time(engine, 3000)
    assert not is_there(engine)
    assert not list(engine.spool.glob("mail.journal"))
    engine.crash()
    assert not is_there(engine)


def test_it_is_as_if_a_client_had_deleted_it(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles(), idle_delete_ms=IDLE_MS, trash_ms=1000 * IDLE_MS)
    engine.put("mail", b"1")
    engine.end_turn()
    told: list[str] = []
    engine.collection.names_changed.append(lambda: told.append("changed"))
    pass_time(engine, 2 * IDLE_MS)
    assert (engine.collection.deleted, told) == (1, ["changed"])
    assert [entry.queue for entry in engine.collection.trash.entries] == ["mail"], "undo brings it back"


def test_a_get_that_finds_nothing_is_a_reading_and_a_peek_is_not(engine: Engine) -> None:
    engine.reader("mail")
    engine.reader("seen")
    for _ in range(30):
        pass_time(engine, 1000)
        assert engine.take("mail") is None
        if (seen := engine.collection.find("seen")) is not None:
            seen.peek(engine.clock.wall_ms)
    assert is_there(engine)
    assert not is_there(engine, "seen")


def test_no_queue_goes_while_somebody_waits_or_holds_an_item(engine: Engine) -> None:
    names = ["waited", "opened", "leased", "idle"]
    for name in names:
        engine.put(name, b"1")
    engine.end_turn()
    now_ms = engine.clock.wall_ms
    waited, opened = engine.reader("waited"), engine.reader("opened")
    engine.take("waited")
    waiter = Waiter(Client(), waited, TAKE, engine.clock.monotonic_ms + 10 * IDLE_MS)
    waited.wait_queue.add(waiter)
    found = opened.open_read(now_ms)
    leased = leases.lease(engine.reader("leased"), now_ms, 10 * IDLE_MS, "")
    assert found is not None
    assert leased is not None
    engine.end_turn()
    pass_time(engine, 3 * IDLE_MS)
    assert [name for name in names if is_there(engine, name)] == ["waited", "opened", "leased"]
    waiter.leave()
    opened.close(found[0])
    assert leases.confirm(engine.reader("leased"), leased[0])
    engine.end_turn()
    pass_time(engine, IDLE_MS - 1000)
    assert [name for name in names if is_there(engine, name)] == ["waited", "opened", "leased"]
    pass_time(engine, 3000)
    assert not any(is_there(engine, name) for name in names)


def test_after_a_start_the_time_begins_anew_and_a_lease_that_goes_on_counts(engine: Engine) -> None:
    engine.put("mail", b"1")
    engine.put("leased", b"1")
    engine.end_turn()
    assert leases.lease(engine.reader("leased"), engine.clock.wall_ms, 5 * IDLE_MS, "") is not None
    engine.end_turn()
    for start in (engine.crash, engine.restart) * 2:
        pass_time(engine, IDLE_MS - 1000)
        start()
        assert is_there(engine)
    pass_time(engine, IDLE_MS + 2000)
    assert not is_there(engine)
    assert is_there(engine, "leased")


def test_children_come_and_go_by_themselves_and_inherit_the_setting(engine: Engine) -> None:
    for name in ("mail", "mail+a", "mail+b"):
        engine.reader(name)
    for _ in range(IDLE_MS // 1000 + 5):
        if is_there(engine):
            engine.put("mail", b"x")
        engine.take("mail+a")
        engine.end_turn()
        pass_time(engine, 1000)
    assert sorted(engine.collection.readers) == ["mail+a"]
    pass_time(engine, IDLE_MS + 2000)
    assert not engine.collection.families


def test_a_stream_on_the_journal_keeps_the_last_queue_of_a_family(engine: Engine) -> None:
    queue = engine.reader("mail").queue
    queue.add_stream("audit", queue.next_id)
    engine.end_turn()
    pass_time(engine, 3 * IDLE_MS)
    assert is_there(engine)
    queue.drop_stream("audit")
    engine.end_turn()
    pass_time(engine, IDLE_MS + 2000)
    assert not is_there(engine)


def test_the_setting_takes_effect_from_the_reload_on_and_goes_with_it(tmp_path: Path) -> None:
    engine = Engine(tmp_path, QuickFiles())
    engine.put("mail", b"1")
    engine.end_turn()
    pass_time(engine, 5 * IDLE_MS)
    engine.configure({"mail": {"idle_delete_ms": IDLE_MS}})
    pass_time(engine, IDLE_MS - 1000)
    engine.configure()
    pass_time(engine, 5 * IDLE_MS)
    engine.configure({"mail": {"idle_delete_ms": IDLE_MS}})
    pass_time(engine, IDLE_MS - 1000)
    assert is_there(engine)
    pass_time(engine, 3000)
    assert not is_there(engine)


class StuckFiles(QuickFiles):
    """A disk on which nothing can be renamed."""

    def rename(self, old: str, new: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), old)


def test_a_queue_that_cannot_be_deleted_is_reported_once_a_while(tmp_path: Path) -> None:
    engine = Engine(tmp_path, StuckFiles(), idle_delete_ms=IDLE_MS)
    engine.put("mail", b"1")
    engine.end_turn()
    pass_time(engine, 3 * IDLE_MS)
    assert is_there(engine)
    assert len([line for line in engine.log if "mail: cannot be deleted, although nobody reads it: " in line]) == 2


def test_queues_without_the_setting_are_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(tmp_path, QuickFiles())
    engine.put("mail", b"1")
    engine.end_turn()

    def fail(reader: Reader) -> bool:
        raise AssertionError

    monkeypatch.setattr(Reader, "was_read", fail)
    pass_time(engine, 3000)
    assert is_there(engine)
