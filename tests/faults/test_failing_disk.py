"""A disk that answers with errors: system calls of the real process fail, by strace's injection.

The n-th call that fails is counted from the moment strace has attached; which of the journal's steps that is, is up to
the calls before it. The simulation goes through every step; here it is shown that the kernel's errors mean the same.
"""

from pathlib import Path
from typing import Final

import pytest

from tests.faults.conftest import books_agree_after, served
from tests.support.queue_client import QueueClient
from tests.support.strace import injected

SYNCED: Final = "sync_journal=true"
ROLLING: Final = "max_journal_size=20KiB"  # a new segment every twenty puts

# What fails, with which settings; whether puts on that queue are refused from then on, until a reload.
FAULTS: Final = {
    "fdatasync": ("fdatasync:error=EIO:when=5", (SYNCED,), True),
    "fdatasync, slowly": ("fdatasync:error=EIO:delay_enter=20000:when=3", (SYNCED,), True),
    "write": ("write:error=EIO:when=5", (), True),
    "write of a synced queue": ("write:error=EIO:when=5", (SYNCED,), True),
    "creating a segment": ("openat:error=EIO:when=1", (ROLLING,), True),
    "no descriptor for a segment": ("openat:error=EMFILE:when=1", (ROLLING,), True),
    "giving a segment its name": ("rename:error=EIO:when=1", (ROLLING,), True),
    "giving a synced segment its name": ("rename:error=EIO:when=1", (ROLLING, SYNCED), True),
    "opening the folder": ("openat:error=EIO:when=1", (ROLLING, SYNCED), True),
    "syncing the folder": ("fsync:error=EIO:when=1", (ROLLING, SYNCED), True),
    "write, for want of room": ("write:error=ENOSPC:when=5", (), False),
    "write, for want of quota": ("write:error=EDQUOT:when=5", (SYNCED,), False),
}
QUICK: Final = ("fdatasync", "write", "creating a segment", "write, for want of room")
CASES: Final = [pytest.param(name, id=name, marks=() if name in QUICK else pytest.mark.long) for name in FAULTS]


@pytest.mark.parametrize("name", CASES)
def test_an_error_of_the_disk_refuses_puts_of_one_queue_and_loses_nothing(tmp_path: Path, name: str) -> None:
    fault, settings, until_reload = FAULTS[name]
    with books_agree_after(tmp_path, *settings) as (daemon, books):
        with QueueClient(daemon.port) as client:
            for _ in range(3):
                assert books.put(client)
            client.put("other", b"1")
        with injected(daemon.pid, fault, path=daemon.spool / "q.journal" if "folder" in name else None):
            books.put_until_refused(daemon.port, 200)
        assert books.last_answer.startswith(b"SERVER_ERROR journal "), books.last_answer
        with served(daemon, "elsewhere"), QueueClient(daemon.port) as client:
            assert client.get("other") == b"1"
            if until_reload:
                assert not books.put(client)
                books.uncertain.append(books.get(client))  # gets go on
                client.do(b"reload", b"Reloaded config.\r\n")
            else:
                while not books.put(client):
                    assert books.last_answer.startswith(b"SERVER_ERROR journal "), books.last_answer
            assert books.put(client)
        books.uncertain.clear()  # a new segment says what was got


def test_a_call_that_is_interrupted_is_made_again(tmp_path: Path) -> None:
    with books_agree_after(tmp_path, SYNCED) as (daemon, books), QueueClient(daemon.port) as client:
        books.put(client)
        with injected(daemon.pid, "write:error=EINTR:when=2+3", "fdatasync:error=EINTR:when=2+3"):
            stored = [books.put(client) for _ in range(20)]
        assert all(stored)
