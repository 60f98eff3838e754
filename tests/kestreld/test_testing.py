"""The fixture that programs test themselves with."""

import subprocess
import sys
from pathlib import Path

import pytest

from kestreld.client import KestrelCluster
from kestreld.testing import running_server

TEST = """
import pytest
from kestreld.client import KestrelCluster
from kestreld.testing import RunningServer


def test_that_it_serves(kestreld_server: RunningServer) -> None:
    assert kestreld_server.url == f"kestrel://{kestreld_server.address}"
    with KestrelCluster([kestreld_server.address]) as cluster:
        assert cluster.queue("work").put(b"hello")
"""


def test_the_fixture_gives_a_test_a_server_without_an_import_in_a_conftest(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert "1 passed" in done.stdout, done.stdout


def test_a_server_is_killed_and_started_again_on_the_same_port_and_spool(tmp_path: Path) -> None:
    with running_server(tmp_path, {"max_item_size": 1000}) as server, KestrelCluster([server.address]) as cluster:
        work = cluster.queue("work")
        assert work.put(b"hello")
        assert not work.put(b"x" * 2000)
        address = server.address
        server.kill()
        server.start()
        assert server.address == address
        assert work.get() == b"hello"
        server.stop()
        assert any("stopped" in line for line in server.log)


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no_such_setting"), running_server(tmp_path, {"no_such_setting": 1}):
        pass
