"""Base of the screens: what they show, and requests whose answers they show."""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from textual.css.query import NoMatches
from textual.screen import Screen
from textual.worker import get_current_worker

from tui.session import Session

Answer = TypeVar("Answer")


class ConsoleScreen(Screen[None]):
    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    def ask(self, group: str, call: Callable[[], Answer], show: Callable[[Answer], None]) -> None:
        """Make the call in a thread, and show its result if the screen is still open. Does nothing in a replay.

        A new call cancels earlier ones of the same group: their results are not shown.
        """
        app = self.app

        def show_if_there(answer: Answer) -> None:
            if self in app.screen_stack:
                with suppress(NoMatches):  # at exit a screen loses its boxes first, one after the other
                    show(answer)

        def call_and_show() -> None:
            answer = call()
            if not get_current_worker().is_cancelled:
                app.call_later(show_if_there, answer)

        if self.session.player is None:
            app.run_worker(call_and_show, thread=True, exclusive=True, group=group)
