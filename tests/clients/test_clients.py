"""Other people's memcached clients are queue clients, and those of the binary protocol fail at once.

Each is a program that uses the client as its users do and prints a line for each operation. One whose tools are not
installed is skipped. At the end there is a table of what each has done.
"""

import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from kestreld import __version__
from tests.clients.preparing import (
    PROGRAMS,
    Missing,
    Prepare,
    Run,
    of_binary_python,
    of_go,
    of_node,
    of_perl,
    of_php,
    of_python,
)
from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient

pytestmark = pytest.mark.long

PAGE: Final = Path(__file__).parents[2] / "docs" / "compatibility.md"
ON_PAGE: Final = ("pymemcache", "python-memcached", "pylibmc", "PHP Memcached", "Perl Cache::Memcached")
AT_ONCE_S: Final = 10.0  # with the start of the program; who waits for an answer does so for 20 s
ANSWERS: Final = {
    "version": __version__,
    "set": "ok",
    "get": "hello",
    "empty": "none",
    "large": "ok",
    "any-bytes": "ok",
    "reliable": "ok",
    "close": "none",
    "delete": "ok",
}
_numbers = count(1)
Table = list[tuple[str, str, str]]  # client, operations, outcome


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> Iterator[Table]:
    """Client, operations, outcome; printed when all have had their turn."""
    rows: Table = []
    yield rows
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)] if rows else [0, 0]
    lines = [f"{client:<{widths[0]}}  {what:<{widths[1]}}  {outcome}" for client, what, outcome in rows]
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print("\n" + "\n".join(lines))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("kestreld"), "listen.admin=null") as running:
        yield running


@pytest.fixture
def queue() -> str:
    return f"clients{next(_numbers)}"


TEXT_CLIENTS: Final[Mapping[str, Prepare]] = {
    "pymemcache": lambda folder: of_python("pymemcache"),
    "python-memcached": lambda folder: of_python("memcache"),
    "pylibmc": lambda folder: of_python("pylibmc"),
    "PHP Memcached": lambda folder: of_php(),
    "Perl Cache::Memcached": lambda folder: of_perl(),
    "node memcached": lambda folder: of_node("memcached", "client.js"),
    "gomemcache": lambda folder: replace(
        of_go(folder, (PROGRAMS / "client.go").read_text()), lacks=frozenset({"version"})
    ),
}
BINARY_CLIENTS: Final[Mapping[str, Prepare]] = {
    "python-binary-memcached": lambda folder: of_binary_python(),
    "PHP Memcached, binary": lambda folder: of_php("binary"),
    "node memjs": lambda folder: of_node("memjs", "binary_client.js"),
}
# libmemcached-tools: the command, what it prints, and how it ends
TOOLS: Final[Mapping[str, tuple[str, str, int]]] = {
    "memcping": ("memcping {server}", "", 0),
    "memcstat": ("memcstat {server}", f"version: {__version__}\n", 0),
    "memccp": ("memccp {server} {file}", "", 0),
    "memccat": ("memccat {server} greeting", "hello", 0),
    "memcrm": ("memcrm {server} greeting", "", 0),
    "memcflush": ("memcflush {server}", "", 0),
    "memccp --binary": ("memccp {server} --binary {file}", "memcached_set", 1),
}


def outcomes(run: Run, port: int, queue: str) -> tuple[dict[str, str], float]:
    """What the program says of each operation, and how long it took."""
    started = time.monotonic()
    command = [*run.command, str(port), queue, *run.more]
    done = subprocess.run(command, env=run.environment, capture_output=True, text=True, timeout=60)
    taken_s = time.monotonic() - started
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line), taken_s


def prepared(client: str, prepare: Prepare, folder: Path, table: Table) -> Run:
    try:
        return prepare(folder)
    except Missing as missing:
        table.append((client, "", f"skipped: {missing}"))
        pytest.skip(str(missing))


@pytest.mark.parametrize("client", TEXT_CLIENTS)
def test_a_client_of_the_text_protocol_puts_gets_and_reads_reliably(
    daemon: Daemon, tmp_path: Path, table: Table, queue: str, client: str
) -> None:
    run = prepared(client, TEXT_CLIENTS[client], tmp_path, table)
    said, _ = outcomes(run, daemon.port, queue)
    expected = {operation: answer for operation, answer in ANSWERS.items() if operation not in run.lacks}
    outcome = ", ".join(f"{name}: {said.get(name)}" for name in expected if said.get(name) != expected[name])
    table.append((client, " ".join(said), outcome or "all well"))
    assert said == expected


def page_row(client: str) -> tuple[str, str]:
    """What docs/compatibility.md says of a client with either `compat`."""
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == client:
            return cells[1], cells[2]
    pytest.fail(f"docs/compatibility.md has no row for {client}")


@pytest.mark.parametrize("client", ON_PAGE)
def test_with_kestrels_replies_a_client_has_what_the_page_says(tmp_path: Path, table: Table, client: str) -> None:
    run = prepared(client, TEXT_CLIENTS[client], tmp_path, table)
    with running_daemon(tmp_path / "kestreld", "compat=kestrel-1") as kestrel:
        said, _ = outcomes(run, kestrel.port, "work")
    words = {"reliable": "reliable reads", "delete": "`delete`"}
    failed = [word for operation, word in words.items() if said.get(operation) != ANSWERS[operation]]
    others = [operation for operation in ("set", "get", "any-bytes") if said.get(operation) != ANSWERS[operation]]
    assert others == []
    assert page_row(client) == ("all", f"not: {', '.join(failed)}" if failed else "all")


@pytest.mark.parametrize("client", BINARY_CLIENTS)
def test_a_client_of_the_binary_protocol_fails_at_once_and_runs_nothing(
    daemon: Daemon, tmp_path: Path, table: Table, queue: str, client: str
) -> None:
    run = prepared(client, BINARY_CLIENTS[client], tmp_path, table)
    with QueueClient(daemon.port) as other:
        other.put("kept", b"x")
        said, taken_s = outcomes(run, daemon.port, queue)
        table.append((client, " ".join(said), f"{', '.join(said.values())} in {taken_s:.1f} s"))
        assert said.get("set", "ok") != "ok"
        assert taken_s < AT_ONCE_S
        assert other.get("kept") == b"x"
        assert other.items(queue) == 0


def test_the_tools_of_libmemcached_work(daemon: Daemon, tmp_path: Path, table: Table) -> None:
    if shutil.which("memcstat") is None:
        table.append(("libmemcached-tools", "", "skipped: apt install libmemcached-tools"))
        pytest.skip("no memcstat: apt install libmemcached-tools")
    greeting = tmp_path / "greeting"
    greeting.write_text("hello")
    for tool, (line, expected, code) in TOOLS.items():
        command = line.format(server=f"--servers=127.0.0.1:{daemon.port}", file=greeting).split()
        done = subprocess.run(command, capture_output=True, text=True, timeout=AT_ONCE_S)
        is_well = expected in done.stdout + done.stderr and bool(done.returncode) == bool(code)
        table.append(("libmemcached-tools", tool, "as expected" if is_well else f"{done.returncode} {done.stdout}"))
        assert is_well, done
