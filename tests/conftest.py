"""Property tests try the same examples at each run, so that a change is what makes one fail; `make test` tries some of
them, and `make prove` looks for others (`--hypothesis-profile search`). Of an exhaustive table the quick run has a few
rows. A run ends with the processor time of each folder's tests, and names the folders that are over their budget in
CONTRIBUTING.md. It leaves no process behind, however it is ended.
"""

import gc
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

from tests.support import engine, forked, short_paths
from tests.support.process import with_variable

settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile(
    "search",
    max_examples=5000,
    stateful_step_count=100,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("quick", settings.get_profile("steady"), max_examples=20)
settings.load_profile("steady")

WORTH_TELLING_S: Final = 30
COMPILED_AT_ONCE: Final = 20
LONG_S: Final = 900  # what a long test may take on a busy machine
BUDGET: Final = re.compile(r"^\| `(tests[\w/]*)` \| (\d+) \|", re.MULTILINE)
LOOP: Final = 1_000_000
LOOP_S: Final = 0.016  # what they take on the machine that the budgets are for
_spent_s: Counter[str] = Counter()
_seen_s = 0.0

gc.disable()  # until the tests are collected: what is made by then stays


def pytest_configure(config: pytest.Config) -> None:
    """Before the tests are read: some want a multiple of the examples."""
    _take_signals()
    if config.option.markexpr == "not long":
        settings.load_profile("quick")
    if not hasattr(config, "workerinput"):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # where pytest keeps those of three runs
        tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="kestreld-tests-")
        short_paths.configure()
        if getattr(config.option, "numprocesses", None) and not sys.dont_write_bytecode:
            _compile_tests(config)


def _take_signals() -> None:
    """A run in the background of a script ignores SIGINT, one under nohup SIGHUP, and so would all that it starts: a
    signal that is caught has its default again in a new program. SIGTERM ends a run as Ctrl-C does, by way of fixtures.
    """
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, lambda *_: None)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def _compile_tests(config: pytest.Config) -> None:
    """Those that have never been compiled, before there are workers: each of them would compile all."""
    folder = Path(config.rootpath, "tests")
    tests = [
        path
        for path in sorted(folder.rglob("test_*.py"))
        if not any(Path(importlib.util.cache_from_source(path)).parent.glob(f"{path.stem}.*.pyc"))
    ]
    if len(tests) > COMPILED_AT_ONCE:
        collect = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:xdist", "-p", "no:cacheprovider"]
        compiling = [
            subprocess.Popen(
                [*collect, *part], cwd=config.rootpath, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            for part in (tests[: len(tests) // 2], tests[len(tests) // 2 :])
        ]
        for process in compiling:
            process.wait()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Whatever a killed process has left goes with the run, and so do processes that a killed worker has left."""
    if not hasattr(config, "workerinput"):
        for pid in with_variable("TMPDIR", os.environ["TMPDIR"]):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)
        short_paths.remove()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """The rows of an exhaustive table that none of its words is in are long, and long tests have more time. Tests with
    examples are properties.
    """
    for table in item.iter_markers("exhaustive"):
        if not any(word in item.name.partition("[")[2] for word in table.args):
            item.add_marker(pytest.mark.long)
    if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        item.add_marker(pytest.mark.property)
    if item.get_closest_marker("long") and not item.get_closest_marker("timeout"):
        item.add_marker(pytest.mark.timeout(LONG_S))


@pytest.fixture(autouse=True)
def _what_an_engine_has_open_is_closed_with_its_test() -> Iterator[None]:
    """A run of thousands of tests has the descriptors of one of them open."""
    yield
    while engine.used:
        engine.used.pop().die()


@pytest.fixture
def short_path() -> Path:
    """In the place of `tmp_path` where there is to be a Unix socket."""
    return short_paths.new_folder()


@pytest.fixture
def installed_programs() -> Iterator[None]:
    """kestreld and kestrelctl start as they do for users: for tests of starts, of what is imported, and of signals."""
    with forked.no_forks():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a phase of a test took, with the children that ended in it; the first one's, all that came before."""
    global _seen_s
    report = yield
    seen_s, _seen_s = _seen_s, sum(os.times()[:4]) + forked.spent_s()
    report.cpu_s = _seen_s - seen_s
    report.is_first = not seen_s
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Here and, of what workers did, in the process that they report to. A crash of a worker is reported without."""
    folder = report.nodeid.split("::")[0].rpartition("/")[0]
    if getattr(report, "is_first", False):
        folder = "collection"
    _spent_s[folder] += getattr(report, "cpu_s", 0.0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _spent_s.total() > WORTH_TELLING_S:
        told = "".join(f"{cpu_s:6.0f} s  {folder}\n" for folder, cpu_s in _spent_s.most_common() if cpu_s >= 1)
        terminalreporter.write(f"processor time, {_spent_s.total():.0f} s in all:\n{told}")
    if terminalreporter.config.option.markexpr == "not long":
        _tell_budgets(terminalreporter)


def _tell_budgets(terminalreporter: pytest.TerminalReporter) -> None:
    """Processor time depends on the machine, and on the day: a budget is multiplied by what a loop takes now."""
    began_s = time.process_time()
    for _ in range(LOOP):
        pass
    slower = (time.process_time() - began_s) / LOOP_S
    page = Path(terminalreporter.config.rootpath, "CONTRIBUTING.md")
    for folder, budget_s in BUDGET.findall(page.read_text() if page.exists() else ""):  # test-compiled has none
        if _spent_s[folder] > int(budget_s) * slower:
            budget = f"{int(budget_s) * slower:.0f} s on this machine"
            terminalreporter.write(f"{folder} is over its budget: {_spent_s[folder]:.0f} s of {budget}\n")
