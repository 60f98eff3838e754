"""Fast path for the most frequent verbs: plain command lines run without typer, whose import is half the time.

A command line that is not plain (an option given twice, `-n5`, `--`, a mistake) is left to typer, which also words the
errors.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from inspect import Parameter, signature
from types import NoneType
from typing import Any, Final, get_args, get_origin

from kestrelctl.commands.declared import MAY_BE_EMPTY, Declared, bad_value, groups_of, regrouped

VERBS: Final = frozenset({"put", "get", "peek", "stats", "ls"})
PROGRAM_OPTIONS: Final = {"-s": "server", "-c": "context"} | {
    f"--{name.replace('_', '-')}": name
    for name in ("server", "context", "timeout", "user", "password_file", "tls", "ca", "cert", "key")
}
FLAGS: Final = ("tls",)


@dataclass(frozen=True, slots=True)
class _Parameter:
    """An option or argument of a verb."""

    name: str
    kind: type
    is_repeated: bool
    default: Any  # Parameter.empty = it is required
    declared: Declared

    @property
    def words(self) -> tuple[str, ...]:
        return self.declared.words or (f"--{self.name.replace('_', '-')}",)

    def parse(self, word: str) -> Any:
        """The value of a word. Raises the exception of the option's parser, or ValueError."""
        settings = self.declared.settings
        if not word and self.name not in MAY_BE_EMPTY:
            raise ValueError
        if "parser" in settings:
            return settings["parser"](word)
        if self.kind is int and not (word.isascii() and word.isdigit() and int(word) >= settings.get("min", 0)):
            raise ValueError
        return self.kind(word)


def plain_command(line: Sequence[str]) -> Callable[[], None] | None:
    """The call that runs the command line. None = the command line is not plain."""
    words, given = iter(line), dict[str, str | bool]()
    if os.environ.get("KESTRELCTL_TLS", "1") not in ("0", "1"):
        return None
    try:
        for word in words:
            if word in VERBS:
                verb = getattr(import_module(f"kestrelctl.commands.{word}"), word)
                return partial(verb, **regrouped(verb, values_of(verb, words, given)))
            _take_program_option(word, words, given)
    except (ValueError, type(bad_value(""))):  # imports typer, which is needed now
        pass
    return None


def values_of(verb: Callable[..., None], words: Iterator[str], given: dict[str, str | bool]) -> dict[str, Any]:
    """Values of all parameters of a verb, the fields of its option groups among them.

    Options of the whole program, those `given` before the verb included, are stored in `line_options`. Raises as
    `_Parameter.parse`.
    """
    from kestrelctl.commands.options import line_options

    parameters = list(_parameters(verb))
    options = {word: each for each in parameters if each.declared.is_option for word in each.words}
    places = [each for each in parameters if not each.declared.is_option]
    values: dict[str, Any] = {}
    for word in words:
        name, is_joined, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if not word.startswith("-") or word == "-":
            place = places[0] if places else None
            if place is None:
                raise ValueError
            if place.is_repeated:
                values.setdefault(place.name, []).append(place.parse(word))
            else:
                values[places.pop(0).name] = place.parse(word)
        elif name not in options:
            _take_program_option(word, words, given)
        elif (option := options[name]).name in values or (option.kind is bool and is_joined):
            raise ValueError
        else:
            values[option.name] = option.kind is bool or option.parse(value if is_joined else next(words, ""))
    line_options.clear()
    line_options.update(given)
    for each in parameters:
        if each.name not in values:
            if each.default is Parameter.empty:
                raise ValueError
            values[each.name] = each.default
        if "callback" in each.declared.settings:
            values[each.name] = each.declared.settings["callback"](values[each.name])
    return values


def _take_program_option(word: str, words: Iterator[str], given: dict[str, str | bool]) -> None:
    """Add an option of the whole program to `given`. Raises ValueError if the word is none."""
    name, is_joined, value = word.partition("=") if word.startswith("--") else (word, "", "")
    option = PROGRAM_OPTIONS.get(name, "")
    if not option or option in given or (option in FLAGS and is_joined):
        raise ValueError
    given[option] = option in FLAGS or (value if is_joined else next(words, ""))
    if not given[option]:
        raise ValueError


def _parameters(verb: Callable[..., None]) -> Iterator[_Parameter]:
    groups = groups_of(verb)
    own = [each for each in signature(verb).parameters.values() if each.name not in groups]
    for each in (*own, *(field for group in groups.values() for field in signature(group).parameters.values())):
        annotation, declared = get_args(each.annotation)
        (kind,) = [one for one in get_args(annotation) or [annotation] if one is not NoneType]
        is_repeated = get_origin(kind) is list
        yield _Parameter(each.name, get_args(kind)[0] if is_repeated else kind, is_repeated, each.default, declared)
