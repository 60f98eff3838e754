"""Filter and sort order of the rows.

A filter is words, all of which must match: `orders` (the name contains it), `!audit` (the name does not), `items>100`,
`oldest_ms>1000`, `in_per_s>0`, `state=stuck`, `state>ok` (worse than ok).
"""

import operator
import re
from collections.abc import Callable, Iterable
from typing import Final

from tui.queue_rows import FIGURES, QueueRow
from tui.states import RANK

_CONDITION: Final = re.compile(rf"({'|'.join(FIGURES)})([<>=])(\d+(?:\.\d+)?)")
_STATE: Final = re.compile(rf"state([<>=])({'|'.join(RANK)})")
_OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}
Test = Callable[[QueueRow], bool]


def chosen(rows: Iterable[QueueRow], words: str) -> list[QueueRow]:
    """The rows that match a filter."""
    tests = [_test(word) for word in words.split()]
    return [row for row in rows if all(test(row) for test in tests)] if tests else list(rows)


def _test(word: str) -> Test:
    if condition := _CONDITION.fullmatch(word):
        column, compare, number = condition[1], _OPERATORS[condition[2]], float(condition[3])
        return lambda row: (value := getattr(row, column)) is not None and compare(value, number)
    if condition := _STATE.fullmatch(word):
        compare, rank = _OPERATORS[condition[1]], RANK[condition[2]]
        return lambda row: compare(RANK[row.state], rank)
    if word.startswith("!") and word != "!":
        unwanted = word[1:].casefold()
        return lambda row: unwanted not in row.queue.casefold()
    wanted = word.casefold()
    return lambda row: wanted in row.queue.casefold()


def in_order(rows: list[QueueRow], column: str, *, descending: bool) -> list[QueueRow]:
    """Sort by a column, then by name; the worst state is the largest. Unknown values come last in both directions."""
    by_name = sorted(rows, key=operator.attrgetter("queue"), reverse=descending and column == "queue")
    if column == "queue":
        return by_name
    if column == "state":
        return sorted(by_name, key=lambda row: RANK[row.state], reverse=descending)
    value = operator.attrgetter(column)
    known = [row for row in by_name if value(row) is not None]
    unknown = [row for row in by_name if value(row) is None]
    return sorted(known, key=value, reverse=descending) + unknown
