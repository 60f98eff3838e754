"""What the commands that read journals say of items that are not due yet."""

import json
import struct
import time
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from kestreld.queues.leases import fail, lease
from tests.support.clock import START_WALL_MS
from tests.support.daemon import running_daemon
from tests.support.engine import Engine, QuickFiles
from tests.support.shell import Kestrelctl

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In the first of three segments an item is put for in a day, and one for in an hour; that is done in the last."""
    engine = Engine(tmp_path_factory.mktemp("held") / "spool", QuickFiles(), max_journal_size_bytes=400)
    reader = engine.reader("work")
    engine.put("work", b"done")
    assert reader.queue.put_later(b"in a day", 0, 7, None, 24 * HOUR_MS)
    assert reader.queue.put_later(b"in an hour", 0, 0, None, HOUR_MS)
    reader.remember_key(b"order-17", 3, HOUR_MS)
    engine.take("work")
    for number in range(12):
        engine.put("work", b"item %02d" % number)
        engine.end_turn()
        engine.take("work")
    engine.clock.advance(2 * HOUR_MS)
    engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    assert engine.take("work") == b"in an hour"
    engine.put("work", b"waits")
    engine.end_turn()
    engine.collection.close()
    assert len(engine.segments("work")) >= 3
    return engine.spool


def rows(out: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.splitlines()]


def test_a_dump_says_what_is_due_when_and_what_keys_there_are(own_kestrelctl: Kestrelctl, spool: Path) -> None:
    run = own_kestrelctl("journal", "dump", "work", "--spool", str(spool), "-o", "ndjson")
    due = [(row["id"], row["due_at_ms"], row["why"]) for row in rows(run.out) if row["type"] == "DUE"]
    assert due == [(2, START_WALL_MS + 24 * HOUR_MS, "delayed"), (3, START_WALL_MS + HOUR_MS, "delayed")]
    assert [row["id"] for row in rows(run.out) if row["type"] == "KEY"] == [3]
    first, second, *_ = [row for row in rows(run.out) if row["type"] == "CHECKPOINT"]
    assert "held_from" not in first
    assert second["held_from"] == 2
    assert "held_items=2" in str(second["readers"])


def test_peek_at_has_what_was_held_back_with_its_due_time(own_kestrelctl: Kestrelctl, spool: Path) -> None:
    for at_ms, expected in (
        (START_WALL_MS + HOUR_MS, {"in a day": START_WALL_MS + 24 * HOUR_MS, "in an hour": START_WALL_MS + HOUR_MS}),
        (START_WALL_MS + 3 * HOUR_MS, {"in a day": START_WALL_MS + 24 * HOUR_MS, "waits": None}),
    ):
        run = own_kestrelctl("journal", "peek", "work", "--spool", str(spool), "--at", str(at_ms), "--json")
        assert run.code == 0, run.err
        found = {row["data"]: row.get("due_at_ms") for row in rows(run.out) if row["data"] in expected}
        assert found == expected


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One item has failed and is due in a minute, one has failed too often, one is leased when the server stops."""
    engine = Engine(tmp_path_factory.mktemp("troubled") / "spool", QuickFiles())
    retried = {"max_retries": 2, "move_failed_to": "dead", "retry_delays_ms": (1000, 60_000)}
    engine.configure({"work": retried, "other": {"max_retries": 1, "move_failed_to": "dead"}})
    engine.put("work", b"has failed")
    engine.put("other", b"failed for good")
    engine.end_turn()
    for name, why in (("work", ""), ("other", ""), ("work", "no room"), ("other", "no room")):
        leased = lease(engine.reader(name), engine.clock.wall_ms, 30_000, "")
        assert leased is not None
        assert fail(engine.reader(name), leased[0], engine.clock.wall_ms, why)
        engine.end_turn()
        engine.clock.advance(500)
        engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
    engine.put("work", b"is leased")
    engine.end_turn()
    assert lease(engine.reader("work"), engine.clock.wall_ms, 30_000, "") is not None
    engine.collection.close()
    return engine.spool


def test_peek_at_knows_what_an_item_waited_for_and_where_a_dead_letter_was_before(
    own_kestrelctl: Kestrelctl, troubled: Path
) -> None:
    def peeked(queue: str, at_ms: int) -> list[dict[str, object]]:
        at = ["--at", str(START_WALL_MS + at_ms), "--empty-ok", "--json"]
        run = own_kestrelctl("journal", "peek", queue, "--spool", str(troubled), *at)
        assert run.code == 0, run.err
        return [{name: value for name, value in row.items() if name not in ("id", "at_ms")} for row in rows(run.out)]

    first = {"data": "has failed", "state": "retrying", "due_at_ms": START_WALL_MS + 1000, "attempts": 1}
    again = {"data": "has failed", "state": "retrying", "due_at_ms": START_WALL_MS + 61_000, "attempts": 2}
    leased = {"data": "is leased", "state": "leased", "due_at_ms": START_WALL_MS + 32_000}
    assert peeked("work", 500) == [first]
    assert peeked("work", 1500) == [again]
    assert peeked("work", 2500) == [again, leased]
    assert peeked("work", 62_000)[0] == {**again, "state": "waiting"}
    origin = {"queue": "other", "reason": "failed", "attempts": 2, "put_at_ms": START_WALL_MS}
    assert peeked("dead", 2500) == [{"data": "failed for good", "origin": origin, "failure_reason": "no room"}]


