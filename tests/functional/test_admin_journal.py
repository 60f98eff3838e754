"""What the admin port says of journals: their segments, and who holds them."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.accounts import login, quick_hash
from tests.support.daemon import Daemon, running_daemon
from tests.support.http import ask, basic
from tests.support.queue_client import QueueClient
from tests.support.waiting import until

SMALL_SEGMENTS = ("max_journal_size=1024", "max_journal_overflow=1000")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    config = "queues:\n  memory: {journal: false}\n"
    with running_daemon(tmp_path, *SMALL_SEGMENTS, config=config, admin="127.0.0.1:0") as running:
        yield running


def journal(daemon: Daemon, queue: str) -> Any:
    answer = ask(daemon, f"/queues/{queue}/journal")
    assert answer.status == 200, answer
    return answer.json


def test_every_segment_is_named_with_its_ids_bytes_and_who_holds_it(daemon: Daemon) -> None:
    with QueueClient(daemon.port) as client:
        client.get("work+audit")
        for _ in range(60):  # one by one: what is put at once is in one segment
            client.put("work", b"x" * 200)
        assert ask(daemon, "/queues/work/readers/spark?from=latest", "POST").status == 201
        for _ in range(40):
            client.get("work")
        found = journal(daemon, "work")
    segments = found["segments"]
    assert [segment["file"] for segment in segments] == sorted(
        path.name for path in (daemon.spool / "work.journal").glob("*.seg")
    )
    assert segments[0]["first_id"] == 1
    for one, following in itertools.pairwise(segments):
        assert one["end_id"] == following["first_id"]
    assert segments[-1]["end_id"] == found["next_id"] == 61
    assert sum(segment["bytes"] for segment in segments) == found["bytes_on_disk"]
    assert {one["reader"]: one["head"] for one in found["readers"]} == {"": 41, "audit": 1, "spark": 61}
    assert segments[0]["pinned_by"] == ["audit"]
    assert segments[-1]["pinned_by"] == ["audit", ""]
    assert [segment["state"] for segment in segments] == ["full"] * (len(segments) - 1) + ["live"]
    assert sum(segment["needed_ids"] for segment in segments) == 60
    assert (found["failed"], found["stopped"], found["folder"]) == (None, None, str(daemon.spool / "work.journal"))


def test_what_nobody_needs_is_dead_and_goes(daemon: Daemon) -> None:
    with QueueClient(daemon.port) as client:
        client.put("work", *[b"x" * 200 for _ in range(30)])
        before = len(journal(daemon, "work")["segments"])
        assert len(client.drain("work")) == 30
        found = journal(daemon, "work")
        states = [segment["state"] for segment in found["segments"]]
        assert set(states[:-1]) <= {"dead"}
        assert sum(segment["needed_ids"] for segment in found["segments"]) == 0

        def is_fewer() -> bool:
            client.put("work", b"more")
            client.get("work")
            return len(journal(daemon, "work")["segments"]) < before

        until(is_fewer, "a segment to go")


def test_queues_without_a_journal_and_queues_that_are_not_there(daemon: Daemon) -> None:
    with QueueClient(daemon.port) as client:
        client.put("memory", b"x")
    assert ask(daemon, "/queues/memory/journal").status == 409
    assert ask(daemon, "/queues/nobody/journal").status == 404
    assert ask(daemon, "/queues/memory/journal", "POST").status == 405


def test_where_the_files_are_is_said_to_who_looks_after_the_server(tmp_path: Path) -> None:
    config = (
        "users:\n"
        f"  boss: {{password: '{quick_hash('pw')}', rights: {{'*': all}}}}\n"
        f"  guest: {{password: '{quick_hash('pw')}', rights: {{'work': [peek]}}}}\n"
        f"  stranger: {{password: '{quick_hash('pw')}', rights: {{'other': [peek]}}}}\n"
    )
    with running_daemon(tmp_path, config=config, admin="127.0.0.1:0") as daemon:
        with QueueClient(daemon.port) as client:
            client.ask(login("boss", "pw"), b"STORED\r\n")
            client.put("work", b"x")
        assert ask(daemon, "/queues/work/journal").status == 401
        assert "folder" in ask(daemon, "/queues/work/journal", headers=basic("boss", "pw")).json
        guest = ask(daemon, "/queues/work/journal", headers=basic("guest", "pw"))
        assert guest.status == 200  # figures, as with /queues/Q
        assert str(tmp_path) not in guest.body.decode()
        assert ask(daemon, "/queues/work/journal", headers=basic("stranger", "pw")).status == 403
