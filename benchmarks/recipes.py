"""`python -m benchmarks.recipes`: what a message costs by the recipes, beside a queue of kestreld and a list of Redis.

One client puts messages of 100 bytes and takes them again. Commands are counted on the way; processor time is that of
the server and of this process, in microseconds for each message, put and taken.
"""

import argparse
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pymemcache import Client
from rich.console import Console
from rich.table import Table

from benchmarks.load import SCRATCH
from benchmarks.servers import PEERS, Program, Server, is_installed, kestreld, kestreld_cache, memcached, running
from kestrelctl.bench.process import cpu_us
from kestreld.recipes import LockingQueue, LogQueue, RingQueue, Servers, Sweeper
from kestreld.recipes.servers import CacheServer

MESSAGES: Final = 10_000
TOGETHER: Final = 100
BYTES: Final = 100
ROOMY_MIB: Final = 256

Step = Callable[[int], object]  # puts or takes so many


@dataclass(frozen=True, slots=True)
class Way:
    """How messages are put and taken. `together`: how many by one call."""

    name: str
    put: Step
    take: Step
    together: int = 1


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one message."""

    commands: float
    server_us: float
    client_us: float


class Trips:
    """Counts what is sent and waited for."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def of_recipes(self) -> Iterator[None]:
        ask = CacheServer._ask

        def counted(server: CacheServer, send: Callable[[Any], Any]) -> Any:
            self.count += 1
            return ask(server, send)

        CacheServer._ask = counted  # type: ignore[assignment]
        try:
            yield
        finally:
            CacheServer._ask = ask  # type: ignore[method-assign]


def messages(count: int) -> list[bytes]:
    return [b"%0*d" % (BYTES, number) for number in range(count)]


def one(put: Callable[[bytes], object]) -> Step:
    return lambda _: put(messages(1)[0])


def many(put: Callable[[list[bytes]], object]) -> Step:
    return lambda count: put(messages(count))


def of_recipes(servers: Servers) -> Iterator[Way]:
    """Each recipe, by one message and by many."""
    log, ring = LogQueue(servers, "one"), RingQueue(servers, "one", 2 * MESSAGES)
    jobs, several_jobs = LockingQueue(servers, "one"), LockingQueue(servers, "several")
    several, batched = LogQueue(servers, "several"), LogQueue(servers, "batched", compress_from_bytes=1000)
    log_reader, ring_reader = log.reader(), ring.reader()
    yield Way("LogQueue", one(log.put), lambda _: log_reader.get())
    yield Way("RingQueue", one(ring.put), lambda _: ring_reader.get())
    yield Way("LockingQueue", one(jobs.put), lambda _: jobs.get())
    yield Way("LogQueue, put_many", many(several.put_many), several.reader().get_many, TOGETHER)
    yield Way("LockingQueue, put_many", many(several_jobs.put_many), several_jobs.get_many, TOGETHER)
    yield Way("LogQueue, batch, compressed", many(batched.put_batch), batched.reader().get_many, TOGETHER)


def of_kestreld(port: int, trips: Trips) -> Iterator[Way]:
    """A queue of kestreld, by pymemcache as well."""
    client = Client(("127.0.0.1", port), default_noreply=False, no_delay=True)

    def put(_: int) -> None:
        trips.count += 1
        client.set("jobs", *messages(1))

    def take(_: int) -> None:
        trips.count += 1
        assert client.get("jobs") is not None

    def take_safely(_: int) -> None:
        trips.count += 1
        assert client.get("jobs/close/open") is not None

    yield Way("queue, get", put, take)
    yield Way("queue, get/close/open", put, take_safely)


