"""The modules of a package as their syntax, for tests of what they may contain."""

import ast
import gc
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


@cache
def sources(package: str) -> list[tuple[str, list[ast.AST]]]:
    """All nodes of each module of a package, by its path from the root."""
    paths = sorted((ROOT / package).rglob("*.py"))
    gc.disable()  # no tree is garbage, and looking through them takes longer than parsing
    try:
        return [(path.relative_to(ROOT).as_posix(), list(ast.walk(ast.parse(path.read_text())))) for path in paths]
    finally:
        gc.freeze()
        gc.enable()
