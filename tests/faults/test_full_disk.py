"""A real disk that fills up and has room again: a small tmpfs, and a limit on the size of files."""

import resource
import time
from pathlib import Path

import pytest

from tests.faults.conftest import Books, books_agree_after
from tests.support.daemon import running_daemon
from tests.support.http import ask
from tests.support.process import cpu_ms
from tests.support.queue_client import QueueClient
from tests.support.small_disk import small_disk
from tests.support.waiting import until

RESUMES_S = 60  # a new segment is tried once a second


def resume(books: Books, port: int) -> None:
    """Puts are taken again soon, without a word to the server."""
    until = time.monotonic() + RESUMES_S
    with QueueClient(port) as client:
        while not books.put(client):
            assert time.monotonic() < until, books.last_answer
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("sync", "cycles"),
    [("false", 1), pytest.param("false", 20, marks=pytest.mark.long), pytest.param("true", 20, marks=pytest.mark.long)],
)
def test_a_full_disk_refuses_puts_and_nothing_else_and_goes_on_when_there_is_room(
    tmp_path: Path, sync: str, cycles: int
) -> None:
    settings = (f"sync_journal={sync}", "max_journal_size=64KiB", "queues.memory.journal=false")
    with small_disk(tmp_path / "spool", "200k") as disk, books_agree_after(tmp_path, *settings) as (daemon, books):
        with QueueClient(daemon.port) as other:
            other.put("other", b"1", b"2")
            for cycle in range(cycles):
                books.put_until_refused(daemon.port)
                assert books.last_answer.startswith(b"SERVER_ERROR journal "), books.last_answer
                other.put("memory", b"x")
                assert other.get("memory") == b"x"
                assert other.get("other/peek") == b"1"
                with QueueClient(daemon.port) as client:
                    for _ in range(5):  # gets go on; what they take is on disk once there is room
                        books.uncertain.append(books.get(client))
                disk.resize(f"{400 + 200 * cycle}k")
                resume(books, daemon.port)
                books.uncertain.clear()
            other.put("other", b"3")
            assert other.drain("other") == [b"1", b"2", b"3"]
        disk.resize("20m")
        assert len(daemon.log) < 13 * cycles + 12, daemon.log
        line = "q: journal writes succeed again; puts are accepted"
        until(lambda: sum(line in said for said in daemon.log) == cycles, "each recovery in the log")


def test_a_disk_that_stays_full_costs_no_processor_and_no_log(tmp_path: Path) -> None:
    with small_disk(tmp_path / "spool", "100k") as disk, running_daemon(tmp_path) as daemon:
        books = Books()
        books.put_until_refused(daemon.port)
        lines, spent_ms, started = len(daemon.log), cpu_ms(daemon.pid), time.monotonic()
        while time.monotonic() < started + 1.5:
            with QueueClient(daemon.port) as client:
                books.put(client)
            time.sleep(0.02)
        assert cpu_ms(daemon.pid) - spent_ms < 400
        assert len(daemon.log) - lines <= 3 * (time.monotonic() - started + 0.5), daemon.log
        assert not [line for line in daemon.log if "again" in line], "nothing is said before a put has been taken"
        daemon.kill()
        daemon.start()  # on a disk that is still full
        with QueueClient(daemon.port) as client:
            assert client.items("q") >= len(books.stored)
            assert client.get("q/peek") == books.stored[0]
        disk.resize("20m")
        books.agree_with(daemon.port)


def test_a_server_notices_by_itself_that_a_full_disk_has_room_again(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "spool", "100k") as disk,
        running_daemon(tmp_path, admin="127.0.0.1:0") as daemon,
    ):
        for queue in ("idle", "other"):
            with QueueClient(daemon.port) as client:
                client.put(queue, b"x")
        for queue in ("idle", "other"):
            with QueueClient(daemon.port) as client:
                while not (answer := client.offer(queue, b"x" * 8000)).startswith(b"SERVER_ERROR journal "):
                    assert answer == b"STORED"
        assert ask(daemon, "/readyz").status == 503
        disk.resize("20m")
        until(lambda: ask(daemon, "/readyz").status == 200, "a server that is ready")
        for queue in ("idle", "other"):
            daemon.logged(f"{queue}: journal writes succeed again; puts are accepted")
        with QueueClient(daemon.port) as client:
            client.put("other", b"y")
        assert len([line for line in daemon.log if "again" in line]) == 2


@pytest.mark.long
def test_taking_items_off_a_full_disk_makes_room_on_it(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "spool", "300k"),
        books_agree_after(tmp_path, "max_journal_size=40KiB") as (
            daemon,
            books,
        ),
    ):
        books.put_until_refused(daemon.port)
        with QueueClient(daemon.port) as client:
            while len(books.stored) > 10:
                books.get(client)
        resume(books, daemon.port)


def test_a_limit_on_the_size_of_files_is_a_full_disk_and_not_a_death(tmp_path: Path) -> None:
    """Writes are cut short at the limit, which is met in the middle of a record."""
    with books_agree_after(tmp_path) as (daemon, books):
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (50_500, resource.RLIM_INFINITY))
        books.put_until_refused(daemon.port)
        assert b"File too large" in books.last_answer
        resume(books, daemon.port)  # in a segment of its own
        with QueueClient(daemon.port) as client:
            for _ in range(20):
                books.get(client)
