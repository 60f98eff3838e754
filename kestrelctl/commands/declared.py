"""Declarations of the verbs' options and arguments, without typer, whose import outlasts a short command.

`command_line` reads command lines with them; `groups` turns them into typer's, for the help and words on mistakes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

# An item; the arguments of a verb under `watch`; parts of a binding.
MAY_BE_EMPTY: Final = frozenset({"data", "words", "exchange", "routing_key", "pattern"})


class BadValue(Exception):
    """The command line is wrong: an invalid value, mutually exclusive options, and the like."""


@dataclass(frozen=True, slots=True)
class Declared:
    """Metadata in an Annotated; `words` and `settings` are arguments of typer.Option or typer.Argument."""

    is_option: bool
    words: tuple[str, ...]
    settings: dict[str, Any]


def option(*words: str, **settings: Any) -> Declared:
    return Declared(True, words, settings)


def argument(**settings: Any) -> Declared:
    return Declared(False, (), settings)


def groups_of(verb: Callable[..., Any]) -> dict[str, Any]:
    """The option groups of a verb: named tuples that it takes as one parameter each."""
    return {name: group for name, group in verb.__annotations__.items() if hasattr(group, "_fields")}


def regrouped(verb: Callable[..., Any], values: dict[str, Any]) -> dict[str, Any]:
    """Pack flat option values into the verb's option groups."""
    values = dict(values)
    for name, group in groups_of(verb).items():
        values[name] = group(*[values.pop(field) for field in group._fields])
    return values
