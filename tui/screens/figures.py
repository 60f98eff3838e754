"""Base of the screens with one table of figures: title, lines above the table, sort order."""

from collections.abc import Sequence
from typing import ClassVar, Final, Generic

from textual.app import ComposeResult
from textual.widgets import Static

from tui.board import ALL_SERVERS
from tui.cursor_table import R
from tui.figure_table import FigureTable
from tui.screens.boxes import put_lines
from tui.screens.console_screen import ConsoleScreen
from tui.screens.key_bar import KeyBar
from tui.session import Session

BOXES: Final = ("about", "troubles")


class FigureScreen(ConsoleScreen, Generic[R]):
    TITLE_WORD: ClassVar[str]
    TABLE: ClassVar[type[FigureTable[R]]]
    ASCENDING: ClassVar[Sequence[str]]  # columns sorted in ascending order at first
    DEFAULT_CSS = """
    FigureScreen Static { text-wrap: nowrap; text-overflow: ellipsis; }
    FigureScreen #title { height: 1; background: $panel; text-style: bold; padding: 0 1; }
    FigureScreen #about { height: auto; padding: 0 1; color: $text-muted; }
    FigureScreen #troubles { height: auto; padding: 0 1; text-style: bold; color: $warning; }
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._sort = (self.TABLE.COLUMNS[0], False)

    @property
    def table(self) -> FigureTable[R]:
        return self.query_one(self.TABLE)

    def compose(self) -> ComposeResult:
        for name in ("title", *BOXES):
            yield Static(id=name)
        yield self.TABLE()
        yield KeyBar()

    def on_mount(self) -> None:
        self.table.focus()
        self.show()

    # Contents

    def rows_in_order(self, column: str, *, descending: bool) -> list[R]:
        """The rows of the table, sorted by a column."""
        raise NotImplementedError

    def totals(self, rows: Sequence[R]) -> str:
        """Totals for the title."""
        raise NotImplementedError

    def about(self) -> list[str]:
        """Lines of information above the table."""
        raise NotImplementedError

    def troubles(self) -> list[str]:
        """Lines of problems above the table."""
        raise NotImplementedError

    def rows(self) -> list[R]:
        """The rows of the table in its current order."""
        column, descending = self._sort
        return self.rows_in_order(column, descending=descending)

    def show(self) -> None:
        """Show the current state of the board."""
        session, rows = self.session, self.rows()
        self.table.show(rows, self._sort)
        view = [f"[{session.board.view}]"] if session.board.view != ALL_SERVERS else []
        paused = ["PAUSED"] if session.is_paused else []
        title = "  ".join([self.TITLE_WORD, *view, *paused, self.totals(rows)])
        put_lines(self.query_one("#title", Static), [title])
        for name, lines in zip(BOXES, (self.about(), self.troubles()), strict=True):
            box = self.query_one(f"#{name}", Static)
            box.display = bool(lines)
            put_lines(box, lines)

    # Keys

    def action_leave(self) -> None:
        self.dismiss()

    def action_sort(self, step: int) -> None:
        columns = self.TABLE.COLUMNS
        self.sort_by(columns[(columns.index(self._sort[0]) + step) % len(columns)])

    def action_reverse(self) -> None:
        self.sort_by(self._sort[0])

    def sort_by(self, column: str) -> None:
        """Sort by a column, figures in descending order; the same column again reverses the order."""
        before, descending = self._sort
        self._sort = (column, not descending if column == before else column not in self.ASCENDING)
        self.show()

    def action_next_view(self) -> None:
        self.session.board.look_at_next()
        self.show()

    def on_figure_table_head_clicked(self, event: FigureTable.HeadClicked) -> None:
        self.sort_by(event.column)
