"""What the queues of a program hold open: no more than a share, and only while they are in use."""

import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from kestreld.errors import JournalCorrupt
from kestreld.library import JournaledQueue, PersistentQueue, QueueConfig
from tests.support.waiting import PATIENCE_S

IN_MANY_QUEUES = """
import os, resource, sys
from contextlib import ExitStack
from kestreld.library import PersistentQueue

def held():
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum(os.path.lexists(link) and os.readlink(link).endswith(".seg") for link in links)

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
with ExitStack() as stack:
    for spool in ("one", "other"):
        for number in range(150):
            queue = stack.enter_context(PersistentQueue(f"{sys.argv[1]}/{spool}", f"q{number}"))
            assert queue.add(b"x")
    print(held())
    files = [stack.enter_context(open("/dev/null")) for _ in range(150)]
    assert queue.remove().data == b"x"
"""

OPENS_ONE = """
import sys
from kestreld.library import PersistentQueue

opened = []
sys.addaudithook(lambda event, words: opened.append(str(words[0])) if event == "open" else None)
with PersistentQueue(sys.argv[1], "mine") as queue:
    assert len(queue) == 1
print(*sorted({path.split("/")[-2] for path in opened if ".journal/" in path}))
"""


def held_open(spool: Path) -> list[str]:
    """The journals' files that this process has open in a spool."""
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    targets = [os.readlink(link) for link in links if os.path.lexists(link)]
    return sorted(target for target in targets if target.startswith(f"{spool}/") and ".journal/" in target)


def output_of(program: str, *words: str) -> str:
    run = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=PATIENCE_S)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_a_queue_that_is_closed_keeps_no_file_open_while_others_of_its_spool_are_in_use(tmp_path: Path) -> None:
    with PersistentQueue(str(tmp_path), "kept") as kept:
        assert kept.add(b"x")
        before = held_open(tmp_path)
        for number in range(20):
            with PersistentQueue(str(tmp_path), f"q{number}") as queue:
                assert queue.add(b"x")
                assert queue.remove() is not None
                assert len(held_open(tmp_path)) > len(before)
            assert held_open(tmp_path) == before
        assert kept.remove() is not None


def test_journals_hold_a_quarter_of_the_descriptors_that_the_program_may_have(tmp_path: Path) -> None:
    in_a_sync_each = 2
    assert 256 // 8 < int(output_of(IN_MANY_QUEUES, str(tmp_path))) <= 256 // 4 + in_a_sync_each


def test_a_setup_reads_the_files_of_its_own_queue(tmp_path: Path) -> None:
    for name in ("mine", "yours", "theirs"):
        with PersistentQueue(str(tmp_path), name) as queue:
            assert queue.add(b"x")
    assert output_of(OPENS_ONE, str(tmp_path)) == "mine.journal"


