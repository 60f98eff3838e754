"""Stopping, dying and starting again: what was acknowledged is there, and what is damaged or foreign is said so."""

import os
import random
import shutil
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient, slow_reader
from tests.support.waiting import until
from tests.support.wire import connected

End = Callable[[Daemon], object]
LARGE_BYTES = 12_000_000  # more than goes into the buffers of a connection
STOP_OR_KILL = [pytest.param(Daemon.stop, id="stop"), pytest.param(Daemon.kill, id="kill")]


def numbered(count: int, size: int = 0) -> list[bytes]:
    return [(b"%d" % number).ljust(size, b".") for number in range(count)]


def newest_segment(daemon: Daemon, queue: str = "q") -> Path:
    return max((daemon.spool / f"{queue}.journal").glob("*.seg"))


# What is kept


@pytest.mark.parametrize("end", STOP_OR_KILL)
def test_everything_acknowledged_is_there_again(tmp_path: Path, end: End) -> None:
    data = bytes(range(256)) * 100
    with running_daemon(tmp_path) as daemon:
        with QueueClient(daemon.port) as client:
            client.put("q", *numbered(1000))
            client.put("flags", b"marked", flags=4294967295)
            client.put("expiring", b"soon over", expiry_s=-1)
            client.put("expiring", b"lives", expiry_s=3600)
            client.put("binary", data, b"", b"\r\n")
            client.put("n\xe4me:with=odd,bytes", b"found")
            for number in range(100):
                client.put(f"many-{number}", b"%d" % number)
            assert [client.get("q") for _ in range(300)] == numbered(300)
            client.put("emptied", b"x")
            client.get("emptied")
            client.put("flushed", b"x")
            client.do(b"flush flushed", b"END\r\n")
            client.put("deleted", b"x")
            client.do(b"delete deleted", b"DELETED\r\n")
        end(daemon)
        daemon.start()
        with QueueClient(daemon.port) as client:
            assert client.items("q") == 700
            assert client.drain("q") == numbered(1000)[300:]
            client.do(b"get flags", b"VALUE flags 4294967295 6\r\nmarked\r\nEND\r\n")
            assert client.drain("expiring") == [b"lives"]
            assert client.drain("binary") == [data, b"", b"\r\n"]
            assert client.get("n\xe4me:with=odd,bytes") == b"found"
            assert [client.get(f"many-{number}") for number in range(100)] == numbered(100)
            assert client.get("emptied") is client.get("flushed") is None
            assert client.queue_stats("deleted") == {}


@pytest.mark.parametrize("end", STOP_OR_KILL)
def test_item_ids_go_on_where_they_were(tmp_path: Path, end: End) -> None:
    with running_daemon(tmp_path) as daemon:
        for first in (1, 3):
            with QueueClient(daemon.port) as client:
                client.put("q", b"x", b"x")
                client.do(b"gets q", b"VALUE q 0 1 %d\r\nx\r\nEND\r\n" % first)
                client.do(b"gets q", b"VALUE q 0 1 %d\r\nx\r\nEND\r\n" % (first + 1))
            end(daemon)
            daemon.start()


@pytest.mark.parametrize("end", STOP_OR_KILL)
def test_items_confirmed_out_of_order_are_not_delivered_again(tmp_path: Path, end: End) -> None:
    with running_daemon(tmp_path, "max_open_reads=10") as daemon:
        with QueueClient(daemon.port) as client:
            client.put("q", *numbered(10))
            workers = [QueueClient(daemon.port) for _ in range(6)]
            assert [worker.get("q/open") for worker in workers] == numbered(6)
            for number in (1, 2, 4):
                workers[number].do(b"get q/close", b"END\r\n")
            end(daemon)
        for _ in range(2):
            daemon.restart()
        with QueueClient(daemon.port) as client:
            assert client.items("q") == 7
            assert [client.get("q/open") for _ in range(2)] == [b"0", b"3"]
            client.do(b"get q/abort", b"END\r\n")
            client.do(b"get q/close", b"END\r\n")
        daemon.kill()
        daemon.start()
        with QueueClient(daemon.port) as client:
            assert client.drain("q") == [b"0", b"5", b"6", b"7", b"8", b"9"]


