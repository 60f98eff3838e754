"""The input line for a command."""

from collections.abc import Sequence
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.screen import ModalScreen
from textual.suggester import SuggestFromList
from textual.widgets import Input, Label

from tui.commands import COMMANDS
from tui.queue_rows import COLUMNS, HEADINGS
from tui.themes import NAMES

QUEUES_SUGGESTED_MAX: Final = 2000


class CommandLine(ModalScreen[str | None]):
    """The input line. Returns the text typed, None if cancelled with escape."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "cancel")]
    DEFAULT_CSS = """
    CommandLine { background: transparent; }
    CommandLine Horizontal { dock: bottom; height: 1; background: $panel; }
    CommandLine Label { width: 2; padding: 0 0 0 1; text-style: bold; }
    CommandLine Input, CommandLine Input:focus { width: 1fr; height: 1; border: none; padding: 0; background: $panel; }
    """

    def __init__(self, queues: Sequence[str]) -> None:
        super().__init__()
        names = queues[:QUEUES_SUGGESTED_MAX]
        self._suggestions = [
            *(command.name for command in COMMANDS),
            *(f"sort {HEADINGS[column]}" for column in COLUMNS),
            *(f"theme {name}" for name in NAMES),
            *(f"{verb} {name}" for verb in ("queue", "journal", "move") for name in names),
        ]

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Label(":")
            yield Input(
                suggester=SuggestFromList(self._suggestions), placeholder="a command; the right arrow completes it"
            )

    def action_leave(self) -> None:
        self.dismiss(None)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)
