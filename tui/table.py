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
from tui.history import History
from tui.keys import TABLE_KEYS, bindings
from tui.plots import curve
from tui.states import FAILED, FULL, GROWING, OK, STALE, STOPPED, STUCK

NAME_WIDTH_MIN: Final = 12
NAME_WIDTH_MAX: Final = 40
NAME_WIDTH_NARROW: Final = 20  # at least this much before the first figures go
STATE_WIDTH: Final = 8
DEPTH: Final = "depth"
DEPTH_WIDTHS: Final = (7, 17)  # with the blank before it
# The curve gives way to figures until so many are there.
FIGURES_BEFORE_DEPTH: Final = 7
# In the order they are shown: what a narrow terminal must have comes first.
COLUMNS_SHOWN: Final = (
    "state", "items", DEPTH, "oldest_ms", "waiters", "open_reads", "logsize", "mem_bytes", "in_per_s", "out_per_s",
    "bytes", "mem_items", "expired", "discarded", "age_ms",
)  # fmt: skip
# Those that can be shown: what few queues use is not there unless it is asked for.
COLUMNS_KNOWN: Final = (*COLUMNS_SHOWN, "delayed", "retrying", "leased", "next_due_ms")


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns that fit, with their widths."""

    name_width: int
    columns: tuple[tuple[str, int], ...]
    has_more: bool  # to the right


def lay_out(columns: Sequence[str], name_width: int, width: int) -> Layout:
    """As many columns as fit in `width` beside a name that would like `name_width`."""
    width -= 1  # for the sign that there are more
    widths = [_width(column) for column in columns if column != DEPTH]
    limits = (width - sum(widths[:FIGURES_BEFORE_DEPTH]), min(width - sum(widths[:2]), NAME_WIDTH_NARROW))
    name_width = min(max(name_width, NAME_WIDTH_MIN), max(NAME_WIDTH_MIN, *limits), NAME_WIDTH_MAX)
    room = width - name_width
    fitting = _fitting(columns, room)
    if len(fitting) < min(len(columns), FIGURES_BEFORE_DEPTH + 1):
        fitting = _fitting([column for column in columns if column != DEPTH], room)
    spare = room - sum(_width(column) for column in fitting)
    depth_width = min(DEPTH_WIDTHS[0] + spare, DEPTH_WIDTHS[1])
    sized = tuple((column, depth_width if column == DEPTH else _width(column)) for column in fitting)
    return Layout(name_width, sized, has_more=columns[-1:] != fitting[-1:])


def _fitting(columns: Sequence[str], room: int) -> Sequence[str]:
    """The first of them, as far as there is room."""
    for count, column in enumerate(columns):
        room -= _width(column)
        if room < 0:
            return columns[:count]
    return columns


def _width(column: str) -> int:
    if column == DEPTH:
        return DEPTH_WIDTHS[0]
    return STATE_WIDTH if column == "state" else FIGURES[column].width


@dataclass(frozen=True, slots=True)
class _Styles:
    head: Style
    row: Style
    cursor: Style
    idle: Style
    states: dict[str, Style]


class QueueTable(ScrollView, can_focus=True):
    """Rows in the order given. The current row stays current when the order changes."""

    BINDINGS = bindings(TABLE_KEYS)
    DEFAULT_CSS = """
    QueueTable { height: 1fr; overflow-x: hidden; }
    """

    @dataclass
    class Opened(Message):
        """The details of a queue were requested."""

        queue: str

    @dataclass
    class HeadClicked(Message):
        """Sort by a column."""

        column: str

    def __init__(self, columns: Sequence[str] = COLUMNS_SHOWN) -> None:
        super().__init__()
        self.rows: Sequence[QueueRow] = ()
        self.current: str | None = None  # the name of the current queue
        self.columns = columns
        self.marked: set[str] = set()  # queues chosen for an action
        self._cursor = 0  # its index in `rows`
        self._left = 0  # the index of the first column shown beside the name
        self._history = History()
        self._sort = ("queue", False)
        self._name_width = NAME_WIDTH_MIN
        self._layout = Layout(NAME_WIDTH_MIN, (), has_more=False)
        self._laid_out_width = -1  # the scrollbar comes and goes
        self._styles: _Styles | None = None

    def show(self, rows: Sequence[QueueRow], history: History, sort: tuple[str, bool]) -> None:
        """Show these rows. `sort`: the column, and whether it is descending."""
        self.rows, self._history, self._sort = rows, history, sort
        self._name_width = max((len(row.queue) for row in rows), default=0) + 3  # signs before it, a blank after it
        self._find_current()
        size = Size(0, len(rows) + 1)
        if size != self.virtual_size:
            self.virtual_size = size
        self._laid_out_width = -1
        self.refresh()

    def show_columns(self, columns: Sequence[str]) -> None:
        self.columns, self._left, self._laid_out_width = columns, 0, -1
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
        scroll_y = self.scroll_offset.y
        width = self.scrollable_content_region.width
        if width != self._laid_out_width:
            self._layout = lay_out(self.columns[self._left :], self._name_width, width)
            self._laid_out_width = width
        if y == 0:
            return self._head(styles, width)
        index = scroll_y + y - 1
        if index >= len(self.rows):
            return Strip.blank(width, styles.row)
        row = self.rows[index]
        is_cursor = index == self._cursor
        style = styles.cursor if is_cursor else styles.row if row.items or row.in_per_s else styles.idle
        state_style = style if is_cursor or row.state == OK else styles.states[row.state]
        sign = "✖" if row.is_stopped else "›" if is_cursor else " "
        mark = "*" if row.queue in self.marked else " "
        segments = [Segment(_fit(sign + mark + cell(row, "queue"), self._layout.name_width), state_style)]
        for column, column_width in self._layout.columns:
            if column == DEPTH:
                values = self._history.series(row.queue, "items", 2 * (column_width - 1))
                segments.append(Segment(" " + curve(values, column_width - 1), style if is_cursor else styles.idle))
            elif column == "state":
                segments.append(Segment(_fit(row.state, column_width), state_style))
            else:
                segments.append(Segment(cell(row, column).rjust(column_width), style))
        return Strip(segments).adjust_cell_length(width, style)

    def _head(self, styles: _Styles, width: int) -> Strip:
        sorted_by, descending = self._sort
        layout = self._layout
        # The mark is in the blank before the heading: it costs no room.
        signs = {sorted_by: "▼" if descending else "▲"}
        text = _fit(f" {signs.get('queue', ' ')}{HEADINGS['queue']}", layout.name_width)
        for column, column_width in layout.columns:
            if column == DEPTH:
                text += f" {DEPTH:<{column_width - 1}}"
            elif column == "state":
                text = text[:-1] + signs.get(column, " ") + _fit(column, column_width)
            else:
                text += (signs.get(column, " ") + HEADINGS[column]).rjust(column_width)
        if self._left:
            text = text[: layout.name_width - 1] + "‹" + text[layout.name_width :]
        head = Strip([Segment(text, styles.head)]).adjust_cell_length(width, styles.head)
        if layout.has_more:
            head = Strip.join([head.crop(0, max(0, width - 1)), Strip([Segment("›", styles.head)])])
        return head

    def _make_styles(self) -> _Styles:
        """From the theme's variables, once per theme."""
        colours = self.app.theme_variables
        back, front = _plain(colours["background"]), _plain(colours["foreground"])
        error = Style(bold=True, color=_plain(colours["error"]), bgcolor=back)
        warning = Style(bold=True, color=_plain(colours["warning"]), bgcolor=back)
        self._styles = _Styles(
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
        return self._styles

    def notify_style_update(self) -> None:
        self._styles = None
        super().notify_style_update()

    # Moving about

    def action_move(self, rows: int) -> None:
        self._go(self._cursor + rows)

    def go_to_top(self) -> None:
        self._go(0)

    def go_to(self, queue: str) -> bool:
        """Make this queue the current one. False = it is not among the rows."""
        index = next((index for index, row in enumerate(self.rows) if row.queue == queue), None)
        if index is not None:
            self._go(index)
        return index is not None

    def action_page(self, pages: int) -> None:
        self._go(self._cursor + pages * self._visible_rows())

    def action_jump(self, index: int) -> None:
        self._go(index if index >= 0 else len(self.rows) + index)

    def action_open(self) -> None:
        if self.current is not None and self.rows:
            self.post_message(self.Opened(self.current))

    def action_column(self, columns: int) -> None:
        """Show the columns further right or left, one at a time."""
        if columns < 0 or self._layout.has_more:
            self._left = max(0, self._left + columns)
            self._laid_out_width = -1
            self.refresh()

    def action_mark(self) -> None:
        """Mark the current queue or unmark it, and go on to the next."""
        if self.current is not None and self.rows:
            self.marked ^= {self.current}
            self._go(self._cursor + 1)

    def action_mark_all(self) -> None:
        """Mark all rows, or none if they are."""
        names = {row.queue for row in self.rows}
        self.marked = set() if names <= self.marked else names
        self.refresh()

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
        x -= self._layout.name_width
        if x < 0:
            return "queue"
        for column, width in self._layout.columns:
            if x < width:
                return "items" if column == DEPTH else column
            x -= width
        return None


def _fit(text: str, width: int) -> str:
    if len(text) >= width:
        return text[: max(0, width - 2)] + "… "
    return text.ljust(width)


def _plain(colour: str) -> str:
    """A theme's colour without transparency, as Rich takes it."""
    return colour[:7] if colour.startswith("#") else colour
