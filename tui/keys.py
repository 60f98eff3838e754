"""Every key of the console with its help text, and their bindings for the screens."""

from dataclasses import dataclass
from typing import Final

from textual.binding import Binding, BindingType


@dataclass(frozen=True, slots=True)
class Key:
    keys: str  # Textual's names
    action: str
    shown: str  # the name shown to users
    meaning: str
    label: str = ""  # in the footer; "" = not shown there


CONSOLE_KEYS: Final = (
    Key("question_mark", "app.help", "?", "this list of keys", "help"),
    Key("q", "app.quit", "q", "quit", "quit"),
    Key("space", "app.pause", "space", "freeze the screen; in a replay, pause or resume", "pause"),
    Key("plus", "app.interval(1)", "+", "refresh less often"),
    Key("minus", "app.interval(-1)", "-", "refresh more often"),
    Key("T", "app.try_now", "T", "try servers that do not answer again, now"),
    Key("t", "app.next_theme", "t", "next theme: dark, light, colour-blind"),
    Key("J", "app.journal", "J", "the queue's journal: segments, holders, checksums", "journal"),
    Key("g", "app.jobs", "g", "queues of jobs, and back"),
    Key("n", "app.nodes", "n", "nodes of a cluster of jobs, and back", "nodes"),
    Key(
        "colon",
        "app.command",
        ":",
        "a command by name, as :sort items; listed below",
        "command",
    ),
    Key("f", "app.act('flush')", "f", "flush the queue or the marked ones: discard the items", "flush"),
    Key("d", "app.act('delete')", "d", "delete the queue or the marked ones", "delete"),
    Key("M", "app.act('move')", "M", "move the items of the queue or the marked ones elsewhere"),
    Key("p", "app.act('put')", "p", "put an item on the queue"),
    Key(
        "b",
        "app.act('redrive')",
        "b",
        "send the dead letters of the queue or the marked ones back where they came from",
    ),
    Key("r", "app.act('reload')", "r", "reload the servers' configuration", "reload"),
    Key("e", "app.export", "e", "write the view to a CSV, JSON or SVG file", "export"),
    Key("w", "app.record", "w", "record to a file, or stop recording", "record"),
    Key("comma", "app.seek(-1)", ",", "in a replay: one sample back"),
    Key("full_stop", "app.seek(1)", ".", "in a replay: one sample ahead"),
    Key("less_than_sign", "app.seek(-30)", "<", "in a replay: 30 samples back"),
    Key("greater_than_sign", "app.seek(30)", ">", "in a replay: 30 samples ahead"),
    Key("ctrl+p", "app.command_palette", "ctrl+p", "find a queue or a command by name"),
)
SORT_KEYS: Final = (
    Key("s", "sort(1)", "s", "sort by the next column", "sort"),
    Key("S", "sort(-1)", "S", "sort by the previous column"),
    Key("o", "reverse", "o", "reverse the sort order"),
)
OVERVIEW_KEYS: Final = (
    Key("slash", "filter", "/", "filter: name, !name, items>100, oldest_ms>500; all words must match", "filter"),
    Key("escape", "clear", "escape", "clear the filter"),
    *SORT_KEYS,
    Key("exclamation_mark", "worst", "!", "sort by state, the worst first, and back", "trouble"),
    Key("v", "next_view", "v", "switch between the sum of all servers and each server", "server"),
)


def _cursor_keys(row: str) -> tuple[Key, ...]:
    return (
        Key("up,k", "move(-1)", "up k", f"previous {row}"),
        Key("down,j", "move(1)", "down j", f"next {row}"),
        Key("pageup", "page(-1)", "pageup", "page up"),
        Key("pagedown", "page(1)", "pagedown", "page down"),
        Key("home", "jump(0)", "home", f"first {row}"),
        Key("end", "jump(-1)", "end", f"last {row}"),
    )


QUEUE_CURSOR_KEYS: Final = _cursor_keys("queue")
TABLE_KEYS: Final = (
    Key("enter", "open", "enter", "details of the queue", "details"),
    *QUEUE_CURSOR_KEYS,
    Key("left", "column(-1)", "left", "show the column before the first"),
    Key("right", "column(1)", "right", "show the next column"),
    Key("a", "mark", "a", "mark the queue for actions, or unmark it"),
    Key("A", "mark_all", "A", "mark all queues shown, or none"),
)
DETAIL_KEYS: Final = (
    Key("escape,backspace", "leave", "escape", "back to the table", "back"),
    Key("m", "next_form", "m", "show items as text, hex or JSON", "form"),
    Key("R", "items('requeue')", "R", "requeue the chosen items: put them at the end", "requeue"),
    Key("M", "items('move')", "M", "move the chosen items to another queue", "move"),
    Key("D", "items('delete')", "D", "delete the chosen items", "delete"),
    Key("i", "next_state", "i", "show the first items, or those that are delayed, retrying or leased"),
    Key("C", "items('cancel')", "C", "cancel the chosen delayed or retrying items"),
    Key("N", "items('run-now')", "N", "make the chosen delayed or retrying items due now"),
    Key("E", "items('extend')", "E", "extend the chosen leases"),
    Key("G", "items('give-back')", "G", "give the chosen leased items back"),
    Key("u", "ask", "u", "refresh readers, consumers, settings and items", "refresh"),
    Key("z", "next_span", "z", "plot one minute or five", "span"),
    Key("x", "spread", "x", "maximize or restore the focused box", "enlarge"),
    Key("tab", "app.focus_next", "tab", "focus the next box; scroll with up, down, pageup, pagedown, home, end"),
)
ITEM_KEYS: Final = (
    Key("up,k", "move(-1)", "up k", "previous item"),
    Key("down,j", "move(1)", "down j", "next item"),
    Key("home", "jump(0)", "home", "first item"),
    Key("end", "jump(-1)", "end", "last item"),
    Key("a", "mark", "a", "choose the item, or undo the choice", "choose"),
    Key("A", "mark_all", "A", "choose all items shown, or none"),
)
JOB_KEYS: Final = (
    Key("escape,backspace", "leave", "escape", "back to the queues", "back"),
    *SORT_KEYS,
    Key("v", "next_view", "v", "switch between the sum of all servers and each server", "server"),
)
JOB_TABLE_KEYS: Final = (
    Key("enter", "open", "enter", "the jobs of the queue", "jobs"),
    *QUEUE_CURSOR_KEYS,
)
JOB_LIST_KEYS: Final = (
    Key("escape,backspace", "leave", "escape", "back", "back"),
    Key(
        "i",
        "next_state",
        "i",
        "show the queued, the active or the delayed jobs, or copies of other nodes' jobs",
        "state",
    ),
    Key("u", "ask", "u", "refresh", "refresh"),
)
NODE_KEYS: Final = (
    Key("escape,backspace", "leave", "escape", "back", "back"),
    *SORT_KEYS,
    Key("v", "next_view", "v", "switch between what all servers see and what each sees", "server"),
)
NODE_TABLE_KEYS: Final = _cursor_keys("node")
JOURNAL_KEYS: Final = (
    Key("escape,backspace", "leave", "escape", "back", "back"),
    Key("c", "check", "c", "read all files of the journal and check every record", "check"),
    Key("u", "ask", "u", "refresh", "refresh"),
    Key("x", "spread", "x", "maximize or restore the focused box", "enlarge"),
)


def bindings(keys: tuple[Key, ...]) -> list[BindingType]:
    return [
        Binding(key.keys, key.action, key.label or key.meaning, show=bool(key.label), key_display=key.shown)
        for key in keys
    ]
