"""`present NAME MS`: what a holder has leased ends soon after its last connection, and not while it has one."""

import signal
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.functional.conftest import Connect
from tests.support.daemon import Daemon, running_daemon
from tests.support.process import stop
from tests.support.queue_client import QueueClient
from tests.support.waiting import until

HOUR_MS = 3_600_000
NEEDS = b"CLIENT_ERROR present needs the name of a holder and a number of milliseconds\r\n"
BAD_NAME = (
    b"CLIENT_ERROR present needs a name that has from 1 to 64 printable ASCII characters, without blanks and /\r\n"
)

pytestmark = pytest.mark.usefixtures("no_queues")


def lease(client: QueueClient, queue: str, by: str) -> int:
    """Put an item and lease it for an hour; the token."""
    client.put(queue, by.encode())
    client.send(f"gets {queue}/open/lease={HOUR_MS}/by={by}\r\n".encode())
    words = client.expect_line(b"VALUE ").split(b" ")
    client.read(int(words[3]) + 2)
    client.expect(b"END\r\n")
    return int(words[4])


def present(client: QueueClient, name: str, absence_ms: int) -> None:
    client.do(f"present {name} {absence_ms}".encode(), b"OK\r\n")


def break_off(client: QueueClient) -> None:
    """End a connection as the kernel does for a process that was killed with input unread."""
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def await_item(client: QueueClient, queue: str, data: bytes) -> None:
    client.send(f"get {queue}/t=30000\r\n".encode())
    client.expect_line(f"VALUE {queue}/t=30000 0 {len(data)}".encode())
    client.expect(data + b"\r\nEND\r\n")


def pass_ms(connect: Connect, queue: str, absence_ms: int) -> None:
    """So much of the server's time passes, and a little: another holder is gone for as long."""
    other, watcher = connect(), connect()
    present(other, "other", absence_ms)
    lease(other, f"{queue}-other", "other")
    other.close()
    await_item(watcher, f"{queue}-other", b"other")


def is_leased(client: QueueClient, queue: str, by: str) -> bool:
    client.send(f"leases by={by} {queue}\r\n".encode())
    return client.read_until(b"END\r\n") != b"END\r\n"


@pytest.mark.parametrize("end", [QueueClient.close, break_off, QueueClient.end_input])
def test_leases_end_soon_after_the_last_connection(
    connect: Connect, daemon: Daemon, queue: str, end: Callable[[QueueClient], None]
) -> None:
    holder, watcher = connect(), connect()
    token = lease(holder, queue, queue)
    present(holder, queue, 200)
    begun = time.monotonic()
    end(holder)
    await_item(watcher, queue, queue.encode())
    assert time.monotonic() - begun >= 0.2
    daemon.logged(f"holder {queue} has been absent for 200 ms: ended 1 lease")
    watcher.do(b"delete %b/%d" % (queue.encode(), token), b"NOT_FOUND\r\n")


def test_it_ends_as_a_lease_whose_time_is_over(tmp_path: Path) -> None:
    """It counts as a failure, and a token that comes before anybody else takes the item is good."""
    with (
        running_daemon(tmp_path, "max_retries=1", "move_failed_to=dead") as daemon,
        QueueClient(daemon.port) as watcher,
    ):
        with QueueClient(daemon.port) as holder:
            lease(holder, "work", "me")
            token = lease(holder, "more", "me")
            present(holder, "me", 100)
        watcher.until("work", items=1, leases_expired=1)
        watcher.do(b"delete more/%d" % token, b"DELETED\r\n")
        with QueueClient(daemon.port) as holder:
            holder.ask(b"gets work/open/lease=60000/by=me\r\n", b"VALUE work/")
            holder.read_until(b"END\r\n")
            present(holder, "me", 100)
        await_item(watcher, "dead", b"me")


def test_nothing_ends_while_the_holder_comes_back_in_time(connect: Connect, queue: str) -> None:
    holder, watcher = connect(), connect()
    lease(holder, queue, queue)
    for _ in range(3):
        present(holder, queue, 300)
        break_off(holder)
        pass_ms(connect, queue, 100)
        holder = connect()
    present(holder, queue, 300)
    pass_ms(connect, queue, 500)
    assert is_leased(watcher, queue, queue)


def test_one_of_several_connections_is_enough(connect: Connect, queue: str) -> None:
    first, second, watcher = connect(), connect(), connect()
    lease(first, queue, queue)
    for client in (first, second, first):
        present(client, queue, 100)
    first.close()
    pass_ms(connect, queue, 200)
    assert is_leased(watcher, queue, queue)
    second.close()
    await_item(watcher, queue, queue.encode())


def test_names_that_begin_with_the_name_and_a_dot_belong_to_it_and_no_others(connect: Connect, queue: str) -> None:
    holder, watcher = connect(), connect()
    mine = [f"{queue}.1", f"{queue}.1.2"]
    others = [f"{queue}1.1", f"{queue}-1", f"x.{queue}", "q"]
    for name in [*mine, *others]:
        lease(holder, queue, name)
    watcher.put(queue, b"without a name")
    watcher.ask(f"gets {queue}/open/lease={HOUR_MS}\r\n".encode(), b"VALUE ")
    watcher.read_until(b"END\r\n")
    present(holder, queue, 100)
    holder.close()
    for name in mine:
        await_item(watcher, queue, name.encode())
    pass_ms(connect, queue, 100)
    assert all(is_leased(watcher, queue, name) for name in others)
    watcher.do(f"get {queue}".encode(), b"END\r\n")


