"""move and copy: items from one queue to another, on the same server or elsewhere."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, running_daemon
from tests.support.process import stop
from tests.support.shell import Kestrelctl
from tests.support.wire import connected


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("other"), admin="127.0.0.1:0") as daemon:
        yield daemon


def fill(ctl: Kestrelctl, queue: str, numbers: range) -> None:
    ctl("put", queue, "--lines", stdin=b"".join(b"%d\n" % number for number in numbers))


def numbers_in(ctl: Kestrelctl, queue: str, *where: str) -> list[int]:
    """What is in a queue; it is empty then."""
    return [int(line) for line in ctl("get", queue, "--all", *where).out.split()]


def put_dated(ctl: Kestrelctl, queue: str) -> None:
    """Three items: with flags, with an expiry, with bytes that are no text."""
    sets = [(7, 0, b"flagged"), (0, int(time.time()) + 5000, b"dated"), (0, 0, b"\r\n\xff\0")]
    with connected(ctl.address) as client:
        for flags, expiry, data in sets:
            client.ask(b"set %b %d %d %d\r\n%b\r\n" % (queue.encode(), flags, expiry, len(data), data), b"STORED\r\n")


def details_in(ctl: Kestrelctl, queue: str, *where: str) -> list[tuple[object, ...]]:
    rows = json.loads(ctl("items", queue, "-o", "json", *where).out)
    return [(row.get("data", row.get("data_base64")), row["flags"], row.get("expire_ms", 0) // 1000) for row in rows]


def test_move_empties_a_queue_into_another_and_keeps_order(kestrelctl: Kestrelctl, queue: str) -> None:
    fill(kestrelctl, queue, range(50))
    run = kestrelctl("move", queue, f"{queue}-to")
    assert (run.code, run.out, run.err) == (0, b"", "")
    assert kestrelctl("get", queue).code == 1
    assert numbers_in(kestrelctl, f"{queue}-to") == list(range(50))
    assert kestrelctl("move", queue, f"{queue}-to").code == 1


@pytest.mark.parametrize("verb", ["move", "copy"])
def test_flags_expiry_and_bytes_are_kept_on_another_server_too(
    kestrelctl: Kestrelctl, other: Daemon, queue: str, verb: str
) -> None:
    put_dated(kestrelctl, queue)
    before = details_in(kestrelctl, queue)
    assert [flags for _, flags, _ in before] == [7, 0, 0]
    assert kestrelctl(verb, queue, queue, "--to", other.address).code == 0
    there = details_in(kestrelctl, queue, "-s", other.address)
    # The wire has whole seconds: rounded up.
    assert [one[:2] for one in there] == [one[:2] for one in before]
    assert [after - was in (0, 1) for (_, _, was), (_, _, after) in zip(before, there, strict=True)] == [True] * 3
    assert there[1][2] != 0
    assert kestrelctl("items", queue).code == (1 if verb == "move" else 0)


def test_move_takes_so_many_and_no_faster(kestrelctl: Kestrelctl, queue: str) -> None:
    fill(kestrelctl, queue, range(10))
    start_s = time.monotonic()
    assert kestrelctl("move", queue, f"{queue}-to", "--max", "5", "--rate", "20/s").code == 0
    assert time.monotonic() - start_s >= 4 / 20
    assert numbers_in(kestrelctl, queue) == list(range(5, 10))
    assert numbers_in(kestrelctl, f"{queue}-to") == list(range(5))


def test_what_does_not_match_stays_where_it_is(kestrelctl: Kestrelctl, queue: str) -> None:
    fill(kestrelctl, queue, range(30))
    assert kestrelctl("move", queue, f"{queue}-to", "--match", "^(0|7|1[0-4])$").code == 0
    moved = [0, 7, 10, 11, 12, 13, 14]
    assert numbers_in(kestrelctl, f"{queue}-to") == moved
    assert numbers_in(kestrelctl, queue) == [number for number in range(30) if number not in moved]


def test_move_stops_where_too_many_do_not_match_and_leaves_them_in_order(kestrelctl: Kestrelctl, queue: str) -> None:
    fill(kestrelctl, queue, range(150))
    run = kestrelctl("move", queue, f"{queue}-to", "--match", "^149$")
    assert (run.code, run.err.count("\n")) == (77, 1)
    assert "copy --match has no such limit" in run.err
    assert kestrelctl("copy", queue, f"{queue}-to", "--match", "^149$").code == 0
    assert numbers_in(kestrelctl, f"{queue}-to") == [149]
    assert numbers_in(kestrelctl, queue) == list(range(150))


def test_a_move_that_is_killed_loses_nothing(kestrelctl: Kestrelctl, own_daemon: Daemon, queue: str) -> None:
    fill(kestrelctl, queue, range(5))
    kestrelctl("put", "q", "x", "-s", own_daemon.address)
    stop(own_daemon.pid)
    moving = kestrelctl.start("move", queue, "q", "--to", own_daemon.address, "--timeout", "60s")
    while not json.loads(kestrelctl("ls", queue, "-o", "json").out)[0]["open_transactions"]:
        assert moving.poll() is None
    moving.kill()
    moving.wait()
    moving.communicate()
    kestrelctl("wait", queue, "--items", "5", "--timeout", "60s")
    assert numbers_in(kestrelctl, queue) == list(range(5))


def test_what_the_other_queue_refuses_stays(kestrelctl: Kestrelctl, queue: str, small: str) -> None:
    fill(kestrelctl, queue, range(5))
    run = kestrelctl("move", queue, small)
    assert (run.code, run.err.count("\n")) == (81, 1)
    assert "moved items=3 before" in run.err
    assert numbers_in(kestrelctl, queue) == [3, 4]
    assert numbers_in(kestrelctl, small) == [0, 1, 2]


def test_a_queue_cannot_be_moved_onto_itself(kestrelctl: Kestrelctl, queue: str) -> None:
    for verb in ("move", "copy"):
        for to in ([], ["--to", kestrelctl.address]):
            assert kestrelctl(verb, queue, queue, *to).code == 2
    kestrelctl("get", f"{queue}+child")
    kestrelctl("put", queue, "x")
    run = kestrelctl("move", f"{queue}+child", queue)  # it would never end
    assert (run.code, run.err) == (
        2,
        f"kestrelctl: would loop: items put on {queue} are also delivered to {queue}+child\n",
    )


def test_copy_takes_nothing_and_leaves_out_what_has_expired(kestrelctl: Kestrelctl, daemon: Daemon, queue: str) -> None:
    fill(kestrelctl, queue, range(3))
    kestrelctl("put", queue, "gone", "--expire", "1")
    rows = json.loads(kestrelctl("items", queue, "-o", "json").out)
    while time.time() * 1000 <= rows[-1]["expire_ms"]:
        time.sleep(0.05)
    assert kestrelctl("copy", queue, f"{queue}-to").code == 0
    assert numbers_in(kestrelctl, f"{queue}-to") == [0, 1, 2]
    assert numbers_in(kestrelctl, queue) == [0, 1, 2]
    assert kestrelctl("copy", queue, f"{queue}-to").code == 1


def test_on_the_servers_of_a_context_each_moves_its_own(
    kestrelctl: Kestrelctl, other: Daemon, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(kestrelctl.environment, "XDG_CONFIG_HOME", str(tmp_path))
    kestrelctl("context", "add", "both", kestrelctl.address, other.address)
    kestrelctl("put", queue, "1")
    kestrelctl("put", queue, "2", "-s", other.address)
    assert kestrelctl("move", queue, f"{queue}-to", "-c", "both").code == 0
    assert numbers_in(kestrelctl, f"{queue}-to") == [1]
    assert numbers_in(kestrelctl, f"{queue}-to", "-s", other.address) == [2]


def test_without_an_admin_port_move_still_moves(own_kestrelctl: Kestrelctl, kestrelctl: Kestrelctl, queue: str) -> None:
    fill(own_kestrelctl, queue, range(3))
    assert own_kestrelctl("move", queue, queue, "--to", kestrelctl.address).code == 0
    assert numbers_in(kestrelctl, queue) == [0, 1, 2]
    fill(own_kestrelctl, queue, range(3))
    assert own_kestrelctl("copy", queue, queue, "--to", kestrelctl.address).code == 77
