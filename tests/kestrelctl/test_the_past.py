"""`history`, `journal peek --at`, `journal replay` and `retention simulate`: what a journal knows of the past."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clock import FakeClock
from tests.support.daemon import Daemon, running_daemon
from tests.support.engine import Engine
from tests.support.past import BEGIN_MS, MINUTE_MS, Past, write_past
from tests.support.queue_client import QueueClient
from tests.support.segments import JOURNAL_ID, puts, write_segment
from tests.support.shell import Kestrelctl


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Past:
    return write_past(tmp_path_factory.mktemp("past"))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("target"), "queues.small.max_items=5") as daemon:
        yield daemon


def places(past: Past) -> list[str]:
    return ["--spool", str(past.spool), "--archive", str(past.archive)]


def ndjson(out: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.splitlines()]


# --- history -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queue", ["work", "work+audit"])
def test_history_has_the_depth_at_the_end_of_every_minute(kestrelctl: Kestrelctl, past: Past, queue: str) -> None:
    command = ["history", queue, *places(past), "--step", "1m", "--until", str(past.end_ms), "-o", "ndjson"]
    run = kestrelctl(*command)
    assert (run.code, run.err) == (0, "")
    rows = ndjson(run.out)
    held = [minute["+" in queue] for minute in past.waiting]
    # A minute of the clock begins 20 s before one of the queue's life: steps end at full minutes.
    by_time = {row["at_ms"]: row for row in rows}
    full = [at_ms for at_ms in by_time if at_ms % MINUTE_MS == 0]  # type: ignore[operator]
    assert len(full) == len(past.waiting)
    for at_ms in full:
        minute = held[(at_ms - BEGIN_MS) // MINUTE_MS]  # type: ignore[operator]
        assert (by_time[at_ms]["items"], by_time[at_ms]["bytes"]) == (len(minute), sum(map(len, minute)))
    put, taken = (sum(int(str(row[name])) for row in rows) for name in ("put_items", "taken_items"))
    assert put - taken == len(held[-1])


def test_without_the_archive_history_begins_where_the_journal_does(kestrelctl: Kestrelctl, past: Past) -> None:
    command = ["history", "work", "--spool", str(past.spool), "--until", str(past.end_ms), "--step", "1m", "-o", "json"]
    rows = json.loads(kestrelctl(*command).out)
    assert 0 < len(rows) < len(past.waiting)
    assert rows[-1]["items"] == len(past.waiting[-1][0])
    before = kestrelctl("history", "work", "--spool", str(past.spool), "--until", str(BEGIN_MS + 1))
    assert (before.code, before.out) == (1, b"")


def test_a_table_has_a_line_that_shows_the_depth(kestrelctl: Kestrelctl, past: Past) -> None:
    span = ["--since", str(BEGIN_MS), "--until", str(past.end_ms), "--step", "3m"]
    run = kestrelctl("history", "work+audit", *places(past), *span, "-o", "table")
    line, blank, head, *_ = run.out.decode().splitlines()
    assert (blank, head.split()[:3]) == ("", ["time", "items", "bytes"])
    name, bars, words = line.split("  ")
    assert (name, words) == ("work+audit", "up to 25 items")
    assert bars == "".join(sorted(bars))
    assert bars[-1] == "█"


def test_every_way_to_leave_a_queue_is_told_apart(kestrelctl: Kestrelctl, tmp_path: Path) -> None:
    engine = Engine(tmp_path, clock=FakeClock(), max_items=4, discard_old_when_full=True, move_expired_to="late")
    engine.put("work", b"discarded", b"got", b"a", b"b", b"c")
    engine.end_turn()
    engine.take("work")
    engine.end_turn()
    engine.put("work", b"expires", expire_at_ms=engine.clock.wall_ms + 1000)
    engine.end_turn()
    for _ in range(3):
        engine.take("work")
    engine.end_turn()
    engine.clock.advance(5000)
    assert engine.take("work") is None
    engine.end_turn()
    engine.end_turn()
    engine.collection.close()
    run = kestrelctl("history", "work", "--spool", str(tmp_path), "--step", "1h", "-o", "ndjson", "--until", "1d")
    first = ndjson(run.out)[0]
    counts = {name: first[f"{name}_items"] for name in ("put", "taken", "moved", "discarded", "flushed", "expired")}
    assert counts == {"put": 6, "taken": 4, "moved": 1, "discarded": 1, "flushed": 0, "expired": 0}
    assert first["items"] == 0


def test_a_running_server_shows_its_last_minutes(own_daemon: Daemon, own_kestrelctl: Kestrelctl) -> None:
    own_kestrelctl("put", "::a:b::", "--lines", stdin=b"1\n2\n3\n")
    own_kestrelctl("get", "::a:b::")
    run = own_kestrelctl("history", "::a:b::", "--spool", str(own_daemon.spool), "--since", "1h", "-o", "json")
    assert (run.code, run.err) == (0, "")
    assert json.loads(run.out)[-1]["items"] == 2


# --- peek ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("minute", [0, 3, 4, 9, 17, 23])
def test_the_items_of_a_moment_are_those_that_waited_then(kestrelctl: Kestrelctl, past: Past, minute: int) -> None:
    at = ["--at", str(BEGIN_MS + minute * MINUTE_MS + MINUTE_MS - 1)]
    for queue, waiting in zip(("work", "work+audit"), past.waiting[minute], strict=True):
        run = kestrelctl("journal", "peek", queue, *places(past), *at, "--null", "--empty-ok")
        if queue == "work+audit" and minute < 4:
            assert (run.code, run.out) == (1, b""), "there was no such queue yet"
        else:
            assert (run.code, run.out, run.err) == (0, b"".join(data + b"\0" for data in waiting), "")


def test_lines_of_json_have_id_and_times_and_n_is_the_limit(kestrelctl: Kestrelctl, past: Past) -> None:
    at = ["--at", str(BEGIN_MS + 2 * MINUTE_MS)]
    run = kestrelctl("journal", "peek", "work", *places(past), *at, "--json", "-n", "1")
    assert ndjson(run.out) == [{"id": 4, "at_ms": BEGIN_MS + MINUTE_MS, "data": past.waiting[1][0][0].decode()}]


def test_items_that_have_gone_from_the_disk_are_counted_and_exit_1(kestrelctl: Kestrelctl, past: Past) -> None:
    first = sorted((past.spool / "work.journal").glob("*.seg"))[0]
    rows = ndjson(kestrelctl("journal", "dump", str(first), "-o", "ndjson").out)
    begins_ms = int(str(rows[0]["at_ms"]))
    at_ms = begins_ms + MINUTE_MS - 1 - (begins_ms - BEGIN_MS) % MINUTE_MS  # the end of that minute
    run = kestrelctl("journal", "peek", "work", "--spool", str(past.spool), "--at", str(at_ms))
    waited = past.waiting[(at_ms - BEGIN_MS) // MINUTE_MS][0]
    gone = len(waited) - len(run.out.splitlines())
    assert run.code == 1
    assert gone > 0
    assert run.err == f"kestrelctl: {len(waited)} items waited in work; items={gone} of them are no longer on disk\n"
    before = kestrelctl("journal", "peek", "work", "--spool", str(past.spool), "--at", str(BEGIN_MS))
    assert (before.code, before.out) == (66, b"")
    assert "--archive may have more" in before.err


def test_a_queue_made_again_has_nothing_of_the_one_deleted_before(kestrelctl: Kestrelctl, tmp_path: Path) -> None:
    engine = Engine(tmp_path, clock=FakeClock(), max_journal_size_bytes=4096)
    engine.put("work", b"1")
    for data in (b"of the first", b"of the second"):
        engine.collection.delete("work+audit")
        engine.end_turn()
        audit = engine.reader("work+audit")
        audit.queue.put_later(data, 0, 0, audit, 3_600_000)
        engine.end_turn()
    for _ in range(4):
        audit.queue.put_with(b"x" * 2048, 0, 0, engine.reader("work"))
        engine.end_turn()
    engine.collection.close()
    assert len(engine.segments("work")) > 1
    at_ms = str(engine.clock.wall_ms)
    run = kestrelctl("journal", "peek", "work+audit", "--spool", str(tmp_path), "--at", at_ms, "--null")
    assert (run.code, run.out) == (0, b"of the second\0")


def test_compacted_journals_have_the_items_that_waited(kestrelctl: Kestrelctl, tmp_path: Path) -> None:
    with (
        running_daemon(tmp_path, "max_journal_size=64KiB", "max_journal_overflow=4") as daemon,
        QueueClient(daemon.port) as holder,
        QueueClient(daemon.port) as client,
    ):
        client.put("work", b"held")
        assert holder.get("work/open") == b"held"
        for _ in range(20):
            client.put("work", *[b"x" * 4096] * 16)
            client.drain("work")
        client.put("work", b"last")
        run = kestrelctl("journal", "peek", "work", "--spool", str(daemon.spool), "--at", "now")
    assert (run.code, run.out, run.err) == (0, b"held\nlast\n", "")


def test_a_tail_that_a_start_would_cut_off_is_left_out_and_damage_is_exit_65(
    kestrelctl: Kestrelctl, tmp_path: Path
) -> None:
    engine = Engine(tmp_path)
    engine.put("work", b"first", b"second")
    engine.end_turn()
    engine.abandon()
    (segment,) = engine.segments("work")
    content = segment.read_bytes()
    commands = (["journal", "peek", "work", "--at", "now"], ["history", "work"], ["retention", "simulate", "work"])
    for tail in (b"\x40\0\0\0half", bytes(100), b"\x02\0\0\0\1\1\1\1\3xx"):
        segment.write_bytes(content + tail)
        run = kestrelctl(*commands[0], "--spool", str(tmp_path))
        assert (run.code, run.out, run.err) == (0, b"first\nsecond\n", "")
    segment.write_bytes(content.replace(b"first", b"fIrst"))
    for command in commands:
        limits = ["--max-items", "1"] if command[0] == "retention" else []
        run = kestrelctl(*command, *limits, "--spool", str(tmp_path))
        assert (run.code, run.out) == (65, b"")
        assert run.err.startswith(f"kestrelctl: corrupt: {segment}: ")


def test_nothing_is_changed_by_looking(kestrelctl: Kestrelctl, past: Past) -> None:
    def state() -> dict[str, tuple[int, bytes]]:
        return {
            str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in past.spool.rglob("*") if path.is_file()
        }

    before = state()
    for line in (["journal", "peek", "work", "--at", "now"], ["history", "work"], ["journal", "dump", "work"]):
        assert kestrelctl(*line, *places(past)).code == 0
    assert state() == before


# --- replay --------------------------------------------------------------------------------------------------------


def test_a_replay_puts_all_items_again_in_order_with_flags_and_what_they_had_to_live(
    kestrelctl: Kestrelctl, target: Daemon, queue: str, tmp_path: Path
) -> None:
    engine = Engine(tmp_path, clock=FakeClock())
    engine.put("work", b"flagged", flags=7)
    engine.put("work", b"\xff\r\n", expire_at_ms=engine.clock.wall_ms + 3_600_000)
    engine.end_turn()
    engine.drain("work")
    engine.collection.close()
    command = ["journal", "replay", "work", "--spool", str(tmp_path), "--to", target.address, "--queue", queue]
    run = kestrelctl(*command, "-o", "ndjson")
    assert (run.code, run.err) == (0, "")
    (row,) = ndjson(run.out)
    assert (row["queue"], row["items"], row["bytes"], row["last_id"]) == (queue, 2, 10, 2)
    dump = kestrelctl("journal", "dump", queue, "--spool", str(target.spool), "--values", "-o", "ndjson")
    first, second = [row for row in ndjson(dump.out) if row["type"] == "PUT"]
    assert (first["data"], first["flags"]) == ("flagged", 7)
    left_ms = int(str(second["expire_at_ms"])) - time.time() * 1000
    assert 3_000_000 < left_ms <= 3_601_000


def test_items_that_were_compacted_twice_are_replayed_once(
    kestrelctl: Kestrelctl, target: Daemon, tmp_path: Path
) -> None:
    archive, live = tmp_path / "archive" / "work" / str(JOURNAL_ID), tmp_path / "spool" / "work.journal"
    for number in (1, 2, 4):
        write_segment(archive, number, number * 10, puts(number * 10, 10))
    # It stands for what segment 3 stood for, too; that one has gone.
    write_segment(live, 5, 13, [*puts(13, 2), *puts(44, 1)], replaced=(3, 4))
    write_segment(live, 6, 50, puts(50, 4))
    command = ["journal", "replay", "work", "--spool", str(live.parent), "--archive", str(archive.parent.parent)]
    run = kestrelctl(*command, "--to", target.address, "--speed", "max", "-o", "ndjson")
    assert (run.code, [row["items"] for row in ndjson(run.out)]) == (0, [34])


def test_a_choice_by_time_pattern_and_id_is_replayed_into_another_queue(
    kestrelctl: Kestrelctl, past: Past, target: Daemon
) -> None:
    span = ["--since", str(BEGIN_MS + 3 * MINUTE_MS), "--until", str(BEGIN_MS + 6 * MINUTE_MS), "--speed", "max"]
    command = ["journal", "replay", "work", *places(past), "--to", target.address]
    assert kestrelctl(*command, "--queue", "again", *span, "--grep", r"^\d\.1", "--after", "8").code == 0
    with QueueClient(target.port) as client:
        assert [data.split()[0] for data in client.drain("again")] == [b"4.1", b"5.1"]
    assert kestrelctl(*command, "--grep", "no such").code == 1


def test_the_time_between_items_is_kept_and_the_rate_has_a_limit(
    kestrelctl: Kestrelctl, past: Past, target: Daemon
) -> None:
    two_minutes = ["--until", str(BEGIN_MS + 2 * MINUTE_MS), "-o", "ndjson"]
    command = ["journal", "replay", "work", *places(past), "--to", target.address, "--queue", "paced", *two_minutes]
    (timed,) = ndjson(kestrelctl(*command, "--speed", "120x").out)
    assert timed["items"] == 4
    assert int(str(timed["took_ms"])) >= 500, "a minute lies between the first two and the others"
    (limited,) = ndjson(kestrelctl(*command, "--speed", "max", "--rate", "10/s").out)
    assert int(str(limited["took_ms"])) >= 300


def test_a_replay_that_ends_early_says_where_to_go_on(kestrelctl: Kestrelctl, past: Past, target: Daemon) -> None:
    command = ["journal", "replay", "work", *places(past), "--to", target.address, "--queue", "small"]
    run = kestrelctl(*command, "--speed", "max")
    assert (run.code, run.out) == (81, b"")
    assert run.err.startswith("kestrelctl: items=5 were put, the last of them item 5: go on with --after 5\n")
    with QueueClient(target.port) as client:
        assert len(client.drain("small")) == 5
    assert kestrelctl(*command, "--speed", "max", "--after", "44").code == 0


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--speed", "fast"], 2, "is not a speed"),
        (["--rate", "0"], 2, "is not a rate"),
        (["--grep", "("], 2, "is not a valid regular expression"),
        (["--since", "yesterday"], 2, "is not a time"),
        (["--queue", "a b"], 2, "must not contain spaces"),
        (["--to", "127.0.0.1:1"], 69, "cannot reach"),
    ],
)
def test_a_mistake_of_a_replay_is_said_in_a_line(
    kestrelctl: Kestrelctl, past: Past, target: Daemon, options: list[str], code: int, words: str
) -> None:
    run = kestrelctl("journal", "replay", "work", *places(past), "--to", target.address, "--speed", "max", *options)
    assert (run.code, run.out, run.err.count("\n")) == (code, b"", 1)
    assert words in run.err


# --- retention -----------------------------------------------------------------------------------------------------


def simulated(kestrelctl: Kestrelctl, spool: Path, *options: str) -> dict[str, object]:
    run = kestrelctl("retention", "simulate", "work", "--spool", str(spool), "-o", "json", *options)
    assert (run.code, run.err) == (0, "")
    found: dict[str, object] = json.loads(run.out)
    return found


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten items of 10 bytes, one a second. The first five are got 20 s after the first, the others never."""
    folder = tmp_path_factory.mktemp("retention")
    engine = Engine(folder, clock=FakeClock())
    for number in range(10):
        engine.put("work", b"%010d" % number)
        engine.end_turn()
        engine.clock.advance(1000)
    engine.clock.advance(10_000)
    for _ in range(5):
        engine.take("work")
    engine.end_turn()
    engine.collection.close()
    return folder


