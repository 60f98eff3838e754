"""What clients send to the cache that they should not: a server that goes on unharmed.

What is answered to a mistake `test_same_as_memcached` compares; here is what ends a connection, and what harms nobody.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import pytest

from tests.functional.test_bad_input import never_read
from tests.support.daemon import Daemon, running_daemon
from tests.support.noise import make_noise
from tests.support.process import cpu_ms, resident_bytes
from tests.support.queue_client import QueueClient
from tests.support.waiting import until

HERE: Final = "listen.cache=127.0.0.1:0"
RUN_ME: Final = b"flush_all\r\nset smuggled 0 0 1\r\nx\r\n"  # must never be carried out
TOO_LONG: Final = b"CLIENT_ERROR line too long\r\n"
TOO_MANY: Final = b"SERVER_ERROR too many connections\r\n"
Connect = Callable[[], QueueClient]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("kestreld"), HERE) as running:
        yield running


@pytest.fixture
def connect(daemon: Daemon) -> Iterator[Connect]:
    with ExitStack() as clients:
        yield lambda: clients.enter_context(QueueClient(daemon.cache_port))


@pytest.fixture(autouse=True)
def control(daemon: Daemon) -> Iterator[None]:
    """Another client's value is what it was, and the log does not tell of what clients do."""
    with QueueClient(daemon.cache_port) as client:
        client.put("control", b"value")
        yield
        assert client.get("control") == b"value"
    assert len(daemon.log) <= 10, daemon.log


CLOSES: Final = {
    "9 KiB without a line end": (b"x" * 9216, TOO_LONG),
    "a megabyte without a line end": (b"x" * (1 << 20), TOO_LONG),
    "5 MB of keys": (b"get" + b" key" * 1_250_000, TOO_LONG),
    "an HTTP GET": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + RUN_ME, b""),
    "an HTTP POST": (b"POST /set HTTP/1.1\r\nHost: localhost\r\nContent-Length: 11\r\n\r\n" + RUN_ME, b""),
}


@pytest.mark.exhaustive("KiB", "HTTP")
@pytest.mark.parametrize("mistake", CLOSES)
def test_what_is_no_command_of_memcached_ends_the_connection(connect: Connect, mistake: str) -> None:
    sent, answer = CLOSES[mistake]
    client = connect()
    with suppress(ConnectionError):  # it may hang up before it has heard everything
        client.send(sent)
    assert client.read_all() == answer
    assert connect().get("smuggled") is None


def test_a_binary_request_is_answered_as_unknown_and_ends_the_connection(connect: Connect) -> None:
    client = connect()
    client.send(b"\x80\x0b" + b"\0" * 22)
    answer = client.read_all()
    assert (answer[:2], answer[6:8]) == (b"\x81\x0b", b"\x00\x81")


def test_nothing_of_a_value_that_was_cut_short_is_stored(connect: Connect) -> None:
    for whole in (b"set short 0 0 10\r\n0123456789\r\n", b"ms short 10 T0\r\n0123456789\r\n"):
        for cut in range(1, len(whole)):
            liar = connect()
            liar.send(whole[:cut])
            liar.end_input()
            liar.expect_end()
            liar.close()
    assert connect().get("short") is None


def test_a_get_may_have_50_000_keys(connect: Connect) -> None:
    client = connect()
    client.do(b"get" + b" nothing" * 50_000, b"END\r\n")
    client.do(b"get" + b" nothing" * 50_001, b"CLIENT_ERROR bad command line format\r\n")
    client.do(b"gat 5" + b" nothing" * 60_000, b"CLIENT_ERROR bad command line format\r\n")
    client.do(b"get" + b" " * 200_000 + b"nothing", b"CLIENT_ERROR bad command line format\r\n")


MORE_COMMANDS: Final = (
    b"cas noise 0 0 1 1\r\nx\r\n", b"incr noise 1\r\n", b"touch noise 5\r\n", b"gat 5 noise noise\r\n",
    b"ms noise 2 T5 c\r\nab\r\n", b"mg noise v t N5\r\n", b"ma noise N0 J1 v\r\n", b"md noise I\r\n", b"me noise\r\n",
)  # fmt: skip


def test_garbled_commands_harm_nobody_else(connect: Connect) -> None:
    make_noise(connect, connect(), seed=5, rounds=30, commands=MORE_COMMANDS)


@pytest.mark.long
def test_thousands_of_garbled_streams_harm_nobody_else(tmp_path: Path) -> None:
    with running_daemon(tmp_path, HERE) as daemon, QueueClient(daemon.cache_port) as other:
        for seed in range(8):
            make_noise(lambda: QueueClient(daemon.cache_port), other, seed, rounds=100, commands=MORE_COMMANDS)
        assert daemon.stop() == 0


# Clients that make others wait, or memory grow


