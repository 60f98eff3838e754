"""The table of queues of jobs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.segment import Segment
from textual.message import Message
from textual.strip import Strip

from tui.cursor_table import CursorTable, fit
from tui.job_rows import JOB_COLUMNS, JOB_FIGURES, JOB_HEADINGS, NOT_PAUSED, JobRow, job_cell
from tui.keys import JOB_TABLE_KEYS, bindings
from tui.states import STUCK

NAME_WIDTH_MIN: Final = 14
NAME_WIDTH_MAX: Final = 40
PAUSE_WIDTH: Final = 6


class JobTable(CursorTable[JobRow]):
    """As many columns as there is room for, from the left."""

    BINDINGS = bindings(JOB_TABLE_KEYS)

    @dataclass
    class Opened(Message):
        """The jobs of a queue were requested."""

        queue: str

    @dataclass
    class HeadClicked(Message):
        """Sort by a column."""

        column: str

    def __init__(self) -> None:
        super().__init__()
        self._sort = ("queue", False)

    def show(self, rows: Sequence[JobRow], sort: tuple[str, bool]) -> None:
        """Show these rows. `sort`: the column, and whether it is descending."""
        self._sort = sort
        self.take_rows(rows)

    def _columns(self, width: int) -> Iterator[tuple[str, int]]:
        """Those that there is room for, and how wide they are."""
        widths = {"pause": PAUSE_WIDTH} | {column: figure.width for column, figure in JOB_FIGURES.items()}
        name_width = max((len(row.queue) for row in self.rows), default=0) + 3
        name_width = min(max(name_width, NAME_WIDTH_MIN, width - sum(widths.values())), NAME_WIDTH_MAX)
        for column in JOB_COLUMNS:
            wide = name_width if column == "queue" else widths[column]
            width -= wide
            if width < 0:
                return
            yield column, wide

    def render_line(self, y: int) -> Strip:
        width, styles = self.scrollable_content_region.width, self.look
        columns = list(self._columns(width))
        if y == 0:
            return Strip([Segment(self._head(columns), styles.head)]).adjust_cell_length(width, styles.head)
        index = self.scroll_offset.y + y - 1
        if index >= len(self.rows):
            return Strip.blank(width, styles.row)
        row = self.rows[index]
        is_cursor = index == self._cursor
        style = styles.cursor if is_cursor else styles.row if row.queued or row.active else styles.idle
        segments = []
        for column, column_width in columns:
            if column == "queue":
                text = fit(("› " if is_cursor else "  ") + job_cell(row, column), column_width)
            else:
                text = job_cell(row, column).rjust(column_width)
            is_paused = column == "pause" and row.pause != NOT_PAUSED and not is_cursor
            segments.append(Segment(text, styles.states[STUCK] if is_paused else style))
        return Strip(segments).adjust_cell_length(width, style)

    def _head(self, columns: Sequence[tuple[str, int]]) -> str:
        sorted_by, descending = self._sort
        sign = "▼" if descending else "▲"
        heads = []
        for column, width in columns:
            head = (sign if column == sorted_by else " ") + JOB_HEADINGS[column]
            heads.append(fit(f" {head}", width) if column == "queue" else head.rjust(width))
        return "".join(heads)

    def action_open(self) -> None:
        if self.current is not None and self.rows:
            self.post_message(self.Opened(self.current))

    def head_clicked(self, x: int) -> None:
        for column, width in self._columns(self.scrollable_content_region.width):
            if x < width:
                self.post_message(self.HeadClicked(column))
                return
            x -= width
