"""`python -m benchmarks.waits`: how long another client waits for an answer while somebody sends a long command.

A probing client puts and takes one small item after the other on a queue of its own. The longest of its waits during
each command stands beside the longest while nothing else is done, the best of the rounds each. So does the most
processor time that the server used while the client waited once: that is the same on a machine that others use, too.
"""

import argparse
import http.client
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.errors import Unusable
from benchmarks.load import SCRATCH
from benchmarks.servers import Server, Sync, free_port, kestreld

QUEUES: Final = (10_000, 100_000)
IDLE: Final = "idle"
IDLE_S: Final = 2.0
READERS: Final = 4  # that want the same at the same time
ANSWER_S_MAX: Final = 600
PUTS_AT_A_TIME: Final = 500
CPU_CLOCK: Final = 2  # of a process, as pthread_getcpuclockid(3) numbers them
PROBE: Final = b"set probe 0 0 1\r\nx\r\n", b"get probe\r\n"
PROBED: Final = {b"STORED\r\n", b"VALUE probe 0 1\r\nx\r\nEND\r\n", b"END\r\n"}  # the last behind a flush_all

Talk = Generator[bytes, bytes, None]  # gives requests, is sent their answers, and raises Unusable for a wrong one


@dataclass(frozen=True, slots=True)
class Waits:
    """During one command."""

    longest_ms: float
    longest_cpu_ms: float  # the most that the server worked during a wait
    longest_alone_ms: float  # the same, but for what it worked while the client had no processor
    took_ms: float  # the command itself

    def best(self, other: "Waits") -> "Waits":
        return Waits(
            min(self.longest_ms, other.longest_ms),
            min(self.longest_cpu_ms, other.longest_cpu_ms),
            min(self.longest_alone_ms, other.longest_alone_ms),
            min(self.took_ms, other.took_ms),
        )


def put_and_get() -> Talk:
    """Of a small item."""
    while True:
        for request in PROBE:
            heard = yield request
            if heard not in PROBED:
                raise Unusable(f"the probing client got {heard!r}")


class Prober(Thread):
    """A client that notes the longest of its waits."""

    def __init__(self, port: int, pid: int, talk: Callable[[], Talk] = put_and_get) -> None:
        super().__init__(daemon=True)
        self._connection = connect(port)
        self._talk = talk()
        self._pid = pid
        self._cpu = ~pid << 3 | CPU_CLOCK
        self._over = Event()
        self._longest_s = self._longest_cpu_s = self._longest_alone_s = 0.0
        self._failure = ""
        self._started_s = time.perf_counter()

    def run(self) -> None:
        with (
            Path(f"/proc/{self._pid}/schedstat").open("rb") as server,
            Path("/proc/thread-self/schedstat").open("rb") as client,
        ):
            fds = server.fileno(), client.fileno()
            request = next(self._talk)
            while not self._over.is_set():
                heard = self._probe(request, fds)
                try:
                    request = self._talk.send(heard)
                except Unusable as unusable:
                    self._failure = str(unusable)
                    break

    def _probe(self, request: bytes, fds: tuple[int, int]) -> bytes:
        delayed_s = sum(map(_delayed_s, fds))
        started_s, used_s = time.perf_counter(), time.clock_gettime(self._cpu)
        self._connection.sendall(request)
        heard = self._connection.recv(4096)
        waited_s = time.perf_counter() - started_s
        self._longest_s = max(self._longest_s, waited_s)
        used_s = time.clock_gettime(self._cpu) - used_s
        self._longest_cpu_s = max(self._longest_cpu_s, used_s)
        # It may have worked on while this client waited for a processor.
        alone_s = min(waited_s - sum(map(_delayed_s, fds)) + delayed_s, used_s)
        self._longest_alone_s = max(self._longest_alone_s, alone_s)
        return heard

    def stop(self) -> Waits:
        took_s = time.perf_counter() - self._started_s
        self._over.set()
        self.join()
        self._connection.close()
        if self._failure:
            raise Unusable(self._failure)
        return Waits(self._longest_s * 1000, self._longest_cpu_s * 1000, self._longest_alone_s * 1000, took_s * 1000)


def _delayed_s(fd: int) -> float:
    """How long a thread has waited for a processor so far, by its `/proc/…/schedstat`."""
    return int(os.pread(fd, 100, 0).split()[1]) / 1e9


def connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), ANSWER_S_MAX)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def ask(port: int, request: bytes, end: bytes) -> None:
    """Send a command and read its answer as fast as it comes."""
    with connect(port) as connection:
        connection.sendall(request)
        tail = b""
        while not tail.endswith(end):
            heard = connection.recv(1 << 20)
            if not heard:
                raise Unusable(f"{request!r} was not answered")
            tail = (tail + heard)[-len(end) :] if len(heard) < len(end) else heard[-len(end) :]


def fetch(port: int, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S_MAX)
    connection.request("GET", path)
    answer = connection.getresponse()
    while answer.read(1 << 20):
        pass
    connection.close()
    if answer.status != 200:
        raise Unusable(f"{path} was answered with {answer.status}")


