"""pymemcache's own integration tests, unchanged, against kestreld: all of them that a queue can pass.

They come with pymemcache, and run in a pytest of their own. The others get a value twice, add, append, count or touch:
a queue does none of that.
"""

import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pymemcache.test  # type: ignore[import-untyped]
import pytest

from tests.support.daemon import ROOT, Daemon
from tests.support.process import environment

CHOSEN: Final = "delete or errors or test_gets or serde_serialization or serialization_deserialization"
# How often each runs: over three kinds of client, and some with and without a key prefix.
RUNS: Final = {
    "test_delete": 6,
    "test_errors": 3,
    "test_gets": 6,
    "test_serde_serialization": 6,
    "test_serde_serialization0": 3,
    "test_serde_serialization2": 3,
    "test_serialization_deserialization": 1,
}
HAS_GEVENT: Final = find_spec("gevent") is not None  # then each runs over gevent's sockets, too


@pytest.fixture(scope="module")
def outcome(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> ET.Element:
    """The report of the run, in JUnit's words."""
    folder = tmp_path_factory.mktemp("pymemcache")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = integration\n")
    suite = Path(pymemcache.test.__file__).with_name("test_integration.py")
    command = [sys.executable, "-m", "pytest", "-q", "-c", "pytest.ini", "-p", "no:cacheprovider"]
    command += ["-p", "tests.support.no_queues", "--junitxml=report.xml", "-m", "integration", "-k", CHOSEN]
    command += [str(suite), "--server", "127.0.0.1", "--port", str(daemon.port)]
    run = subprocess.run(
        command,
        cwd=folder,
        env={**environment(), "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=100,
    )
    print(run.stdout.strip().splitlines()[-1])
    assert run.returncode == 0, run.stdout + run.stderr
    return ET.parse(folder / "report.xml").getroot()


def passed(outcome: ET.Element) -> Counter[str]:
    """How often each test has passed."""
    return Counter(case.attrib["name"].partition("[")[0] for case in outcome.iter("testcase") if not len(case))


def test_pymemcaches_own_tests_pass(outcome: ET.Element) -> None:
    times = 2 if HAS_GEVENT else 1
    assert passed(outcome) == {name: runs * times for name, runs in RUNS.items()}


def test_they_pass_over_gevents_sockets_too(outcome: ET.Element) -> None:
    if not HAS_GEVENT:
        pytest.skip(f"gevent is not installed: {sum(RUNS.values())} of pymemcache's tests run over plain sockets only")
    assert passed(outcome).total() == 56
