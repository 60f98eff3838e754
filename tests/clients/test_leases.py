"""Leases, delays and keys by other people's clients, as docs/protocol.md has them, with the largest of tokens."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.clients.preparing import (
    PROGRAMS,
    Missing,
    Run,
    needed,
    of_go,
    of_node,
    of_php,
    python_with,
)
from tests.support.daemon import Daemon, running_daemon
from tests.support.engine import Engine

pytestmark = pytest.mark.long

ROWS: Final = (
    "lease", "several", "extend", "give-back", "give-back-later", "failed", "late", "delay", "key", "add", "cancel"
)  # fmt: skip
ID_BITS: Final = 34  # of a token
TOKEN_BITS: Final = 63


def of_python(module: str) -> Run:
    return Run((python_with(module), str(PROGRAMS / "leases.py"), module))


def of_php_leases() -> Run:
    of_php()
    return Run((needed("php", "php-cli"), str(PROGRAMS / "leases.php")))


CLIENTS: Final[dict[str, tuple[Callable[[Path], Run], frozenset[str]]]] = {  # and what they cannot do
    "pymemcache": (lambda folder: of_python("pymemcache"), frozenset()),
    "pylibmc": (lambda folder: of_python("pylibmc"), frozenset({"several"})),
    "node-memcached": (lambda folder: of_node("memcached", "leases.js"), frozenset({"several"})),
    "gomemcache": (lambda folder: of_go(folder, (PROGRAMS / "leases.go").read_text()), frozenset()),
    "php-memcached": (lambda folder: of_php_leases(), frozenset()),
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """With a queue for each client, whose item ids are about to exceed the bits that a token has for them."""
    folder = tmp_path_factory.mktemp("kestreld")
    engine = Engine(folder / "spool")
    for name in CLIENTS:
        for _ in range(2):
            engine.put(name, b"before")
            assert engine.take(name) == b"before"
            engine.end_turn()
            engine.queue(name).next_id = (1 << ID_BITS) - 2
    engine.abandon()
    with running_daemon(folder, "listen.admin=null") as running:
        yield running


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_does_every_row_of_the_table(daemon: Daemon, tmp_path: Path, client: str) -> None:
    prepare, lacks = CLIENTS[client]
    try:
        run = prepare(tmp_path)
    except Missing as missing:
        pytest.skip(str(missing))
    done = subprocess.run(
        [*run.command, str(daemon.port), client], env=run.environment, capture_output=True, text=True, timeout=60
    )
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    token = int(said.pop("token"))
    assert 0 < (1 << TOKEN_BITS) - token <= 1 << (TOKEN_BITS - ID_BITS), "the largest tokens there are"
    assert said == {row: "ok" for row in ROWS if row not in lacks}, done.stderr
