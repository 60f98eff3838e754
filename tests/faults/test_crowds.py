"""Clients that never read, never finish or are too many: what they cost in memory, and what the others notice."""

import os
import resource
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from tests.cache.test_bad_input import busy_while
from tests.support.crowd import Crowd
from tests.support.daemon import Daemon, running_daemon
from tests.support.probe import Probe
from tests.support.process import cpu_ms, resident_bytes
from tests.support.queue_client import QueueClient

MIB: Final = 1 << 20
NEVER_READER_BYTES_MAX: Final = 8 * MIB
IDLE_BYTES_MAX: Final = 5 * 1024 // 2
P99_MS_MAX: Final = 50  # of the server's own processor time

GREEDY: Final = {
    "an item, two thousand times": b"get q/peek\r\n" * 2000,
    "an item under four hundred names": (b"get" + b" q/peek" * 400 + b"\r\n") * 5,
    "figures": b"stats\r\ndump_stats\r\ndump_config\r\n" * 100_000,
    "what is wrong with a million lines": b"\n" * 4_000_000,
}


def test_a_client_that_asks_for_gigabytes_and_reads_nothing_costs_little_memory_or_time_of_the_server(
    tmp_path: Path,
) -> None:
    with running_daemon(tmp_path) as daemon, QueueClient(daemon.port) as deaf, QueueClient(daemon.port) as other:
        other.put("q", b"x" * MIB)
        before_bytes = resident_bytes(daemon.pid)
        deaf.send(GREEDY["an item, two thousand times"])
        slowest_ms, most_bytes = busy_while(daemon, other)
    assert most_bytes - before_bytes <= NEVER_READER_BYTES_MAX
    assert slowest_ms < 300


@pytest.mark.long
@pytest.mark.parametrize("what", GREEDY)
def test_a_client_that_asks_for_gigabytes_and_reads_nothing_costs_little_and_delays_nobody(
    tmp_path: Path, what: str
) -> None:
    with (
        running_daemon(tmp_path) as daemon,
        QueueClient(daemon.port) as deaf,
        Probe(daemon.port, server_pid=daemon.pid) as probe,
    ):
        with QueueClient(daemon.port) as client:
            client.put("q", b"x" * MIB)
        before_bytes = most_bytes = resident_bytes(daemon.pid)

        def ask() -> None:
            with suppress(OSError):
                deaf.send(GREEDY[what])

        deaf.socket.settimeout(None)
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        started = time.monotonic()
        while time.monotonic() < started + 1:
            most_bytes = max(most_bytes, resident_bytes(daemon.pid))
            time.sleep(0.01)
        p99_ms = probe.p99_ms()
        deaf.socket.shutdown(2)
        asking.join(10)
        grown_bytes = most_bytes - before_bytes
        print(f"\n{what}: memory grew by {grown_bytes / MIB:.1f} MiB; another client's p99 {p99_ms:.1f} ms")
        assert grown_bytes <= NEVER_READER_BYTES_MAX
        assert p99_ms < P99_MS_MAX


def idle_bytes(daemon: Daemon, connections: int) -> float:
    """The memory of an idle connection that has been served once."""
    with Crowd(daemon.port, connections // 10):  # what the first of them cost once and for all
        pass
    with QueueClient(daemon.port) as client:
        while int(client.stats()["curr_connections"]) > 1:
            time.sleep(0.01)
        before_bytes = resident_bytes(daemon.pid)
        with Crowd(daemon.port, connections) as crowd:
            assert crowd.refused == 0
            each_bytes = (resident_bytes(daemon.pid) - before_bytes) / connections
            client.put("q", b"x")
            assert client.get("q") == b"x"
            spent_ms = cpu_ms(daemon.pid)
            time.sleep(0.7)
            spent_ms = cpu_ms(daemon.pid) - spent_ms
            assert crowd.still_open() == connections
        assert spent_ms < 200, "idle means idle"
    return each_bytes


@pytest.mark.parametrize("connections", [1000, pytest.param(10_000, marks=pytest.mark.long)])
def test_idle_connections_take_little_memory(tmp_path: Path, connections: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard * 60 // 100 < connections + 100:
        pytest.skip(f"{connections} connections take more descriptors than the {hard} there are")
    with running_daemon(tmp_path) as daemon:
        each_bytes = idle_bytes(daemon, connections)
        print(f"\n{connections} idle connections: {each_bytes / 1024:.2f} KiB each")
        assert each_bytes <= IDLE_BYTES_MAX


class FewDescriptors(Daemon):
    """A kestreld that may have 300 files and sockets open."""

    def command(self) -> list[str]:
        return ["sh", "-c", 'ulimit -n 300; exec "$@"', "sh", *super().command()]


def test_a_flood_of_connections_gets_back_what_journals_were_lent_and_leaves_them_theirs(tmp_path: Path) -> None:
    queues = [f"q{number}" for number in range(280)]
    daemon = FewDescriptors(tmp_path)
    daemon.start()
    try:
        own = len(os.listdir(f"/proc/{daemon.pid}/fd"))
        room = (300 - own) * 60 // 100
        with QueueClient(daemon.port) as client:
            client.put("q", b"0")
            for _ in range(2):
                for queue in queues:
                    client.put(queue, b"x")
                assert len(os.listdir(f"/proc/{daemon.pid}/fd")) > 250
                with Crowd(daemon.port, 1000) as crowd:
                    assert crowd.refused == 1000 - (room - 1)
                    for queue in queues:
                        assert client.get(queue) == b"x"
                    spent_ms = cpu_ms(daemon.pid)
                    time.sleep(0.5)
                    assert cpu_ms(daemon.pid) - spent_ms < 200
            assert int(client.stats()["rejected_connections"]) > 1300
        assert len(daemon.log) <= 5, daemon.log
        daemon.kill()
        daemon.start()
        with QueueClient(daemon.port) as client:
            assert client.drain("q") == [b"0"]
    finally:
        if daemon.process is not None:
            daemon.kill()


@pytest.mark.long
@pytest.mark.parametrize(
    "greeting", ["set q 0 0 100\\r\\nhalf of it", "get q", "\\r"], ids=["data", "line", "line end"]
)
def test_half_commands_of_hundreds_are_dropped_in_time_and_delay_nobody(tmp_path: Path, greeting: str) -> None:
    with running_daemon(tmp_path, "request_timeout=1") as daemon, Probe(daemon.port, server_pid=daemon.pid) as probe:
        with Crowd(daemon.port, 500, greeting) as crowd:
            started = time.monotonic()
            while crowd.still_open():
                assert time.monotonic() < started + 5
                time.sleep(0.1)
        assert probe.p99_ms() < P99_MS_MAX
        with QueueClient(daemon.port) as client:
            assert client.items("q") == 0
