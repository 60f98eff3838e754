"""One spool, by turns a program's with the library and a server's: what either leaves, the other goes on with."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from kestreld.library import JournaledQueue, PersistentQueue, QueueConfig
from tests.support.daemon import Daemon, running_daemon
from tests.support.library import journaled, read_all
from tests.support.queue_client import QueueClient
from tests.support.shell import Kestrelctl

STOP_OR_KILL = [pytest.param(Daemon.stop, id="stop"), pytest.param(Daemon.kill, id="kill")]
SMALL: Final[dict[str, Any]] = {"max_journal_size_bytes": 2000}  # so that there are several segments


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def assert_sound(tmp_path: Path, spool: Path) -> None:
    outcome = Kestrelctl("", tmp_path)("journal-verify", str(spool))
    assert outcome.code == 0, outcome


def opened(spool: Path, name: str) -> PersistentQueue:
    queue = PersistentQueue(str(spool), name, QueueConfig(**SMALL))
    queue.setup()
    return queue


def write_with_readers(queue: JournaledQueue) -> None:
    """200 items: `billing` has yet to get from 30 on, but for 50 to 59; `audit` came when there were 100."""
    queue.put_all(numbered(0, 100))
    billing = queue.reader("billing")
    audit = queue.reader("audit")
    queue.put_all(numbered(100, 200))
    found = [billing.get() for _ in range(60)]
    for item in found[:30] + found[50:]:
        assert item is not None
        billing.commit(item)
    assert audit.get() is not None


def test_a_server_serves_what_named_readers_have_left_in_order(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    with journaled(spool, "orders", **SMALL) as queue:
        write_with_readers(queue)
    assert_sound(tmp_path, spool)
    with running_daemon(tmp_path) as daemon:
        with QueueClient(daemon.port) as client:
            assert client.drain("orders+billing") == numbered(30, 50) + numbered(60, 200)
            client.put("orders", b"new")
            assert client.drain("orders+audit") == [*numbered(100, 200), b"new"]
            assert client.drain("orders+billing") == client.drain("orders") == [b"new"], "made anew, at the tail"
        assert daemon.stop() == 0
    assert_sound(tmp_path, spool)


PROGRAM = """
import sys
from kestreld.library import PersistentQueue
queue, copy = (PersistentQueue(sys.argv[1], name) for name in ("orders", "orders+copy"))
queue.setup()
copy.setup()
queue.add_all([b"%d" % number for number in range(100)])
queue.remove_all(30)
queue.confirm_remove([queue.remove(True) for _ in range(5)][4].xid)
print("there", flush=True)
sys.stdin.read()
"""


def test_a_server_serves_what_a_killed_program_has_left_in_order(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    command = [sys.executable, "-c", PROGRAM, str(spool)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"there\n"
        program.kill()
    assert_sound(tmp_path, spool)
    with running_daemon(tmp_path) as daemon, QueueClient(daemon.port) as client:
        assert client.drain("orders") == numbered(30, 34) + numbered(35, 100)
        assert client.drain("orders+copy") == numbered(0, 100)


@pytest.mark.parametrize("end", STOP_OR_KILL)
def test_the_library_goes_on_with_what_a_server_has_left(tmp_path: Path, end: Callable[[Daemon], object]) -> None:
    with running_daemon(tmp_path, "max_journal_size=2KiB") as daemon:
        with QueueClient(daemon.port) as client:
            for name in ("orders", "work"):
                assert client.get(f"{name}+audit") is None
                client.put(name, *numbered(0, 100))
                assert [client.get(name) for _ in range(30)] == numbered(0, 30)
            assert client.get("orders+audit") == b"0"
            client.do(b"get work/open", b"VALUE work/open 0 2\r\n30\r\nEND\r\n")
            end(daemon)
        assert_sound(tmp_path, daemon.spool)
        with journaled(daemon.spool, "orders", **SMALL) as queue:
            assert sorted(queue.readers) == ["", "audit"]
            assert queue.put(b"new")
            assert read_all(queue.reader()) == [*numbered(30, 100), b"new"]
            assert read_all(queue.reader("audit")) == [*numbered(1, 100), b"new"]
        work, audit = opened(daemon.spool, "work"), opened(daemon.spool, "work+audit")
        assert [item.data for item in work.remove_all(200)] == numbered(30, 100)
        assert work.add(b"new")
        assert [item.data for item in audit.remove_all(200)] == [*numbered(0, 100), b"new"]
        work.close()
        audit.close()
        assert_sound(tmp_path, daemon.spool)
        daemon.start()
        with QueueClient(daemon.port) as client:
            assert (client.drain("work"), client.drain("orders"), client.drain("work+audit")) == ([b"new"], [], [])
