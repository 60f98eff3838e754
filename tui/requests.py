"""Requests of the screens to the servers of the current view. Each is a call, to be made in a thread."""

from collections.abc import Callable, Sequence

from kestreld.client.access import Login
from tui.admin_queries import Asked, QueueDetails, Shown, ask_details
from tui.board import Board, ServerState
from tui.job_lists import JobList, JobState, ask_jobs
from tui.journals import Check, JournalDetails, ask_journal, check_journal


class Requests:
    def __init__(self, board: Board, timeout_ms: int, login: Login) -> None:
        self._board = board
        self._timeout_ms = timeout_ms
        self._login = login

    def servers(self) -> list[Asked]:
        """The servers of the view, and how to reach them."""
        return [self._asked(server) for server in self._board.servers_in()]

    def _asked(self, server: ServerState) -> Asked:
        return Asked.of(server, self._timeout_ms, self._login)

    def details_of(self, queue: str, shown: Shown = Shown.FIRST) -> Callable[[], list[QueueDetails]]:
        """Ask every answering server of the view."""
        asked = [
            (self._asked(server), [row.queue for row in server.rows if row.queue.startswith(f"{queue}+")])
            for server in self._board.servers_in()
            if server.outage is None
        ]
        return lambda: [ask_details(server, queue, children, shown) for server, children in asked]

    def jobs_of(self, queue: str, state: JobState) -> Callable[[], list[JobList]]:
        """Ask every server of the view for jobs."""
        servers = self.servers()
        return lambda: [ask_jobs(server, queue, state) for server in servers]

    def journals_of(self, queue: str) -> Callable[[], list[JournalDetails]]:
        """Ask every server of the view for the journal."""
        servers = self.servers()
        return lambda: [ask_journal(server, queue) for server in servers]

    def check_journals(
        self, queue: str, journals: Sequence[JournalDetails], is_given_up: Callable[[], bool]
    ) -> dict[str, Check]:
        """Read all files of the journals, which takes long; return the results by server."""
        return {journal.server: check_journal(journal, queue, is_given_up) for journal in journals}