ASKED_FOR: Final = {
    "one value again and again": b"get large\r\n" * 500,
    "many keys in a command": (b"get" + b" large" * 1000 + b"\r\n") * 2,
    "thousands of small values": (b"get" + b" control" * 10_000 + b"\r\n") * 20,
    "figures": b"stats\r\nstats items\r\nstats settings\r\n" * 50_000,
    "errors": b"\n" * 3_000_000,
}


@pytest.mark.exhaustive("one value", "thousands")
@pytest.mark.parametrize("what", ASKED_FOR)
def test_a_client_that_never_reads_costs_little_memory_and_nobody_elses_time(
    daemon: Daemon, connect: Connect, what: str
) -> None:
    other, deaf = connect(), connect()
    other.put("large", b"x" * 1_000_000)
    before_bytes = resident_bytes(daemon.pid)
    sending = never_read(deaf, ASKED_FOR[what])
    slowest_ms, most_bytes = busy_while(daemon, other)
    deaf.close()
    sending.join(60)
    assert most_bytes - before_bytes < 16 << 20
    assert slowest_ms < 300


def busy_while(daemon: Daemon, other: QueueClient) -> tuple[int, int]:
    """What a client waits for its answers at most, in the server's own time, and the server's memory meanwhile."""
    slowest_ms, rounds, most_bytes = 0, 0, 0
    started = time.monotonic()
    while rounds < 5 or time.monotonic() < started + 0.3:
        begun_ms = cpu_ms(daemon.pid)  # the machine may be busy with other things
        other.put("mine", b"x")
        assert other.get("mine") == b"x"
        slowest_ms = max(slowest_ms, cpu_ms(daemon.pid) - begun_ms)
        most_bytes = max(most_bytes, resident_bytes(daemon.pid))
        rounds += 1
    return slowest_ms, most_bytes


def test_a_value_that_comes_in_pieces_makes_nobody_wait(daemon: Daemon, connect: Connect) -> None:
    slow, other = connect(), connect()
    value = b"x" * 1_000_000
    slow.send(b"set slow 0 0 %d\r\n" % len(value))
    spent_ms = 0
    for at in range(0, len(value), 1000):
        slow.send(value[at : at + 1000])
        if at % 50_000 == 0:
            begun_ms = cpu_ms(daemon.pid)
            other.put("mine", b"x")
            spent_ms = max(spent_ms, cpu_ms(daemon.pid) - begun_ms)
    slow.send(b"\r\n")
    slow.expect(b"STORED\r\n")
    assert other.get("slow") == value
    assert spent_ms < 100


def test_a_client_that_reads_late_gets_everything(connect: Connect) -> None:
    late, other = connect(), connect()
    value = bytes(range(256)) * 3900
    other.put("large", value)
    late.send(b"get large\r\n" * 20 + b"get" + b" large" * 10 + b"\r\nversion\r\n")
    other.expect_nothing_more()
    for _ in range(20):
        assert late.read_value() == value
    late.expect(b"VALUE large 0 %d\r\n%b\r\n" % (len(value), value) * 10 + b"END\r\n")
    late.expect_line(b"VERSION ")


# Limits of connections and of time, which both ports share


@pytest.mark.long
def test_half_commands_and_idle_clients_are_cut_off(tmp_path: Path) -> None:
    with running_daemon(tmp_path, HERE, "request_timeout=1", "timeout=2") as daemon, ExitStack() as clients:
        halves = [clients.enter_context(QueueClient(daemon.cache_port)) for _ in range(40)]
        for number, half in enumerate(halves):
            half.send((b"ge", b"set q 0 0 5\r\n", b"set q 0 0 5\r\nhel", b"ms q 5\r\nhello\r")[number % 4])
        steady, idle = (clients.enter_context(QueueClient(daemon.cache_port)) for _ in range(2))
        idle.put("mine", b"x")
        until(lambda: int(steady.stats()["curr_connections"]) == 1, "the end of connections")
        for gone in (*halves, idle):
            gone.expect_end()
        assert steady.get("q") is None


def test_connections_of_both_ports_count_together(tmp_path: Path) -> None:
    with running_daemon(tmp_path, HERE, "max_connections=3") as daemon, ExitStack() as clients:
        for port in (daemon.port, daemon.cache_port, daemon.cache_port):
            clients.enter_context(QueueClient(port)).expect_nothing_more()
        for port in (daemon.cache_port, daemon.port):
            with QueueClient(port) as late:
                late.expect_end(TOO_MANY)


def test_clients_that_come_and_go_leave_nothing_behind(daemon: Daemon, connect: Connect) -> None:
    other = connect()
    before = resident_bytes(daemon.pid)
    for number in range(400):
        with QueueClient(daemon.cache_port) as client:
            if number % 2:
                client.send(b"set q 0 0 500000\r\n" + b"x" * 10_000)
    until(lambda: int(other.stats()["curr_connections"]) <= 3, "the end of connections")
    assert resident_bytes(daemon.pid) - before < 16 << 20
    assert len(list(Path(f"/proc/{daemon.pid}/fd").iterdir())) < 40
