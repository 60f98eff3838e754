"""The checker on histories written by hand: what it takes for a violation, and what may be."""

from dataclasses import dataclass
from typing import Literal

import pytest

from tests.simulation.checker import Checker
from tests.simulation.excuses import Rules
from tests.simulation.history import (
    KILLED,
    STOPPED,
    Cancel,
    Connection,
    Delivery,
    History,
    Life,
    Mode,
    Put,
    Reopening,
    Wipe,
)

WORK = "work"


@dataclass
class Ended:
    """A connection that was over then."""

    over_us: int | None


class Written:
    """A history of one life, which ended at 9000."""

    def __init__(self, how: str = STOPPED) -> None:
        self.history = History()
        self.life = Life(1, 0, {WORK: Mode()}, 9000, how)
        self.history.lives.append(self.life)
        self.history.touched[WORK] = [(self.life, 0, 0)]
        self.producer = self.connection(9000)

    def connection(self, over_us: int) -> Connection:
        return Connection(len(self.history.deliveries) + 10, self.life, Ended(over_us))

    def put(self, at_us: int) -> Put:
        number = len(self.history.puts) + 1
        put = Put(number, WORK, b"%d:" % number, 0, 0, at_us, self.producer, at_us + 1, "stored")
        self.history.puts[number] = put
        return put

    def delivered(self, put: Put, kind: Literal["get", "open"], at_us: int, over_us: int, reader: str = WORK) -> None:
        self.history.deliveries.append(Delivery(put, reader, self.connection(over_us), kind, at_us, at_us + 1))

    def violations(self, rules: Rules | None = None) -> list[str]:
        return Checker(self.history, rules or Rules()).violations()


@pytest.mark.parametrize(("kind", "wrong"), [("get", 0), ("open", 1)])
def test_what_a_failing_disk_did_not_write_down_waits_from_the_repair_on(
    kind: Literal["get", "open"], wrong: int
) -> None:
    """What was open waits from the end of its client on: it may not be passed over then."""
    written = Written()
    written.life.faulty_since[WORK] = 100
    written.history.repairs.append(Reopening(written.life, WORK, 1000))
    first, second = written.put(1), written.put(11)
    written.delivered(first, kind, 200, over_us=300)
    written.delivered(second, "get", 400, over_us=9000)
    written.delivered(first, "get", 2000, over_us=9000)
    assert len([words for words in written.violations() if "passed over" in words]) == wrong


@pytest.mark.parametrize(
    ("how", "over_us", "wrong"), [(KILLED, 9000, 1), (STOPPED, 8000, 1), (KILLED, 450, 0), (KILLED, 500, 0)]
)
def test_what_is_open_through_a_flush_may_not_be_gone(how: str, over_us: int, wrong: int) -> None:
    written = Written(how)
    held, waiting = written.put(1), written.put(11)
    written.delivered(held, "open", 200, over_us)
    written.history.wipes.append(Wipe(WORK, False, written.producer, 400, 500))
    lost = f"lost from work: items {held.number}, beside 0 that gets were not answered with"
    assert written.violations() == [lost] * wrong
    assert waiting in written.history.puts.values()


def test_a_delete_takes_what_is_open_too() -> None:
    written = Written(KILLED)
    written.delivered(written.put(1), "open", 200, 9000)
    written.history.wipes.append(Wipe(WORK, True, written.producer, 400, 500))
    assert written.violations() == []


@pytest.mark.parametrize(("times", "wrong"), [(2, 1), (3, 0)])
def test_an_item_comes_back_as_often_as_it_may_and_no_more(times: int, wrong: int) -> None:
    """It is handed out a fourth time after it has come back for the third."""
    written = Written()
    item = written.put(1)
    for at_us in (100, 200, 300):
        written.delivered(item, "open", at_us, over_us=at_us + 50)
    written.delivered(item, "get", 400, over_us=9000)
    rules = Rules(moves_to={WORK: "late"}, max_retries={WORK: times})
    assert len([words for words in written.violations(rules) if f"and {times} are allowed" in words]) == wrong


@pytest.mark.parametrize(("times", "wrong"), [(1, 0), (2, 1)])
def test_an_item_is_not_moved_before_it_has_come_back_too_often(times: int, wrong: int) -> None:
    written = Written()
    item = written.put(1)
    for at_us in (100, 200):
        written.delivered(item, "open", at_us, over_us=at_us + 50)
    written.delivered(item, "get", 400, over_us=9000, reader="late")
    rules = Rules(moves_to={WORK: "late"}, max_retries={WORK: times})
    assert len([words for words in written.violations(rules) if "was moved to late" in words]) == wrong


@pytest.mark.parametrize(
    ("hurried", "reader", "wrong"),
    [
        ({}, "late", 1),
        ({WORK: 50}, "late", 0),
        ({"work+a": 50}, "late", 0),
        ({WORK: 50}, WORK, 0),
        ({WORK: 50}, "work+a", 1),
        ({WORK: 150}, "late", 1),
        ({WORK: 150}, WORK, 1),
        ({"late": 50}, WORK, 1),
    ],
)
def test_a_cancel_leaves_what_was_to_run_now_also_where_it_moves(
    hurried: dict[str, int], reader: str, wrong: int
) -> None:
    written = Written()
    item = written.put(1)
    item.key, item.delay_ms = "k", 1
    written.history.hurried.update({(name, item): at_us for name, at_us in hurried.items()})
    written.history.cancels.append(Cancel(WORK, "k", written.producer, 100, 110, "done"))
    written.delivered(item, "get", 2000, over_us=9000, reader=reader)
    rules = Rules(moves_to={WORK: "late"}, has_times=True, key_time_ms={WORK: 1})
    assert len([words for words in written.violations(rules) if "cancelled at" in words]) == wrong
