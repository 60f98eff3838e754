"""Options and arguments as the verbs declare them, without typer: to import it takes longer than a short command.

`groups` makes typer's of them, and `plain` goes by them where a command line needs no typer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

MAY_BE_EMPTY: Final = frozenset({"data", "words"})  # an item; what belongs to the verb of a `watch`


@dataclass(frozen=True, slots=True)
class Declared:
    """What stands in an Annotated; `words` and `settings` are those of typer.Option and typer.Argument."""

    is_option: bool
    words: tuple[str, ...]
    settings: dict[str, Any]


def option(*words: str, **settings: Any) -> Declared:
    return Declared(True, words, settings)


def argument(**settings: Any) -> Declared:
    return Declared(False, (), settings)


def bad_value(words: str) -> Exception:
    """What to raise for a value that an option or argument does not take."""
    import typer

    return typer.BadParameter(words)


def groups_of(verb: Callable[..., Any]) -> dict[str, Any]:
    """The named tuples of options that a verb takes as one parameter each."""
    return {name: group for name, group in verb.__annotations__.items() if hasattr(group, "_fields")}


def regrouped(verb: Callable[..., Any], values: dict[str, Any]) -> dict[str, Any]:
    """What the verb takes, of values in which the fields of its groups stand for themselves."""
    values = dict(values)
    for name, group in groups_of(verb).items():
        values[name] = group(*[values.pop(field) for field in group._fields])
    return values
