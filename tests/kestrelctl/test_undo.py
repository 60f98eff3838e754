"""`undo` and `repair` on a running server, as operators type them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, running_daemon
from tests.support.peer import WHO_IS_THERE, Exchange, scripted_peer
from tests.support.shell import Kestrelctl


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[Daemon]:
    """A server that keeps what is dropped."""
    with running_daemon(tmp_path / "keeping", "trash_seconds=1h", "queues.brief.trash_seconds=0") as daemon:
        yield daemon


@pytest.fixture
def on_keeping(keeping: Daemon, tmp_path: Path) -> Kestrelctl:
    return Kestrelctl(keeping.address, tmp_path)


@pytest.mark.parametrize("verb", ["flush", "delete", "flush-all"])
def test_undo_brings_back_what_was_dropped_in_order(on_keeping: Kestrelctl, verb: str) -> None:
    on_keeping("put", "work", "--lines", stdin=b"1\n2\n3\n")
    assert on_keeping(verb, *(["work"] if verb != "flush-all" else []), "-y").code == 0
    assert on_keeping("get", "work").code == 1
    on_keeping("put", "work", "4")
    run = on_keeping("undo", "work")
    assert (run.code, run.out, run.err) == (0, b"", "")
    assert on_keeping("get", "work", "--all").out == b"4\n1\n2\n3\n"


def test_undo_survives_a_kill(keeping: Daemon, on_keeping: Kestrelctl) -> None:
    on_keeping("put", "work", "--lines", stdin=b"1\n2\n3\n")
    on_keeping("delete", "work", "-y")
    keeping.kill()
    keeping.start()
    assert on_keeping("undo", "work").code == 0
    assert on_keeping("get", "work", "--all").out == b"1\n2\n3\n"


def test_nothing_to_undo_is_exit_1(on_keeping: Kestrelctl) -> None:
    on_keeping("put", "brief", "x")
    on_keeping("flush", "brief", "-y")
    for queue in ("never-there", "brief"):
        run = on_keeping("undo", queue)
        words = f"kestrelctl: nothing to undo for {queue}: trash_seconds is 0, or has expired\n"
        assert (run.code, run.out, run.err) == (1, b"", words)


def test_a_full_queue_takes_some_and_the_rest_is_kept(keeping: Daemon, on_keeping: Kestrelctl) -> None:
    on_keeping("put", "work", "--lines", stdin=b"1\n2\n3\n")
    on_keeping("flush", "work", "-y")
    keeping.config_path.write_text("queues: {work: {max_items: 2}}")
    on_keeping("reload")
    run = on_keeping("undo", "work")
    assert (run.code, run.err) == (81, "kestrelctl: work is full: items=2 are back, items=1 can be undone later\n")
    assert on_keeping("undo", "work").code == 80
    assert on_keeping("get", "work", "--all").out == b"1\n2\n"
    assert on_keeping("undo", "work").code == 0
    assert on_keeping("get", "work", "--all").out == b"3\n"


def test_a_name_that_cannot_be_a_queues_is_refused(on_keeping: Kestrelctl) -> None:
    for verb in ("undo", "repair"):
        assert on_keeping(verb, "a/b").code == 2


# Repair


def damage(daemon: Daemon, bad: bytes) -> Path:
    """Stop it, damage the item `bad` of `work`, start it again; the segment it is in."""
    daemon.stop()
    (segment,) = (daemon.spool / "work.journal").glob("*.seg")
    content = bytearray(segment.read_bytes())
    content[content.index(bad)] ^= 1
    segment.write_bytes(content)
    daemon.start()
    return segment


def test_repair_opens_a_stopped_queue_and_says_what_was_lost(own_daemon: Daemon, own_kestrelctl: Kestrelctl) -> None:
    own_kestrelctl("put", "work", "--lines", stdin=b"first\nsecond\nthird\n")
    segment = damage(own_daemon, b"second")
    assert own_kestrelctl("get", "work").code == 84
    run = own_kestrelctl("repair", "work", "-o", "json")
    (row,) = json.loads(run.out)
    kept_at = row.pop("kept_at")
    assert (run.code, row) == (
        1,
        {"queue": "work", "finding": "repaired", "damages": 1, "items": 2, "lost_items": 1},
    )
    found, done = run.err.splitlines()
    assert found.startswith(f"kestrelctl: work: {segment}: byte ")
    assert found.endswith("PUT: the checksum does not match; lost: item 2")
    assert done == f"kestrelctl: work: repaired; the damaged journal is kept in {kept_at}"
    assert Path(kept_at, segment.name).is_file()
    assert own_kestrelctl("get", "work", "--all").out == b"first\nthird\n"


def test_a_sound_queue_needs_no_repair(own_kestrelctl: Kestrelctl) -> None:
    own_kestrelctl("put", "work", "x")
    run = own_kestrelctl("repair", "work", "-o", "json")
    (row,) = json.loads(run.out)
    assert (run.code, run.err, row["finding"], row["damages"], row["kept_at"]) == (0, "", "", 0, "")
    assert own_kestrelctl("get", "work").out == b"x"


def test_a_queue_that_is_not_there_is_exit_1(own_kestrelctl: Kestrelctl) -> None:
    run = own_kestrelctl("repair", "nope")
    assert (run.code, run.out, run.err) == (1, b"", "")


def test_with_the_replies_of_kestrel_1_too(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "daemon", "compat=kestrel-1", "trash_seconds=1h") as daemon:
        kestrelctl = Kestrelctl(daemon.address, tmp_path)
        kestrelctl("put", "work", "--lines", stdin=b"first\nsecond\nthird\n")
        kestrelctl("flush", "work", "-y")
        assert kestrelctl("undo", "work").code == 0
        assert kestrelctl("undo", "work").code == 1
        damage(daemon, b"second")  # where it stands first: that one had been flushed
        assert kestrelctl("repair", "work").code == 0
        assert kestrelctl("get", "work", "--all").out == b"first\nsecond\nthird\n"


def test_an_old_kestrel_knows_neither(kestrelctl: Kestrelctl) -> None:
    for verb in ("undo", "repair"):
        for answer in (b"ERROR\r\n", b"CLIENT_ERROR\r\n"):
            with scripted_peer([WHO_IS_THERE, Exchange(f"{verb} work\r\n".encode(), answer, closes=True)]) as peer:
                assert kestrelctl(verb, "work", "-s", peer.address).code == 77


# What would be dropped, and what is not there


def test_a_dry_run_says_what_is_there_and_leaves_it(kestrelctl: Kestrelctl, queue: str) -> None:
    kestrelctl("put", queue, "--lines", stdin=b"1\n22\n")
    row = f"{queue}\t2\t3\t0\n".encode()
    for verb in (["flush", queue], ["delete", queue], ["flush-all"]):
        run = kestrelctl(*verb, "--dry-run")
        assert run.code == 0
        assert run.out.startswith(b"queue\titems\tbytes\topen_transactions\n")
        assert row in run.out
    assert kestrelctl("get", queue, "--all").out == b"1\n22\n"


@pytest.mark.parametrize("verb", [["flush"], ["flush", "--dry-run"], ["delete"], ["delete", "--dry-run"]])
def test_a_name_that_is_no_queue_is_exit_1_with_words(kestrelctl: Kestrelctl, verb: list[str]) -> None:
    run = kestrelctl(*verb, "wrok")
    assert (run.code, run.out, run.err) == (1, b"", "kestrelctl: no such queue: wrok\n")
    assert kestrelctl(*verb, "wrok", "--missing-ok").code == 0
    assert kestrelctl("ls", "wrok").code == 1  # nothing has made it