def test_a_damaged_queue_is_told_of_when_it_is_opened(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("sound", "spoilt"):
        with PersistentQueue(str(tmp_path), name) as queue:
            assert queue.add(b"some words")
    (segment,) = (tmp_path / "spoilt.journal").glob("*.seg")
    segment.write_bytes(segment.read_bytes().replace(b"some words", b"same words"))
    with PersistentQueue(str(tmp_path), "sound") as sound:
        assert sound.remove() is not None
        assert not caplog.messages
        with pytest.raises(JournalCorrupt, match="checksum"):
            PersistentQueue(str(tmp_path), "spoilt").setup()
        assert "spoilt: stopped" in caplog.text
        assert sound.add(b"more")


def test_a_queue_that_is_opened_again_is_what_it_was(tmp_path: Path) -> None:
    config = QueueConfig(max_retries=5)
    with PersistentQueue(str(tmp_path), "other"):
        with PersistentQueue(str(tmp_path), "work", config) as queue:
            for data in (b"taken", b"leased", b"failed", b"open"):
                assert queue.add(data)
            assert queue.add(b"later", delay=1000, key="known")
            assert queue.remove() is not None
            leased = queue.lease(1000)
            assert leased is not None
            failed = queue.lease(1000)
            assert failed is not None
            assert failed.fail()
            failed_again = queue.remove(transaction=True)
            assert failed_again is not None
            assert failed_again.data == b"failed"
        with PersistentQueue(str(tmp_path), "work", config) as again:
            assert again.figures.delayed_items == 1
            assert again.figures.leased_items == 1
            assert again.add(b"later", delay=1000, key="known")
            assert again.figures.delayed_items == 1
            items = again.remove_all(10)
            assert [(item.data, item.error_count) for item in items] == [(b"failed", 1), (b"open", 0)]
            assert again.confirm_lease(leased.token)
            assert not leased.confirm()


def test_readers_are_the_same_when_their_queue_is_opened_again(tmp_path: Path) -> None:
    with PersistentQueue(str(tmp_path), "other"):
        for number in range(3):
            with JournaledQueue(str(tmp_path), "work") as queue:
                assert queue.readers == (("",) if number == 0 else ("a", "b"))
                for name in ("a", "b"):
                    queue.reader(name)
                assert queue.put(b"%d" % number)
        with JournaledQueue(str(tmp_path), "work") as queue:
            for name in ("a", "b"):
                items = [queue.reader(name).get() for _ in range(3)]
                assert [item.data for item in items if item is not None] == [b"0", b"1", b"2"]


def test_what_is_in_memory_only_is_there_as_long_as_its_spool_is_open(tmp_path: Path) -> None:
    config = QueueConfig(journal=False)
    with PersistentQueue(str(tmp_path), "other"):
        with PersistentQueue(str(tmp_path), "work", config) as queue:
            assert queue.add(b"x")
        with PersistentQueue(str(tmp_path), "work", config) as queue:
            assert len(queue) == 1


def test_a_dead_letter_goes_to_a_queue_that_was_closed(tmp_path: Path) -> None:
    config = QueueConfig(max_retries=1, move_failed_to="dead")
    with PersistentQueue(str(tmp_path), "work", config) as queue:
        with PersistentQueue(str(tmp_path), "dead") as dead:
            assert dead.add(b"first")
        assert queue.add(b"second")
        for _ in range(2):
            lease = queue.lease(1000)
            assert lease is not None
            assert lease.fail()
        with PersistentQueue(str(tmp_path), "dead") as dead:
            assert [item.data for item in dead.remove_all(10)] == [b"first", b"second"]


def test_nothing_is_lost_where_threads_open_and_close_the_same_queues(tmp_path: Path) -> None:
    taken: list[bytes] = []

    def work(me: int) -> None:
        for number in range(60):
            with PersistentQueue(str(tmp_path), f"q{number % 3}") as queue:
                assert queue.add(b"%d.%d" % (me, number))
                if number % 2 and (item := queue.remove()) is not None:
                    taken.append(item.data)

    threads = [threading.Thread(target=work, args=(me,)) for me in range(4)]
    with ExitStack() as stack:
        stack.enter_context(PersistentQueue(str(tmp_path), "other"))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        for number in range(3):
            with PersistentQueue(str(tmp_path), f"q{number}") as queue:
                taken += [item.data for item in queue.remove_all(1000)]
    assert sorted(taken) == sorted([b"%d.%d" % (me, number) for me in range(4) for number in range(60)])


def test_the_last_two_queues_of_a_spool_may_be_closed_at_once(tmp_path: Path) -> None:
    for _ in range(20):
        queues = [PersistentQueue(str(tmp_path), name) for name in ("a", "b")]
        for queue in queues:
            queue.setup()
            assert queue.add(b"x")
        threads = [threading.Thread(target=queue.close) for queue in queues]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
    with PersistentQueue(str(tmp_path), "a") as queue:
        assert len(queue) == 20


def test_a_queue_may_be_closed_by_its_own_thread(tmp_path: Path) -> None:
    is_closed = threading.Event()
    with PersistentQueue(str(tmp_path), "other"):
        queue = PersistentQueue(str(tmp_path), "work")
        queue.setup()

        def close(_: object) -> None:
            queue.close()
            is_closed.set()

        queue.remove_react(2**62, transaction=False, react=close)
        assert queue.add(b"x")
        assert is_closed.wait(PATIENCE_S)
