"""Other people's memcached clients, on kestreld's cache and on a memcached: each operation does what it says.

Each is a program that prints a line for each operation. Clients of the binary protocol fail at once.
"""

import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.clients.preparing import (
    PROGRAMS,
    Missing,
    Prepare,
    Run,
    needed,
    of_binary_python,
    of_go,
    of_node,
    of_perl,
    of_php,
    python_with,
)
from tests.support.cache_server import running_memcached
from tests.support.daemon import ROOT, running_daemon

pytestmark = pytest.mark.long

PAGE: Final = ROOT / "docs" / "cache.md"
AT_ONCE_S: Final = 10.0  # with the start of the program; who waits for an answer does so for 20 s
OPERATIONS: Final = (
    "set", "get", "missing", "add", "replace", "many", "incr", "decr", "append", "prepend", "cas", "touch", "expiry",
    "large", "any-bytes", "delete", "flush_all",
)  # fmt: skip


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """Of each kind of server."""
    with (
        running_memcached(tmp_path_factory.mktemp("memcached")) as memcached,
        running_daemon(tmp_path_factory.mktemp("kestreld"), "listen.cache=127.0.0.1:0") as daemon,
    ):
        yield {"memcached": memcached.port, "kestreld": daemon.cache_port}


def of_python(module: str) -> Run:
    return Run((python_with(module), str(PROGRAMS / "cache.py"), module))


def of_cache_php() -> Run:
    of_php()
    return Run((needed("php", "php-cli"), str(PROGRAMS / "cache.php")))


def of_cache_perl() -> Run:
    of_perl()
    return Run((needed("perl", "perl"), str(PROGRAMS / "cache.pl")), lacks=frozenset({"cas", "touch"}))


TEXT_CLIENTS: Final[Mapping[str, Prepare]] = {
    "pymemcache": lambda folder: of_python("pymemcache"),
    "python-memcached": lambda folder: of_python("memcache"),
    "pylibmc": lambda folder: of_python("pylibmc"),
    "PHP Memcached": lambda folder: of_cache_php(),
    "Perl Cache::Memcached": lambda folder: of_cache_perl(),
    "node memcached": lambda folder: of_node("memcached", "cache.js"),
    "gomemcache": lambda folder: of_go(folder, (PROGRAMS / "cache.go").read_text()),
}
BINARY_CLIENTS: Final[Mapping[str, Prepare]] = {
    "python-binary-memcached": lambda folder: of_binary_python(),
    "PHP Memcached, binary": lambda folder: of_php("binary"),
    "node memjs": lambda folder: of_node("memjs", "binary_client.js"),
}


def prepared(prepare: Prepare, folder: Path) -> Run:
    try:
        return prepare(folder)
    except Missing as missing:
        pytest.skip(str(missing))


def said_by(run: Run, *words: str) -> dict[str, str]:
    """What the program says of each operation."""
    done = subprocess.run([*run.command, *words], env=run.environment, capture_output=True, text=True, timeout=60)
    print(done.stderr)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


@pytest.mark.parametrize("server", ["memcached", "kestreld"])
@pytest.mark.parametrize("client", TEXT_CLIENTS)
def test_a_client_of_the_text_protocol_does_all_that_it_can(
    ports: dict[str, int], tmp_path: Path, client: str, server: str
) -> None:
    run = prepared(TEXT_CLIENTS[client], tmp_path)
    said = said_by(run, str(ports[server]))
    assert said == {operation: "ok" for operation in OPERATIONS if operation not in run.lacks}


@pytest.mark.parametrize("client", BINARY_CLIENTS)
def test_a_client_of_the_binary_protocol_fails_at_once(ports: dict[str, int], tmp_path: Path, client: str) -> None:
    run = prepared(BINARY_CLIENTS[client], tmp_path)
    started = time.monotonic()
    said = said_by(run, str(ports["kestreld"]), "key", *run.more)
    assert said.get("set", "no answer") != "ok"
    assert time.monotonic() - started < AT_ONCE_S


@pytest.mark.parametrize("client", [*TEXT_CLIENTS, *BINARY_CLIENTS])
def test_the_page_names_the_client(client: str) -> None:
    outcome = "no: binary protocol" if client in BINARY_CLIENTS else "all of it"
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| {client} |"))
    assert outcome in row
