"""Items of servers without the reader API as a stream: all of them, and what comes twice says so."""

import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")

from kestrelspark.jobs.ingest import Queues, ingest
from kestrelspark.options import BadOption
from kestrelspark.ranges import IS_REPEAT, RangeOfIds, RangeOptions
from kestrelspark.readers import ItemsLost, RemoteQueue
from kestrelspark.servers import Servers, ServerTrouble
from kestrelspark.wal import FIRST_ID, Log, Taken, folder_of, lock, log_batches
from kestrelspark.wal_reader import CONNECTIONS, Taker, WalReader, taken_schema
from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient
from tests.support.spark_job import SparkJob, ingest_command
from tests.support.tampering import tampering_proxy

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture
def kestrel(tmp_path: Path) -> Iterator[Daemon]:
    """A server that speaks as Kestrel 1.x does, and has no admin port."""
    with running_daemon(tmp_path / "kestrel", "compat=kestrel-1") as daemon:
        yield daemon


def put(daemon: Daemon, first: int, count: int) -> None:
    with QueueClient(daemon.port) as client:
        client.put("orders", *(b"%d" % number for number in range(first, first + count)))


def left(daemon: Daemon) -> int:
    with QueueClient(daemon.port) as client:
        return client.items("orders")


def rows(root: Path, remote: RemoteQueue, end: int, first: int = FIRST_ID) -> list[tuple[bytes, bool]]:
    """The items of a log, and whether they are marked."""
    what = RangeOfIds(remote.server, remote.queue, 0, first, end)
    batches = log_batches(root, what, RangeOptions(("value", IS_REPEAT), Servers(remote.server), fails_on_loss=True))
    return [(row["value"], row[IS_REPEAT]) for batch in batches for row in batch.to_pylist()]


def taker(root: Path, server: str) -> Taker:
    return Taker(Servers(server, timeout_ms=2000), ("orders",), root)


def test_each_run_takes_what_is_there_and_the_log_goes_when_it_is_committed(
    spark: Any, kestrel: Daemon, tmp_path: Path
) -> None:
    wal = tmp_path / "wal"
    queues = Queues(kestrel.address, "", {"subscribe": "orders", "walPath": str(wal), "maxOffsetsPerTrigger": "400"})
    for first in (0, 1000):
        put(kestrel, first, 1000)
        assert ingest(spark, queues, str(tmp_path / "lake")) == 1000
        assert left(kestrel) == 0
    found = spark.read.parquet(str(tmp_path / "lake")).collect()
    assert Counter(int(row.value) for row in found) == Counter(range(2000))
    assert sorted(row.id for row in found) == list(range(1, 2001))
    assert not any(row.is_repeat for row in found)
    # Spark says at the next batch that one is committed: the last one's files are still there.
    names = sorted(path.name for path in folder_of(wal, RemoteQueue(kestrel.address, "orders")).iterdir())
    assert names == [f"{1801:020d}.wal"]


def test_nothing_is_lost_and_repeats_are_marked_when_all_is_killed_between_log_and_close(
    spark: Any, kestrel: Daemon, tmp_path: Path
) -> None:
    wal, target = tmp_path / "wal", tmp_path / "lake"
    put(kestrel, 0, 500)
    refused, may_close = threading.Event(), threading.Event()

    def admit(request: bytes) -> bool:
        if b"/close" not in request or may_close.is_set():
            return True
        refused.set()
        job.kill()
        return False

    with tampering_proxy(kestrel.port, admit=admit) as address:
        job = SparkJob(tmp_path, ingest_command(address, target, f"--option=walPath={wal}", "--master=local[1]"))
        job.start()
        job.until(refused.is_set, dies=True)
        assert job.wait() == -signal.SIGKILL, job.log
        with QueueClient(kestrel.port) as client:
            while int(client.stats()["curr_connections"]) > 1:
                pass  # what it had sent before it was killed is being refused
        may_close.set()
        job.finish()
    found = spark.read.parquet(str(target)).collect()
    assert Counter(int(row.value) for row in found if not row.is_repeat) == Counter(range(500))
    repeats = [int(row.value) for row in found if row.is_repeat]
    assert sorted(repeats) == sorted(int(row.value) for row in found if row.id <= CONNECTIONS)


