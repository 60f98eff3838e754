"""Filters and orders."""

import pytest

from tests.tui.sights import row
from tui.choosing import chosen, in_order

ROWS = [row("orders", items=5), row("orders+audit", items=500), row("Mail", items=50, age_ms=10), row("broken")]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("", ["orders", "orders+audit", "Mail", "broken"]),
        ("mail", ["Mail"]),
        ("orders !audit", ["orders"]),
        ("items>5", ["orders+audit", "Mail"]),
        ("items<51 o", ["orders"]),
        ("age_ms=10", ["Mail"]),
        ("nothing>5", []),
        ("!", []),
    ],
)
def test_all_words_of_a_filter_must_hold(words: str, names: list[str]) -> None:
    assert [each.queue for each in chosen(ROWS, words)] == names


def test_the_unknown_comes_last_in_either_order() -> None:
    up = [each.queue for each in in_order(ROWS, "items", descending=False)]
    down = [each.queue for each in in_order(ROWS, "items", descending=True)]
    assert up == ["orders", "Mail", "orders+audit", "broken"]
    assert down == ["orders+audit", "Mail", "orders", "broken"]
