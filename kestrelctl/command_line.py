"""The parser of command lines: from the declarations of the verbs alone, and without typer.

Importing that takes as long as a short command runs. A line that asks for help or has a mistake is given to
`command_tree`, for the words.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import Parameter, signature
from types import NoneType, UnionType
from typing import Any, Final, cast, get_args, get_origin

from kestrelctl.commands.declared import MAY_BE_EMPTY, BadValue, Declared, groups_of
from kestrelctl.commands.options import SHARED, ProgramOptions, line_options
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.verbs import GROUPS, TAKES_ALL_BEHIND_IT, VERBS

AS_NAGIOS: Final = frozenset({"check", "cluster status"})  # their exit codes
SWITCH: Final = ("", "1", "true", "t", "yes", "y", "on", "0", "false", "f", "no", "n", "off")  # $KESTRELCTL_TLS


@dataclass(frozen=True, slots=True)
class _Parameter:
    """An option or argument."""

    name: str
    kind: type
    is_repeated: bool
    default: Any  # Parameter.empty = it is required
    declared: Declared

    @property
    def words(self) -> tuple[str, ...]:
        return self.declared.words or (f"--{self.name.replace('_', '-')}",)

    @property
    def is_flag(self) -> bool:
        return self.kind is bool

    def value(self, words: list[str] | None) -> Any:
        """The value that the words of a line give, None = the default. Raises BadValue, or as its own parser."""
        if words is None:
            value = self._value_of_none()
        elif self.is_flag:
            value = True
        elif self.is_repeated:
            value = [self._parse(word) for word in words]
        else:
            value = self._parse(words[-1])
        callback = self.declared.settings.get("callback")
        return value if callback is None else callback(value)

    def _value_of_none(self) -> Any:
        if self.default is Parameter.empty:
            raise BadValue(self.name)
        if isinstance(self.default, str) and "parser" in self.declared.settings:
            return self._parse(self.default)
        return self.default

    def _parse(self, word: str) -> Any:
        if not word and self.name not in MAY_BE_EMPTY:
            raise BadValue(self.name)
        settings = self.declared.settings
        if not settings.get("case_sensitive", True):
            word = word.lower()
        try:
            value = settings.get("parser", self.kind)(word)
        except ValueError as error:
            raise BadValue(word) from error
        if ("min" in settings and value < settings["min"]) or ("max" in settings and value > settings["max"]):
            raise BadValue(word)
        return value


def mistake(path: str, words: str) -> Failure:
    """The end of a command line that is wrong. `path` is its verb."""
    code = ExitCode.UNKNOWN if path in AS_NAGIOS else ExitCode.USAGE
    return Failure(code, f"{words} ({f'kestrelctl {path}'.rstrip()} -h shows how)")


def parse(line: Sequence[str]) -> tuple[str, Callable[..., None], dict[str, Any]]:
    """The name of a line's verb, the verb, and its values, the fields of its option groups among them.

    Options of the whole program are stored in `line_options`. Raises BadValue if the line has a mistake or asks for
    help, and what parsers of options raise.
    """
    program = list(_parameters_of(ProgramOptions))
    found, rest = _taken_apart(line, _by_word(program), ends_at_word=True)
    before = _line_options(program, found)
    if os.environ.get("KESTRELCTL_TLS", "").strip().lower() not in SWITCH:
        raise BadValue("KESTRELCTL_TLS")
    path = _joined("", rest)
    while path in GROUPS:
        _, rest = _taken_apart(rest[1:], {}, ends_at_word=True)
        path = _joined(path, rest)
    if path not in VERBS:
        raise BadValue(path)
    verb = verb_of(path)
    own = list(_parameters(verb))
    taken = _by_word(own)
    shared = [each for each in program if each.name in SHARED and each.words[0] not in taken]
    options = _by_word(shared) | taken
    found, others = _taken_apart(rest[1:], options, ends_at_word=path == TAKES_ALL_BEHIND_IT)
    line_options.clear()
    line_options.update(before | _line_options(shared, found))
    if line[-2:-1] == ["--"]:
        line_options["is_literal"] = True
    for each in own:
        if not each.declared.is_option and others:
            found[each.name] = others if each.is_repeated else others[:1]
            others = others[len(found[each.name]) :]
    if others:
        raise BadValue(others[0])
    return path, verb, {each.name: each.value(found.get(each.name)) for each in own}


def verb_of(path: str) -> Callable[..., None]:
    """The function of a verb. Imports its module."""
    module, _, function = VERBS[path].place.partition(".")
    return cast("Callable[..., None]", getattr(import_module(f"kestrelctl.commands.{module}"), function))


def _joined(path: str, rest: list[str]) -> str:
    if not rest or " " in rest[0]:
        raise BadValue(path)
    return f"{path} {rest[0]}".lstrip()


def _taken_apart(
    line: Iterable[str], options: Mapping[str, _Parameter], *, ends_at_word: bool
) -> tuple[dict[str, list[str]], list[str]]:
    """The words of each option in a line, by its name, and all other words.

    With `ends_at_word` everything behind the first of the others is one of them.
    """
    found: dict[str, list[str]] = {}
    others: list[str] = []
    words = iter(line)
    for word in words:
        if word == "--":
            break
        if not word.startswith("-") or word == "-":
            others.append(word)
            if ends_at_word:
                break
            continue
        is_long = word.startswith("--")
        name, is_joined, value = word.partition("=") if is_long else (word[:2], "", word[2:])
        while (option := options.get(name)) is not None and option.is_flag and value and not is_long:  # -xy
            found.setdefault(option.name, []).append("")
            name, value = f"-{value[0]}", value[1:]
        if option is None or (option.is_flag and is_joined):
            raise BadValue(word)
        if not (option.is_flag or is_joined or value):
            try:
                value = next(words)
            except StopIteration:
                raise BadValue(word) from None
        found.setdefault(option.name, []).append(value)
    return found, [*others, *words]


def _line_options(parameters: Iterable[_Parameter], found: Mapping[str, list[str]]) -> dict[str, str | bool]:
    return {each.name: each.value(found[each.name]) for each in parameters if each.name in found}


def _by_word(parameters: Iterable[_Parameter]) -> dict[str, _Parameter]:
    return {word: each for each in parameters if each.declared.is_option for word in each.words}


def _parameters(verb: Callable[..., None]) -> Iterator[_Parameter]:
    groups = groups_of(verb)
    yield from _parameters_of(verb, groups)
    for group in groups.values():
        yield from _parameters_of(group)


def _parameters_of(declaring: Callable[..., Any], groups: Iterable[str] = ()) -> Iterator[_Parameter]:
    for each in signature(declaring).parameters.values():
        if each.name not in groups:
            annotation, declared = get_args(each.annotation)
            kinds = get_args(annotation) if get_origin(annotation) is UnionType else [annotation]
            (kind,) = [one for one in kinds if one is not NoneType]
            is_repeated = get_origin(kind) is list
            yield _Parameter(each.name, get_args(kind)[0] if is_repeated else kind, is_repeated, each.default, declared)
