"""Scrolling boxes of plain text, and screens made of them."""

from collections.abc import Container, Sequence
from typing import Final

from rich.text import Text
from textual.containers import VerticalScroll
from textual.widgets import Static

from tui.screens.console_screen import ConsoleScreen

LOADING: Final = "loading …"
IN_A_REPLAY: Final = "not available in a replay"


class Box(VerticalScroll):
    """A box with a border that scrolls and can be maximized."""

    ALLOW_MAXIMIZE = True
    DEFAULT_CSS = """
    Box { width: 1fr; border: round $panel; border-title-color: $primary; padding: 0 1; }
    Box:focus { border: round $primary; }
    Box Static { height: auto; }
    """


class BoxScreen(ConsoleScreen):
    """A screen of boxes, of which the focused one can be maximized."""

    ALLOW_IN_MAXIMIZED_VIEW = "KeyBar"
    DEFAULT_CSS = """
    BoxScreen Static { text-wrap: nowrap; text-overflow: ellipsis; }
    BoxScreen #title { height: auto; background: $panel; text-style: bold; padding: 0 1; }
    BoxScreen Box.-maximized { width: 100% !important; }
    """

    def action_leave(self) -> None:
        if self.maximized is not None:
            self.minimize()
        else:
            self.dismiss()

    def action_spread(self) -> None:
        if self.maximized is not None:
            self.minimize()
        elif self.focused is not None:
            self.maximize(self.focused, container=False)


def put_lines(box: Static, lines: Sequence[str]) -> None:
    """Show these lines. The layout, the costliest part, is redone only if their number changes."""
    text, content = "\n".join(lines), box.content
    before = content.plain if isinstance(content, Text) else ""
    if text != before:
        box.update(Text(text), layout=not before or not text or text.count("\n") != before.count("\n"))


def in_columns(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """Rows of cells as lines, each column as wide as its widest cell. `right`: indexes of right-aligned columns."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
