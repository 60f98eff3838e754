"""docs/recipes-memcached.md: its examples do what they say, and a message costs as many commands as it says."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from benchmarks.recipes import Trips, of_recipes
from kestreld.recipes import Servers
from tests.support.cache_server import running_memcached
from tests.support.daemon import Daemon, running_daemon

PAGE: Final = (Path(__file__).parents[2] / "docs" / "recipes-memcached.md").read_text()
EXAMPLES: Final = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COSTS: Final = {
    "LogQueue": "`LogQueue`",
    "RingQueue": "`RingQueue`",
    "LockingQueue": "`LockingQueue`",
    "LogQueue, put_many": "`LogQueue`, `put_many` and `get_many`",
    "LockingQueue, put_many": "`LockingQueue`, `put_many` and `get_many`",
    "LogQueue, batch, compressed": "`LogQueue`, `put_batch`, compressed",
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("kestreld"), "listen.cache=127.0.0.1:0") as running:
        yield running


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_does_what_it_says(daemon: Daemon, number: int) -> None:
    text = EXAMPLES[number].replace("127.0.0.1:11211", daemon.cache).replace("127.0.0.1:22133", daemon.address)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_message_costs_as_many_commands_as_the_page_says(tmp_path: Path) -> None:
    count, trips, found = 400, Trips(), {}
    with running_memcached(tmp_path) as memcached, Servers(memcached.address) as servers, trips.of_recipes():
        for way in of_recipes(servers):
            before = trips.count
            for _ in range(count // way.together):
                way.put(way.together)
            between = trips.count
            for _ in range(count // way.together):
                way.take(way.together)
            found[way.name] = (between - before) / count, (trips.count - between) / count
    assert set(found) == set(COSTS)
    for name, label in COSTS.items():
        row = re.search(rf"^\| {re.escape(label)} \| ([\d.]+) \| ([\d.]+) \|", PAGE, re.MULTILINE)
        assert row is not None, label
        assert found[name] == pytest.approx((float(row[1]), float(row[2])), abs=0.02), name
