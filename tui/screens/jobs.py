"""Queues of jobs: what they hold, how fast jobs come and go, who waits, and what is paused."""

from textual.app import ComposeResult
from textual.widgets import Static

from tui.base import ConsoleScreen
from tui.board import ALL_SERVERS
from tui.job_rows import JOB_COLUMNS, JobRow, jobs_in_order
from tui.job_table import JobTable
from tui.keys import JOB_KEYS, bindings
from tui.screens.boxes import put_lines
from tui.screens.key_bar import KeyBar
from tui.summaries import job_lines, job_totals_line, job_trouble


class JobsScreen(ConsoleScreen):
    BINDINGS = bindings(JOB_KEYS)
    DEFAULT_CSS = """
    JobsScreen Static { text-wrap: nowrap; text-overflow: ellipsis; }
    JobsScreen #title { height: 1; background: $panel; text-style: bold; padding: 0 1; }
    JobsScreen #memory { height: auto; padding: 0 1; color: $text-muted; }
    JobsScreen #troubles { height: auto; padding: 0 1; text-style: bold; color: $warning; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._sort = ("queue", False)

    @property
    def table(self) -> JobTable:
        return self.query_one(JobTable)

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        yield Static(id="memory")
        yield Static(id="troubles")
        yield JobTable()
        yield KeyBar()

    def on_mount(self) -> None:
        self.table.focus()
        self.show()

    def rows(self) -> list[JobRow]:
        """The rows of the table, in its order."""
        column, descending = self._sort
        return jobs_in_order(self.console.board.job_rows(self.console.view), column, descending=descending)

    def show(self) -> None:
        """Show the current state of the board."""
        console, rows = self.console, self.rows()
        self.table.show(rows, self._sort)
        servers = console.board.servers_in(console.view)
        view = [f"[{console.view}]"] if console.view != ALL_SERVERS else []
        paused = ["PAUSED"] if console.is_paused else []
        put_lines(self.query_one("#title", Static), ["  ".join(["jobs", *view, *paused, job_totals_line(rows)])])
        for name, lines in (
            ("memory", [line for server in servers for line in job_lines(server)] or ["no server has jobs"]),
            ("troubles", [line for server in servers for line in job_trouble(server)]),
        ):
            box = self.query_one(f"#{name}", Static)
            box.display = bool(lines)
            put_lines(box, lines)

    # Keys

    def action_leave(self) -> None:
        self.dismiss()

    def action_sort(self, step: int) -> None:
        self.sort_by(JOB_COLUMNS[(JOB_COLUMNS.index(self._sort[0]) + step) % len(JOB_COLUMNS)])

    def action_reverse(self) -> None:
        self.sort_by(self._sort[0])

    def sort_by(self, column: str) -> None:
        """Figures in descending order; the same column again reverses the order."""
        before, descending = self._sort
        self._sort = (column, not descending if column == before else column not in ("queue", "pause"))
        self.show()

    def action_next_view(self) -> None:
        views = self.console.board.views
        self.console.view = views[(views.index(self.console.view) + 1) % len(views)]
        self.show()

    def on_job_table_head_clicked(self, event: JobTable.HeadClicked) -> None:
        self.sort_by(event.column)
