"""Figures, names, items and plots as people see them."""

import math

import pytest

from tui.formats import count, printable, rate, size, span
from tui.items import SHOWN_BYTES_MAX, ItemForm, shown_item
from tui.plots import curve, plot
from tui.screens.boxes import in_columns


def test_figures_keep_their_meaning_in_few_letters() -> None:
    assert [count(value) for value in (None, 0, 99_999, 100_000, 1_234_567, 5e12)] == [
        "",
        "0",
        "99,999",
        "100K",
        "1.2M",
        "5.0T",
    ]
    assert [size(value) for value in (None, 1023, 1536, 2 << 30)] == ["", "1023", "1.5K", "2.0G"]
    assert [rate(value) for value in (None, 0, 0.5, 250.4)] == ["", "0", "0.5", "250"]
    assert [span(value) for value in (None, 0, 250, 3500, 720_000, 90_000_000)] == [
        "",
        "0",
        "250ms",
        "3.5s",
        "12m",
        "1.0d",
    ]


def test_a_name_cannot_upset_the_terminal() -> None:
    assert printable("a\x1b[2Jb\udcff") == "a·[2Jb\ufffd"


def test_a_curve_is_a_thin_line_from_the_smallest_value_to_the_largest() -> None:
    assert curve([100, 200, 300, 400], 2) == "⡠⠊"
    assert curve([1000, 1010, 1000, 1000], 2) == "⣀⣀"  # a hundredth is no wave
    assert curve([0, 0, math.nan, 5], 3) == "⠀⠀⠈"  # nothing is shown where nothing is, or nothing is known


def test_plots_fill_from_the_bottom_and_show_whatever_is_not_nothing() -> None:
    assert plot([0, 0, 8, 8], 2, 2) == ["⠀⣿", "⠀⣿"]
    assert plot([0.001, 100], 1, 1) == ["⣸"]
    assert plot([math.nan] * 4, 2, 1) == ["⠀⠀"]


@pytest.mark.parametrize("data", [b"", b"plain", b"\x00\xff" * 5000, b'{"a": [1]}', b"[" * 100_000])
def test_any_item_can_be_shown_in_any_form(data: bytes) -> None:
    for form in ItemForm:
        text = shown_item(data, form)
        assert all(letter.isprintable() or letter == "\n" for letter in text)
        assert len(text) < 6 * SHOWN_BYTES_MAX


def test_columns_never_run_together() -> None:
    rows = [("first id", "ids", "held by"), ("178139775450", "99,999", "+audit"), ("1", "≤99,999", "the queue")]
    assert in_columns(rows, right=(0, 1)) == [
        "    first id      ids  held by",
        "178139775450   99,999  +audit",
        "           1  ≤99,999  the queue",
    ]


def test_an_item_is_hex_where_text_would_say_nothing() -> None:
    for data in (b"\x00\x01", b"\xff\xfe", b"a\x07b", b"\x1f\x8b\x08\x00"):
        assert shown_item(data, ItemForm.TEXT) == shown_item(data, ItemForm.HEX)
    for data in (b"", b"two\nlines\t\r\n", "käse".encode(), b'{"a":1}'):
        assert shown_item(data, ItemForm.TEXT) == data.decode().replace("\t", "·").replace("\r", "·")
    assert shown_item("käse".encode() * 9, ItemForm.TEXT, 2).startswith("k")  # cut in the middle of a letter


def test_an_item_as_hex_and_as_json() -> None:
    assert shown_item(b"hello\n", ItemForm.HEX) == "0000 68656c6c6f0a     hello·"
    assert shown_item(b'{"a":1}', ItemForm.JSON) == '{\n "a": 1\n}'
    assert shown_item(b"hello", ItemForm.JSON) == "(not JSON)\nhello"