def _at_once(count: int, command: Callable[[], None]) -> None:
    threads = [Thread(target=command) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def fill(port: int, queues: int) -> None:
    """An item in each queue."""
    with connect(port) as connection:
        for first in range(0, queues, PUTS_AT_A_TIME):
            count = min(PUTS_AT_A_TIME, queues - first)
            connection.sendall(b"".join(b"set q%06d 0 0 4\r\nitem\r\n" % (first + at) for at in range(count)))
            missing = count * len(b"STORED\r\n")
            while missing:
                missing -= len(connection.recv(65536))


def measure(server: Server, admin_port: int, queues: int, done: Callable[[str], None]) -> dict[str, Waits]:
    """Every command once, with a prober beside it."""
    port = server.port
    commands: dict[str, Callable[[], None]] = {
        IDLE: lambda: time.sleep(IDLE_S),
        "stats": lambda: ask(port, b"stats\r\n", b"\r\nEND\r\n"),
        "dump_stats": lambda: ask(port, b"dump_stats\r\n", b"\r\nEND\r\n"),
        "dump_config": lambda: ask(port, b"dump_config\r\n", b"\r\nEND\r\n"),
        "/stats.json": lambda: fetch(admin_port, "/stats.json"),
        "/metrics": lambda: fetch(admin_port, "/metrics"),
        f"{READERS} x /stats.json": lambda: _at_once(READERS, lambda: fetch(admin_port, "/stats.json")),
        f"{READERS} x stats": lambda: _at_once(READERS, lambda: ask(port, b"stats\r\n", b"\r\nEND\r\n")),
        "reload": lambda: ask(port, b"reload\r\n", b"\r\n"),
        "flush_all_expired": lambda: ask(port, b"flush_all_expired\r\n", b"\r\n"),
        "flush_all": lambda: ask(port, b"flush_all\r\n", b"OK\r\n"),
    }
    fill(port, queues)
    found: dict[str, Waits] = {}
    for name, command in commands.items():
        done(f"{queues:,} queues: {name}")
        prober = Prober(port, server.pid)
        prober.start()
        command()
        found[name] = prober.stop()
    return found


def waits(
    command: str, folder: Path, queues: int, *, rounds: int, sync: Sync = Sync.NOTHING, done: Callable[[str], None]
) -> dict[str, Waits]:
    """The best of the rounds of one kestreld, for what else runs only adds. `command` is that of `kestreld`."""
    admin_port = free_port()
    command = (
        f"{command or f'{sys.executable} -m kestreld'} --set max_queues=infinite"  # the probing client has one too
    )
    server = Server(kestreld("kestreld", command, admin_port=admin_port), folder / "waits", sync=sync)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder / "waits", ignore_errors=True)
        stack.callback(server.stop, signal.SIGKILL)
        server.start()
        server.wait_until_ready()
        found: dict[str, Waits] = {}
        for _ in range(rounds):
            for name, one in measure(server, admin_port, queues, done).items():
                found[name] = one.best(found.get(name, one))
    return found


def table(found: dict[int, dict[str, Waits]]) -> Table:
    title = "longest wait of another client, ms (the most the server worked meanwhile); how long the command took, s"
    drawn = Table(title=title, title_justify="left")
    drawn.add_column("")
    for queues in found:
        drawn.add_column(f"{queues:,} queues", justify="right")
        drawn.add_column("above idle", justify="right")
        drawn.add_column("took", justify="right")
    for name in next(iter(found.values())):
        row = [name]
        for each in found.values():
            one, idle = each[name], each[IDLE]
            row.append(f"{one.longest_ms:.1f} ({one.longest_cpu_ms:.1f})")
            above_ms = one.longest_ms - idle.longest_ms, one.longest_cpu_ms - idle.longest_cpu_ms
            row.append("" if one is idle else "{:+.1f} ({:+.1f})".format(*above_ms))
            row.append(f"{one.took_ms / 1000:.2f}")
        drawn.add_row(*row)
    return drawn


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.waits", description=__doc__.partition("\n")[0])
    parser.add_argument("queues", nargs="*", type=int, help=f"how many (default: {' '.join(map(str, QUEUES))})")
    parser.add_argument("--rounds", type=int, default=3, help="so many of everything; the best of them count (3)")
    parser.add_argument("--sync", action="store_true", help="with sync_journal: true")
    parser.add_argument("--kestreld", default="", metavar="COMMAND", help="the kestreld to measure (default: this one)")
    parser.add_argument("--folder", type=Path, default=SCRATCH, help="where journals lie meanwhile")
    options = parser.parse_args(given)
    if options.rounds < 1 or min(options.queues, default=1) < 1:
        parser.error("it takes a round and a queue at least")
    options.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="run", dir=options.folder))
    words = Console(stderr=True, highlight=False)
    try:
        with words.status("starting") as status:
            done: Callable[[str], None] = status.update if words.is_terminal else lambda what: None
            sync = Sync.JOURNAL if options.sync else Sync.NOTHING
            found = {
                queues: waits(options.kestreld, folder, queues, rounds=options.rounds, sync=sync, done=done)
                for queues in options.queues or QUEUES
            }
    except Unusable as unusable:
        words.print(f"benchmarks: {unusable}", markup=False)
        return 2
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    Console(highlight=False).print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
