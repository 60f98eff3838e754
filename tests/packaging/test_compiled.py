"""The hot modules: all of them are there, and all are compiled or none is; `kestreld --version` says which."""

import ast
import os
import re
import subprocess
import sys

import pytest

from kestreld import __version__
from tests.support.compiled import hot_files, hot_modules, uncompiled
from tests.support.daemon import ROOT
from tests.support.process import environment

# What make test-compiled says of the build that it tests.
IS_COMPILED = os.environ.get("KESTRELD_COMPILE") == "1"


@pytest.mark.skipif(not (ROOT / "kestreld").exists(), reason="needs the sources beside it")
def test_every_hot_module_is_where_the_build_looks_for_it() -> None:
    assert [file for file in hot_files() if not (ROOT / file).is_file()] == []


@pytest.mark.skipif(not (ROOT / "kestreld").exists(), reason="needs the sources beside it")
def test_what_extends_a_compiled_class_is_compiled() -> None:
    """mypyc refuses to make a class in Python of a compiled one."""
    hot, found = set(hot_modules()), []
    for path in (ROOT / "kestreld").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if name in hot or not re.search(r"^ *class \w+\(", text := path.read_text(), re.MULTILINE):
            continue
        nodes = list(ast.walk(ast.parse(text)))
        imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module in hot]
        compiled = {one.name for node in imports for one in node.names}
        classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
        found += [f"{name}.{one.name}" for one in classes for base in one.bases if ast.unparse(base) in compiled]
    assert found == []


@pytest.mark.skipif(not (ROOT / "kestreld").exists(), reason="needs the sources beside it")
def test_a_compiled_class_with_slots_extends_compiled_ones_only() -> None:
    """mypyc builds a class of one that it does not know in Python's way, and refuses it slots as it is imported."""
    hot, found = set(hot_modules()), []
    for file in hot_files():
        if "__slots__" not in (text := (ROOT / file).read_text()):
            continue
        tree = ast.parse(text)
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module not in hot]
        others = {one.name for node in imports for one in node.names if (node.module or "").startswith("kestreld.")}
        for one in [node for node in tree.body if isinstance(node, ast.ClassDef)]:
            if "__slots__" in ast.unparse(one) and any(ast.unparse(base) in others for base in one.bases):
                found.append(f"{file}: {one.name}")
    assert found == []


def test_every_hot_module_is_compiled_or_none_is() -> None:
    found = uncompiled([sys.executable])
    assert found == ([] if IS_COMPILED else hot_modules()), f"not compiled: {', '.join(found)}"


def test_version_says_whether_it_is_compiled() -> None:
    command = [sys.executable, "-m", "kestreld", "--version"]
    shown = subprocess.run(command, env=environment(), capture_output=True, text=True).stdout
    assert shown == f"kestreld {__version__} ({'compiled' if IS_COMPILED else 'pure Python'})\n"
