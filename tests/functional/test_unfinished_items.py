"""Items that have begun to arrive: what is held of them goes with their clients, and has a bound."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.daemon import Daemon, running_daemon
from tests.support.process import cpu_ms, peak_bytes, resident_bytes
from tests.support.queue_client import QueueClient
from tests.support.waiting import PATIENCE_S, until

MIB: Final = 1 << 20
QUIET: Final = "listen: {admin: null}\n"


def announce(client: QueueClient, queue: str, size_bytes: int) -> None:
    client.send(b"set %b 0 0 %d\r\n" % (queue.encode(), size_bytes))


@contextmanager
def sending(client: QueueClient, data: bytes, pieces: int = 1, pause_s: float = 0.0) -> Iterator[None]:
    """Send it meanwhile, in so many pieces: the server may not read it at once."""

    def send() -> None:
        for at in range(pieces):
            client.send(data[at * len(data) // pieces : (at + 1) * len(data) // pieces])
            time.sleep(pause_s)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    yield
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def wait_for_input(client: QueueClient, least_bytes: int) -> None:
    """Until the server has read so much since its start."""
    until(lambda: int(client.stats()["bytes_read"]) >= least_bytes, f"{least_bytes} bytes to be read")


@pytest.mark.long
def test_the_memory_of_unfinished_items_is_free_once_their_clients_have_left(tmp_path: Path) -> None:
    data = b"x" * (40 * MIB)
    with running_daemon(tmp_path, config=QUIET) as daemon, QueueClient(daemon.port) as other:
        before_bytes = resident_bytes(daemon.pid)
        for _ in range(4):
            with ExitStack() as clients:
                for _ in range(5):
                    client = clients.enter_context(QueueClient(daemon.port))
                    announce(client, "work", 1000 * MIB)
                    client.send(data)
            until(lambda: other.stats()["curr_connections"] == "1", "those that have gone to be seen to go")
        until(lambda: resident_bytes(daemon.pid) - before_bytes < 24 * MIB, f"the memory to be {before_bytes} again")


def test_half_items_that_pass_the_bound_together_all_arrive(tmp_path: Path) -> None:
    size = 200_000
    with running_daemon(tmp_path, "max_inflight=2MiB", config=QUIET) as daemon, ExitStack() as stack:
        clients = [stack.enter_context(QueueClient(daemon.port)) for _ in range(50)]
        for client in clients:
            announce(client, "work", size)
            client.send(b"x" * (size // 2))
        for client in reversed(clients):
            stack.enter_context(sending(client, b"y" * (size // 2) + b"\r\n"))
        for client in clients:
            client.expect(b"STORED\r\n")
        assert clients[0].items("work") == 50


def test_no_more_is_held_than_the_bound_and_one_item(tmp_path: Path) -> None:
    size, number = 2 * MIB, 40
    settings = ("max_inflight=4MiB", "max_memory_size=1MiB")
    with running_daemon(tmp_path, *settings, config=QUIET) as daemon, ExitStack() as stack:
        clients = [stack.enter_context(QueueClient(daemon.port)) for _ in range(number)]
        clients[0].put("work", b"x" * size, b"x" * size)
        before_bytes = resident_bytes(daemon.pid)
        for client in clients:
            announce(client, "work", size)
            stack.enter_context(sending(client, b"x" * size + b"\r\n", 4, 0.1))
        for client in clients:
            client.expect(b"STORED\r\n")
        grown_bytes = peak_bytes(daemon.pid) - before_bytes
        assert grown_bytes < 32 * MIB, f"{grown_bytes >> 20} MiB of {size * number >> 20}"


@pytest.mark.long
def test_items_larger_than_the_bound_arrive_too_and_whoever_sends_nothing_holds_nobody_up(tmp_path: Path) -> None:
    settings = ("max_inflight=1MiB", "request_timeout=60")
    with running_daemon(tmp_path, *settings, config=QUIET) as daemon, ExitStack() as stack:
        stalled = [stack.enter_context(QueueClient(daemon.port)) for _ in range(3)]
        large = [stack.enter_context(QueueClient(daemon.port)) for _ in range(4)]
        small = stack.enter_context(QueueClient(daemon.port))
        for client in stalled:
            announce(client, "work", 3 * MIB)
            client.send(b"x" * (2 * MIB))
        wait_for_input(small, 2 * MIB)
        for client in large:
            announce(client, "work", 3 * MIB)
            stack.enter_context(sending(client, b"y" * (3 * MIB) + b"\r\n"))
        slowest_ms = 0
        for _ in range(200):
            begun_ms = cpu_ms(daemon.pid)  # the server's own time: the machine may be busy with other things
            small.put("small", b"z" * 60_000)
            assert small.get("small") == b"z" * 60_000
            slowest_ms = max(slowest_ms, cpu_ms(daemon.pid) - begun_ms)
        for client in large:
            client.expect(b"STORED\r\n")
        assert slowest_ms < 200
        stalled[1].send(b"x" * MIB + b"\r\n")  # it goes on, and has missed nothing
        stalled[1].expect(b"STORED\r\n")
        assert small.items("work") == 5


@pytest.mark.long
def test_time_in_which_the_server_does_not_read_is_not_the_clients(tmp_path: Path) -> None:
    settings = ("max_inflight=200KiB", "request_timeout=2", "timeout=2")
    size = 300_000
    with running_daemon(tmp_path, *settings, config=QUIET) as daemon, ExitStack() as stack:
        first, second, last, other = (stack.enter_context(QueueClient(daemon.port)) for _ in range(4))
        started = time.monotonic()
        for client, pause_s in ((first, 0.1), (second, 0.2), (last, 0.0)):
            announce(client, "work", size)
            client.send(b"x" * (size // 2))
            stack.enter_context(sending(client, b"x" * (size // 2) + b"\r\n", 15, pause_s))
            wait_for_input(other, 100_000)
        last.expect(b"STORED\r\n")
        assert time.monotonic() - started > 2.2, "it was not held back"
        for client in (first, second):
            client.expect(b"STORED\r\n")


def test_the_bound_is_what_a_reload_says(tmp_path: Path) -> None:
    config = QUIET + "max_inflight: 100KiB\n"
    with running_daemon(tmp_path, config=config) as daemon, ExitStack() as stack:
        held, late, other = (stack.enter_context(QueueClient(daemon.port)) for _ in range(3))
        announce(held, "work", 400_000)
        held.send(b"x" * 200_000)
        wait_for_input(other, 200_000)
        change(daemon, config.replace("100KiB", "1MiB"))
        other.do(b"reload", b"Reloaded config.\r\n")
        announce(late, "work", 400_000)
        late.send(b"x" * 400_000 + b"\r\n")
        late.expect(b"STORED\r\n")
        held.send(b"x" * 200_000 + b"\r\n")
        held.expect(b"STORED\r\n")


def change(daemon: Daemon, config: str) -> None:
    daemon.config_path.write_text(config)
