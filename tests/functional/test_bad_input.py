"""What clients send that they should not: a clear answer or a closed connection, and a server that goes on unharmed."""

import random
import re
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import pytest

from tests.functional.conftest import Connect
from tests.support.daemon import Daemon, running_daemon
from tests.support.noise import make_noise
from tests.support.process import cpu_ms, resident_bytes
from tests.support.queue_client import QueueClient
from tests.support.waiting import until
from tests.support.wire import HungUp

LOG_LINES_MAX: Final = 10  # of a daemon through all of this: bad input is the client's business
RUN_ME: Final = b"flush_all\r\nset smuggled 0 0 1\r\nx\r\n"  # must never be carried out

REFUSED: Final = b"CLIENT_ERROR [ -~]+\r\n"
UNKNOWN: Final = b"ERROR\r\n"
NOT_THERE: Final = b"END\r\n"
MISSING: Final = b"NOT_FOUND\r\n"


@pytest.fixture(scope="module")
def daemon_config() -> str:
    return "listen: {admin: null}\nqueues:\n  short: {max_item_size: 10}\n"


@pytest.fixture(autouse=True)
def control(daemon: Daemon, queue: str) -> Iterator[None]:
    """Another client's item, and the rest of the world, are what they were once the test is over."""
    around = sorted(path.name for path in daemon.folder.iterdir())
    with QueueClient(daemon.port) as client:
        client.put(f"control-{queue}", b"control item")
        client.send(b"delete smuggled noreply\r\n")
        yield
        assert client.get(f"control-{queue}/peek") == b"control item"
        assert client.queue_stats("smuggled") == {}
    with QueueClient(daemon.port) as client:
        assert client.get(f"control-{queue}") == b"control item"
    assert sorted(path.name for path in daemon.folder.iterdir()) == around
    assert len(daemon.log) <= LOG_LINES_MAX, daemon.log


# One mistake each: what is sent, the answers to it, and whether the connection goes on.

