"""A table with a name column and as many columns of figures as fit, from the left."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from textual.message import Message
from textual.strip import Strip

from tui.cursor_table import CursorTable, R, fit

NAME_WIDTH_MIN = 14
NAME_WIDTH_MAX = 40


class FigureTable(CursorTable[R]):
    """A table of figures. Its first column is the name."""

    COLUMNS: ClassVar[Sequence[str]]
    HEADINGS: ClassVar[dict[str, str]]
    WIDTHS: ClassVar[dict[str, int]]  # of all columns but the first

    @dataclass
    class HeadClicked(Message):
        """A heading was clicked: sort by that column."""

        column: str

    def __init__(self) -> None:
        super().__init__()
        self._sort = (self.COLUMNS[0], False)

    def show(self, rows: Sequence[R], sort: tuple[str, bool]) -> None:
        """Show these rows. `sort`: the column, and True if descending."""
        self._sort = sort
        self.take_rows(rows)

    def cell(self, row: R, column: str) -> str:
        """Text of a cell."""
        raise NotImplementedError

    def is_idle(self, row: R) -> bool:
        """True if the row is drawn dimmed because nothing happens in it."""
        raise NotImplementedError

    def trouble(self, row: R, column: str) -> str:
        """The state in whose style the cell is drawn; "" = in the style of the row."""
        raise NotImplementedError

    def _columns(self, width: int) -> Iterator[tuple[str, int]]:
        """The columns that fit, with their widths."""
        name = self.COLUMNS[0]
        name_width = max((len(self.cell(row, name)) for row in self.rows), default=0) + 3
        name_width = min(max(name_width, NAME_WIDTH_MIN, width - sum(self.WIDTHS.values())), NAME_WIDTH_MAX)
        for column in self.COLUMNS:
            wide = name_width if column == name else self.WIDTHS[column]
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
        style = styles.cursor if is_cursor else styles.idle if self.is_idle(row) else styles.row
        segments = []
        for column, column_width in columns:
            text = self.cell(row, column)
            if column == self.COLUMNS[0]:
                text = fit(("› " if is_cursor else "  ") + text, column_width)
            else:
                text = text.rjust(column_width)
            state = "" if is_cursor else self.trouble(row, column)
            segments.append(Segment(text, styles.states[state] if state else style))
        return Strip(segments).adjust_cell_length(width, style)

    def _head(self, columns: Sequence[tuple[str, int]]) -> str:
        sorted_by, descending = self._sort
        sign = "▼" if descending else "▲"
        heads = []
        for column, width in columns:
            head = (sign if column == sorted_by else " ") + self.HEADINGS[column]
            heads.append(fit(f" {head}", width) if column == self.COLUMNS[0] else head.rjust(width))
        return "".join(heads)

    def head_clicked(self, x: int) -> None:
        for column, width in self._columns(self.scrollable_content_region.width):
            if x < width:
                self.post_message(self.HeadClicked(column))
                return
            x -= width
