"""Screen with the queues of jobs: contents, rates, waiting clients and pauses."""

from collections.abc import Sequence

from tui.job_rows import JobRow, jobs_in_order
from tui.job_table import JobTable
from tui.keys import JOB_KEYS, bindings
from tui.screens.figures import FigureScreen
from tui.summaries import cluster_trouble, job_lines, job_totals_line, job_trouble


class JobsScreen(FigureScreen[JobRow]):
    BINDINGS = bindings(JOB_KEYS)
    TITLE_WORD = "jobs"
    TABLE = JobTable
    ASCENDING = ("queue", "pause")

    def rows_in_order(self, column: str, *, descending: bool) -> list[JobRow]:
        return jobs_in_order(self.session.board.job_rows(), column, descending=descending)

    def totals(self, rows: Sequence[JobRow]) -> str:
        return job_totals_line(rows)

    def about(self) -> list[str]:
        return [line for server in self.session.board.servers_in() for line in job_lines(server)] or [
            "no server has jobs"
        ]

    def troubles(self) -> list[str]:
        board, servers = self.session.board, self.session.board.servers_in()
        return [line for server in servers for line in job_trouble(server)] + cluster_trouble(
            board.node_rows(), servers
        )
