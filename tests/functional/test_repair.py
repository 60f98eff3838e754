"""Repair and undo of a real server: while others are served, while it is killed, and with what was open still open."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient
from tests.support.shell import Kestrelctl
from tests.support.wire import HungUp

ITEMS = [b"%06d " % number + b"x" * 90 for number in range(20_000)]
BAD = ITEMS[7000]
LEFT = [item for item in ITEMS if item != BAD]
KILLS_AFTER_S = (0.0, 0.02, 0.06, 0.12, 0.25, 0.5)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """Small segments, and readers that soon have to read from them."""
    settings = ("max_journal_size=256KiB", "max_memory_size=100KiB", "max_journal_overflow=1000", "trash_seconds=1h")
    with running_daemon(tmp_path, *settings) as running:
        yield running


def damage(daemon: Daemon) -> Path:
    """Flip a bit of the bad item, in a segment that is not written to any more."""
    for segment in sorted((daemon.spool / "work.journal").glob("*.seg"))[:-1]:
        content = segment.read_bytes()
        if (at := content.find(BAD)) >= 0:
            with segment.open("r+b") as file:
                file.seek(at)
                file.write(bytes([content[at] ^ 1]))
            return segment
    raise AssertionError("the bad item is in no closed segment")


def take_until_stopped(client: QueueClient) -> list[bytes]:
    taken = []
    while True:
        client.ask_for("work")
        line = client.read_line()
        if line.startswith(b"SERVER_ERROR corrupt "):
            return taken
        assert line.startswith(b"VALUE "), line
        taken.append(client.read(int(line.split(b" ")[3])))
        client.expect(b"\r\nEND\r\n")


def repair(client: QueueClient) -> list[bytes]:
    """The lines of the answer."""
    client.send(b"repair work\r\n")
    lines = [client.read_line()]
    while lines[-1].startswith(b"DAMAGE "):
        lines.append(client.read_line())
    return lines


@pytest.mark.long
def test_a_queue_that_stops_in_use_is_mended_while_the_others_serve(daemon: Daemon) -> None:
    with QueueClient(daemon.port) as client, QueueClient(daemon.port) as worker, QueueClient(daemon.port) as other:
        client.send(b"get work+audit\r\n")
        client.expect(b"END\r\n")
        client.put("work", *ITEMS)
        other.put("idle", b"sound")
        segment = damage(daemon)
        assert worker.get("work/open") == ITEMS[0]
        taken = take_until_stopped(client)
        assert taken == ITEMS[1 : len(taken) + 1]
        assert client.offer("work", b"x").startswith(b"SERVER_ERROR corrupt ")

        client.send(b"repair work\r\nget work\r\n")
        served = 0
        while client.received == b"":
            other.put("idle", b"%d" % served)
            assert other.get("idle/peek") == b"sound"
            served += 1
            with suppress(BlockingIOError):
                client.socket.setblocking(False)
                client.received = client.socket.recv(1 << 16)
            client.socket.settimeout(20)
        assert served > 20

        assert client.read_line().startswith(b"DAMAGE %b: byte " % str(segment).encode())
        kept_at = client.expect_line(b"REPAIRED %d 1 " % (len(ITEMS) - 1)).split(b" ", 3)[3]
        assert client.read_value() == ITEMS[len(taken) + 1], "what stands behind a repair waits for it"
        assert (Path(kept_at.decode()) / segment.name).is_file()
        daemon.logged("repaired and reopened: items=19999 lost=1")
        worker.do(b"get work/close", b"END\r\n")
        assert client.drain("work") == [item for item in ITEMS[len(taken) + 2 :] if item != BAD]
        assert client.drain("work+audit") == LEFT
        client.do(b"repair work", b"SOUND\r\n")
    daemon.kill()
    daemon.start()
    with QueueClient(daemon.port) as client:
        assert (client.drain("work"), client.drain("work+audit")) == ([], [])


@pytest.mark.long
def test_a_server_killed_in_the_middle_of_a_repair_loses_nothing_and_repeats_nothing(daemon: Daemon) -> None:
    with QueueClient(daemon.port) as client:
        client.put("work", *ITEMS)
    daemon.stop()
    damage(daemon)
    for pause_s in KILLS_AFTER_S:
        daemon.start()
        with QueueClient(daemon.port) as client:
            client.send(b"repair work\r\n")
            time.sleep(pause_s)  # the kill comes somewhere in the repair: that is the test
            daemon.kill()
    daemon.start()
    with QueueClient(daemon.port) as client:
        lines = repair(client)
        assert lines == [b"SOUND"] or lines[-1].startswith(b"REPAIRED ")
        assert client.drain("work") == LEFT
    assert len(list((daemon.spool / ".damaged").iterdir())) == 1
    assert list(daemon.spool.glob(".tmp/*")) == []


def test_a_journal_repaired_offline_is_served_at_the_next_start(daemon: Daemon, tmp_path: Path) -> None:
    kestrelctl, items = Kestrelctl(daemon.address, tmp_path), ITEMS[:9000]
    with QueueClient(daemon.port) as client:
        client.put("work", *items)
    damage(daemon)
    held = kestrelctl("journal-verify", "--repair", str(daemon.spool))
    assert (held.code, f"in use by pid {daemon.pid}" in held.err) == (75, True)
    daemon.stop()
    assert kestrelctl("journal-verify", "-q", str(daemon.spool)).code == 65
    assert kestrelctl("journal-verify", "--repair", str(daemon.spool)).code == 1
    assert kestrelctl("journal-verify", "-q", str(daemon.spool)).code == 0
    daemon.start()
    with QueueClient(daemon.port) as client:
        assert client.drain("work") == [item for item in items if item != BAD]


@pytest.mark.long
@pytest.mark.parametrize("verb", ["flush", "delete"])
def test_an_undo_cut_short_by_kills_brings_every_item_back_once(daemon: Daemon, verb: str) -> None:
    with QueueClient(daemon.port) as client:
        client.put("work", *ITEMS)
        client.do(f"{verb} work".encode(), b"END\r\n" if verb == "flush" else b"DELETED\r\n")
    for pause_s in KILLS_AFTER_S:
        killer = threading.Timer(pause_s, daemon.kill)
        with QueueClient(daemon.port) as client:
            killer.start()
            with suppress(HungUp, ConnectionError):
                client.send(b"undo work\r\n")
                client.read_line()
            killer.join()
        daemon.start()
    with QueueClient(daemon.port) as client:
        client.send(b"undo work\r\n")
        assert client.read_line().split(b" ")[0] in (b"UNDONE", b"NOT_FOUND")
        client.do(b"undo work", b"NOT_FOUND\r\n")
        assert client.drain("work") == ITEMS
    # A folder whose removal a kill cut short is left without its note: nothing of it can come back.
    assert list((daemon.spool / ".trash").glob("*/note.json")) == []


def test_an_undo_and_what_stands_behind_it_come_in_order(daemon: Daemon) -> None:
    with QueueClient(daemon.port) as client:
        client.put("work", b"1", b"2")
        client.send(b"flush work\r\nundo work\r\nget work\r\nset work 0 0 1\r\n3\r\n")
        client.expect(b"END\r\nUNDONE 2 0\r\nVALUE work 0 1\r\n1\r\nEND\r\nSTORED\r\n")
        assert client.drain("work") == [b"2", b"3"]
        client.do(b"undo", b"CLIENT_ERROR undo needs a queue name\r\n")
        client.do(b"repair a.b", b"NOT_FOUND\r\n")
