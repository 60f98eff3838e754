"""Matching the removes of Kestrel's journals with their adds, beside a queue that simply does what the ops say."""

import random
from collections import deque

import pytest

from kestreld.journal.kestrel.ops import (
    ADDX,
    CONFIRM_REMOVE,
    CONTINUE,
    REMOVE,
    REMOVE_TENTATIVE_XID,
    UNREMOVE,
    Op,
)
from kestrelspark.lifecycle import Beginning, Summary, beginnings, walk

GOT, CONFIRMED = 1, 2
Left = tuple[int, int, int, int]  # item, event, not before, not after; -1 = no add on that side


class History:
    """Ops as a Kestrel would write them, and what happened to each item."""

    def __init__(self, chance: random.Random, *, is_odd: bool = False) -> None:
        """`is_odd`: some of them do nothing."""
        self._is_odd = is_odd
        self.ops: list[Op] = []
        self.left: list[Left] = []
        self._chance = chance
        self._queue: deque[int] = deque()
        self._opened: dict[int, int] = {}
        self._added = 0
        self._now_ms = 1000
        self._last_add_at_ms = -1
        self._without_end: list[tuple[int, int, int]] = []
        for _ in range(chance.randrange(1, 40)):
            self._step()
        self.left += [(item, event, early, -1) for item, event, early in self._without_end]

    def _step(self) -> None:
        self._now_ms += self._chance.randrange(3)
        names = ["add", "add", "get", "open", "open", "confirm", "abort", "abort", "continue"]
        match self._chance.choice([*names, "nothing"] if self._is_odd else names):
            case "nothing":
                self._do_nothing()
            case "add":
                self._add(Op(ADDX, 0, self._now_ms))
            case "get" if self._queue:
                self.ops.append(Op(REMOVE))
                self._leave(self._queue.popleft(), GOT)
            case "open" if self._queue:
                xid = self._chance.choice([number for number in range(1, 12) if number not in self._opened] or [99])
                self.ops.append(Op(REMOVE_TENTATIVE_XID, xid))
                self._opened[xid] = self._queue.popleft()
            case "confirm" if self._opened:
                xid = self._chance.choice(sorted(self._opened))
                self.ops.append(Op(CONFIRM_REMOVE, xid))
                self._leave(self._opened.pop(xid), CONFIRMED)
            case "abort" if self._opened:
                xid = self._chance.choice(sorted(self._opened))
                self.ops.append(Op(UNREMOVE, xid))
                self._queue.appendleft(self._opened.pop(xid))
            case "continue" if self._opened:
                xid = self._chance.choice(sorted(self._opened))
                self._leave(self._opened.pop(xid), CONFIRMED)
                self._add(Op(CONTINUE, xid, self._now_ms))

    def _do_nothing(self) -> None:
        """What Kestrel passes over: it takes from an empty queue, or ends a read that is not open."""
        xid = self._chance.choice([number for number in range(1, 12) if number not in self._opened] or [99])
        passed_over = [Op(CONFIRM_REMOVE, xid), Op(UNREMOVE, xid)]
        if not self._queue:
            passed_over += [Op(REMOVE), Op(REMOVE_TENTATIVE_XID, xid)]
        if self._chance.random() < 0.2:
            self._add(Op(CONTINUE, xid, self._now_ms))
        else:
            self.ops.append(self._chance.choice(passed_over))

    def _add(self, op: Op) -> None:
        self.ops.append(op)
        self.left += [(item, event, early, self._now_ms) for item, event, early in self._without_end]
        self._without_end = []
        self._last_add_at_ms = self._now_ms
        self._queue.append(self._added)
        self._added += 1

    def _leave(self, item: int, event: int) -> None:
        self._without_end.append((item, event, self._last_add_at_ms))


def matched(files: list[list[Op]]) -> list[Left]:
    """What the files say when each is looked at on its own."""
    summaries = [walk(ops, GOT, CONFIRMED)[0] for ops in files]
    left: list[Left] = []

    def again(at: int, beginning: Beginning) -> Summary:
        return walk(files[at], GOT, CONFIRMED, beginning)[0]

    for ops, beginning in zip(files, beginnings(summaries, again), strict=True):
        for one in walk(ops, GOT, CONFIRMED, beginning)[1]:
            item = beginning.item(one.item)
            assert item is not None
            early = one.not_before_ms if one.not_before_ms >= 0 else beginning.previous_add_at_ms
            late = one.not_after_ms if one.not_after_ms >= 0 else beginning.next_add_at_ms
            left.append((item, one.event, early, late))
    return left


@pytest.mark.parametrize("is_odd", [False, True])
@pytest.mark.parametrize("histories", [2000, pytest.param(20_000, marks=pytest.mark.long)])
def test_removes_are_matched_as_a_queue_that_does_what_the_ops_say_however_the_files_are_cut(
    histories: int, is_odd: bool
) -> None:
    chance = random.Random(1)
    returned_over_a_cut = 0
    for _ in range(histories):
        history = History(chance, is_odd=is_odd)
        cuts = sorted(chance.choices(range(len(history.ops) + 1), k=chance.randrange(5)))
        files = [history.ops[start:end] for start, end in zip([0, *cuts], [*cuts, len(history.ops)], strict=True)]
        assert sorted(matched(files)) == sorted(history.left), (history.ops, cuts)
        summaries = [walk(ops, GOT, CONFIRMED)[0] for ops in files]
        returned_over_a_cut += any(beginning.returned for beginning in beginnings(summaries))
    assert returned_over_a_cut > histories // 10


def test_the_first_remove_after_an_abort_takes_the_item_that_came_back() -> None:
    ops = [Op(ADDX, 0, 10), Op(ADDX, 0, 20), Op(REMOVE_TENTATIVE_XID, 7), Op(UNREMOVE, 7), Op(REMOVE), Op(REMOVE)]
    assert [item for item, *_ in matched([ops[:4], ops[4:]])] == [0, 1]


def test_an_open_read_of_an_earlier_file_is_confirmed_in_a_later_one() -> None:
    files = [[Op(ADDX, 0, 10), Op(REMOVE_TENTATIVE_XID, 3)], [Op(ADDX, 0, 20)], [Op(CONFIRM_REMOVE, 3)]]
    assert matched(files) == [(0, CONFIRMED, 20, -1)]


def test_a_remove_from_an_empty_queue_takes_nothing() -> None:
    assert matched([[Op(REMOVE), Op(ADDX, 0, 10)], [Op(REMOVE), Op(REMOVE)]]) == [(0, GOT, 10, -1)]


def test_the_end_of_a_read_that_is_not_open_is_none() -> None:
    files = [[Op(ADDX, 0, 10), Op(UNREMOVE, 7)], [Op(CONFIRM_REMOVE, 8), Op(ADDX, 0, 20), Op(REMOVE)]]
    assert matched(files) == [(0, GOT, 20, -1)]