def test_many_starts_in_a_row_change_nothing(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        with QueueClient(daemon.port) as client:
            client.put("q", *numbered(50))
        for turn in range(4):
            daemon.kill() if turn % 2 else daemon.stop()
            daemon.start()
        with QueueClient(daemon.port) as client:
            assert client.drain("q") == numbered(50)


def test_stored_is_kept_with_every_sync_setting(tmp_path: Path) -> None:
    for setting in ("false", "true", "10ms"):
        with running_daemon(tmp_path / setting, f"sync_journal={setting}") as daemon:
            with QueueClient(daemon.port) as client:
                client.put("q", *numbered(300))
                assert client.get("q") == b"0"
                syncs = int(client.stats()["syncs"])
                assert syncs > 0 if setting == "true" else True
            daemon.kill()
            daemon.start()
            with QueueClient(daemon.port) as client:
                assert client.drain("q") == numbered(300)[1:], setting


# Torn tails and damage


@pytest.mark.parametrize("tail", ["cut short", "half a record", "garbage", "zeros"])
def test_a_torn_tail_is_cut_off_and_kept_beside(tmp_path: Path, tail: str) -> None:
    items = numbered(20, size=50)
    with running_daemon(tmp_path) as daemon:
        with QueueClient(daemon.port) as client:
            client.put("other", b"untouched")
            for item in items:
                client.put("q", item)
        daemon.kill()
        segment = newest_segment(daemon)
        content = segment.read_bytes()
        if tail == "cut short":
            segment.write_bytes(content[:-3])
            items.pop()
        elif tail == "half a record":
            segment.write_bytes(content + content[-91:-40])
        elif tail == "garbage":
            segment.write_bytes(content + random.Random(1).randbytes(500))
        else:
            segment.write_bytes(content + bytes(5000))
        daemon.start()
        line = daemon.logged("q: ")
        torn = list(segment.parent.glob("*.torn-*"))
        if tail == "zeros":
            assert "unused bytes cut off" in line
            assert torn == []
        else:
            assert f"torn tail of {torn[0].stat().st_size} bytes" in line
            assert str(torn[0]) in line
        with QueueClient(daemon.port) as client:
            client.put("q", b"after")
        daemon.kill()
        daemon.start()
        with QueueClient(daemon.port) as client:
            assert client.drain("q") == [*items, b"after"]
            assert client.get("other") == b"untouched"


def test_a_damaged_journal_stops_its_queue_and_no_other(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        with QueueClient(daemon.port) as client:
            client.put("q", *numbered(20, size=50))
            client.put("other", b"untouched")
        daemon.stop()
        segment = newest_segment(daemon)
        content = bytearray(segment.read_bytes())
        content[len(content) // 2] ^= 1
        segment.write_bytes(content)
        daemon.start()
        assert "q: stopped: " in daemon.logged(str(segment))
        with QueueClient(daemon.port) as client:
            for command in (b"get q", b"get q/open", b"set q 0 0 1\r\nx", b"get q/peek", b"set q+child 0 0 1\r\nx"):
                client.send(command + b"\r\n")
                assert str(segment).encode() in client.expect_line(b"SERVER_ERROR corrupt ")
            assert client.get("other") == b"untouched"
            assert client.stats()["queues_stopped"] == "1"
        assert segment.read_bytes() == bytes(content), "left as it was found"


def test_a_journal_of_a_later_version_is_not_touched(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        with QueueClient(daemon.port) as client:
            client.put("q", b"x")
        daemon.stop()
        segment = newest_segment(daemon)
        content = bytearray(segment.read_bytes())
        content[8] = 2
        segment.write_bytes(content)
        daemon.start()
        daemon.logged("q: stopped: ")
        with QueueClient(daemon.port) as client:
            client.ask_for("q")
            client.expect_line(b"SERVER_ERROR corrupt ")
        assert segment.read_bytes() == bytes(content)


def test_foreign_files_are_reported_and_left_alone(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        with QueueClient(daemon.port) as client:
            client.put("q", b"x")
        daemon.stop()
        spool = daemon.spool
        (spool / "lost+found").mkdir()
        (spool / "photos").mkdir()
        (spool / "photos" / "cat.jpg").write_bytes(b"meow")
        (spool / "b.d.journal").mkdir()
        (spool / "README").write_text("not a journal\n")
        (spool / "notes.txt").write_bytes(random.Random(2).randbytes(1000))
        (spool / "q.journal" / "notes.txt").write_text("mine")
        (spool / "q.journal" / "0000000001.seg.bak").write_text("mine too")
        before = {path: path.read_bytes() for path in spool.rglob("*") if path.is_file() and path.name != ".lock"}
        daemon.start()
        for name in ("lost+found", "photos", "b.d.journal", "README", "notes.txt"):
            assert "left alone" in daemon.logged(f"{spool}/{name}: ")
        with QueueClient(daemon.port) as client:
            assert client.get("q") == b"x"
            client.do(b"delete q", b"DELETED\r\n")
        daemon.stop()
        after = {path: path.read_bytes() for path in before if path.exists()}
        assert after == {path: data for path, data in before.items() if path.parent.name != "q.journal"}


# Who may use the spool


def test_a_second_kestreld_on_the_spool_refuses_and_names_the_first(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        with QueueClient(daemon.port) as client:
            client.put("q", b"x")
        second = Daemon(tmp_path).run()
        assert second.returncode == 75
        assert f"pid {daemon.pid}" in second.stderr
        assert second.stderr.count("\n") == 1
        with QueueClient(daemon.port) as client:
            assert client.get("q") == b"x"


def test_the_lock_says_who_holds_it_and_where_it_listens(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        assert (daemon.spool / ".lock").read_text() == f"pid {daemon.pid}, memcache=127.0.0.1:{daemon.port}\n"
        daemon.kill()
        daemon.start()  # a dead holder holds nothing


def test_a_spool_is_its_users_own(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        with QueueClient(daemon.port) as client:
            client.put("q", b"x")
        for path in (daemon.spool, *daemon.spool.rglob("*")):
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


@pytest.mark.parametrize("spool", ["/proc/no-spool-here", "/dev/null/spool"])
def test_a_spool_that_cannot_be_made_ends_the_start(tmp_path: Path, spool: str) -> None:
    ended = Daemon(tmp_path).run("--set", f"queue_path={spool}")
    assert ended.returncode == 73
    assert ended.stderr.startswith(f"kestreld: {spool}: ")
    assert ended.stderr.count("\n") == 1


def test_a_spool_that_is_a_file_ends_the_start_and_stays(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("not a spool")
    ended = Daemon(tmp_path).run()
    assert ended.returncode == 73
    assert str(tmp_path / "spool") in ended.stderr
    assert (tmp_path / "spool").read_text() == "not a spool"


@pytest.mark.parametrize("mode", [0o000, 0o500], ids=["unreadable", "read-only"])
def test_a_spool_without_rights_ends_the_start(tmp_path: Path, mode: int) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read and write everywhere")
    spool = tmp_path / "spool"
    spool.mkdir()
    spool.chmod(mode)
    ended = Daemon(tmp_path).run()
    spool.chmod(0o700)
    assert ended.returncode == 73
    assert str(spool) in ended.stderr
    assert list(spool.iterdir()) == []


# Where it listens


def test_a_port_in_use_ends_the_start(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "first") as daemon:
        ended = Daemon(tmp_path / "second", listen=daemon.address).run()
    assert ended.returncode == 69
    assert daemon.address in ended.stderr


def test_it_listens_on_a_unix_socket_that_is_its_users_own(short_path: Path) -> None:
    path = short_path / "run" / "kestreld.sock"
    with running_daemon(short_path, listen=f"unix:{path}") as daemon:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with connected(daemon.address) as client:
            client.ask(b"set q 0 0 1\r\nx\r\n", b"STORED\r\n")
        daemon.kill()
        assert path.exists()
        daemon.start()  # nobody listens on what is left of the socket
        with connected(daemon.address) as client:
            client.ask(b"get q\r\n", b"VALUE q 0 1\r\nx\r\nEND\r\n")
        daemon.stop()
        assert not path.exists()


def test_a_unix_socket_in_use_is_not_taken_away(short_path: Path) -> None:
    path = short_path / "kestreld.sock"
    with running_daemon(short_path / "first", listen=f"unix:{path}") as daemon:
        ended = Daemon(short_path / "second", listen=f"unix:{path}").run()
        assert ended.returncode == 69
        with connected(daemon.address) as client:
            client.ask(b"get q\r\n", b"END\r\n")


def test_it_listens_on_several_addresses(short_path: Path) -> None:
    path = short_path / "kestreld.sock"
    with running_daemon(short_path, f"listen.memcache=[127.0.0.1:0, 'unix:{path}']") as daemon:
        ready = daemon.logged("ready ")
        tcp, unix = ready.partition("memcache=")[2].split()[0].split(",")
        assert unix == f"unix:{path}"
        with connected(tcp) as one, connected(unix) as other:
            one.ask(b"set q 0 0 1\r\nx\r\n", b"STORED\r\n")
            other.ask(b"get q\r\n", b"VALUE q 0 1\r\nx\r\nEND\r\n")


# Stopping


@pytest.mark.usefixtures("installed_programs")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_with_every_answer_given(tmp_path: Path, number: int) -> None:
    with running_daemon(tmp_path) as daemon:
        with QueueClient(daemon.port) as waiter, QueueClient(daemon.port) as worker, QueueClient(daemon.port) as other:
            other.put("q", b"open", b"waits")
            assert worker.get("q/open") == b"open"
            waiter.ask_for("empty/t=600000")
            other.until("empty", waiters=1)
            daemon.signal(number)
            waiter.expect_end(b"END\r\n")
            worker.expect_end()
            other.expect_end()
            assert daemon.wait() == 0
        assert daemon.log[-1] == "kestreld: stopped"
        daemon.start()
        with QueueClient(daemon.port) as client:
            assert client.drain("q") == [b"open", b"waits"]


def test_what_was_put_without_asking_for_an_answer_is_on_disk_when_it_has_stopped(tmp_path: Path) -> None:
    """The queues' second items are read in a turn of their own, and wait for the syncs of the first."""
    first = b"first".ljust(1100)
    with running_daemon(tmp_path, "sync_journal=true") as daemon:
        with QueueClient(daemon.port) as client:
            sets = [
                b"set q%d 0 0 %d noreply\r\n%b\r\n" % (number, len(data), data)
                for data in (first, b"second")
                for number in range(30)
            ]
            client.send(b"".join(sets) + b"shutdown\r\n")
            assert daemon.wait() == 0
        daemon.start()
        with QueueClient(daemon.port) as client:
            assert [client.drain(f"q{number}") for number in range(30)] == [[first, b"second"]] * 30


def test_a_signal_that_comes_as_soon_as_it_is_ready_is_heard(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        for _ in range(4):
            assert daemon.stop() == 0
            daemon.start()


@pytest.mark.usefixtures("installed_programs")
def test_it_stops_at_once_when_told_twice(tmp_path: Path) -> None:
    """A client that does not read its answer holds the first up for a little."""
    with running_daemon(tmp_path) as daemon:
        with slow_reader(daemon.port, 1 << 16) as client:
            client.put("q", b"x" * LARGE_BYTES)
            client.ask_for("q/peek")
            client.read(1)
            daemon.signal(signal.SIGTERM)
            daemon.logged("shutting down")
            daemon.signal(signal.SIGTERM)
            assert daemon.wait() == 130
        daemon.start()
        with QueueClient(daemon.port) as client:
            assert client.items("q") == 1


def test_a_client_that_does_not_read_cannot_keep_it_from_stopping(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, slow_reader(daemon.port, 1 << 16) as client:
        client.put("q", b"x" * LARGE_BYTES)
        client.ask_for("q/peek")
        client.read(1)
        assert daemon.stop() == 0


def test_a_large_answer_is_finished_before_it_stops(tmp_path: Path) -> None:
    data = b"0123456789abcdef" * (LARGE_BYTES // 16)
    with running_daemon(tmp_path) as daemon, slow_reader(daemon.port, 1 << 16) as client:
        client.put("q", data)
        client.ask_for("q/peek")
        client.read(1)
        daemon.signal(signal.SIGTERM)
        daemon.logged("shutting down")
        client.expect_end(b"ALUE q/peek 0 %d\r\n%b\r\nEND\r\n" % (len(data), data))
        assert daemon.wait() == 0


# Segments


def test_items_in_many_segments_come_back_in_order(tmp_path: Path) -> None:
    items = numbered(3000, size=100)
    with running_daemon(tmp_path, "max_journal_size=20000", "max_memory_size=50000") as daemon:
        with QueueClient(daemon.port) as client:
            client.get("q+child")
            client.put("q", *items)
            assert int(client.queue_stats("q")["segments"]) > 10
            assert [client.get("q") for _ in range(1000)] == items[:1000]
        daemon.kill()
        daemon.start()
        with QueueClient(daemon.port) as client:
            assert client.drain("q") == items[1000:]
            assert client.drain("q+child") == items


def test_segments_that_nobody_needs_go(tmp_path: Path) -> None:
    """A hundred times max_journal_size goes through the queue; the disk holds a few times that, once it keeps up."""
    with running_daemon(tmp_path, "max_journal_size=64KiB") as daemon, QueueClient(daemon.port) as client:
        for _ in range(25):
            for _ in range(4):
                client.put("q", *numbered(60, size=1000))
                assert client.drain("q") == numbered(60, size=1000)
            until(lambda: daemon.disk_bytes() <= 4 * 64 * 1024, "old segments to go when the newest is on disk")


def test_an_old_open_read_does_not_keep_every_segment_since(tmp_path: Path) -> None:
    settings = ("max_journal_size=64KiB", "max_journal_overflow=5")
    with running_daemon(tmp_path, *settings) as daemon:
        with QueueClient(daemon.port) as client, QueueClient(daemon.port) as holder:
            client.put("q", b"held open", b"also old")
            assert holder.get("q/open") == b"held open"
            for _ in range(60):
                client.put("q", *numbered(60, size=1000))
                client.send(b"get q\r\n" * 60)
                for _ in range(60):
                    assert client.read_value() is not None
            until(lambda: daemon.disk_bytes() <= 8 * 64 * 1024, "compaction, which goes on between turns")
        daemon.kill()
        daemon.start()
        with QueueClient(daemon.port) as client:
            left = client.drain("q")
            assert left[0] == b"held open"
            assert left[1:] == numbered(60, size=1000)[-1:]


def test_a_deleted_queues_files_are_gone_after_a_crash_too(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        with QueueClient(daemon.port) as client:
            client.put("q", b"x" * 100_000)
            client.do(b"delete q", b"DELETED\r\n")
        daemon.kill()
        trash = daemon.spool / ".trash" / "left.behind"
        trash.mkdir(parents=True)
        shutil.copy("/dev/null", trash / "0000000001-00000000000000000001.seg")
        daemon.start()
        assert daemon.disk_bytes() < 1000
        assert not trash.exists()
        with QueueClient(daemon.port) as client:
            assert client.queue_stats("q") == {}


def test_how_long_the_head_has_waited_is_known_after_a_restart_with_nothing_loaded(tmp_path: Path) -> None:
    """Also where records of a megabyte and more stand in the journal before the head."""
    with running_daemon(tmp_path, config="listen: {admin: null}\n") as daemon:
        with QueueClient(daemon.port) as client:
            for _ in range(300):
                client.put("work", b"x" * 5000)
            before_ms = time.time_ns() // 1_000_000
            client.put("work", b"head")
            for _ in range(300):
                client.get("work")
        daemon.kill()
        daemon.start()
        with QueueClient(daemon.port) as client:
            figures = client.stats()
            waited_ms = time.time_ns() // 1_000_000 - before_ms
            assert 0 < int(figures["queue_work_oldest_ms"]) <= waited_ms
            assert figures["queue_work_mem_items"] == "0"
