"""The part of the console that screens and the command palette use: its state, and requests to servers."""

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from textual.app import App
from textual.screen import Screen
from textual.worker import get_current_worker

from kestreld.client.access import Login
from tui.admin_queries import Asked, QueueDetails, Shown, ask_details
from tui.board import Board
from tui.job_lists import JobList, JobState, ask_jobs
from tui.journals import Check, JournalDetails, ask_journal, check_journal
from tui.moving import ItemAction
from tui.recording import Player, Recorder

Answer = TypeVar("Answer")


class BaseConsole(App[None]):
    def __init__(
        self,
        addresses: Sequence[str],
        *,
        interval_ms: int,
        timeout_ms: int,
        login: Login,
        is_read_only: bool,
        recorder: Recorder | None,
        player: Player | None,
    ) -> None:
        """With a `player`, show a recording and send no requests."""
        super().__init__()
        self.board = Board(addresses)
        self.view = self.board.views[0]
        self.interval_ms = interval_ms
        self.timeout_ms = timeout_ms
        self.login = login
        self.is_paused = False
        self.is_read_only = is_read_only
        self.recorder = recorder
        self.player = player

    def say(self, message: str, *, is_bad: bool = False) -> None:
        self.notify(message, severity="error" if is_bad else "information", markup=False)

    @property
    def may_act(self) -> bool:
        return not self.is_read_only and self.player is None

    def act_on_items(self, action: ItemAction, queue: str, chosen: Sequence[QueueDetails]) -> None:
        """Run an action on chosen items. `chosen`: the servers' answers reduced to these items."""
        raise NotImplementedError

    def now_ms(self) -> int:
        """The wall clock, or the current time of a recording."""
        return self.player.at_ms if self.player is not None else time.time_ns() // 1_000_000

    def details_of(self, queue: str, shown: Shown = Shown.FIRST) -> Callable[[], list[QueueDetails]]:
        """A call, to be made in a thread, that asks every answering server of the view."""
        asked = [
            (
                Asked.of(server, self.timeout_ms, self.login),
                [row.queue for row in server.rows if row.queue.startswith(f"{queue}+")],
            )
            for server in self.board.servers_in(self.view)
            if server.outage is None
        ]
        return lambda: [ask_details(server, queue, children, shown) for server, children in asked]

    def jobs_of(self, queue: str, state: JobState) -> Callable[[], list[JobList]]:
        """A call, to be made in a thread, that asks every server of the view for jobs."""
        servers = [Asked.of(server, self.timeout_ms, self.login) for server in self.board.servers_in(self.view)]
        return lambda: [ask_jobs(server, queue, state) for server in servers]

    def journals_of(self, queue: str) -> Callable[[], list[JournalDetails]]:
        """A call, to be made in a thread, that asks every server of the view for the journal."""
        servers = [Asked.of(server, self.timeout_ms, self.login) for server in self.board.servers_in(self.view)]
        return lambda: [ask_journal(server, queue) for server in servers]

    def check_journals(
        self, queue: str, journals: Sequence[JournalDetails], is_given_up: Callable[[], bool]
    ) -> dict[str, Check]:
        """Read all files of the journals, which takes long; return the results by server."""
        return {journal.server: check_journal(journal, queue, is_given_up) for journal in journals}

    def ask(self, screen: Screen[Any], group: str, call: Callable[[], Answer], show: Callable[[Answer], None]) -> None:
        """Make the call in a thread, and show its result if the screen is still open. Does nothing in a replay.

        A new call cancels earlier ones of the same group: their results are not shown.
        """

        def show_if_there(answer: Answer) -> None:
            if screen in self.screen_stack and screen.children:  # at exit a screen loses its boxes first
                show(answer)

        def call_and_show() -> None:
            answer = call()
            if not get_current_worker().is_cancelled:
                self.call_later(show_if_there, answer)

        if self.player is None:
            self.run_worker(call_and_show, thread=True, exclusive=True, group=group)


class ConsoleScreen(Screen[None]):
    @property
    def console(self) -> BaseConsole:
        return cast(BaseConsole, self.app)
