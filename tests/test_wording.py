"""The rules for docstrings and commit subjects that `make lint` holds to: each refuses what it is there for."""

import subprocess
from pathlib import Path

from tests.support.wording import clauses_in, misshapen, subjects_since


def test_a_docstring_that_begins_with_a_clause_is_found_with_its_line() -> None:
    source = '"""Items of a queue."""\n\n\ndef held(queue):\n    """What it holds back."""\n'
    assert list(clauses_in(source)) == [(4, "What it holds back.")]


def test_a_word_that_only_begins_like_one_is_none() -> None:
    assert list(clauses_in('"""Thatched roofs."""')) == []


def test_subjects_are_an_area_and_an_imperative_in_sixty_characters() -> None:
    good = [
        "journal: keep the torn tail beside the segment",
        "queues, journal: fit first lines on one line",
        ".ci: fix seeds",
    ]
    bad = [
        "Journal: keep it",
        "journal: Keep it",
        "keep the torn tail",
        "journal: keep it.",
        "journal: " + "very " * 11 + "long",
    ]
    assert misshapen([*good, *bad]) == bad


def test_outside_of_a_clone_there_are_no_subjects(tmp_path: Path) -> None:
    assert subjects_since("HEAD", tmp_path) == []


def test_subjects_are_those_behind_a_commit_and_none_where_it_is_unknown(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
        return subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True, text=True
        ).stdout

    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "--message", "An old one.")
    old = git("rev-parse", "HEAD").strip()
    git("commit", "--quiet", "--allow-empty", "--message", "docs: say more")
    assert subjects_since(old, tmp_path) == ["docs: say more"]
    assert subjects_since("0" * 40, tmp_path) == []
