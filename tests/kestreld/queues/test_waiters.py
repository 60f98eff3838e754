"""Those who wait in line: what libkestrel's specification of DeadlineWaitQueue asserts."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kestreld.errors import JournalCorrupt
from kestreld.journal.records import item_data
from kestreld.queues.agenda import Agenda
from kestreld.queues.reader import Reader
from kestreld.queues.waiters import PEEK, TAKE, Waiter
from tests.support.engine import Engine

WORK = "work"


@dataclass(eq=False)
class Someone:
    """Who waits, and what he was told: items, or None when there was none for him."""

    told: list[bytes | None] = field(default_factory=list)
    take: Callable[[], object] = lambda: None

    def served(self, waiter: Waiter, record: bytes | None) -> None:
        self.told.append(None if record is None else item_data(record))
        if record is not None and waiter.want == TAKE:
            self.take()

    def refused(self, waiter: Waiter, reason: str) -> None:
        raise AssertionError(reason)


class Place:
    """A queue, its line, and when those in it give up."""

    def __init__(self, spool: Path) -> None:
        self.engine = Engine(spool)
        self.reader = self.engine.collection.reader(WORK)
        self.agenda = Agenda()

    def add(self, want: int = TAKE, wait_ms: int = 10_000) -> tuple[Someone, Waiter]:
        someone = Someone(take=lambda: self.reader.take(self.engine.clock.wall_ms))
        waiter = Waiter(someone, self.reader, want, self.engine.clock.monotonic_ms + wait_ms)
        self.reader.wait_queue.add(waiter)
        self.agenda.add(waiter)
        return someone, waiter

    def pass_ms(self, ms: int) -> None:
        self.engine.clock.advance(ms)
        self.agenda.fall_due(self.engine.clock.monotonic_ms)

    def put(self, data: bytes) -> None:
        self.engine.put(WORK, data)

    @property
    def waiting(self) -> int:
        return self.reader.wait_queue.waiting


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_one_is_told_when_his_deadline_has_come_and_not_before(place: Place) -> None:
    someone, _ = place.add()
    place.pass_ms(5000)
    assert someone.told == []
    place.pass_ms(5001)
    assert someone.told == [None]


def test_a_wait_of_ten_seconds_ends_with_them_and_not_a_millisecond_later(place: Place) -> None:
    someone, _ = place.add(wait_ms=10_000)
    place.pass_ms(9_999)
    assert (someone.told, place.waiting) == ([], 1)
    place.pass_ms(1)
    assert (someone.told, place.waiting) == ([None], 0)


def test_one_whose_deadline_has_come_waits_no_more(place: Place) -> None:
    place.add()
    assert place.waiting == 1
    place.pass_ms(11_000)
    assert (place.waiting, place.agenda.next_at_ms()) == (0, None)


def test_one_is_woken_by_an_item_and_waits_no_more(place: Place) -> None:
    someone, _ = place.add()
    place.pass_ms(5000)
    place.put(b"1")
    assert (someone.told, place.waiting) == ([b"1"], 0)
    place.pass_ms(5001)
    assert someone.told == [b"1"]


def test_an_item_wakes_one_at_a_time_in_the_order_they_came(place: Place) -> None:
    first, second = place.add()[0], place.add()[0]
    place.put(b"1")
    assert (first.told, second.told, place.waiting) == ([b"1"], [], 1)
    place.put(b"2")
    assert (first.told, second.told, place.waiting) == ([b"1"], [b"2"], 0)


def test_an_item_wakes_all_who_only_look_and_one_who_takes(place: Place) -> None:
    looking = [place.add(PEEK)[0] for _ in range(3)]
    taking = [place.add()[0] for _ in range(2)]
    place.put(b"1")
    assert [someone.told for someone in looking] == [[b"1"]] * 3
    assert [someone.told for someone in taking] == [[b"1"], []]


def test_one_who_leaves_is_neither_woken_nor_told(place: Place) -> None:
    someone, waiter = place.add()
    place.reader.wait_queue.leave(waiter)
    assert place.waiting == 0
    place.put(b"1")
    place.pass_ms(11_000)
    assert someone.told == []


def test_all_are_sent_away_and_their_deadlines_do_not_matter_any_more(place: Place) -> None:
    someones = [place.add()[0] for _ in range(2)]
    place.reader.wait_queue.send_away(None)
    assert place.waiting == 0
    place.pass_ms(11_000)
    assert [someone.told for someone in someones] == [[None], [None]]


class Twice:
    """One who waits at two queues at once, and takes from the first that has an item."""

    def __init__(self, spool: Path) -> None:
        self.engine = Engine(spool)
        self.readers = [self.engine.collection.reader(name) for name in (WORK, "beside")]
        self.agenda = Agenda()
        self.someone = Someone(take=self._take)
        self.waiter = self.stand(self.someone, *self.readers)

    def stand(self, someone: Someone, *readers: Reader) -> Waiter:
        waiter = Waiter(someone, readers[0], TAKE, self.engine.clock.monotonic_ms + 10_000)
        for reader in readers:
            reader.wait_queue.add(waiter)
        self.agenda.add(waiter)
        return waiter

    def _take(self) -> None:
        assert isinstance(self.waiter.reader, Reader)
        self.waiter.reader.take(self.engine.clock.wall_ms)

    @property
    def waiting(self) -> list[tuple[int, int]]:
        """At each reader, and in its family."""
        return [(reader.wait_queue.waiting, reader.queue.waiting) for reader in self.readers]


@pytest.mark.parametrize("name", [WORK, "beside"])
def test_one_who_waits_at_two_queues_is_served_by_the_first_that_has_an_item_and_leaves_both(
    name: str, tmp_path: Path
) -> None:
    place = Twice(tmp_path)
    assert place.waiting == [(1, 1), (1, 1)]
    place.engine.put(name, b"1")
    assert (place.someone.told, place.waiting) == ([b"1"], [(0, 0), (0, 0)])
    assert isinstance(place.waiter.reader, Reader)
    assert place.waiter.reader.name == name
    for other in (WORK, "beside"):
        place.engine.put(other, b"2")
        assert place.engine.items(other) == 1
    place.engine.clock.advance(11_000)
    place.agenda.fall_due(place.engine.clock.monotonic_ms)
    assert place.someone.told == [b"1"]


def test_one_who_waits_at_two_queues_keeps_his_place_in_each(tmp_path: Path) -> None:
    place = Twice(tmp_path)
    behind = Someone()
    place.stand(behind, place.readers[1])
    place.engine.put("beside", b"1")
    assert (place.someone.told, behind.told) == ([b"1"], [])
    place.engine.put("beside", b"2")
    assert (place.someone.told, behind.told) == ([b"1"], [b"2"])


def test_one_who_waits_at_two_queues_gives_both_up_when_his_deadline_has_come(tmp_path: Path) -> None:
    place = Twice(tmp_path)
    place.engine.clock.advance(11_000)
    place.agenda.fall_due(place.engine.clock.monotonic_ms)
    assert (place.someone.told, place.waiting) == ([None], [(0, 0), (0, 0)])


def test_one_who_waits_at_two_queues_waits_on_where_one_of_them_is_deleted_or_stops(tmp_path: Path) -> None:
    place = Twice(tmp_path)
    third = place.engine.collection.reader("third")
    third.wait_queue.add(place.waiter)
    place.engine.collection.delete(WORK)
    assert (place.someone.told, place.waiting) == ([], [(0, 0), (1, 1)])
    third.queue.stop(JournalCorrupt("third", 0, "damaged"))
    assert (place.someone.told, place.waiting, third.queue.waiting) == ([], [(0, 0), (1, 1)], 0)
    place.engine.put("beside", b"1")
    assert (place.someone.told, place.waiting) == ([b"1"], [(0, 0), (0, 0)])


def test_one_who_waits_at_two_queues_is_sent_away_with_the_last_of_them(tmp_path: Path) -> None:
    place = Twice(tmp_path)
    place.engine.collection.delete("beside")
    place.engine.collection.delete(WORK)
    assert (place.someone.told, place.waiting) == ([None], [(0, 0), (0, 0)])
