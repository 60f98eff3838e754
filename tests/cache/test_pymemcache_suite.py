"""pymemcache's own integration tests, unchanged, on both servers: what passes on memcached passes on kestreld.

They come with pymemcache, and run in a pytest of their own; so do its benchmarks, shortened. Some of these skip, as
they want other clients, and one fails on any server, as it takes a dict for an iterator.
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

from tests.support.process import environment

FILES: Final = ("test_integration.py", "test_benchmark.py")
PASSED: Final = 100  # over plain sockets, and as many again over gevent's
Outcomes = dict[str, str]  # of each test by its name with its parameters


def outcomes(port: int, folder: Path) -> Outcomes:
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    integration\n    benchmark\n")
    suite = Path(pymemcache.test.__file__).parent
    command = [sys.executable, "-m", "pytest", "-q", "-c", "pytest.ini", "-p", "no:cacheprovider", "--count", "10"]
    command += ["--junitxml=report.xml", "--server", "127.0.0.1", "--port", str(port)]
    command += [str(suite / name) for name in FILES]
    run = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=300)
    print(f"\n{folder.name}: {run.stdout.strip().splitlines()[-1]}")
    cases = ET.parse(folder / "report.xml").getroot().iter("testcase")
    return {case.attrib["name"]: case[0].tag if len(case) else "passed" for case in cases}


@pytest.mark.long
def test_pymemcaches_own_tests_end_as_they_do_on_memcached(
    memcached_port: int, cache_port: int, tmp_path: Path
) -> None:
    folders = tmp_path / "memcached", tmp_path / "kestreld"
    for folder in folders:
        folder.mkdir()
    ports = memcached_port, cache_port
    expected, found = (outcomes(port, folder) for port, folder in zip(ports, folders, strict=True))
    assert found == expected
    passed = Counter(found.values())["passed"]
    assert passed >= PASSED * (2 if find_spec("gevent") else 1)
