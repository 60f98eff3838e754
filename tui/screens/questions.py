"""Dialogs that ask for a text or a confirmation."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static


class Question(ModalScreen[str | None]):
    """A text and an input line. Returns the text typed, None if cancelled with escape."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "cancel")]
    DEFAULT_CSS = """
    Question { align: center middle; }
    Question Vertical { width: 72; max-width: 95%; height: auto; padding: 1;
                        border: round $primary; background: $surface; }
    Question Static { height: auto; }
    """

    def __init__(self, words: str, suggestion: str = "") -> None:
        super().__init__()
        self._words = words
        self._suggestion = suggestion

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(self._words, markup=False)
            yield Input(value=self._suggestion)

    def action_leave(self) -> None:
        self.dismiss(None)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.answer(event.value)

    def answer(self, typed: str) -> None:
        self.dismiss(typed)


class Confirmation(Question):
    """A question that requires a certain word to be typed."""

    def __init__(self, words: str, expected: str) -> None:
        super().__init__(f"{words}\n\nType {expected} to confirm; press escape to cancel.")
        self._expected = expected

    # Not another on_input_submitted: Textual also calls the handlers of base classes.
    def answer(self, typed: str) -> None:
        if typed == self._expected:
            self.dismiss(typed)
        else:
            self.notify(f"type {self._expected} to confirm", severity="warning", markup=False)
