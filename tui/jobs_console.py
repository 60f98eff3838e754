"""The part of the console that shows queues of jobs, and the jobs of one."""

from typing import Final

from tui.acting import ActingConsole
from tui.formats import printable
from tui.job_table import JobTable
from tui.screens.job_list import JobListScreen
from tui.screens.jobs import JobsScreen
from tui.screens.overview import Overview

JOB_SCREENS: Final = (JobsScreen, JobListScreen)


class JobsConsole(ActingConsole):
    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("act", "journal") and any(isinstance(screen, JOB_SCREENS) for screen in self.screen_stack):
            return False  # they are about the queue that is current in the table below, also where help is on top
        return super().check_action(action, parameters)

    def action_jobs(self) -> None:
        if isinstance(self.screen, JobsScreen):
            self.pop_screen()
        elif isinstance(self.screen, Overview):
            self.push_screen(JobsScreen())

    def on_job_table_opened(self, event: JobTable.Opened) -> None:
        self.push_screen(JobListScreen(event.queue))

    def command_jobs(self, name: str) -> None:
        if not name:
            self.action_jobs()
        elif any(row.queue == name for row in self.board.job_rows(self.view)):
            self.push_screen(JobListScreen(name))
        else:
            raise ValueError(f"no such queue of jobs: {printable(name)}")
