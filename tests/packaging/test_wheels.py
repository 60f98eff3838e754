"""`make wheel` and pip's build: what is compiled for whom, and that it runs there.

PYTHONS="" in the environment builds and runs a wheel for each supported Python here, which takes minutes.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import pytest

from kestreld import __version__
from tests.support.compiled import can_compile_for, hot_files, uncompiled
from tests.support.daemon import READY, ROOT, STOP_S
from tests.support.process import environment
from tests.support.queue_client import QueueClient

SCRIPT: Final = ROOT / "packaging" / "wheels.py"
NAME: Final = re.compile(rf"kestreld-{re.escape(__version__)}-(cp3\d+)-\1-manylinux\S+\.whl")
BUILD_S: Final = 1200
pytestmark = pytest.mark.timeout(BUILD_S + 600)


def wheels(folder: Path, pythons: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, SCRIPT, folder],
        cwd="/",
        env=environment() | {"PYTHONPATH": "", "PYTHONS": pythons},
        capture_output=True,
        text=True,
        timeout=BUILD_S,
    )


def found_pythons(**variables: str) -> dict[str, str]:
    """What the script has found: tag -> interpreter."""
    ask = f"import json, runpy; print(json.dumps(runpy.run_path({str(SCRIPT)!r})['pythons']()))"
    asked = [sys.executable, "-c", ask]
    found: dict[str, str] = json.loads(
        subprocess.run(asked, env=environment() | variables, capture_output=True, text=True, check=True).stdout
    )
    return found


def fake_python(folder: Path, minor: int, headers: Path) -> str:
    """An interpreter, as far as the script asks it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"python3.{minor}"
    path.write_text(f"#!/bin/sh\necho 3 {minor} cp3{minor} {headers}\n")
    path.chmod(0o755)
    return str(path)


def test_a_wheel_is_for_each_supported_python_in_path_and_of_pyenv(tmp_path: Path) -> None:
    headers, path, other = tmp_path / "include", tmp_path / "first", tmp_path / "second"
    headers.mkdir()
    (headers / "Python.h").touch()
    fake_python(path, 10, headers)  # not supported
    fake_python(path, 12, tmp_path)  # no headers: the next one's are taken
    first = fake_python(path, 11, headers)
    fake_python(other, 11, headers)
    second = fake_python(other, 12, headers)
    third = fake_python(tmp_path / "pyenv" / "versions" / "3.13.5" / "bin", 13, headers)
    found = found_pythons(PATH=f"{path}:{other}:/bin", PYENV_ROOT=str(tmp_path / "pyenv"), PYTHONS="")
    assert {tag: python for tag, python in found.items() if str(tmp_path) in python} == {
        "cp311": first,
        "cp312": second,
        "cp313": third,
    }


def test_no_wheel_is_made_where_no_python_is_supported(tmp_path: Path) -> None:
    old, headless = fake_python(tmp_path, 10, tmp_path), fake_python(tmp_path, 99, tmp_path)
    made = wheels(tmp_path / "made", f"{old} {headless} {tmp_path}/missing")
    assert made.stderr.splitlines() == [
        f"wheels: no wheel for {headless}: Python.h not found; install its development package",
        "wheels: cannot build: no supported Python with headers found",
    ]
    assert (made.returncode, made.stdout) == (1, "")
    assert not (tmp_path / "made").exists()


@pytest.mark.long
@pytest.mark.skipif(not (ROOT / "kestreld").exists(), reason="needs the sources beside it")
def test_a_plain_build_is_pure_python(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ROOT]
    subprocess.run(pip, check=True, env=environment(), timeout=BUILD_S)
    (wheel,) = tmp_path.iterdir()
    assert wheel.name == f"kestreld-{__version__}-py3-none-any.whl"
    assert [name for name in ZipFile(wheel).namelist() if name.endswith(".so")] == []


@pytest.mark.long
@pytest.mark.skipif(not (ROOT / "kestreld").exists(), reason="needs the sources beside it")
@pytest.mark.skipif("SEARCH" not in os.environ, reason="a third compiled build: SEARCH=1 makes it, as does make prove")
def test_a_compiled_wheel_runs(tmp_path: Path) -> None:
    if not can_compile_for(sys.executable):
        pytest.skip("needs a C compiler and Python's headers")
    made = wheels(tmp_path / "made", os.environ.get("PYTHONS", sys.executable))
    assert made.returncode == 0, made.stderr
    paths = [Path(line) for line in made.stdout.splitlines()]
    assert paths == sorted((tmp_path / "made").iterdir()) != []
    found = found_pythons(**({} if "PYTHONS" in os.environ else {"PYTHONS": sys.executable}))
    for path in paths:
        named = NAME.fullmatch(path.name)
        assert named is not None, path
        assert_contents(path)
        assert_runs(path, found[named[1]], tmp_path / named[1])


def assert_contents(wheel: Path) -> None:
    """Source and compiled modules, and no word of where they were built."""
    with ZipFile(wheel) as archive:
        names = archive.namelist()
        extensions = {name.partition(".")[0] + ".py" for name in names if name.endswith(".so")}
        assert set(hot_files()) <= extensions & set(names)
        pieces = [str(ROOT).encode(), b"/tmp/kestreld-", b"/tmp/pip-"]
        assert [name for name in names if any(piece in archive.read(name) for piece in pieces)] == []


def assert_runs(wheel: Path, interpreter: str, folder: Path) -> None:
    subprocess.run([interpreter, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", wheel]
    subprocess.run(install, check=True, env=environment(), timeout=BUILD_S)
    program = [folder / "bin" / "kestreld"]
    shown = subprocess.run([*program, "--version"], cwd="/", env=environment(), capture_output=True, text=True)
    assert shown.stdout == f"kestreld {__version__} (compiled)\n", shown.stderr
    assert uncompiled([python, "-I"]) == []
    options = ["--set", f"queue_path={folder / 'spool'}", "--set", "listen.memcache=127.0.0.1:0"]
    with subprocess.Popen(
        [*program, *options], cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr is not None
        try:
            found = READY.search(server.stderr.readline())
            assert found is not None, server.stderr.read()
            with QueueClient(found[1]) as client:
                client.put("work", b"hello")
                assert client.get("work") == b"hello"
            server.terminate()
            assert server.stderr.read().endswith("kestreld: stopped\n")
            assert server.wait(STOP_S) == 0
        finally:
            server.kill()
