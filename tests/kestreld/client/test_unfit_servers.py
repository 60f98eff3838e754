"""Servers that are there and of no use: they hang, refuse, or are something else. Others take what they do not."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kestreld.client import ClusterQueue, ConnectionLost, KestrelCluster, ServerRefused, ServersAway
from kestreld.errors import OtherServer
from tests.support.accounts import quick_hash
from tests.support.daemon import Daemon, running_daemon
from tests.support.process import stop
from tests.support.wire import connected

TIMEOUT_MS = 500
LONG_S = 60


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("sound")) as daemon:
        yield daemon


class Answering:
    """A server that answers each command with the next of `answers`, and the last one from then on; b"" hangs up.

    Without any it hangs: it takes commands and says nothing. With some it tells its version before.
    """

    def __init__(self, *answers: bytes) -> None:
        self.answers = answers
        self.asked: list[bytes] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"

    def __enter__(self) -> "Answering":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with suppress(ConnectionResetError), connection:
            command = connection.recv(1 << 16)
            if command == b"version\r\n" and self.answers:
                connection.sendall(b"VERSION 1.0.0\r\n")
                command = b""
            for number in range(1000):
                command = command or connection.recv(1 << 16)
                if not command:
                    return
                self.asked.append(command.split(b"\r\n")[0])
                if not self.answers:
                    command = b""
                    continue
                answer = self.answers[min(number, len(self.answers) - 1)]
                if not answer:
                    return
                connection.sendall(answer)
                command = b""

    def count(self, word: bytes) -> int:
        return sum(line.startswith(word) for line in self.asked)


@contextmanager
def stopped(daemon: Daemon) -> Iterator[None]:
    """It hangs: what it listens on still accepts."""
    stop(daemon.pid)
    try:
        yield
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


def put_all(queue: ClusterQueue, items: int) -> int:
    """How many of the puts had no answer."""
    lost = 0
    for number in range(items):
        try:
            assert queue.put(b"%d" % number)
        except ConnectionLost:
            lost += 1
    return lost


def drained(address: str, name: str) -> list[bytes]:
    with KestrelCluster([address]) as cluster:
        queue, found = cluster.queue(name), list[bytes]()
        while (item := queue.get()) is not None:
            found.append(item)
    return found


# One that hangs


def give_time(cluster: KestrelCluster, daemon: Daemon) -> None:
    """This server is sound, and on a busy machine it answers in its own time."""
    (server,) = [server for server in cluster._pool.calls.servers if server.address == daemon.address]
    server._timeout_ms = LONG_S * 1000


def await_return(cluster: KestrelCluster, address: str) -> None:
    ends_s = time.monotonic() + LONG_S
    while address not in cluster.stats():
        assert time.monotonic() < ends_s, f"waited for {address} to be asked again"
        time.sleep(0.01)


def test_a_server_that_hangs_costs_one_operation_and_is_back_when_it_answers(tmp_path: Path, daemon: Daemon) -> None:
    with (
        running_daemon(tmp_path) as hung,
        KestrelCluster([hung.address, daemon.address], timeout_ms=TIMEOUT_MS) as cluster,
    ):
        give_time(cluster, daemon)
        queue = cluster.queue("hung")
        await_return(cluster, hung.address)  # there are connections to both
        with stopped(hung):
            assert put_all(queue, 60) == 1
            with pytest.raises(ServersAway, match=f"{hung.address} .no answer within {TIMEOUT_MS} ms"):
                queue.flush()
        await_return(cluster, hung.address)


def test_one_operation_waits_for_a_server_that_hangs_and_no_other(daemon: Daemon) -> None:
    with Answering() as hung, KestrelCluster([hung.address, daemon.address], timeout_ms=TIMEOUT_MS) as cluster:
        give_time(cluster, daemon)
        assert put_all(cluster.queue("unasked"), 60) == 1
        for _ in range(100):
            cluster.queue("unasked").get()
        assert hung.count(b"set") + hung.count(b"get") <= 1
    with Answering() as hung, KestrelCluster([hung.address], timeout_ms=TIMEOUT_MS, patience_ms=0) as cluster:
        with pytest.raises(ConnectionLost, match="timed out"):
            cluster.queue("unasked").put(b"1")
        for _ in range(100):
            with pytest.raises(ServersAway, match="no answer within"):
                cluster.queue("unasked").put(b"2")
        assert hung.count(b"set") == 0, "what is not answered gets no item"


def test_a_put_that_a_hung_server_has_got_is_put_nowhere_else(tmp_path: Path, daemon: Daemon) -> None:
    with running_daemon(tmp_path) as hung:
        addresses = [hung.address, daemon.address]
        with KestrelCluster(addresses, timeout_ms=TIMEOUT_MS) as cluster, stopped(hung):
            give_time(cluster, daemon)
            assert put_all(cluster.queue("once"), 20) == 1
        found = [drained(address, "once") for address in addresses]
        assert len(found[0]) <= 1
        assert len(found[1]) == 19


def test_a_read_from_a_server_that_hangs_goes_to_the_next(daemon: Daemon) -> None:
    with (
        Answering() as hung,
        KestrelCluster([hung.address, daemon.address], timeout_ms=TIMEOUT_MS) as cluster,
        KestrelCluster([daemon.address]) as sound,
    ):
        give_time(cluster, daemon)
        for _ in range(30):
            sound.queue("read").put(b"x")
        assert [cluster.queue("read").get() for _ in range(30)] == [b"x"] * 30
        assert hung.count(b"get") == 1


def test_a_single_server_that_hung_is_used_again(tmp_path: Path) -> None:
    with (
        running_daemon(tmp_path) as hung,
        KestrelCluster([hung.address], timeout_ms=TIMEOUT_MS, patience_ms=0) as cluster,
    ):
        queue = cluster.queue("work")
        with stopped(hung):
            with pytest.raises(ConnectionLost, match="timed out"):
                queue.put(b"1")
            with pytest.raises(ServersAway, match="no answer within"):
                queue.put(b"2")
        cluster.patience_ms = LONG_S * 1000
        give_time(cluster, hung)
        assert queue.put(b"3")


# One that refuses


@pytest.mark.parametrize(
    "answer",
    [
        b"SERVER_ERROR too many connections\r\n",
        b"SERVER_ERROR out of memory storing object\r\n",
        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
        b"220 mail.example.org ESMTP\r\n",
    ],
    ids=["full", "memory", "http", "mail"],
)
def test_what_one_refuses_another_takes_and_it_is_left_out(daemon: Daemon, answer: bytes) -> None:
    with Answering(answer) as unfit, KestrelCluster([unfit.address, daemon.address]) as cluster:
        queue = cluster.queue("refused")
        assert put_all(queue, 100) == 0
        assert [queue.get() for _ in range(101)].count(None) == 1
        assert queue.peek() is None
        assert unfit.count(b"set") + unfit.count(b"get") <= 3
        assert list(cluster.stats()) == [daemon.address]
        with pytest.raises(ServersAway, match=unfit.address):
            queue.flush()


def test_a_server_whose_connections_are_taken_is_left_out_until_one_is_free(tmp_path: Path, daemon: Daemon) -> None:
    with running_daemon(tmp_path, "max_connections=1") as full, connected(full.address) as taken:
        taken.send(b"get x\r\n")
        taken.read_until(b"END\r\n")
        with KestrelCluster([full.address, daemon.address]) as cluster:
            queue = cluster.queue("full")
            assert put_all(queue, 40) == 0
            assert list(queue.stats()) == [daemon.address]
            taken.close()
            await_return(cluster, full.address)
            assert len(drained(daemon.address, "full")) == 40


def test_what_all_refuse_is_an_error_at_once(daemon: Daemon) -> None:
    refusal = b"SERVER_ERROR too many connections\r\n"
    with (
        Answering(refusal) as one,
        Answering(refusal) as two,
        KestrelCluster([one.address, two.address], patience_ms=LONG_S * 1000) as cluster,
    ):
        queue = cluster.queue("work")
        for operation in (lambda: queue.put(b"x"), queue.get, queue.peek, queue.flush, queue.stats):
            with pytest.raises(ServerRefused, match="answered: too many connections"):
                operation()


def test_a_server_that_does_not_know_the_user_is_left_out(tmp_path: Path) -> None:
    def config(password: str) -> str:
        return f'users: {{alice: {{password: "{quick_hash(password)}", rights: {{"*": all}}}}}}\n'

    with (
        running_daemon(tmp_path / "0", config=config("other")) as one,
        running_daemon(tmp_path / "1", config=config("right")) as two,
        KestrelCluster([one.address, two.address], user="alice", password="right") as cluster,
    ):
        queue = cluster.queue("work")
        assert put_all(queue, 20) == 0
        assert list(queue.stats()) == [two.address]


def test_one_refuses_for_a_queue_and_serves_the_others(daemon: Daemon) -> None:
    refusal = b"SERVER_ERROR corrupt q.journal: byte 7: nonsense\r\n"
    with Answering(refusal) as broken, KestrelCluster([broken.address, daemon.address]) as cluster:
        queue = cluster.queue("corrupt")
        assert put_all(queue, 40) == 0
        assert broken.count(b"set") > 5, "it is asked every time, as it may serve other queues"
        assert len(drained(daemon.address, "corrupt")) == 40


@pytest.mark.parametrize("is_known", [True, False])
def test_a_put_that_a_journal_refused_goes_elsewhere_unless_it_may_be_there(daemon: Daemon, is_known: bool) -> None:
    name = f"journal{is_known}"
    refusal = b"SERVER_ERROR journal write failed: No space left on device\r\n"
    answers = [refusal, b"VERSION 1.0.0\r\n" if is_known else b""]
    with Answering(*answers) as full, KestrelCluster([full.address, daemon.address]) as cluster:
        queue, refused = cluster.queue(name), list[str]()
        for _ in range(40):
            try:
                assert queue.put(b"x")
            except ServerRefused as problem:
                refused.append(problem.reason)
        assert full.count(b"set") > 5
        unknown = [] if is_known else ["journal write failed: No space left on device"] * full.count(b"set")
        assert refused == unknown
        assert len(drained(daemon.address, name)) == 40 - len(unknown)


def test_figures_of_a_queue_are_not_asked_of_a_cache(tmp_path: Path) -> None:
    with (
        running_daemon(tmp_path, "listen.cache=127.0.0.1:0") as daemon,
        KestrelCluster([daemon.cache]) as cluster,
        pytest.raises(OtherServer, match="it is a cache"),
    ):
        cluster.queue("work").stats()
