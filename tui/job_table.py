"""The table of queues of jobs."""

from dataclasses import dataclass
from typing import ClassVar, Final

from textual.message import Message

from tui.figure_table import FigureTable
from tui.job_rows import JOB_COLUMNS, JOB_FIGURES, JOB_HEADINGS, NOT_PAUSED, JobRow, job_cell
from tui.keys import JOB_TABLE_KEYS, bindings
from tui.states import STUCK

PAUSE_WIDTH: Final = 6


class JobTable(FigureTable[JobRow]):
    BINDINGS = bindings(JOB_TABLE_KEYS)
    COLUMNS = JOB_COLUMNS
    HEADINGS = JOB_HEADINGS
    WIDTHS: ClassVar = {"pause": PAUSE_WIDTH} | {column: figure.width for column, figure in JOB_FIGURES.items()}

    @dataclass
    class Opened(Message):
        """The jobs of a queue were requested."""

        queue: str

    def cell(self, row: JobRow, column: str) -> str:
        return job_cell(row, column)

    def is_idle(self, row: JobRow) -> bool:
        return not (row.queued or row.active)

    def trouble(self, row: JobRow, column: str) -> str:
        return STUCK if column == "pause" and row.pause != NOT_PAUSED else ""

    def action_open(self) -> None:
        if self.current is not None and self.rows:
            self.post_message(self.Opened(self.current))
