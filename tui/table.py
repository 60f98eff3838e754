"""The table of queues. Only visible lines are rendered, so that 5,000 rows cost what 50 do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tui.figures import FIGURES, HEADINGS, QueueRow, cell
from tui.formats import sparkline
from tui.history import History
from tui.keys import TABLE_KEYS, bindings

NAME_WIDTH_MIN: Final = 12
NAME_WIDTH_MAX: Final = 40
SPARKLINE_WIDTH: Final = 16
DEPTH_HEADING: Final = "depth"


@dataclass(frozen=True, slots=True)
class _Styles:
    head: Style
    row: Style
    cursor: Style
    idle: Style
    stopped: Style
    depth: Style


class QueueTable(ScrollView, can_focus=True):
    """Rows in the order given. The current row stays current when the order changes."""

    BINDINGS = bindings(TABLE_KEYS)
    DEFAULT_CSS = """
    QueueTable { height: 1fr; scrollbar-size-horizontal: 1; }
    """

    @dataclass
    class Opened(Message):
        """The details of a queue were requested."""

        queue: str

    @dataclass
    class HeadClicked(Message):
        """Sort by a column."""

        column: str

    def __init__(self) -> None:
        super().__init__()
        self.rows: Sequence[QueueRow] = ()
        self.current: str | None = None  # the name of the current queue
        self._cursor = 0  # its index in `rows`
        self._history = History()
        self._sort = ("queue", False)
        self._name_width = NAME_WIDTH_MIN
        self._styles: _Styles | None = None

    def show(self, rows: Sequence[QueueRow], history: History, sort: tuple[str, bool]) -> None:
        """Show these rows. `sort`: the column, and whether it is descending."""
        self.rows, self._history, self._sort = rows, history, sort
        longest = max((len(row.queue) for row in rows), default=0) + 2  # the glyph before it
        self._name_width = min(max(longest, NAME_WIDTH_MIN), NAME_WIDTH_MAX)
        self._find_current()
        size = Size(
            self._name_width + sum(figure.width for figure in FIGURES.values()) + SPARKLINE_WIDTH + 2, len(rows) + 1
        )
        if size != self.virtual_size:
            self.virtual_size = size
        self.refresh()

    def _find_current(self) -> None:
        rows = self.rows
        if not rows:
            self._cursor = 0
            return
        if self._cursor < len(rows) and rows[self._cursor].queue == self.current:
            return
        index = next((index for index, row in enumerate(rows) if row.queue == self.current), None)
        self._cursor = min(self._cursor, len(rows) - 1) if index is None else index
        self.current = rows[self._cursor].queue

    # Drawing

    def render_line(self, y: int) -> Strip:
        styles = self._styles or self._make_styles()
        scroll_x, scroll_y = self.scroll_offset
        width = self.scrollable_content_region.width
        if y == 0:
            return self._head(styles, scroll_x, width)
        index = scroll_y + y - 1
        if index >= len(self.rows):
            return Strip.blank(width, styles.row)
        row = self.rows[index]
        style = styles.row
        if row.is_stopped:
            style = styles.stopped
        elif not row.items and not row.in_per_s:
            style = styles.idle
        depth_style = styles.depth
        if index == self._cursor:
            style = depth_style = styles.cursor
        glyph = "✖ " if row.is_stopped else "› " if index == self._cursor else "  "
        name = Segment(_fit(glyph + cell(row, "queue"), self._name_width), style)
        figures = [cell(row, column).rjust(figure.width) for column, figure in FIGURES.items()]
        depth = sparkline(self._history.series(row.queue, "items", SPARKLINE_WIDTH), SPARKLINE_WIDTH)
        beside = [
            Segment(figures[0] + " ", style),
            Segment(depth, depth_style),
            Segment("".join(figures[1:]) + " ", style),
        ]
        return _strip(name, beside, scroll_x, width, style)

    def _head(self, styles: _Styles, scroll_x: int, width: int) -> Strip:
        column, descending = self._sort
        mark = "▼" if descending else "▲"
        heads = {name: heading + (mark if name == column else "") for name, heading in HEADINGS.items()}
        name = Segment(_fit("  " + heads["queue"], self._name_width), styles.head)
        figures = [heads[column].rjust(figure.width) for column, figure in FIGURES.items()]
        figures.insert(1, f" {DEPTH_HEADING:>{SPARKLINE_WIDTH}}")
        rest = [Segment("".join(figures), styles.head)]
        return _strip(name, rest, scroll_x, width, styles.head)

    def _make_styles(self) -> _Styles:
        """From the theme's variables, once per theme."""
        colours = self.app.theme_variables
        back = colours["background"]
        self._styles = _Styles(
            head=Style(bold=True, color=_plain(colours["primary"]), bgcolor=_plain(colours["panel"])),
            row=Style(color=_plain(colours["foreground"]), bgcolor=_plain(back)),
            cursor=Style(bold=True, color=_plain(back), bgcolor=_plain(colours["primary"])),
            idle=Style(dim=True, color=_plain(colours["foreground"]), bgcolor=_plain(back)),
            stopped=Style(bold=True, color=_plain(colours["error"]), bgcolor=_plain(back)),
            depth=Style(color=_plain(colours["accent"]), bgcolor=_plain(back)),
        )
        return self._styles

    def notify_style_update(self) -> None:
        self._styles = None
        super().notify_style_update()

    # Moving about

    def action_move(self, rows: int) -> None:
        self._go(self._cursor + rows)

    def go_to_top(self) -> None:
        self._go(0)

    def action_page(self, pages: int) -> None:
        self._go(self._cursor + pages * self._visible_rows())

    def action_jump(self, index: int) -> None:
        self._go(index if index >= 0 else len(self.rows) + index)

    def action_open(self) -> None:
        if self.current is not None and self.rows:
            self.post_message(self.Opened(self.current))

    def _visible_rows(self) -> int:
        return max(1, self.scrollable_content_region.height - 1)

    def _go(self, index: int) -> None:
        if not self.rows:
            return
        self._cursor = min(max(index, 0), len(self.rows) - 1)
        self.current = self.rows[self._cursor].queue
        top = self.scroll_offset.y
        if self._cursor < top:
            self.scroll_to(y=self._cursor, animate=False)
        elif self._cursor >= top + self._visible_rows():
            self.scroll_to(y=self._cursor - self._visible_rows() + 1, animate=False)
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        if event.y == 0:
            column = self._column_at(event.x)
            if column is not None:
                self.post_message(self.HeadClicked(column))
            return
        index = self.scroll_offset.y + event.y - 1
        if index < len(self.rows):
            self._go(index)
            if event.chain == 2:
                self.action_open()

    def _column_at(self, x: int) -> str | None:
        if x < self._name_width:
            return "queue"
        x += self.scroll_offset.x - self._name_width
        for column, figure in FIGURES.items():
            width = figure.width + (SPARKLINE_WIDTH + 1 if column == "items" else 0)  # its sparkline is next to it
            if x < width:
                return column
            x -= width
        return None


def _strip(name: Segment, rest: list[Segment], scroll_x: int, width: int, style: Style) -> Strip:
    """The name stays visible; the rest scrolls under it."""
    room = max(0, width - len(name.text))
    beside = Strip(rest).crop(scroll_x, scroll_x + room)
    return Strip.join([Strip([name]), beside]).adjust_cell_length(width, style)


def _fit(text: str, width: int) -> str:
    if len(text) > width:
        return text[: width - 2] + "… "
    return text.ljust(width)


def _plain(colour: str) -> str:
    """A theme's colour without transparency, as Rich takes it."""
    return colour[:7] if colour.startswith("#") else colour
