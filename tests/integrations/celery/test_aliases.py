"""Broker URLs of kestreld are known wherever Celery is loaded, and cost the programs that do not use them nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, running_daemon

ENTRY = (
    "from importlib.metadata import entry_points\n(found,) = entry_points(group='kombu.serializers', name='kestreld')\n"
)


def printed(program: str, *, path: Path | None = None) -> str:
    paths = [] if path is None else [f"import sys; sys.path.insert(0, {str(path)!r})\n"]
    done = subprocess.run([sys.executable, "-c", "".join([*paths, program])], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_celery_knows_the_url_without_an_import(server: Daemon) -> None:
    program = f"""
from celery import Celery
app = Celery(broker="kestrel://{server.address}")
with app.connection_for_write() as connection:
    connection.connect()
    print(connection.transport.driver_type)
"""
    assert printed(program) == "kestrel"


def test_the_entry_point_loads_only_kombus_table_of_transports() -> None:
    program = f"""
import sys
import kombu.transport
before = set(sys.modules)
{ENTRY}
import json
before |= {{name for name in sys.modules if not name.startswith(("kombu", "kestreld"))}}
found.load()
print(sorted(name for name in set(sys.modules) - before if name.startswith(("kombu", "kestreld"))))
"""
    package = "kestreld.integrations"
    modules = ["kestreld", package, f"{package}.celery", f"{package}.celery.aliases"]
    assert printed(program) == str(modules)


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"__init__.py": ""},
        {"__init__.py": "", "transport.py": "TRANSPORTS = {}"},
        {"__init__.py": "", "transport.py": "TRANSPORT_ALIASES = None"},
        {"__init__.py": "", "transport.py": "this is no Python"},
        {"__init__.py": "raise RuntimeError"},
    ],
    ids=["missing", "half installed", "other", "old", "damaged", "broken"],
)
def test_the_entry_point_never_raises(tmp_path: Path, broken: dict[str, str]) -> None:
    (tmp_path / "kombu").mkdir()
    for name, text in broken.items():
        (tmp_path / "kombu" / name).write_text(text)
    assert printed(f"{ENTRY}print(found.load()[:2])", path=tmp_path) == "(None, None)"


@pytest.mark.parametrize("kind", ["tcp", "unix"])
@pytest.mark.parametrize("place", ["only", "first", "second"])
def test_urls_are_understood_alone_and_at_each_place_of_a_list(tmp_path: Path, kind: str, place: str) -> None:
    listen = "127.0.0.1:0" if kind == "tcp" else f"unix:{tmp_path}/k.sock"
    with running_daemon(tmp_path / "server", listen=listen) as daemon:
        address = daemon.address
        url = f"kestrel://{address}" if kind == "tcp" else f"kestrel+unix://{address.removeprefix('unix:')}"
        away = "kestrel://127.0.0.1:1"
        away_unix = "kestrel+unix:///nowhere/k.sock"
        for other in (away, away_unix):
            urls = {"only": url, "first": f"{url};{other}", "second": f"{other};{url}"}[place]
            program = f"""
import kombu, kestreld.integrations.celery
with kombu.Connection({urls!r}) as connection:
    connection.ensure_connection(max_retries=3, interval_start=0, interval_step=0)
    with connection.SimpleQueue("a") as queue:
        queue.put(1)
        message = queue.get(timeout=5)
        message.ack()
        print(message.payload)
"""
            assert printed(program) == "1"
