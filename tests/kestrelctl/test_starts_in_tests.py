"""Tests start kestrelctl in quicker ways than its users do: it is the same program."""

from pathlib import Path

import pytest

from tests.support.shell import Kestrelctl


def is_forked(pid: int) -> bool:
    return b"tests.support.forked" in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize("path", ["", "/elsewhere"])
def test_a_python_path_of_the_run_does_not_make_starts_slow(
    kestrelctl: Kestrelctl, queue: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", path)
    run = kestrelctl.start("get", queue, "--wait", "60s")
    with run:
        assert is_forked(run.pid)
        run.kill()
