"""One way to write a span of time, for every option that takes one."""

from typing import Any, Final

import pytest

from kestrelctl.command_tree import command_tree
from kestrelctl.commands.declared import BadValue
from kestrelctl.commands.options import duration_ms, some_seconds, whole_seconds
from tests.support.shell import Kestrelctl

SPANS_MS: Final = {
    "90": 90_000,
    "0.5": 500,
    "1.25s": 1250,
    "250ms": 250,
    "10m": 600_000,
    "1h30m": 5_400_000,
    "1d": 86_400_000,
}
BAD: Final = ("", "3x", "-1", "1e3", "1.2345", ".5", "5 s", "٣", "1h-5m", "99999d")
# What else the verb has to be told to look at the option.
NEEDS: Final = {"watch": ["ls"], "wait": ["q", "--empty"], "top": ["--once"], "web": []}


def _options(command: Any, path: str = "") -> list[tuple[str, Any]]:
    found = [
        (f"{path} {parameter.opts[0]}".strip(), parameter)
        for parameter in command.params
        if "SPAN" in (parameter.metavar or "") and (parameter.expose_value or not path)
    ]
    for name, below in getattr(command, "commands", {}).items():
        found += _options(below, f"{path} {name}".strip())
    return found


OPTIONS: Final = dict(_options(command_tree()))


def test_no_option_has_a_unit_of_its_own() -> None:
    metavars = {parameter.metavar for command in _commands(command_tree()) for parameter in command.params}
    assert not metavars & {"MS", "SECONDS", "S", "MINUTES"}
    assert len(OPTIONS) > 25


def _commands(command: Any) -> list[Any]:
    return [command, *(one for below in getattr(command, "commands", {}).values() for one in _commands(below))]


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_for_a_span_takes_every_way_to_write_one(name: str) -> None:
    told = getattr(OPTIONS[name].type, "func", None)
    parse = duration_ms if told is None else told.__wrapped__  # those of type str are parsed by their verb
    for words, ms in SPANS_MS.items():
        if parse not in (whole_seconds, some_seconds):
            assert parse(words) == ms
        elif ms % 1000 == 0:
            assert parse(words) * 1000 == ms
    for words in BAD:
        with pytest.raises(BadValue):
            parse(words)


@pytest.mark.exhaustive("interval", "put -", "check", "stats", "move", "journal import", "bench flood")
@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if not hasattr(option.type, "func")])
def test_an_option_that_its_verb_parses_says_what_a_span_is(kestrelctl: Kestrelctl, name: str) -> None:
    *verb, option = name.split()
    rest = NEEDS.get(" ".join(verb), ["q"])
    run = kestrelctl(*verb, option, "3x", *rest) if verb else kestrelctl(option, "3x", "stats")
    if OPTIONS[name].metavar == "SPAN":
        assert run.code == (3 if verb in (["check"], ["cluster", "status"]) else 2)
        assert "'3x' is not a duration: write 5s, 250ms, 1h30m, or seconds" in run.err


def test_a_span_of_seconds_alone_is_whole() -> None:
    with pytest.raises(BadValue, match="not a whole number of seconds"):
        whole_seconds("250ms")
