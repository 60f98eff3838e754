"""The page of promises names commands and files that are there, and bugs that can be planted."""

import re
from pathlib import Path
from typing import Final

import pytest

from tests.simulation.cluster.planted import BUGS as CLUSTER_BUGS
from tests.simulation.jobs.planted import BUGS as JOB_BUGS
from tests.simulation.planted import BUGS

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = (ROOT / "docs" / "guarantees.md").read_text()


def test_every_file_named_is_there() -> None:
    named = set(re.findall(r"\btests/[\w/]+(?:\.py)?", PAGE))
    assert "tests/simulation/test_crash_states.py" in named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_every_command_named_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"`make ([a-z-]+)", PAGE))
    assert "prove" in targets
    assert [target for target in sorted(targets) if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []
    modules = set(re.findall(r"python -m (tests[\w.]*)", PAGE))
    assert [name for name in sorted(modules) if not (ROOT / name.replace(".", "/") / "__main__.py").exists()] == []


def test_every_bug_that_can_be_planted_is_named() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \|", PAGE.partition("\n## Plant")[2].partition("\n## ")[0], re.MULTILINE)
    assert sorted(rows) == sorted(BUGS)


@pytest.mark.parametrize(("what", "bugs"), [("jobs", JOB_BUGS), ("clusters", CLUSTER_BUGS)])
def test_every_bug_that_can_be_planted_in_jobs_is_named(what: str, bugs: dict[str, object]) -> None:
    table = PAGE.partition(f"| bug of {what} |")[2].partition("\n\n")[0]
    rows = [row.split("|")[1] for row in table.splitlines()[2:]]
    assert sorted(name for row in rows for name in re.findall("`([a-z0-9-]+)`", row)) == sorted(bugs)


@pytest.mark.parametrize("number", range(1, 25))
def test_every_promise_says_what_tests_it(number: int) -> None:
    promise = re.search(rf"^\*\*P{number}\. (.*?)^$", PAGE, re.MULTILINE | re.DOTALL)
    assert promise is not None
    assert "\nTested by `python -m " in promise[1]