def of_redis(port: int, trips: Trips) -> Iterator[Way]:
    """A list of Redis, by a bare socket: RPUSH and LPOP."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    replies = connection.makefile("rb")

    def ask(command: bytes) -> bytes:
        trips.count += 1
        connection.sendall(command)
        return replies.readline()

    def put(count: int) -> None:
        bulk = b"".join(b"$%d\r\n%b\r\n" % (len(message), message) for message in messages(count))
        assert ask(b"*%d\r\n$5\r\nRPUSH\r\n$4\r\njobs\r\n" % (2 + count) + bulk).startswith(b":")

    def take(count: int) -> None:
        if count == 1:
            assert ask(b"*2\r\n$4\r\nLPOP\r\n$4\r\njobs\r\n") == b"$%d\r\n" % BYTES
            replies.readline()
        else:
            assert ask(b"*3\r\n$4\r\nLPOP\r\n$4\r\njobs\r\n$%d\r\n%d\r\n" % (len(str(count)), count)).startswith(b"*")
            for _ in range(2 * count):
                replies.readline()

    yield Way("list, RPUSH and LPOP", put, take)
    yield Way("list, RPUSH and LPOP of many", put, take, TOGETHER)


def cost(step: Step, way: Way, server: Server, trips: Trips, count: int) -> Cost:
    trips_before, server_before, own_before = trips.count, cpu_us(server.pid), time.process_time()
    for _ in range(count // way.together):
        step(way.together)
    return Cost(
        (trips.count - trips_before) / count,
        (cpu_us(server.pid) - server_before) / count,
        (time.process_time() - own_before) * 1e6 / count,
    )


def sweeping(servers: Servers, keeping: Server, server: Server, trips: Trips, count: int) -> tuple[Cost, Cost]:
    """A log into a queue of kestreld: the put into the log, and the move. The server is the one of the queue."""
    log = LogQueue(servers, "swept")
    way = Way("", lambda together: log.put_many(messages(together)), lambda together: None, TOGETHER)
    put = cost(way.put, way, server, trips, count)
    with Sweeper(log, f"127.0.0.1:{keeping.port}") as sweeper:
        moved = Way("", lambda together: None, lambda together: sweeper.sweep(), count)
        return put, cost(moved.take, moved, keeping, trips, count)


def main() -> int:
    """0 = measured, 2 = a server is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recipes")
    parser.add_argument("--messages", type=int, default=MESSAGES, help=f"of each kind ({MESSAGES})")
    count = parser.parse_args().messages
    redis = next(peer for peer in PEERS if peer.name == "redis")
    caches = (memcached(ROOMY_MIB), kestreld_cache("kestreld's cache", "", ROOMY_MIB))
    programs: list[Program] = [*caches, kestreld("kestreld", ""), redis]
    missing = [program.package for program in programs if not is_installed(program)]
    if missing:
        print(f"benchmarks: not installed: {', '.join(missing)}", file=sys.stderr)
        return 2
    SCRATCH.mkdir(parents=True, exist_ok=True)
    table = Table("server", "way", "commands: put", "get", "server, us: put", "get", "client, us: put", "get", box=None)

    def row(server: str, name: str, put: Cost, take: Cost) -> None:
        sent = (f"{put.commands:.2f}", f"{take.commands:.2f}")
        us = (put.server_us, take.server_us, put.client_us, take.client_us)
        table.add_row(server, name, *sent, *(f"{one:.1f}" for one in us))

    folder = Path(tempfile.mkdtemp(dir=SCRATCH))
    with running(programs, folder) as servers:
        keeping, listing = servers[2:]
        for server in servers[:2]:
            trips = Trips()
            with Servers(f"127.0.0.1:{server.port}") as cached, trips.of_recipes():
                for way in of_recipes(cached):
                    row(server.name, way.name, *(cost(step, way, server, trips, count) for step in (way.put, way.take)))
                row(server.name, "LogQueue, swept", *sweeping(cached, keeping, server, trips, count))
        for server, ways in ((keeping, of_kestreld), (listing, of_redis)):
            trips = Trips()
            for way in ways(server.port, trips):
                row(server.name, way.name, *(cost(step, way, server, trips, count) for step in (way.put, way.take)))
    Console(width=140).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
