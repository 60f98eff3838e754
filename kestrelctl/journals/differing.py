"""Differences between the items of two queues: missing, changed or reordered ones."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kestrelctl.items.framing import data_fields
from kestrelctl.journals.contents import Item, Queue
from kestreld.client.blocks import Cell

COLUMNS: Final = ["queue", "change", "id_a", "id_b", "add_at_ms", "bytes"]
ONLY_A, ONLY_B, CHANGED, REORDERED = "only in A", "only in B", "changed", "reordered"


@dataclass(frozen=True, slots=True)
class Difference:
    change: str
    a: Item | None
    b: Item | None


def differences(a: Queue, b: Queue) -> list[Difference]:
    """Differences in the order of A, then the items that only B has.

    Items are matched by id in two copies of one journal, else by data.
    """
    by_id = a.journal_id == b.journal_id != 0
    partners = _partners(a.items, b.items, by_id=by_id)
    in_order = _longest_rising([at for at in partners if at is not None])
    found = []
    for item, at in zip(a.items, partners, strict=True):
        if at is None:
            found.append(Difference(ONLY_A, item, None))
        elif by_id and _content(item) != _content(b.items[at]):
            found.append(Difference(CHANGED, item, b.items[at]))
        elif at not in in_order:
            found.append(Difference(REORDERED, item, b.items[at]))
    matched = set(partners)
    return found + [Difference(ONLY_B, None, item) for at, item in enumerate(b.items) if at not in matched]


def _content(item: Item) -> tuple[object, ...]:
    return item.digest, item.size_bytes, item.add_at_ms, item.expire_at_ms, item.flags


def _partners(a: Sequence[Item], b: Sequence[Item], *, by_id: bool) -> list[int | None]:
    """For each item of A the index of its counterpart in B; equal items are matched in order."""
    places: dict[object, list[int]] = {}
    for at in range(len(b) - 1, -1, -1):
        places.setdefault(b[at].item_id if by_id else b[at].digest, []).append(at)
    partners: list[int | None] = []
    for item in a:
        left = places.get(item.item_id if by_id else item.digest)
        partners.append(left.pop() if left else None)
    return partners


def _longest_rising(places: Sequence[int]) -> set[int]:
    """The longest ascending subsequence of `places`: all others have been moved."""
    ends: list[int] = []  # by length of a run, the lowest place that ends one
    before: dict[int, int | None] = {}
    for place in places:
        at = bisect_left(ends, place)
        before[place] = ends[at - 1] if at else None
        ends[at : at + 1] = [place]
    run: set[int] = set()
    last = ends[-1] if ends else None
    while last is not None:
        run.add(last)
        last = before[last]
    return run


def rows(queue: str, found: Sequence[Difference]) -> Iterator[dict[str, Cell]]:
    for one in found:
        item = one.a or one.b
        assert item is not None
        row: dict[str, Cell] = {
            "queue": queue,
            "change": one.change,
            "id_a": one.a.item_id if one.a else "",
            "id_b": one.b.item_id if one.b else "",
            "add_at_ms": item.add_at_ms,
            "bytes": item.size_bytes,
        }
        yield row | (data_fields(item.data) if item.data is not None else {})
