"""The man pages of kestrelctl: one for the program and one for each command."""

import re
from collections.abc import Iterable, Mapping, Sequence

from kestrelctl.description.tree import Argument, Command, Option
from kestrelctl.remote.access import PASSWORD_VARIABLE
from kestrelctl.shell.exit_codes import ExitCode
from kestrelctl.verbs import names_by_topic
from kestreld import __version__

_CODE = re.compile(r"`([^`]+)`")


def pages(program: Command) -> dict[str, str]:
    """The man pages by file name."""
    return {f"{_name(command)}.1": _page(command, program) for command in program.walk()}


def _name(command: Command) -> str:
    return "-".join((command.program, *command.path))


def _page(command: Command, program: Command) -> str:
    summary = command.summary.rstrip(".")
    parts = [
        '.\\" Made from the command tree by `make man`.',
        f'.TH "{_name(command).upper()}" 1 "" "kestreld {__version__}" "kestreld"',
        ".SH NAME",
        f"{_escaped(_name(command))} \\- {_escaped(summary[0].lower() + summary[1:])}",
        ".SH SYNOPSIS",
        *_synopsis(command),
        ".SH DESCRIPTION",
        *_description(command.help),
    ]
    if command.commands:
        parts += [".SH COMMANDS", *_commands(command.commands, {} if command.path else names_by_topic())]
    if command.arguments:
        parts += [".SH ARGUMENTS", *(line for argument in command.arguments for line in _argument(argument))]
    own = [option for option in command.options if not option.is_shared]
    parts += [".SH OPTIONS", *(line for option in own for line in _option(option))]
    if any(option.is_shared for option in command.options):
        parts += [".PP", "The options that", ".BR kestrelctl (1)", "has for the way into a server may stand here, too."]
    if not command.path:
        parts += [".PP", "All of these but", ".B \\-\\-version", "may stand behind the verb as well as before it."]
        parts += [".SH ENVIRONMENT", *_environment(command)]
    parts += [".SH EXIT STATUS", *_exit_status(command)]
    if command.examples:
        parts += [".SH EXAMPLES", *_example(command.examples)]
    parts += [".SH SEE ALSO", *_see_also(command, program)]
    return "\n".join(parts) + "\n"


def _synopsis(command: Command) -> list[str]:
    words = [f"\\fB{_escaped(' '.join((command.program, *command.path)))}\\fP", "[\\fIOPTIONS\\fP]"]
    if command.commands:
        words.append("\\fICOMMAND\\fP [\\fIARGUMENTS\\fP]")
    for argument in command.arguments:
        metavar = argument.value.metavar
        shown = f"\\fI{_escaped(metavar.strip('[].'))}\\fP"
        shown = f"{shown}..." if argument.is_repeated else shown
        words.append(shown if argument.is_required else f"[{shown}]")
    return [" ".join(words)]


def _description(help: str) -> list[str]:
    """Paragraphs in roff; an indented paragraph is an example."""
    lines: list[str] = []
    for paragraph in help.split("\n\n"):
        if paragraph.startswith("    "):
            lines += _example([line.strip() for line in paragraph.splitlines() if line.strip()])
        else:
            lines += [".PP", *_text(paragraph)]
    return lines[1:] if lines[:1] == [".PP"] else lines


def _commands(commands: Iterable[Command], topics: Mapping[str, Sequence[str]]) -> list[str]:
    """A reference to the page of each command, under topics if there are any."""
    lines = {each.path[-1]: [".TP", f".BR {_escaped(_name(each))} (1)", *_text(each.summary)] for each in commands}
    if not topics:
        return [line for each in lines.values() for line in each]
    found: list[str] = []
    for topic, verbs in topics.items():
        found += [f".SS {topic}", *(line for verb in verbs for line in lines[verb])]
    return found


def _argument(argument: Argument) -> list[str]:
    return [".TP", f"\\fI{_escaped(argument.value.metavar.strip('[].'))}\\fP", *_text(argument.help or "See above.")]


def _option(option: Option) -> list[str]:
    names = ", ".join(f"\\fB{_escaped(name)}\\fP" for name in sorted(option.names, key=len))
    value = "" if option.value is None else f" \\fI{_escaped(option.value.metavar)}\\fP"
    words = list(option.value.words) if option.value is not None else []
    extra = (
        f" One of {', '.join(words)}." if words and "|" not in (option.value.metavar if option.value else "") else ""
    )
    return [".TP", f"{names}{value}", *_text((option.help or "") + extra)]


def _environment(command: Command) -> list[str]:
    lines = [
        line
        for option in command.options
        if option.variable
        for line in (".TP", f".B {option.variable}", *_text(f"The same as {max(option.names, key=len)}."))
    ]
    return [*lines, ".TP", f".B {PASSWORD_VARIABLE}", "The password of \\-\\-user."]


def _exit_status(command: Command) -> list[str]:
    if command.path:
        return ["See", ".BR kestrelctl (1)."]
    return [line for code in ExitCode for line in (".TP", f".B {code.value}", *_text(f"{code.meaning}."))]


def _see_also(command: Command, program: Command) -> list[str]:
    if not command.path:
        return [".BR kestreld (8),", ".BR kestreld.yaml (5),", ".BR kestrel\\-journal (5)"]
    parents = [each for each in program.walk() if each.path == command.path[:-1]]
    others = [*parents, *command.commands]
    return [*(f".BR {_escaped(_name(each))} (1)," for each in others), ".BR kestreld (8)"]


def _example(lines: Iterable[str]) -> list[str]:
    return [".PP", ".nf", ".RS 4", *map(_escaped, lines), ".RE", ".fi"]


def _text(words: str) -> list[str]:
    """Filled text; its sentences may be wrapped anywhere in the source."""
    escaped = _CODE.sub(lambda code: f"\\fB{code[1]}\\fP", _escaped(" ".join(words.split())))
    return [escaped]


def _escaped(words: str) -> str:
    """Escape all characters that are special in roff."""
    plain = words.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace('"', "\\(dq")
    plain = re.sub(r"[^\x00-\x7f]", lambda found: f"\\[u{ord(found[0]):04X}]", plain)
    plain = plain.replace("^", "\\(ha").replace("~", "\\(ti")
    return f"\\&{plain}" if plain.startswith(".") else plain
