"""The commands that can be typed after a colon."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    argument: str
    meaning: str
    action: str = ""  # what it does without an argument, an action of the console; "" = a method of its own


COMMANDS: Final = (
    Command("queue", "NAME", "details of a queue"),
    Command("journal", "[NAME]", "the journal of a queue", "journal"),
    Command("jobs", "[NAME]", "queues of jobs, or the jobs of one", "jobs"),
    Command("nodes", "", "nodes of a cluster of jobs", "nodes"),
    Command("sort", "COLUMN", "sort by a column, the largest first; +COLUMN the smallest first"),
    Command("filter", "[WORDS]", "filter the queues, as with /; nothing shows all"),
    Command("columns", "[COLUMN …]", "show these columns, in this order, from now on; nothing goes back to all"),
    Command("server", "[ADDRESS]", "show one server; nothing shows the sum of all"),
    Command("theme", "NAME", "dark, light or colour-blind"),
    Command("interval", "SPAN", "how often to refresh: 5s, 250ms"),
    Command("put", "ITEM", "put an item on the queue"),
    Command("move", "QUEUE", "move the items of the marked queues to another queue"),
    Command("flush", "", "discard the items of the marked queues", "act('flush')"),
    Command("delete", "", "delete the marked queues", "act('delete')"),
    Command("redrive", "", "send the dead letters of the marked queues back where they came from", "act('redrive')"),
    Command("reload", "", "reload the servers' configuration", "act('reload')"),
    Command("export", "FILE", "write the view to a CSV, JSON or SVG file"),
    Command("record", "[FILE]", "record to a file; nothing stops", "record"),
    Command("help", "", "the list of keys and commands", "help"),
    Command("quit", "", "quit", "quit"),
)
_ALIASES: Final = {"q": "quit", "q!": "quit", "?": "help", "h": "help"}


def parse(line: str) -> tuple[Command, str]:
    """A command and its argument. A name may be abbreviated while it is unambiguous. Raises ValueError."""
    name, _, argument = line.strip().removeprefix(":").strip().partition(" ")
    name, argument = _ALIASES.get(name, name), argument.strip()
    found = [command for command in COMMANDS if command.name == name] or [
        command for command in COMMANDS if name and command.name.startswith(name)
    ]
    if len(found) != 1:
        known = ", ".join(command.name for command in found or COMMANDS)
        raise ValueError(f"no command {name!r}: there are {known}" if not found else f"{name!r} may be {known}")
    (command,) = found
    if argument and not command.argument:
        raise ValueError(f"{command.name} takes no argument")
    if not argument and command.argument and not command.argument.startswith("["):
        raise ValueError(f"{command.name} requires an argument: {command.argument}")
    return command, argument