STAYS: Final = {
    "get without a name": (b"get\r\n", REFUSED),
    "get of a blank": (b"get  \r\n", REFUSED),
    "gets without a name": (b"gets\r\n", REFUSED),
    "delete without a name": (b"delete\r\n", REFUSED),
    "flush without a name": (b"flush\r\n", REFUSED),
    "flush_expired without a name": (b"flush_expired\r\n", REFUSED),
    "a get of options alone": (b"get /open\r\n", REFUSED),
    "a name made empty by two blanks": (b"set  0 0 9\r\nflush_all\r\n", REFUSED),
    "an empty line": (b"\r\n", UNKNOWN),
    "a line of blanks": (b"    \r\n", REFUSED),
    "a leading blank": (b" get q\r\n", UNKNOWN),
    "line ends alone": (b"\n\n\r\n", UNKNOWN * 3),
    "unknown words": (b"frobnicate\r\nincr q 1\r\nmonitor q 1 1\r\n", UNKNOWN * 3),
    "a known word run on": (b"gett q\r\nversions\r\nget\tq\r\n", UNKNOWN * 3),
    "flags that are a word": (b"set q x 0 9\r\nflush_all\r\n", REFUSED),
    "flags beyond 32 bits": (b"set q 4294967296 0 9\r\nflush_all\r\n", REFUSED),
    "flags with an underscore": (b"set q 1_0 0 9\r\nflush_all\r\n", REFUSED),
    "an expiry that is a word": (b"set q 0 soon 9\r\nflush_all\r\n", REFUSED),
    "an expiry of too many digits": (b"set q 0 %b 9\r\nflush_all\r\n" % (b"9" * 5000), REFUSED),
    "add": (b"add q 0 0 9\r\nflush_all\r\n", UNKNOWN),
    "replace, append and prepend": (
        b"replace q 0 0 9\r\nflush_all\r\nappend q 0 0 9\r\nflush_all\r\nprepend q 0 0 9\r\nflush_all\r\n",
        UNKNOWN * 3,
    ),
    "cas": (b"cas q 0 0 9 1\r\nflush_all\r\n", UNKNOWN),
    "a meta set": (b"ms q 9 T0\r\nflush_all\r\n", UNKNOWN),
    "a larger item than the queue takes": (b"set short 0 0 33\r\n" + RUN_ME[:33] + b"\r\n", b"NOT_STORED\r\n"),
    "a name with a slash": (b"set a/b 0 0 9\r\nflush_all\r\n", REFUSED),
    "a name with a squiggle": (b"set a~b 0 0 9\r\nflush_all\r\nget a~b\r\n", REFUSED * 2),
    "a name with a dot": (b"set a.b 0 0 9\r\nflush_all\r\nget a.b\r\nget a.b/peek\r\n", REFUSED * 3),
    "names of folders": (b"get .\r\nget ..\r\nget .lock\r\nset .. 0 0 1\r\nx\r\n", REFUSED * 4),
    "paths": (b"set ../../etc/passwd 0 0 1\r\nx\r\nset /etc/x 0 0 1\r\nx\r\nget ../x\r\n", REFUSED * 3),
    "deleted paths": (b"delete ..\r\ndelete ../x\r\ndelete .lock\r\ndelete .trash\r\n", MISSING * 4),
    "flushed paths": (b"flush ..\r\nflush_expired ..\r\n", b"END\r\n0\r\n"),
    "paths with a slash, flushed": (b"flush ../x\r\nflush_expired ../x\r\n", REFUSED * 2),
    "a plus with nothing on one side": (b"get q+\r\nget +q\r\nget +\r\nset q+ 0 0 1\r\nx\r\n", REFUSED * 4),
    "a bad child": (b"get q+a.b\r\nset q+a~b 0 0 1\r\nx\r\n", REFUSED * 2),
    "a name of 300 bytes": (b"get %b\r\nset %b 0 0 9\r\nflush_all\r\n" % (b"x" * 300, b"x" * 300), REFUSED * 2),
    "a name too long once it is a file's": (b"get %b\r\n" % (b"\xff" * 67), REFUSED),
    "a name with NUL": (b"get a\0b\r\nset a\0b 0 0 9\r\nflush_all\r\n", REFUSED * 2),
    "a name with control bytes": (b"get a\x01b\r\nget a\tb\r\nget a\rb\r\nget a\x7fb\r\nget a\x1b[2J\r\n", REFUSED * 5),
    "an unknown word with high bytes": (b"caf\xc3\xa9\r\n", UNKNOWN),
    "contradicting options": (b"get q/peek/open\r\nget q/abort/close\r\nget q/peek/abort\r\n", REFUSED * 3),
    "a delayed flush_all": (b"flush_all 5\r\nflush_all x\r\nflush_all -1\r\n", REFUSED * 3),
    "a path in place of an option": (b"get nothing/../../x\r\n", NOT_THERE),
    "mistakes before a good command": (b"frobnicate\r\nget\r\nget nothing\r\n", UNKNOWN + REFUSED + NOT_THERE),
}

