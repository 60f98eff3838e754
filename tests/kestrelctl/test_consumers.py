"""consumers: who holds open reads of a queue, who waits on it, and how far its readers are behind."""

import json

from tests.support.daemon import Daemon
from tests.support.queue_client import QueueClient
from tests.support.shell import Kestrelctl


def test_who_consumes_a_queue_is_listed_with_address_and_age(
    kestrelctl: Kestrelctl, daemon: Daemon, queue: str
) -> None:
    kestrelctl("put", queue, "--lines", stdin=b"a\nb\n")
    kestrelctl("readers", "create", queue, "report")
    with QueueClient(daemon.port) as holding, QueueClient(daemon.port) as waiting:
        holding.get(f"{queue}/open")
        holding_address, waiting_address = (f"127.0.0.1:{one.socket.getsockname()[1]}" for one in (holding, waiting))
        waiting.get(queue)
        waiting.send(f"get {queue}/t=600000\r\n".encode())
        holding.do(b"version", b"VERSION")
        rows = json.loads(kestrelctl("consumers", queue, "-o", "json").out)
        lines = kestrelctl("consumers", queue, "-o", "tsv", "--no-headers").out.decode().splitlines()
    assert [(row["kind"], row["consumer"]) for row in rows] == [
        ("holding", holding_address),
        ("waiting", waiting_address),
        ("queue", queue),
        ("stream", "report"),
    ]
    held, waits, own, report = rows
    assert (held["open"], held["id"], held["user"]) == (1, 1, "")
    assert 0 <= held["age_ms"] < 600_000
    assert 0 <= waits["age_ms"] + waits["left_ms"] <= 600_000
    assert (own["id"], own["behind"], own["open"]) == (1, 2, 1)
    assert (report["id"], report["behind"]) == (1, 2)
    assert lines[0].split("\t")[:3] == ["holding", holding_address, ""]


def test_of_a_queue_that_is_not_there_exit_1_and_a_limit_that_cannot_be_exit_2(
    kestrelctl: Kestrelctl, queue: str
) -> None:
    run = kestrelctl("consumers", queue)
    assert (run.code, run.out) == (1, b"")
    assert kestrelctl("consumers", queue, "--limit", "0").code == 2
