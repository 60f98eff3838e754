"""Command lines are read without typer, and as typer reads them, which words their mistakes."""

import shlex
from functools import wraps
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kestrelctl import command_line, command_tree
from kestrelctl.command_line import parse
from kestrelctl.commands.declared import BadValue, Declared
from kestrelctl.commands.groups import for_typer
from kestrelctl.commands.options import line_options
from kestrelctl.description.tree import Command, kestrelctl_tree
from kestrelctl.shell.exit_codes import Ended, Failure
from kestrelctl.verbs import VERBS
from tests.support.shell import Kestrelctl

LINES: Final = (
    "put q hello",
    "put q -- @home",
    "put -- q -",
    "put q --lines --lines --expire 10m --expire=90",
    "-- put q x",
    "-sh:1 -c=here --tls get q -n5",
    "-s h:1 --server h:2 get q -n 3 -n 4 --user me --tls",
    "get q -n +3 --json --wait 250ms",
    "stats a b --wide -ojson --fields a,b",
    "journal -- dump --cert f -- --x",
    "journal diff a b -q",
    "lease confirm q 9223372036854775807",
    "items q --state LEASED --offset 0",
    "flush-all -ys h:1",
    "tail -f q",
    "cache incr k --by -2",
    "jobs scan --in a --in b",
    "bench many-clients -s h:1 -s 5ms -c 3",
    "bench flood -xBk4 -n0",
    "bench flood --tolerance 0.5 --rate 1e3",
    "context add here h:1 h:2 --user me --select",
    "spark report a b --to d --queue x --queue y",
    "top -s h:1 -s h:2 -i 5s",
    "watch -n 3 -- ls -o json",
    "watch ls -n 3 --json --",
)
MISTAKES: Final = (
    *("", "gte", "put", "put q a b", "put q --lin", "put q --lines=1", "put q --expire", "get q -n 0", "get q -nx"),
    *("get q -n=5", "--nosuch ls", "ls -x", "ls -s", "lease", "lease confrm q 1", "lease -s h:1 confirm q 1", "ls -h"),
    *("lease confirm q 9223372036854775808", "journal dump q -s h:1", "items q --state lost", "--timeout 0 stats"),
    *("bench many-clients -c 0", "stats --version", "get a/b", "consumers q --limit 1001", "--tls=1 stats"),
)
WORDS: Final = ("q", "x", "", "-", "--", "0", "5", "-1", "3x", "5s", "h:1", "a/b", "json", "-h", "--tls", "-s", "1.5")
Meaning = tuple[str, dict[str, Any]]


class Recorded(Exception):
    """What a verb was called with."""


@pytest.fixture(scope="module")
def program() -> Any:
    """The tree of typer, whose verbs raise Recorded."""

    def recording(verb: Any) -> Any:
        @wraps(verb)
        def record(**values: Any) -> None:
            raise Recorded(values)

        record.__signature__ = for_typer(verb).__signature__  # type: ignore[attr-defined]
        return record

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_tree, "for_typer", recording)
        tree = command_tree.command_tree()
        patch.setattr(command_tree, "command_tree", lambda: tree)
        yield tree


def meaning(line: list[str]) -> Meaning | None:
    """None = the line has a mistake, or asks for the help."""
    try:
        path, _, values = parse(line)
    except (BadValue, Ended, Failure):
        return None
    return path, values


def meaning_to_typer(program: Any, line: list[str]) -> dict[str, Any] | None:
    try:
        command_tree.explain(line)
    except Recorded as recorded:
        values: dict[str, Any] = recorded.args[0]
        return values
    except (Ended, Failure):
        pass
    return None


def must_mean_the_same(program: Any, line: list[str]) -> Meaning | None:
    found = meaning(line)
    assert (None if found is None else found[1]) == meaning_to_typer(program, line), line
    return found


@pytest.mark.parametrize("line", LINES)
def test_a_line_means_what_it_means_to_typer(program: Any, line: str) -> None:
    assert must_mean_the_same(program, line.split()) is not None


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_to_typer_too(program: Any, line: str) -> None:
    assert must_mean_the_same(program, line.split()) is None


