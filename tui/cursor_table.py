"""Base of all tables, with a current row. Only visible lines are drawn: 5,000 rows cost as little as 50."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from rich.style import Style
from textual import events
from textual.geometry import Size
from textual.scroll_view import ScrollView

from tui.states import FAILED, FULL, GROWING, STALE, STOPPED, STUCK


class NamedRow(Protocol):
    """Interface of the rows of any table."""

    @property
    def key(self) -> str:
        """Unique name of the row."""


R = TypeVar("R", bound=NamedRow)


@dataclass(frozen=True, slots=True)
class TableStyles:
    """Styles of a table, from the theme."""

    head: Style
    row: Style
    cursor: Style
    idle: Style
    states: dict[str, Style]


class CursorTable(ScrollView, Generic[R], can_focus=True):
    """A table of rows in the given order. The current row stays current when the order changes."""

    DEFAULT_CSS = """
    CursorTable { height: 1fr; overflow-x: hidden; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.rows: Sequence[R] = ()
        self.current: str | None = None  # the key of the current row
        self._cursor = 0  # its index in `rows`
        self._made_styles: TableStyles | None = None

    def take_rows(self, rows: Sequence[R]) -> None:
        """Replace the rows."""
        self.rows = rows
        self._find_current()
        size = Size(0, len(rows) + 1)
        if size != self.virtual_size:
            self.virtual_size = size
        self.refresh()

    def _find_current(self) -> None:
        rows = self.rows
        if not rows:
            self._cursor = 0
            return
        if self._cursor < len(rows) and rows[self._cursor].key == self.current:
            return
        index = next((index for index, row in enumerate(rows) if row.key == self.current), None)
        self._cursor = min(self._cursor, len(rows) - 1) if index is None else index
        self.current = rows[self._cursor].key

    # Drawing

    @property
    def look(self) -> TableStyles:
        """Styles from the theme's variables, made once per theme."""
        if self._made_styles is None:
            colours = self.app.theme_variables
            back, front = _plain(colours["background"]), _plain(colours["foreground"])
            error = Style(bold=True, color=_plain(colours["error"]), bgcolor=back)
            warning = Style(bold=True, color=_plain(colours["warning"]), bgcolor=back)
            self._made_styles = TableStyles(
                head=Style(bold=True, color=_plain(colours["primary"]), bgcolor=_plain(colours["panel"])),
                row=Style(color=front, bgcolor=back),
                cursor=Style(bold=True, color=back, bgcolor=_plain(colours["primary"])),
                idle=Style(dim=True, color=front, bgcolor=back),
                states={
                    STOPPED: error,
                    FAILED: error,
                    FULL: warning,
                    STUCK: warning,
                    STALE: Style(dim=True, color=front, bgcolor=back),
                    GROWING: Style(color=_plain(colours["accent"]), bgcolor=back),
                },
            )
        return self._made_styles

    def notify_style_update(self) -> None:
        self._made_styles = None
        super().notify_style_update()

    # Moving about

    def action_move(self, rows: int) -> None:
        self._go(self._cursor + rows)

    def go_to_top(self) -> None:
        self._go(0)

    def go_to(self, key: str) -> bool:
        """Make this row the current one. Return False if there is no such row."""
        index = next((index for index, row in enumerate(self.rows) if row.key == key), None)
        if index is not None:
            self._go(index)
        return index is not None

    def action_page(self, pages: int) -> None:
        self._go(self._cursor + pages * self._visible_rows())

    def action_jump(self, index: int) -> None:
        self._go(index if index >= 0 else len(self.rows) + index)

    def action_open(self) -> None:
        """Show the current row's details."""
        raise NotImplementedError

    def _visible_rows(self) -> int:
        return max(1, self.scrollable_content_region.height - 1)

    def _go(self, index: int) -> None:
        if not self.rows:
            return
        self._cursor = min(max(index, 0), len(self.rows) - 1)
        self.current = self.rows[self._cursor].key
        top = self.scroll_offset.y
        if self._cursor < top:
            self.scroll_to(y=self._cursor, animate=False)
        elif self._cursor >= top + self._visible_rows():
            self.scroll_to(y=self._cursor - self._visible_rows() + 1, animate=False)
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        if event.y == 0:
            self.head_clicked(event.x)
            return
        index = self.scroll_offset.y + event.y - 1
        if index < len(self.rows):
            self._go(index)
            if event.chain == 2:
                self.action_open()

    def head_clicked(self, x: int) -> None:
        """Handle a click on the heading at this position."""
        raise NotImplementedError


def fit(text: str, width: int) -> str:
    """Text cut or padded to the width."""
    if len(text) >= width:
        return text[: max(0, width - 2)] + "… "
    return text.ljust(width)


def _plain(colour: str) -> str:
    """A theme's colour without transparency, in Rich's format."""
    return colour[:7] if colour.startswith("#") else colour
