"""The table of queues, and the choice of columns that fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.segment import Segment
from textual.message import Message
from textual.strip import Strip

from tui.cursor_table import CursorTable, TableStyles, fit
from tui.history import History
from tui.keys import TABLE_KEYS, bindings
from tui.plots import curve
from tui.queue_rows import FIGURES, HEADINGS, QueueRow, cell
from tui.states import OK

NAME_WIDTH_MIN: Final = 12
NAME_WIDTH_MAX: Final = 40
NAME_WIDTH_NARROW: Final = 20  # at least this much before the first figures go
STATE_WIDTH: Final = 8
DEPTH: Final = "depth"
DEPTH_WIDTHS: Final = (7, 17)  # with the blank before it
# Number of figures that take precedence over the curve.
FIGURES_BEFORE_DEPTH: Final = 7
# In display order: columns that a narrow terminal must show come first.
COLUMNS_SHOWN: Final = (
    "state", "items", DEPTH, "oldest_ms", "waiters", "open_reads", "logsize", "mem_bytes", "in_per_s", "out_per_s",
    "bytes", "mem_items", "expired", "discarded", "age_ms",
)  # fmt: skip
# All columns; those that few queues use are shown only on request.
COLUMNS_KNOWN: Final = (*COLUMNS_SHOWN, *(one for one in FIGURES if one not in COLUMNS_SHOWN))


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
    """The first columns, as many as fit."""
    for count, column in enumerate(columns):
        room -= _width(column)
        if room < 0:
            return columns[:count]
    return columns


def _width(column: str) -> int:
    if column == DEPTH:
        return DEPTH_WIDTHS[0]
    return STATE_WIDTH if column == "state" else FIGURES[column].width


class QueueTable(CursorTable[QueueRow]):
    """The table of queues. Rows keep the given order, and the current row stays current when the order changes."""

    BINDINGS = bindings(TABLE_KEYS)

    @dataclass
    class Opened(Message):
        """The details of a queue were requested."""

        queue: str

    @dataclass
    class HeadClicked(Message):
        """A heading was clicked: sort by that column."""

        column: str

    def __init__(self, columns: Sequence[str] = COLUMNS_SHOWN) -> None:
        super().__init__()
        self.columns = columns
        self.marked: set[str] = set()  # queues chosen for an action
        self._left = 0  # the index of the first column shown beside the name
        self._history = History()
        self._sort = ("queue", False)
        self._name_width = NAME_WIDTH_MIN
        self._layout = Layout(NAME_WIDTH_MIN, (), has_more=False)
        self._laid_out_width = -1  # the scrollbar comes and goes

    def show(self, rows: Sequence[QueueRow], history: History, sort: tuple[str, bool]) -> None:
        """Show these rows. `sort`: the column, and True if descending."""
        self._history, self._sort = history, sort
        self._name_width = max((len(row.queue) for row in rows), default=0) + 3  # signs before it, a blank after it
        self._laid_out_width = -1
        self.take_rows(rows)

    def show_columns(self, columns: Sequence[str]) -> None:
        self.columns, self._left, self._laid_out_width = columns, 0, -1
        self.refresh()

    # Drawing

    def render_line(self, y: int) -> Strip:
        styles = self.look
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
        segments = [Segment(fit(sign + mark + cell(row, "queue"), self._layout.name_width), state_style)]
        for column, column_width in self._layout.columns:
            if column == DEPTH:
                values = self._history.series(row.queue, "items", 2 * (column_width - 1))
                segments.append(Segment(" " + curve(values, column_width - 1), style if is_cursor else styles.idle))
            elif column == "state":
                segments.append(Segment(fit(row.state, column_width), state_style))
            else:
                segments.append(Segment(cell(row, column).rjust(column_width), style))
        return Strip(segments).adjust_cell_length(width, style)

    def _head(self, styles: TableStyles, width: int) -> Strip:
        sorted_by, descending = self._sort
        layout = self._layout
        # The sign takes the place of the blank before the heading.
        signs = {sorted_by: "▼" if descending else "▲"}
        text = fit(f" {signs.get('queue', ' ')}{HEADINGS['queue']}", layout.name_width)
        for column, column_width in layout.columns:
            if column == DEPTH:
                text += f" {DEPTH:<{column_width - 1}}"
            elif column == "state":
                text = text[:-1] + signs.get(column, " ") + fit(column, column_width)
            else:
                text += (signs.get(column, " ") + HEADINGS[column]).rjust(column_width)
        if self._left:
            text = text[: layout.name_width - 1] + "‹" + text[layout.name_width :]
        head = Strip([Segment(text, styles.head)]).adjust_cell_length(width, styles.head)
        if layout.has_more:
            head = Strip.join([head.crop(0, max(0, width - 1)), Strip([Segment("›", styles.head)])])
        return head

    # Keys

    def action_open(self) -> None:
        if self.current is not None and self.rows:
            self.post_message(self.Opened(self.current))

    def action_column(self, columns: int) -> None:
        """Scroll the columns by one, to the right or left."""
        if columns < 0 or self._layout.has_more:
            self._left = max(0, self._left + columns)
            self._laid_out_width = -1
            self.refresh()

    def action_mark(self) -> None:
        """Mark or unmark the current queue, and go to the next."""
        if self.current is not None and self.rows:
            self.marked ^= {self.current}
            self._go(self._cursor + 1)

    def action_mark_all(self) -> None:
        """Mark all rows, or none if all are marked."""
        names = {row.queue for row in self.rows}
        self.marked = set() if names <= self.marked else names
        self.refresh()

    def head_clicked(self, x: int) -> None:
        column = self._column_at(x)
        if column is not None:
            self.post_message(self.HeadClicked(column))

    def _column_at(self, x: int) -> str | None:
        x -= self._layout.name_width
        if x < 0:
            return "queue"
        for column, width in self._layout.columns:
            if x < width:
                return "items" if column == DEPTH else column
            x -= width
        return None
