"""Which modules are hot, and which of them an installation has compiled."""

import ast
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from kestreld.queues import commit
from tests.support.daemon import ROOT
from tests.support.process import environment

IS_COMPILED: Final = not str(commit.__file__).endswith(".py")

interpreted_only: Final = pytest.mark.skipif(
    IS_COMPILED, reason="a compiled module's classes and constants cannot be replaced by a test"
)

NAME_UNCOMPILED: Final = """
import importlib, sys
from importlib.machinery import ExtensionFileLoader
for name in sys.argv[1:]:
    if not isinstance(importlib.import_module(name).__loader__, ExtensionFileLoader):
        print(name)
"""


def hot_files() -> list[str]:
    """What the build hook compiles; only a build has what it imports."""
    tree = ast.parse((ROOT / "packaging" / "compile_hook.py").read_text())
    (listed,) = (
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MODULES"
    )
    files: list[str] = ast.literal_eval(listed)
    return files


def hot_modules() -> list[str]:
    return [file.removesuffix(".py").replace("/", ".") for file in hot_files()]


def uncompiled(python: Sequence[str | Path]) -> list[str]:
    """The hot modules that this interpreter imports as Python source."""
    asked = subprocess.run(
        [*python, "-c", NAME_UNCOMPILED, *hot_modules()], capture_output=True, text=True, cwd="/", env=environment()
    )
    assert asked.returncode == 0, asked.stderr
    return asked.stdout.split()


def can_compile_for(python: str) -> bool:
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('include'))"]
    headers = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    return shutil.which("cc") is not None and Path(headers, "Python.h").exists()