def test_the_examples_of_every_verb_mean_what_they_mean_to_typer(program: Any) -> None:
    for verb in VERBS.values():
        assert verb.examples, verb.name
        for shown in verb.examples:
            (words,) = [part for part in shown.split(" | ") if part.startswith(f"kestrelctl {verb.name}")]
            # "24h" is an hour of today, a millisecond later with each look at the clock.
            line = ["2025-01-31" if word in ("10:32", "24h", "2h") else word for word in shlex.split(words)[1:]]
            found = must_mean_the_same(program, line)
            assert found is not None, shown
            assert found[0] == verb.name


COMMANDS: Final = [command for command in kestrelctl_tree().walk() if command.words in VERBS]


@st.composite
def lines(draw: st.DrawFn, commands: list[Command]) -> list[str]:
    """Lines of a verb in every form, with mistakes in some."""
    command = draw(st.sampled_from(commands))
    found = [draw(st.sampled_from(("q", "5", "h:1"))) for argument in command.arguments if argument.is_required]
    for _ in range(draw(st.integers(0, 4))):
        if draw(st.booleans()):
            option = draw(st.sampled_from(command.options))
            values = (*option.value.words, "5", "5s", *WORDS) if option.value is not None else WORDS
            name, value = draw(st.sampled_from(option.names)), draw(st.sampled_from(values))
            form: list[str] = draw(st.sampled_from([[name, value], [f"{name}={value}"], [f"{name}{value}"], [name]]))
            place = draw(st.integers(0, len(found)))
            found[place:place] = form
        else:
            found.insert(draw(st.integers(0, len(found))), draw(st.sampled_from(WORDS)))
    before: list[str] = draw(st.sampled_from([[], [], ["-sh:1"], ["--user", "me", "--tls"], ["--timeout=1s"], ["--"]]))
    return [*before, *command.path, *found]


@settings(max_examples=120, deadline=None)
@given(line=lines(COMMANDS))
@example(line=["put", "q", ""])
@example(line=["watch", "-i", "1s", ""])
def test_any_line_means_what_it_means_to_typer(program: Any, line: list[str]) -> None:
    must_mean_the_same(program, line)


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.words.replace(" ", "-"))
def test_any_line_of_a_verb_means_what_it_means_to_typer(program: Any, command: Command) -> None:
    @settings(max_examples=100, deadline=None)
    @given(line=lines([command]))
    def mean_the_same(line: list[str]) -> None:
        must_mean_the_same(program, line)

    mean_the_same()


@pytest.mark.parametrize("variable", ["", "1", "0", "true", " NO ", "maybe", "2", " "])
def test_a_switch_of_the_environment_means_what_it_means_to_typer(
    program: Any, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("KESTRELCTL_TLS", variable)
    must_mean_the_same(program, ["stats"])


def test_options_of_the_program_count_before_and_after_the_verb() -> None:
    meaning(["--user", "a", "--timeout", "1s", "-c", "x", "stats", "--tls", "--user=b", "-cy"])
    assert line_options == {"user": "b", "timeout": "1s", "context": "y", "tls": True}
    meaning(["put", "q", "--", "@home"])
    assert line_options == {"is_literal": True}


def test_a_verb_declares_all_that_it_takes() -> None:
    """A flag has words of its own: typer would make a --no-flag beside it. What takes all other words is the last."""
    for path in VERBS:
        own = list(command_line._parameters(command_line.verb_of(path)))
        places = [each for each in own if not each.declared.is_option]
        assert all(isinstance(each.declared, Declared) for each in own)
        assert all(each.declared.words for each in own if each.is_flag), path
        assert not any(each.is_repeated for each in places[:-1]), path


def test_a_verb_that_refuses_its_options_is_a_mistake(kestrelctl: Kestrelctl) -> None:
    run = kestrelctl("wait", "q")
    assert (run.code, run.out) == (2, b"")
    assert run.err == "kestrelctl: Invalid value: give either --empty or --items N (kestrelctl wait -h shows how)\n"
    assert kestrelctl("check", "--timeout", "0").code == 3


def test_watch_takes_a_verb_whose_data_is_literal(kestrelctl: Kestrelctl, queue: str) -> None:
    assert kestrelctl("watch", "-n", "1", "put", queue, "--", "@home").code == 0
    assert kestrelctl("get", queue).out == b"@home"