CLOSES: Final = {
    "a command of NULs": b"\0\0\0\0\r\n",
    "a command of control bytes": b"\x01\x02\x03 \x04\r\n",
    "an escape sequence": b"\x1b[2J\r\n",
    "high bytes": b"\xff\xfe\xfd\r\n",
    "set alone": b"set\r\n",
    "set with a name": b"set q\r\n",
    "set without expiry": b"set q 0\r\n",
    "set without a length": b"set q 0 0\r\n",
    "a length of -1": b"set q 0 0 -1\r\n",
    "a length of -2": b"set q 0 0 -2\r\n",
    "the least length": b"set q 0 0 -9223372036854775808\r\n",
    "a length of 2 GiB": b"set q 0 0 2147483648\r\n",
    "a length of 32 bits": b"set q 0 0 4294967295\r\n",
    "a length of 63 bits": b"set q 0 0 9223372036854775807\r\n",
    "a length of thousands of digits": b"set q 0 0 %b\r\n" % (b"9" * 5000),
    "a length in words": b"set q 0 0 nine\r\n",
    "a length in hex": b"set q 0 0 0x9\r\n",
    "a length with an exponent": b"set q 0 0 1e1\r\n",
    "a length with a point": b"set q 0 0 9.0\r\n",
    "a length with a sign": b"set q 0 0 +9\r\n",
    "a length with an underscore": b"set q 0 0 1_0\r\n",
    "a length in Arabic digits": "set q 0 0 ٩\r\n".encode(),
    "a length with NUL": b"set q 0 0 9\0\r\n",
    "a length of two words": b"set q 0 0  9\r\n",
    "data longer than its length": b"set q 0 0 5\r\nflush_all\r\n",
    "data without a line end": b"set q 0 0 5\r\nhelloflush_all\r\n",
    "data with half a line end": b"set q 0 0 5\r\nhello\rflush_all\r\n",
    "data with a bare line feed": b"set q 0 0 5\r\nhello\nflush_all\r\n",
    "add with a bad length": b"add q 0 0 -9\r\n",
    "add without a length": b"add q\r\n",
    "cas with a bad length": b"cas q 0 0 x 1\r\n",
    "a meta set with a bad length": b"ms q -9\r\n",
    "add with longer data": b"add q 0 0 5\r\nflush_all\r\n",
    "larger data than it says for a queue of short items": b"set short 0 0 20\r\n" + b"x" * 22 + b"\r\n",
    "a line of 9 KiB": b"get %b\r\n" % (b"q" * 9216),
    "a command of 9 KiB": b"x" * 9216 + b"\r\n",
    "9 KiB without a line end": b"x" * 9216,
    "a megabyte without a line end": b"x" * (1 << 20),
    "an HTTP GET": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an HTTP GET of a queue": b"GET /q HTTP/1.0\r\n\r\n",
    "an HTTP POST": b"POST /set HTTP/1.1\r\nHost: localhost\r\nContent-Length: 11\r\n\r\n",
    "other HTTP": b"DELETE /q HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("mistake", STAYS)
def test_a_mistake_is_answered_and_the_connection_goes_on(client: QueueClient, mistake: str) -> None:
    sent, answers = STAYS[mistake]
    client.send(sent + b"version\r\n")
    heard = client.read_until(b"VERSION ")
    assert re.fullmatch(answers + b"VERSION ", heard), heard


@pytest.mark.parametrize("mistake", CLOSES)
def test_a_mistake_that_hides_where_the_next_command_begins_ends_the_connection(
    client: QueueClient, queue: str, mistake: str
) -> None:
    with suppress(ConnectionError):  # it may hang up before it has heard everything
        client.send(CLOSES[mistake].replace(b" q ", b" %b " % queue.encode()) + RUN_ME)
    heard = client.read_all()
    assert re.fullmatch(REFUSED, heard), heard


def test_nothing_of_an_item_that_was_cut_short_is_stored(connect: Connect, queue: str) -> None:
    whole = b"set %b 0 0 10\r\n0123456789\r\n" % queue.encode()
    for cut in range(1, len(whole)):
        liar = connect()
        liar.send(whole[:cut])
        liar.end_input()
        liar.expect_end()
    assert connect().get(queue) is None


def test_a_mistake_is_the_same_when_it_comes_in_pieces(connect: Connect) -> None:
    for sent, answers in STAYS.values():
        if len(sent) < 300:
            client = connect()
            for at in range(len(sent)):
                client.send(sent[at : at + 1])
            client.send(b"version\r\n")
            assert re.fullmatch(answers + b"VERSION ", client.read_until(b"VERSION "))
            client.close()


def test_a_line_of_8_KiB_is_not_too_long(client: QueueClient, queue: str) -> None:
    client.put(queue, b"x")
    line = (b"get " + f"{queue} ".encode() * 8192)[:8192].rpartition(b" ")[0]
    client.do(line, b"VALUE %b 0 1\r\nx\r\nEND\r\n" % queue.encode())
    client.do(b"get nothing".ljust(8192), b"END\r\n")


def test_an_item_may_look_like_anything(client: QueueClient, queue: str) -> None:
    for data in (RUN_ME, b"END\r\n", b"\r\n", b"\0" * 100, b"x" * 20_000 + b"\r\nflush_all\r\n"):
        client.put(queue, data)
        assert client.get(queue) == data


def test_garbled_commands_harm_nobody_else(daemon: Daemon, connect: Connect) -> None:
    make_noise(connect, connect(), seed=3, rounds=40)


@pytest.mark.long
def test_thousands_of_garbled_streams_harm_nobody_else(tmp_path: Path) -> None:
    for seed in range(8):  # of a daemon each: they make queues without end, and STATS names every one
        with running_daemon(tmp_path / f"{seed}") as daemon, QueueClient(daemon.port) as other:
            make_noise(lambda daemon=daemon: QueueClient(daemon.port), other, seed, rounds=100)  # type: ignore[misc]
            until(lambda other=other: other.stats()["curr_connections"] == "1", "the last ones to be seen to go")  # type: ignore[misc]
            assert daemon.stop() == 0


# Clients that do not read


def never_read(client: QueueClient, commands: bytes) -> threading.Thread:
    """Send for as long as the server takes it; the thread ends when the client is closed."""

    def send() -> None:
        with suppress(OSError):
            client.send(commands)

    client.socket.settimeout(None)
    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


ASKED_FOR: Final = {
    "one item again and again": b"get %b/peek\r\n" * 500,
    "many keys in a command": (b"get" + b" %b/peek" * 400 + b"\r\n") * 2,
    "figures": b"stats\r\ndump_stats\r\ndump_config\r\n" * 50_000,
    "errors": b"\n" * 3_000_000,
}


@pytest.mark.parametrize("what", ASKED_FOR)
def test_a_client_that_never_reads_costs_little_memory_and_nobody_elses_time(
    daemon: Daemon, connect: Connect, queue: str, what: str
) -> None:
    """It asks for hundreds of megabytes, or to be told of its mistakes in thousands a millisecond."""
    other, deaf = connect(), connect()
    other.put(queue, b"x" * (1 << 20))
    commands = ASKED_FOR[what]
    before_bytes = resident_bytes(daemon.pid)
    sending = never_read(deaf, commands.replace(b"%b", queue.encode()))
    slowest_ms, rounds, most_bytes = 0, 0, 0
    started = time.monotonic()
    while rounds < 5 or time.monotonic() < started + 0.3:
        begun_ms = cpu_ms(daemon.pid)  # the server's own time: the machine may be busy with other things
        other.put(f"{queue}-other", b"x")
        assert other.get(f"{queue}-other") == b"x"
        slowest_ms = max(slowest_ms, cpu_ms(daemon.pid) - begun_ms)
        most_bytes = max(most_bytes, resident_bytes(daemon.pid))
        rounds += 1
    deaf.close()
    sending.join(10)
    assert most_bytes - before_bytes < 16 << 20
    assert slowest_ms < 300


def test_a_client_that_reads_late_gets_everything(connect: Connect, queue: str) -> None:
    late, other = connect(), connect()
    data = random.Random(4).randbytes(1 << 20)
    other.put(queue, data)
    late.send(b"get %b/peek\r\n" % queue.encode() * 80 + b"version\r\n")
    other.expect_nothing_more()
    for _ in range(80):
        assert late.read_value() == data
    late.expect_line(b"VERSION ")


# Clients that dawdle


def test_half_commands_and_idle_clients_are_cut_off_and_busy_ones_are_not(tmp_path: Path) -> None:
    """All at once, for each takes a second or two."""
    with running_daemon(tmp_path, config="listen: {admin: null}\n") as daemon, ExitStack() as clients:

        def connect() -> QueueClient:
            return clients.enter_context(QueueClient(daemon.port))

        waiting, holding, piping, steady, other = (connect() for _ in range(5))
        other.put("held", b"held")
        assert holding.get("held/open") == b"held"
        halves = [connect() for _ in range(100)]
        for number, half in enumerate(halves):
            half.send((b"ge", b"set q 0 0 5\r\n", b"set q 0 0 5\r\nhel", b"add q 0 0 5\r\nhello")[number % 4])
        idle, spent = connect(), connect()
        spent.put("q2", b"x")
        waiting.send(b"get empty/t=60000\r\nget hal")  # the rest comes when the wait is over
        piping.send(b"get empty/t=60000\r\n" + b"set piped 0 0 100\r\n%b\r\n" % (b"x" * 100) * 3000)
        steady.until("empty", waiters=2)
        asked_at_s = reloaded_at_s = time.monotonic()
        daemon.reload("listen: {admin: null}\nrequest_timeout: 700ms\ntimeout: 900ms\n")
        is_over = False
        while not is_over:
            time.sleep(0.01)
            begun_s = time.monotonic()
            try:
                left = int(steady.stats()["curr_connections"])
            except (ConnectionError, HungUp):  # on a machine so busy that it has said nothing for as long
                assert time.monotonic() - asked_at_s > 0.9
                break
            asked_at_s = begun_s
            assert left == 107 or time.monotonic() - reloaded_at_s > 0.7, "not before its time"
            is_over = left == 4
        for gone in (*halves, idle, spent, other):
            gone.expect_end()
        with QueueClient(daemon.port) as fresh:
            assert int(fresh.stats()["curr_connections"]) == 4 + is_over
            assert fresh.items("q") == 0
            fresh.put("empty", b"1", b"2")
        assert waiting.read_value() == b"1"
        waiting.send(b"f/t=10\r\n")
        assert waiting.read_value() is None
        assert piping.read_value() == b"2"
        piping.expect(b"STORED\r\n" * 3000)
        holding.do(b"get held/abort", b"END\r\n")
        assert holding.get("held") == b"held"


# Clients in great number


class FewDescriptors(Daemon):
    """A kestreld that may have only so many files and sockets open."""

    limit = 100

    def command(self) -> list[str]:
        return ["sh", "-c", f'ulimit -n {self.limit}; exec "$@"', "sh", *super().command()]


def test_more_clients_than_descriptors_are_turned_away_and_the_others_served(tmp_path: Path) -> None:
    daemon = FewDescriptors(tmp_path)
    daemon.start()
    try:
        with ExitStack() as clients:
            connected = [clients.enter_context(QueueClient(daemon.port)) for _ in range(300)]
            served = 0
            for client in connected:
                try:
                    client.send(b"version\r\n")
                    line = client.read_all() if served > 100 else client.read_line()
                except ConnectionError:
                    continue
                served += line.startswith(b"VERSION")
            assert served >= 10
            first = connected[0]
            for number in range(50):
                first.put(f"new-{number}", b"x")  # journals are made although clients are many
                assert first.get(f"new-{number}") == b"x"
            assert int(first.stats()["rejected_connections"]) >= 100
            spent_ms = cpu_ms(daemon.pid)
            time.sleep(0.3)
            assert cpu_ms(daemon.pid) - spent_ms < 90

        def is_served() -> bool:
            with QueueClient(daemon.port) as client, suppress(ConnectionError):
                client.send(b"version\r\n")
                return client.read_line().startswith(b"VERSION")
            return False

        until(is_served, "the server to have seen them go")
        assert len(daemon.log) <= 5, daemon.log
    finally:
        daemon.kill()


def test_running_out_of_descriptors_is_no_reason_to_spin(tmp_path: Path) -> None:
    """They run out behind the server's back, so that even the connections it counts on cannot be had."""
    with (
        running_daemon(tmp_path, "sync_journal=true") as daemon,
        ExitStack() as clients,
    ):
        first = clients.enter_context(QueueClient(daemon.port))
        first.put("q", b"x")  # on disk with the answer: what a new journal needs open for a moment is closed
        in_use = len(list(Path(f"/proc/{daemon.pid}/fd").iterdir()))
        _, hard = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (in_use + 5, hard))
        crowd = [clients.enter_context(QueueClient(daemon.port)) for _ in range(50)]
        for client in crowd:
            client.send(b"version\r\n")
        daemon.logged("cannot accept a connection")
        spent_ms = cpu_ms(daemon.pid)
        started = time.monotonic()
        while time.monotonic() < started + 0.7:
            first.put("q", b"y")
            first.get("q")
            time.sleep(0.05)
        assert cpu_ms(daemon.pid) - spent_ms < 200
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (hard, hard))
        for client in crowd:
            client.expect_line(b"VERSION ")
        assert len(daemon.log) <= 4, daemon.log


def test_clients_that_come_and_go_leave_nothing_behind(daemon: Daemon, connect: Connect) -> None:
    other = connect()
    open_before = len(list(Path(f"/proc/{daemon.pid}/fd").iterdir()))
    for number in range(800):
        with QueueClient(daemon.port) as client:
            if number % 2:
                client.send(b"get nothing/t=1000\r\nset q 0 0 100\r\nx")
    until(lambda: int(other.stats()["curr_connections"]) <= 5, "those that have gone to be seen to go")
    assert len(list(Path(f"/proc/{daemon.pid}/fd").iterdir())) <= open_before + 3
