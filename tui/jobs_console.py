"""The part of the console that shows queues of jobs, the jobs of a queue, and the nodes of a cluster."""

from typing import Final

from tui.actions import ActingConsole
from tui.formats import printable
from tui.job_table import JobTable
from tui.screens.job_list import JobListScreen
from tui.screens.jobs import JobsScreen
from tui.screens.nodes import NodesScreen
from tui.screens.overview import Overview

JOB_SCREENS: Final = (JobsScreen, JobListScreen, NodesScreen)


class JobsConsole(ActingConsole):
    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("act", "journal") and any(isinstance(screen, JOB_SCREENS) for screen in self.screen_stack):
            return False  # these act on the current queue of the table below, even if help is on top
        if action == "nodes" and not self._has_cluster:
            return False
        return super().check_action(action, parameters)

    @property
    def _has_cluster(self) -> bool:
        """True if any server is in a cluster with other nodes."""
        known = [server.snapshot.counters for server in self.board.servers.values() if server.snapshot is not None]
        return any(int(counters.get("jobs_cluster_size", 1)) > 1 for counters in known)

    def action_nodes(self) -> None:
        if isinstance(self.screen, NodesScreen):
            self.pop_screen()
        elif isinstance(self.screen, (Overview, JobsScreen)):
            self.push_screen(NodesScreen())

    def command_nodes(self, _: str) -> None:
        self.action_nodes()

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
