"""A journal that somebody removes, replaces or adds to while the server writes it: noticed in a second."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.faults.conftest import served
from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient


def segment(daemon: Daemon) -> Path:
    return max((daemon.spool / "q.journal").glob("*.seg"))


def replace_by_an_older_copy(daemon: Daemon) -> None:
    copy = daemon.folder / "copy"
    shutil.copy(segment(daemon), copy)
    with QueueClient(daemon.port) as client:
        client.put("q", b"after the copy")
    copy.replace(segment(daemon))


def empty(daemon: Daemon) -> None:
    segment(daemon).write_bytes(b"")


def add_to(daemon: Daemon) -> None:
    with segment(daemon).open("ab") as file:
        file.write(b"not kestreld's")


DAMAGE: Final[dict[str, Callable[[Daemon], object]]] = {
    "the segment is deleted": lambda daemon: segment(daemon).unlink(),
    "the folder is deleted": lambda daemon: shutil.rmtree(daemon.spool / "q.journal"),
    "the folder is moved away": lambda daemon: (daemon.spool / "q.journal").rename(daemon.folder / "away"),
    "the segment is replaced": replace_by_an_older_copy,
    "the segment is emptied": empty,
    "the segment is added to": add_to,
}


QUICK: Final = ("the segment is deleted", "the segment is replaced")


@pytest.mark.parametrize(
    "what", [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in DAMAGE]
)
def test_a_journal_that_is_taken_away_takes_no_more_and_what_is_in_memory_can_still_be_got(
    tmp_path: Path, what: str
) -> None:
    with running_daemon(tmp_path) as daemon, served(daemon, "other"), QueueClient(daemon.port) as client:
        client.put("q", b"1", b"2")
        DAMAGE[what](daemon)
        assert "q: " in daemon.logged(f"{daemon.spool}/q.journal/")
        with QueueClient(daemon.port) as refused:
            assert refused.offer("q", b"refused").startswith(b"SERVER_ERROR journal ")
        assert client.get("q") == b"1"
        assert client.get("q") == b"2"
        lines = [line for line in daemon.log if "q.journal" in line]
        assert len(lines) == 1, "said once"


def test_a_full_segment_that_was_deleted_stops_the_queue_when_it_is_read(tmp_path: Path) -> None:
    settings = ("max_journal_size=4KiB", "max_memory_size=1KiB")
    with running_daemon(tmp_path, *settings) as daemon, served(daemon, "other"), QueueClient(daemon.port) as client:
        client.put("q", *[b"%04d" % number for number in range(400)])
        client.expect_nothing_more()
        sorted((daemon.spool / "q.journal").glob("*.seg"))[2].unlink()
        while (line := ask(client)).startswith(b"VALUE "):
            pass
        assert line.startswith(b"SERVER_ERROR corrupt %b/q.journal/" % str(daemon.spool).encode())


@pytest.mark.parametrize("which", [0, 2, -1], ids=["the first", "one between", "the live one"])
def test_a_segment_that_was_deleted_while_the_server_was_down_stops_the_queue(tmp_path: Path, which: int) -> None:
    with running_daemon(tmp_path, "max_journal_size=4KiB") as daemon:
        with QueueClient(daemon.port) as client:
            client.put("q", *[b"%04d" % number for number in range(400)])
            client.put("other", b"served")
            client.expect_nothing_more()
        daemon.stop()
        sorted((daemon.spool / "q.journal").glob("*.seg"))[which].unlink()
        daemon.start()
        with QueueClient(daemon.port) as client:
            assert ask(client).startswith(b"SERVER_ERROR corrupt %b/q.journal: " % str(daemon.spool).encode())
        with QueueClient(daemon.port) as client:
            assert client.get("other") == b"served"
        assert "q: stopped: " in daemon.logged("is missing")


def ask(client: QueueClient) -> bytes:
    """Take an item; the answer's first line."""
    client.ask_for("q")
    line = client.read_line()
    if line.startswith(b"VALUE "):
        client.read_until(b"END\r\n")
    return line


def test_puts_are_taken_again_after_a_reload_once_the_folder_is_back(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, QueueClient(daemon.port) as client:
        client.put("q", b"1", b"2")
        (daemon.spool / "q.journal").rename(tmp_path / "away")
        daemon.logged("puts are refused")
        client.get("q")
        (tmp_path / "away").rename(daemon.spool / "q.journal")
        client.do(b"reload", b"Reloaded config.\r\n")
        client.put("q", b"3")
        daemon.kill()
        daemon.start()
        with QueueClient(daemon.port) as later:
            assert later.drain("q") == [b"2", b"3"]
