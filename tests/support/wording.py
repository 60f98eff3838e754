"""Rules for docstrings and commit subjects, for `make lint`: `python -m tests.support.wording`."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("kestreld", "kestrelctl", "tui", "kestrelspark")
# A clause in the place of a noun is read twice: "What it holds." for "Items in memory."
CLAUSE: Final = re.compile(r"(Who|What|Where|Whether|When|How|Which|Those|That)\b")
CLAUSES_MAX: Final = 20
# Subjects up to this commit had no form.
FORM_SINCE: Final = "a7fca5164444"
SUBJECT: Final = re.compile(r"[a-z.][a-z0-9_./ -]*(, [a-z0-9_./ -]+)*: [a-z].*[^.]")
SUBJECT_MAX: Final = 60


def clauses_in(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of the docstrings that begin with a clause."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            words = ast.get_docstring(node)
            if words and CLAUSE.match(words):
                yield getattr(node, "lineno", 1), words.partition("\n")[0]


def misshapen(subjects: Iterable[str]) -> list[str]:
    """Subjects of commits that are not `area: imperative` in 60 characters."""
    return [one for one in subjects if len(one) > SUBJECT_MAX or not SUBJECT.fullmatch(one)]


def subjects_since(commit: str, root: Path = ROOT) -> list[str]:
    """Subjects of the commits after one; none outside of a clone, and in one that does not reach back so far."""
    if not (root / ".git").exists():
        return []
    command = ["git", "-C", str(root), "log", "--no-merges", "--format=%s", f"{commit}..HEAD"]
    log = subprocess.run(command, capture_output=True, text=True)
    return log.stdout.splitlines() if log.returncode == 0 else []


def faults() -> Iterator[str]:
    """Each with its place."""
    for one in misshapen(subjects_since(FORM_SINCE)):
        yield f"the subject of a commit is not `area: imperative` in {SUBJECT_MAX} characters: {one}"
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    found = [(path.relative_to(ROOT), *clause) for path in paths for clause in clauses_in(path.read_text())]
    if len(found) > CLAUSES_MAX:
        yield from (f"{path}:{line}: begins with a clause: {words}" for path, line, words in found)
        yield f"{len(found)} docstrings begin with a clause; {CLAUSES_MAX} may"


if __name__ == "__main__":
    sys.exit("\n".join(faults()) or None)
