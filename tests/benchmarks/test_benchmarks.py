"""The benchmarks with tiny sizes: that they run, notice what is wrong, and can be written up."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.load import Load, LoadResult, run
from benchmarks.load import build as load_generator
from benchmarks.report import page
from benchmarks.results import Run, cell_of, load
from tests.support.daemon import Daemon, running_daemon
from tests.support.tampering import tampering_proxy

ROOT = Path(__file__).parents[2]
PARTS = ("compare", "growth", "backlog", "load-tests", "cache", "jobs")

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="cc is not installed")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("daemon")) as daemon:
        yield daemon


def measured(port: int, load: Load, queue: str, *, pid: int = 0, seconds: float = 0.05) -> LoadResult:
    load = replace(load, at_least=20)  # on a slow machine too
    return run(load, protocol="kestrel", port=port, pid=pid, queue=queue, seconds=seconds)


@pytest.mark.parametrize(
    "load",
    [
        Load(clients=4),
        Load(clients=2, depth=8, size="16-4096"),
        Load(clients=3, queues=5, fill=10, idle=2),
        Load(work="put", clients=2),
        Load(work="reliable", clients=2, fill=2000),
        Load(work="opened", clients=2, fill=2000),
        Load(work="leased", clients=2, depth=8, fill=2000),
        Load(clients=2, size="65536"),
    ],
    ids=["one at a time", "mixed sizes", "several queues", "put", "reliable", "opened", "leased", "large"],
)
def test_a_load_counts_what_it_does_and_finds_all_items(daemon: Daemon, load: Load) -> None:
    result = measured(daemon.port, load, f"q{abs(hash(load))}", pid=daemon.pid)
    assert (result.faults, result.first_fault) == (0, "")
    assert result.operations == result.puts + result.takes > 10
    assert 1 < result.server_cpu_us_op < 5000
    assert 0 < result.p50_us <= result.p99_us <= result.max_us


def nth_item(number: int, change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    seen = 0

    def tamper(reply: bytes) -> bytes:
        nonlocal seen
        seen += reply.startswith(b"VALUE ")
        return change(reply) if reply.startswith(b"VALUE ") and seen == number else reply

    return tamper


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda reply: reply[:-8] + bytes([reply[-8] ^ 1]) + reply[-7:], "an item is damaged, or not ours"),
        (lambda reply: b"END\r\n", "a queue was empty though it had an item"),
        (lambda reply: b"ERROR\r\n", "refused: ERROR"),
    ],
    ids=["damaged", "lost", "refused"],
)
def test_a_load_notices_a_server_that_cheats(
    daemon: Daemon, change: Callable[[bytes], bytes], fault: str, request: pytest.FixtureRequest
) -> None:
    with tampering_proxy(daemon.port, nth_item(5, change)) as address:
        result = measured(int(address.rpartition(":")[2]), Load(), request.node.callspec.id)
    assert result.faults == 2  # the answer, and the item that is missing in the end
    assert result.first_fault == fault


def test_a_load_notices_an_item_that_comes_twice(daemon: Daemon) -> None:
    kept = b""

    def repeat_the_first(reply: bytes) -> bytes:
        nonlocal kept
        if reply.startswith(b"VALUE ") and not kept:
            kept = reply
        elif reply.startswith(b"VALUE "):
            return kept
        return reply

    with tampering_proxy(daemon.port, repeat_the_first) as address:
        result = measured(int(address.rpartition(":")[2]), Load(), "twice")
    assert result.first_fault == "item 0 came again"


def test_a_later_load_finds_what_an_earlier_one_left(daemon: Daemon) -> None:
    measured(daemon.port, Load(fill=100, leave=True), "left", seconds=0)
    assert measured(daemon.port, Load(work="drain", numbers="0-98"), "left", seconds=0).faults == 1
    measured(daemon.port, Load(fill=100, leave=True), "left", seconds=0)
    assert measured(daemon.port, Load(work="drain", numbers="0-99"), "left", seconds=0).faults == 0


def test_the_best_of_the_rounds_counts() -> None:
    figures = [(9.0, 100.0), (6.0, 300.0), (7.0, 200.0)]
    runs = [
        Run("kestreld", "row", 0, number, LoadResult(1, 1, 0, 1, ops_s, cpu_us, 0, 64, cpu_us, 0, cpu_us, 0, 0, 0, ""))
        for number, (cpu_us, ops_s) in enumerate(figures)
    ]
    cell = cell_of(runs)
    assert (cell.cpu_us, cell.cpu_us_median, cell.ops_s, cell.p50_us) == (6, 7, 300, 6)


def test_the_page_is_what_the_kept_figures_make() -> None:
    results = ROOT / "benchmarks" / "results"
    if not all((results / f"{part}.json").exists() for part in PARTS):
        pytest.skip("no figures are kept")
    made = page({part: load(results / f"{part}.json") for part in PARTS})
    assert (ROOT / "docs" / "benchmarks.md").read_text() == made


@pytest.mark.long
def test_servers_that_are_not_installed_are_named_and_left_out(tmp_path: Path) -> None:
    load_generator()  # there is no compiler among those either
    environment = {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "stat").symlink_to(shutil.which("stat") or "stat")
    folders = ["--results", str(tmp_path / "results"), "--folder", str(tmp_path / "journals")]
    command = [sys.executable, "-m", "benchmarks", "--quick", *folders]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name, package in (("memcached", "memcached"), ("redis", "redis-server"), ("beanstalkd", "beanstalkd")):
        assert f"{name} is left out: it is not installed (apt-get install {package})" in done.stderr
    made = page({part: load(tmp_path / "results" / f"{part}.json") for part in PARTS})
    assert "Not installed: memcached, redis-server, beanstalkd." in made
    assert os.listdir(tmp_path / "journals") == []