def test_a_dump_says_why_an_item_failed(own_kestrelctl: Kestrelctl, troubled: Path) -> None:
    run = own_kestrelctl("journal", "dump", "work", "--spool", str(troubled), "-o", "ndjson")
    (row,) = [row for row in rows(run.out) if row["type"] == "FAILURE"]
    assert (row["queue"], row["id"], row["failure_reason"]) == ("work", 1, "no room")
    run = own_kestrelctl("journal", "dump", "dead", "--spool", str(troubled), "-o", "ndjson")
    assert [row["failure_reason"] for row in rows(run.out) if row["type"] == "ORIGIN"] == ["no room"]
    assert own_kestrelctl("journal-verify", str(troubled)).code == 0


def test_a_dump_says_where_a_dead_letter_was_before(own_kestrelctl: Kestrelctl, troubled: Path) -> None:
    run = own_kestrelctl("journal", "dump", "dead", "--spool", str(troubled), "-o", "ndjson")
    (row,) = [row for row in rows(run.out) if row["type"] == "ORIGIN"]
    assert [row[name] for name in ("origin", "reason", "attempts", "put_at_ms")] == [
        "other",
        "failed",
        2,
        START_WALL_MS,
    ]


def test_the_age_of_a_delayed_item_counts_from_its_due_time_and_it_is_not_discarded(
    own_kestrelctl: Kestrelctl, spool: Path
) -> None:
    def simulated(*options: str) -> dict[str, object]:
        until = ["--until", str(START_WALL_MS + 30 * HOUR_MS)]
        run = own_kestrelctl("retention", "simulate", "work", "--spool", str(spool), "-o", "json", *until, *options)
        assert run.code == 0, run.err
        found: dict[str, object] = json.loads(run.out)
        return found

    # The item that is due in a day is 5 h 59 min old by then, the one that nobody gets is 28 h old.
    assert simulated("--max-age", "7h")["expired_items"] == 1
    assert simulated("--max-age", "5h")["expired_items"] == 2
    # The first item makes room for the second delayed one, which is discarded itself once it is due.
    full = simulated("--max-items", "2")
    assert (full["discarded_items"], full["refused_items"]) == (2, 12)


def test_a_replay_gives_a_delayed_item_its_delay_again(own_kestrelctl: Kestrelctl, spool: Path, tmp_path: Path) -> None:
    with running_daemon(tmp_path / "target") as daemon:
        since = ["--until", str(START_WALL_MS + 1), "--grep", "in a", "--speed", "max"]
        run = own_kestrelctl("journal", "replay", "work", "--spool", str(spool), "--to", daemon.address, *since)
        assert run.code == 0, run.err
        dump = own_kestrelctl("journal", "dump", "work", "--spool", str(daemon.spool), "-o", "ndjson")
    left_ms = [int(str(row["due_at_ms"])) - time.time() * 1000 for row in rows(dump.out) if row["type"] == "DUE"]
    assert [round(left / HOUR_MS, 1) for left in left_ms] == [24, 1]


def test_history_counts_what_is_held_back(own_kestrelctl: Kestrelctl, spool: Path) -> None:
    until = ["--until", str(START_WALL_MS + 3 * HOUR_MS), "--step", "1h"]
    run = own_kestrelctl("history", "work", "--spool", str(spool), *until, "-o", "ndjson")
    assert rows(run.out)[-1]["items"] == 2


def test_verify_counts_what_is_held_back_as_live(own_kestrelctl: Kestrelctl, spool: Path) -> None:
    run = own_kestrelctl("journal-verify", str(spool), "-o", "ndjson")
    assert run.code == 0, run.err
    assert sum(int(str(row["live_items"])) for row in rows(run.out)) == 2


def test_explain_space_names_the_item_that_is_due_much_later(own_kestrelctl: Kestrelctl, spool: Path) -> None:
    run = own_kestrelctl("journal", "explain-space", "work", "--spool", str(spool), "-o", "ndjson")
    first = rows(run.out)[0]
    assert first["pinned_by"] == "work"
    assert "item 2 is due " in str(first["goes"])


def test_an_export_has_what_is_held_back_and_says_that_kestrel_knows_no_due_times(
    own_kestrelctl: Kestrelctl, spool: Path, tmp_path: Path
) -> None:
    run = own_kestrelctl("journal", "export", str(spool), "--to", str(tmp_path / "out"), "-o", "ndjson")
    assert [(row["items"], row["due_lost"]) for row in rows(run.out)] == [(2, 0)], "a day has passed since"
    assert b"in a day" in (tmp_path / "out" / "work").read_bytes()


def test_a_journal_in_which_none_of_this_was_used_is_one_that_older_servers_read(tmp_path: Path) -> None:
    versions = []
    for is_used in (False, True):
        engine = Engine(tmp_path / f"{is_used}", QuickFiles(), max_retries=3)
        reader = engine.reader("work")
        engine.put("work", b"one", b"two", flags=7)
        engine.end_turn()
        opened = reader.open_read(engine.clock.wall_ms)
        assert opened is not None
        reader.abort(opened[0], engine.clock.wall_ms)
        engine.end_turn()
        if is_used:
            assert reader.queue.put_later(b"later", 0, 0, None, 10)
        engine.end_turn()
        engine.collection.close()
        contents = [path.read_bytes() for path in engine.segments("work")]
        versions.append([struct.unpack_from("<H", content, 8)[0] for content in contents])
        for content in contents:
            header_bytes = int.from_bytes(content[12:16], "little")
            checksum = xxh3_64_intdigest(content[: header_bytes - 4]) & 0xFFFFFFFF
            assert content[header_bytes - 4 : header_bytes] == checksum.to_bytes(4, "little")
    assert versions == [[1], [1, 2]]