def test_a_connection_is_there_for_one_holder_and_may_take_it_back(connect: Connect, queue: str) -> None:
    holder, watcher = connect(), connect()
    for name in ("a", "b"):
        lease(holder, f"{queue}-{name}", f"{queue}-{name}")
        present(holder, f"{queue}-{name}", 100)
    await_item(watcher, f"{queue}-a", f"{queue}-a".encode())
    present(holder, f"{queue}-b", 0)
    pass_ms(connect, queue, 200)
    holder.close()
    pass_ms(connect, queue, 200)
    assert is_leased(watcher, f"{queue}-b", f"{queue}-b")


def test_many_holders_and_leases_end_together_in_slices(connect: Connect, queue: str) -> None:
    holders, watcher = [connect() for _ in range(12)], connect()
    for number, holder in enumerate(holders):
        queues = b"".join(b"set %b-%d 0 0 1\r\nx\r\n" % (queue.encode(), at % 40) for at in range(80))
        holder.send(queues)
        holder.expect(80 * b"STORED\r\n")
        for at in range(80):
            holder.send(b"gets %b-%d/open/lease=60000/by=%b-%d\r\n" % (queue.encode(), at % 40, queue.encode(), number))
            holder.read_until(b"END\r\n")
        present(holder, f"{queue}-{number}", 200)
    for holder in holders:
        holder.close()
    for at in range(40):
        for _ in range(24):
            await_item(watcher, f"{queue}-{at}", b"x")


def test_a_restart_forgets_it(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        with QueueClient(daemon.port) as holder:
            lease(holder, "work", "me")
            present(holder, "me", 100)
            daemon.kill()
        daemon.start()
        with QueueClient(daemon.port) as other, QueueClient(daemon.port) as watcher:
            lease(other, "else", "other")
            present(other, "other", 300)
            other.close()
            await_item(watcher, "else", b"other")
            assert is_leased(watcher, "work", "me")


def test_a_server_that_was_stopped_reads_what_has_come_before_anything_ends(tmp_path: Path) -> None:
    """For longer than the holder may be absent: it is back before the server goes on, another one is not."""
    with running_daemon(tmp_path) as daemon, QueueClient(daemon.port) as watcher:
        for name in ("back", "gone"):
            with QueueClient(daemon.port) as holder:
                lease(holder, name, name)
                present(holder, name, 1000)
        until(lambda: watcher.stats()["curr_connections"] == "1", "only the watcher to be connected")
        stop(daemon.pid)
        time.sleep(1.2)
        with QueueClient(daemon.port) as holder:
            holder.send(b"present back 1000\r\n")
            daemon.signal(signal.SIGCONT)
            holder.expect(b"OK\r\n")
            await_item(watcher, "gone", b"gone")
            assert is_leased(watcher, "back", "back")


def test_a_connection_that_is_there_for_a_holder_is_probed(connect: Connect, daemon: Daemon) -> None:
    """So that one that is gone without a word, as by a network that is cut, does not count forever."""

    def has_probe(client: QueueClient) -> bool:
        ends = f"0100007F:{daemon.port:04X} 0100007F:{client.socket.getsockname()[1]:04X}"
        line = next(line for line in Path("/proc/net/tcp").read_text().splitlines() if ends in line)
        return line.split()[5].startswith("02:")

    holder, other = connect(), connect()
    present(holder, "probed", 100)
    other.do(b"present probed 0", b"OK\r\n")
    assert (has_probe(holder), has_probe(other)) == (True, False)


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b"present", NEEDS),
        (b"present me", NEEDS),
        (b"present  100", BAD_NAME),
        (b"present me -1", NEEDS),
        (b"present me 1.5", NEEDS),
        (b"present me 100s", NEEDS),
        (b"present me " + 20 * b"1", NEEDS),
        (b"present  me 100", NEEDS),
        (b"present a/b 100", BAD_NAME),
        (b"present " + 65 * b"x" + b" 100", BAD_NAME),
        (b"present \xff 100", BAD_NAME),
        (b"present me 60001", b"CLIENT_ERROR present allows at most 60000 milliseconds of absence\r\n"),
        (b"present me 100 noreply", b"CLIENT_ERROR too many words for present\r\n"),
        (b"present me 0", b"OK\r\n"),
        (b"PRESENT me 60000 ", b"OK\r\n"),
    ],
)
def test_what_is_no_such_command_is_refused(connect: Connect, line: bytes, answer: bytes) -> None:
    client = connect()
    client.do(line, answer)
    client.expect_nothing_more()


def test_kestrel_1_does_not_know_it(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "compat=kestrel-1") as daemon, QueueClient(daemon.port) as client:
        client.do(b"present me 100", b"CLIENT_ERROR\r\n")