# Without Spark


def test_what_a_killed_server_gives_again_is_marked(kestrel: Daemon, tmp_path: Path) -> None:
    put(kestrel, 0, 100)
    closes: list[bytes] = []

    def admit(request: bytes) -> bool:
        if b"/close" in request:
            closes.append(request)
        return len(closes) != 1

    with tampering_proxy(kestrel.port, admit=admit) as address:
        remote, taking = RemoteQueue(address, "orders"), taker(tmp_path / "wal", address)
        log = taking.logs()[remote]
        taking.take(remote, 100)
        taking.take(remote, 100)
    assert left(kestrel) == 0
    found = rows(tmp_path / "wal", remote, log.next_id)
    assert Counter(value for value, is_repeat in found if not is_repeat) == Counter(b"%d" % n for n in range(100))
    assert len([value for value, is_repeat in found if is_repeat]) == 1


def test_a_log_with_a_torn_tail_goes_on_behind_what_is_whole(tmp_path: Path) -> None:
    remote = RemoteQueue("a:22133", "orders")
    log = Log.recovered(tmp_path, remote)
    log.record_confirmed(list(log.append([Taken(b"one", 0), Taken(b"two", 7)], 1)), 1)
    log.append([Taken(b"three", 0)], 2)
    log.end_file()
    (path,) = log.folder.iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    again = Log.recovered(tmp_path, remote)
    assert again.next_id == 3
    assert list(again.append([Taken(b"three", 0), Taken(b"one", 0)], 3)) == [3, 4]
    again.end_file()
    assert rows(tmp_path, remote, 5) == [(b"one", False), (b"two", False), (b"three", False), (b"one", False)]
    assert rows(tmp_path, remote, 4, 2) == [(b"two", False), (b"three", False)]


def test_what_was_logged_and_not_confirmed_is_marked_once_when_it_comes_again(tmp_path: Path) -> None:
    remote = RemoteQueue("a:22133", "orders")
    log = Log.recovered(tmp_path, remote)
    log.append([Taken(b"one", 0), Taken(b"two", 0)], 1)
    log.end_file()
    again = Log.recovered(tmp_path, remote)
    again.append([Taken(b"two", 0), Taken(b"new", 0), Taken(b"two", 0)], 2)
    again.end_file()
    assert rows(tmp_path, remote, 6, 3) == [(b"two", True), (b"new", False), (b"two", False)]


def test_numbers_go_on_when_the_files_have_gone_and_a_range_without_files_is_an_error(tmp_path: Path) -> None:
    remote = RemoteQueue("a:22133", "orders")
    log = Log.recovered(tmp_path, remote)
    log.append([Taken(b"one", 0)], 1)
    log.end_file()
    log.remove_before(2)
    assert not list(log.folder.iterdir())
    again = Log.recovered(tmp_path, remote)
    again.go_on_from(2)
    assert list(again.append([Taken(b"two", 0)], 2)) == [2]
    again.end_file()
    with pytest.raises(ItemsLost, match="1 of them are in"):
        rows(tmp_path, remote, 3)


def test_two_queries_cannot_share_a_log(tmp_path: Path) -> None:
    lock(tmp_path, 0)
    with pytest.raises(ServerTrouble, match="another query writes to"):
        lock(tmp_path, 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "q", "walPath": "wal"}, "walPath must be an absolute path"),
        ({"walPath": "/tmp/wal"}, "requires the option subscribe"),
        ({"subscribe": "q", "walPath": "/tmp/wal", "reader": "r"}, "no option reader"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(BadOption, match=words):
        WalReader(taken_schema(), {"servers": "127.0.0.1:1", **options})
