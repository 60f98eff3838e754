"""Patterns mean what Redis means by them."""

import re
from fnmatch import translate
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestreld.jobs.globs import Glob


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        (b"*", [b"", b"a\nb"], []),
        (b"a*c", [b"ac", b"abc", b"a*c"], [b"acb", b"bac"]),
        (b"a**b", [b"ab", b"axb"], [b"a"]),
        (b"?", [b"a", b"\n"], [b"", b"ab"]),
        (b"[a-c]x", [b"bx"], [b"dx", b"x"]),
        (b"[c-a]x", [b"bx"], [b"dx"]),
        (b"[^a]", [b"b"], [b"a", b""]),
        (b"[\\]]", [b"]"], [b"\\"]),
        (b"m?xmemor[y]", [b"maxmemory"], [b"maxmemor"]),
        (b"\\*", [b"*"], [b"a"]),
        (b"[abc", [b"a", b"c"], [b"["]),
        (b"[]", [], [b"", b"]"]),
        (b"", [b""], [b"a"]),
        (b"a.b", [b"a.b"], [b"axb"]),
    ],
)
def test_patterns_match(pattern: bytes, fitting: list[bytes], others: list[bytes]) -> None:
    glob = Glob(pattern)
    assert [name for name in fitting if not glob.matches(name)] == []
    assert [name for name in others if glob.matches(name)] == []


@given(st.text("ab*?", max_size=8), st.text("ab", max_size=8))
def test_stars_and_question_marks_match_as_everywhere(pattern: str, name: str) -> None:
    assert Glob(pattern.encode()).matches(name.encode()) == (re.fullmatch(translate(pattern), name) is not None)


def test_no_pattern_takes_long() -> None:
    glob = Glob(b"a*" * 200 + b"b")
    started_s = process_time()
    assert not glob.matches(b"a" * 10_000)
    assert process_time() - started_s < 0.1
