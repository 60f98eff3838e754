"""Every key of the console: what it is called, what it does, and in which words. The screens bind these."""

from dataclasses import dataclass
from typing import Final

from textual.binding import Binding, BindingType


@dataclass(frozen=True, slots=True)
class Key:
    keys: str  # as Textual names them
    action: str
    shown: str  # as people name them
    meaning: str
    label: str = ""  # in the line at the bottom; "" = not there


CONSOLE_KEYS: Final = (
    Key("question_mark", "app.help", "?", "this list of keys", "help"),
    Key("q", "app.quit", "q", "quit", "quit"),
    Key("space", "app.pause", "space", "hold the screen still; in a replay, stop and go on", "pause"),
    Key("plus", "app.interval(1)", "+", "look less often"),
    Key("minus", "app.interval(-1)", "-", "look more often"),
    Key("t", "app.next_theme", "t", "next theme: dark, light, colour-blind"),
    Key("J", "app.journal", "J", "the queue's journal: segments, holders, checksums", "journal"),
    Key("f", "app.act('flush')", "f", "flush the queue: discard its items", "flush"),
    Key("d", "app.act('delete')", "d", "delete the queue", "delete"),
    Key("r", "app.act('reload')", "r", "have the servers read their configuration again", "reload"),
    Key("e", "app.export", "e", "write the view to a CSV, JSON or SVG file", "export"),
    Key("w", "app.record", "w", "record to a file; again: stop recording", "record"),
    Key("comma", "app.seek(-1)", ",", "in a replay: one look back"),
    Key("full_stop", "app.seek(1)", ".", "in a replay: one look ahead"),
    Key("less_than_sign", "app.seek(-30)", "<", "in a replay: 30 looks back"),
    Key("greater_than_sign", "app.seek(30)", ">", "in a replay: 30 looks ahead"),
    Key("ctrl+p", "app.command_palette", "ctrl+p", "find a queue or a command by name"),
)
OVERVIEW_KEYS: Final = (
    Key("slash", "filter", "/", "filter: name, !name, items>100, oldest_ms>500; all words must hold", "filter"),
    Key("escape", "clear", "escape", "drop the filter"),
    Key("s", "sort(1)", "s", "sort by the next column", "sort"),
    Key("S", "sort(-1)", "S", "sort by the column before"),
    Key("o", "turn", "o", "turn the order round"),
    Key("v", "next_view", "v", "several servers: the sum, then one after the other", "server"),
)
TABLE_KEYS: Final = (
    Key("enter", "open", "enter", "details of the queue", "details"),
    Key("up,k", "move(-1)", "up k", "a queue up"),
    Key("down,j", "move(1)", "down j", "a queue down"),
    Key("pageup", "page(-1)", "pageup", "a page up"),
    Key("pagedown", "page(1)", "pagedown", "a page down"),
    Key("home", "jump(0)", "home", "the first queue"),
    Key("end", "jump(-1)", "end", "the last queue"),
    Key("left", "scroll_left", "left", "columns to the left"),
    Key("right", "scroll_right", "right", "columns to the right"),
)
DETAIL_KEYS: Final = (
    Key("escape,backspace", "leave", "escape", "back to the table", "back"),
    Key("m", "next_form", "m", "the items as text, hex or JSON", "form"),
    Key("u", "ask", "u", "ask again for readers, settings and items", "ask again"),
    Key("z", "next_span", "z", "plot one minute or five", "span"),
    Key("x", "spread", "x", "the box the keys are in over the whole screen, and back", "enlarge"),
    Key("tab", "app.focus_next", "tab", "the keys to the next box: up, down, pageup, pagedown, home, end"),
)


JOURNAL_KEYS: Final = (
    Key("escape,backspace", "leave", "escape", "back", "back"),
    Key("c", "check", "c", "read all files of the journal and check every record", "check"),
    Key("u", "ask", "u", "ask again", "ask again"),
    Key("x", "spread", "x", "the box the keys are in over the whole screen, and back", "enlarge"),
)


def bindings(keys: tuple[Key, ...]) -> list[BindingType]:
    return [
        Binding(key.keys, key.action, key.label or key.meaning, show=bool(key.label), key_display=key.shown)
        for key in keys
    ]
