"""Boxes of plain text."""

from collections.abc import Sequence

from rich.text import Text
from textual.containers import VerticalScroll
from textual.widgets import Static

from tui.base import ConsoleScreen


class Box(VerticalScroll):
    """Has a border, scrolls, and can be maximized."""

    ALLOW_MAXIMIZE = True
    DEFAULT_CSS = """
    Box { width: 1fr; border: round $panel; border-title-color: $primary; padding: 0 1; }
    Box:focus { border: round $primary; }
    Box Static { height: auto; }
    """


class BoxScreen(ConsoleScreen):
    """A screen of boxes. The focused one can be maximized."""

    ALLOW_IN_MAXIMIZED_VIEW = "Footer"
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
    """Show these lines. The layout is redone only when their number changes: it costs more than everything else."""
    text, content = "\n".join(lines), box.content
    before = content.plain if isinstance(content, Text) else ""
    if text != before:
        box.update(Text(text), layout=not before or not text or text.count("\n") != before.count("\n"))