def test_limits_on_age_and_number_tell_what_would_have_fallen_away(kestrelctl: Kestrelctl, spool: Path) -> None:
    until = ["--until", str(BEGIN_MS + 30_000)]
    aged = simulated(kestrelctl, spool, "--max-age", "18s", *until)
    # At 20 s the first three are 18 s old; of the others, which nobody gets, all are by 30 s.
    assert (aged["expired_items"], aged["missed_items"], aged["put_items"]) == (8, 3, 10)
    assert (aged["peak_items"], aged["peak_bytes"], aged["real_peak_items"]) == (10, 100, 10)
    full = simulated(kestrelctl, spool, "--max-items", "4", *until)
    assert (full["discarded_items"], full["missed_items"], full["peak_items"]) == (6, 5, 4)
    refused = simulated(kestrelctl, spool, "--max-items", "4", "--refuse", *until)
    assert (refused["refused_items"], refused["missed_items"], refused["discarded_items"]) == (6, 1, 0)
    small = simulated(kestrelctl, spool, "--max-size", "35", *until)
    assert (small["discarded_items"], small["peak_bytes"]) == (6, 40)


def test_limits_that_nothing_reaches_change_nothing(kestrelctl: Kestrelctl, spool: Path) -> None:
    found = simulated(kestrelctl, spool, "--max-items", "10", "--max-age", "1h", "--until", str(BEGIN_MS + 30_000))
    counts = ("expired_items", "discarded_items", "refused_items", "missed_items")
    assert [found[name] for name in counts] == [0, 0, 0, 0]
    assert found["peak_items"] == found["real_peak_items"] == 10


def test_since_begins_with_what_waited_then(kestrelctl: Kestrelctl, spool: Path) -> None:
    found = simulated(kestrelctl, spool, "--max-age", "1h", "--since", str(BEGIN_MS + 5000), "--until", "1d")
    assert (found["put_items"], found["peak_items"], found["expired_items"]) == (5, 10, 5)


def test_a_simulation_needs_a_limit(kestrelctl: Kestrelctl, spool: Path) -> None:
    run = kestrelctl("retention", "simulate", "work", "--spool", str(spool))
    assert (run.code, run.out) == (2, b"")
