"""The table of figures: what is made of it stays as clients know it, and each row says enough."""

import json
import re
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import pytest

from kestrelctl.remote.sums import sum_blocks
from kestreld.client.blocks import parse_blocks
from kestreld.figures import OF_CACHE, OF_QUEUES, OF_SERVER, Kind, in_json
from tests.support.daemon import running_daemon
from tests.support.wire import connected
from tui.snapshots import KEYS

KNOWN: Final = json.loads((Path(__file__).parents[1] / "golden" / "figures.json").read_text())
CONFIG: Final = "queues:\n  q:\n    max_retries: 3\n    move_failed_to: dead\n"


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a server with everything says: `stats`, `dump_stats`, `/stats.json` and `/metrics`."""
    everything = ("listen.cache=127.0.0.1:0", "listen.disque=127.0.0.1:0")
    folder = tmp_path_factory.mktemp("figures")
    with (
        running_daemon(folder, *everything, config=CONFIG, admin="127.0.0.1:0") as daemon,
        connected(daemon.address) as client,
    ):
        client.ask(b"set q/delay=100000 0 0 1\r\n2\r\nget plain\r\n", b"STORED\r\nEND\r\n")
        said = {}
        for command in ("stats", "dump_stats"):
            client.send(f"{command}\r\n".encode())
            said[command] = client.read_until(b"END\r\n").decode()
        for page in ("stats.json", "metrics"):
            with urlopen(f"http://{daemon.admin}/{page}") as reply:
                said[page] = reply.read().decode()
    return said


def test_stats_have_the_keys_that_clients_know_in_their_order(answers: dict[str, str]) -> None:
    keys = re.findall(r"^STAT (\S+)", answers["stats"], re.MULTILINE)
    assert [key for key in keys if not key.startswith("queue_") or key in KNOWN["stats"]] == KNOWN["stats"]


def test_dumped_stats_have_the_keys_that_clients_know_in_their_order(answers: dict[str, str]) -> None:
    plain, with_held = ([*block][1:] for block in parse_blocks(answers["dump_stats"].replace("\r", "").encode()))
    assert with_held == KNOWN["queue_with_held"]
    assert plain == [key for key in KNOWN["queue"] if key != "children"]


def test_json_has_the_columns_that_clients_know_in_their_order(answers: dict[str, str]) -> None:
    page = json.loads(answers["stats.json"])
    assert page["columns"] == KNOWN["columns"]
    assert (page["job_columns"], page["job_node_columns"]) == (KNOWN["job_columns"], KNOWN["job_node_columns"])
    assert all(len(row) == len(page["columns"]) for row in page["rows"])


def test_metrics_have_the_names_and_types_that_dashboards_know(answers: dict[str, str]) -> None:
    types = dict(re.findall(r"^# TYPE (kestrel_\w+) (\w+)$", answers["metrics"], re.MULTILINE))
    assert types == KNOWN["metrics"]


def test_no_two_figures_have_one_name_and_each_says_what_it_is() -> None:
    for figures in (OF_QUEUES, OF_SERVER, OF_CACHE):
        keys = [one.key for one in figures if one.key]
        metrics = [one.metric for one in figures if one.metric]
        assert len(set(keys)) == len(keys)
        assert len(set(metrics)) == len(metrics)
        assert all(one.help.endswith(".") for one in figures)
        assert all((one.kind is Kind.COUNTER) == one.metric.endswith("_total") for one in figures if one.metric)


def test_the_console_knows_its_figures_in_the_order_of_the_servers_lines() -> None:
    columns = list(in_json(OF_QUEUES))
    assert list(KEYS) == sorted(KEYS, key=columns.index)


def test_of_several_servers_ages_are_the_largest_and_the_next_due_time_is_the_nearest() -> None:
    one = {"queue": "q", "items": 3, "age": 20, "next_due_ms": 500, "stopped": 0, "head_id": 7, "unknown": 2}
    other = {"queue": "q", "items": 4, "age": 10, "next_due_ms": 900, "stopped": 1, "head_id": 9, "unknown": 3}
    nothing_due = {"queue": "q", "items": 0, "age": 0, "next_due_ms": 0, "stopped": 0, "head_id": 1, "unknown": 0}
    assert sum_blocks([[one], [other], [nothing_due]]) == [
        {"queue": "q", "items": 7, "age": 20, "next_due_ms": 500, "stopped": 1, "unknown": 5}
    ]
