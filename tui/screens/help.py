"""Screen with the list of keys and commands."""

from collections.abc import Iterable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from tui.commands import COMMANDS
from tui.keys import (
    CONSOLE_KEYS,
    DETAIL_KEYS,
    ITEM_KEYS,
    JOB_KEYS,
    JOB_LIST_KEYS,
    JOB_TABLE_KEYS,
    JOURNAL_KEYS,
    NODE_KEYS,
    NODE_TABLE_KEYS,
    OVERVIEW_KEYS,
    TABLE_KEYS,
    Key,
)


class Help(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark", "leave", "leave")]
    DEFAULT_CSS = """
    Help { align: center middle; }
    Help VerticalScroll { width: 76; max-width: 95%; height: auto; max-height: 95%; padding: 0 1;
                          border: round $primary; }
    Help Static { height: auto; }
    """

    def compose(self) -> ComposeResult:
        parts = [
            *_section("Everywhere", CONSOLE_KEYS),
            *_section("Table", TABLE_KEYS + OVERVIEW_KEYS),
            *_section("Details of a queue", DETAIL_KEYS + ITEM_KEYS),
            *_section("Journal of a queue", JOURNAL_KEYS),
            *_section("Queues of jobs", JOB_TABLE_KEYS + JOB_KEYS),
            *_section("Jobs of a queue", JOB_LIST_KEYS),
            *_section("Nodes of a cluster", NODE_TABLE_KEYS + NODE_KEYS),
            "",
            "Commands",
            *(f"  :{f'{command.name} {command.argument}':<20} {command.meaning}" for command in COMMANDS),
            "",
            "● up   ▲ stale: does not answer   ✖ stopped or failed",
        ]
        with VerticalScroll():
            yield Static("\n".join(parts), markup=False)

    def action_leave(self) -> None:
        self.dismiss()


def _section(title: str, keys: Iterable[Key]) -> list[str]:
    return ["", title, *(f"  {key.shown:<12} {key.meaning}" for key in keys)]
