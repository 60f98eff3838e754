"""`python -m benchmarks.held`: what items that are not due yet cost, and leases: memory, disk, a start, everybody else.

`leases` takes and confirms items by lease beside open reads. `small` has a million delayed items of 100 bytes spread
among 10 GiB of items that are done, `large` 20,000 of 256 KiB with a max_memory_size of 64 MiB. Each figure stands
beside its limit; the exit status is 1 where one is above. Waits are judged by how long the server worked meanwhile:
that is the same on a machine that others use, too.
"""

import argparse
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.compare import measure, turned
from benchmarks.errors import Unusable
from benchmarks.limits import NO_LIMIT, Figure, above_idle, in_words, waited
from benchmarks.load import SCRATCH, Load
from benchmarks.parts import Say, judge
from benchmarks.servers import Server, free_port, kestreld
from benchmarks.start_stop import started_s, stopped_s
from benchmarks.waits import ask, connect, fetch
from kestreld.journal.records import Due, Why, due_record, put_record

PARTS: Final = ("leases", "small", "large")
LEASE_SHAPES: Final = {"16 clients": (16, 1), "16 clients x 32": (16, 32)}
LEASED_EACH_S: Final = 60_000  # more than are taken
SMALL: Final = 1_000_000
SMALL_BYTES: Final = 100
DONE_BYTES: Final = 10 * 1024**3
DONE_ITEM_BYTES: Final = 65_536
LARGE: Final = 20_000
LARGE_BYTES: Final = 256 * 1024
LARGE_MEMORY_BYTES: Final = 64 * 1024**2
SEGMENT_BYTES: Final = 16 * 1024**2  # max_journal_size and max_journal_overflow
SEGMENTS: Final = 10
AT_A_TIME: Final = 100
PAGE: Final = "/queues/held/items?state=delayed&limit=2000"
IDLE_S: Final = 2.0
PAUSE_S: Final = 0.002
SETTLE_S: Final = 2.0  # after a flush: what is dropped is freed in parts
DUE_S_MAX: Final = 600
MIB: Final = 1024**2

PAIR_MAX, SAME_MAX, OTHER_MAX = 1.35, 1.10, 1.02
EACH_BYTES_MAX, START_S_MAX, LARGE_EACH_BYTES_MAX = 400, 15, 1024


@dataclass(frozen=True, slots=True)
class Options:
    """`scale` 1 = as the parts say."""

    command: str
    folder: Path
    scale: float
    rounds: int
    seconds: float
    due_s: float
    say: Say


class Disk:
    """How much the files of a server take, at most."""

    def __init__(self, spool: Path) -> None:
        self._spool = spool
        self.most_bytes = 0

    def look(self) -> int:
        used_bytes = 0
        for path in self._spool.rglob("*"):
            with suppress(FileNotFoundError):  # some go meanwhile
                used_bytes += path.stat().st_size
        self.most_bytes = max(self.most_bytes, used_bytes)
        return used_bytes


@contextmanager
def _server(
    options: Options, name: str, *settings: str, admin_port: int | None = None
) -> Iterator[tuple[Server, Disk]]:
    words = "".join(f" --set {setting}" for setting in settings)
    command = f"{options.command or f'{sys.executable} -m kestreld'}{words}"
    folder = options.folder / name
    server = Server(kestreld(name, command, admin_port=admin_port), folder)
    try:
        server.start()
        server.wait_until_ready()
        yield server, Disk(folder / "spool")
    finally:
        server.stop(signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def leases(options: Options) -> Iterator[Figure]:
    """The same items, taken and confirmed in both ways."""
    with _server(options, "leases", "max_open_reads=1000") as (server, _):
        for shape, (clients, depth) in LEASE_SHAPES.items():
            cost_us: dict[str, list[float]] = {"opened": [], "leased": []}
            for number in range(options.rounds):
                options.say(f"leases: {shape}: round {number + 1}")
                for work in turned(list(cost_us), number):
                    fill = int(LEASED_EACH_S * options.seconds * (1 if depth == 1 else 3))
                    load = Load(work=work, clients=clients, depth=depth, fill=fill)
                    queue = f"{work}{number}_{depth}"
                    run = measure(server, shape, load, queue, number, options.seconds)
                    if run.result.faults:
                        raise Unusable(run.result.first_fault)
                    cost_us[work].append(run.result.server_cpu_us_op)
            opened_us, leased_us = (median(cost_us[work]) for work in ("opened", "leased"))
            words = f"{leased_us:.2f} and {opened_us:.2f} µs"
            yield Figure(f"CPU of gets and delete of get and close, {shape}", leased_us / opened_us, PAIR_MAX, words)


def _exchange(connection: socket.socket, request: bytes, answer_bytes: int, begins: bytes = b"") -> bytes:
    """Send some commands whose answers have so many bytes; the last of them."""
    connection.sendall(request)
    missing, heard = answer_bytes, b""
    while missing > 0:
        heard = connection.recv(min(missing, MIB))
        if not heard:
            raise Unusable("the server closed the connection")
        if missing == answer_bytes and not begins.startswith(heard[: len(begins)]):
            raise Unusable(f"{heard[:40]!r} came instead of {begins!r}: a longer --due-s may help")
        missing -= len(heard)
    return heard


def _put(connection: socket.socket, word: str, data: bytes, count: int) -> None:
    request = b"set %b 0 0 %d\r\n%b\r\n" % (word.encode(), len(data), data)
    if not _exchange(connection, request * count, 8 * count).endswith(b"D\r\n"):
        raise Unusable(f"set {word} was refused")


def _put_and_get(connection: socket.socket, data: bytes, count: int) -> None:
    _put(connection, "held", data, count)
    head = b"VALUE held 0 %d\r\n" % len(data)
    if not _exchange(connection, b"get held\r\n" * count, (len(head) + len(data) + 7) * count, head).endswith(
        b"\r\nEND\r\n"
    ):
        raise Unusable("get held had no item")


def _fill(options: Options, server: Server, disk: Disk, items: int, data: bytes, done_bytes: int, due_s: float) -> None:
    """Items that are due at the same moment, and between them others that are done."""
    done, done_each = b"d" * DONE_ITEM_BYTES, done_bytes / max(items, 1) / DONE_ITEM_BYTES
    done_count = 0
    with connect(server.port) as connection:
        for first in range(0, items, AT_A_TIME):
            if first % (100 * AT_A_TIME) == 0:
                options.say(f"{first:,} of {items:,} delayed items of {len(data):,} bytes")
            count = min(AT_A_TIME, items - first)
            _put(connection, f"held/delay={max(int((due_s - time.monotonic()) * 1000), 1)}", data, count)
            due_count = int((first + count) * done_each) - done_count
            if due_count:
                _put_and_get(connection, done, due_count)
                done_count += due_count
            disk.look()


def _resident_bytes(server: Server) -> int:
    time.sleep(1)  # the server gives back what it has no use for
    return server.resident_bytes


def small(options: Options) -> Iterator[Figure]:
    """Many small items, and what they mean for everybody else."""
    items, done_bytes = int(SMALL * options.scale), int(DONE_BYTES * options.scale)
    admin_port = free_port()
    with (
        _server(options, "without") as (without, _),
        _server(options, "with", "trash_seconds=3600", admin_port=admin_port) as (server, disk),
    ):
        with connect(server.port) as connection:
            for _ in range(100):
                _put_and_get(connection, b"d" * DONE_ITEM_BYTES, 16)
        empty_bytes = _resident_bytes(server)
        due_s = time.monotonic() + options.due_s
        _fill(options, server, disk, items, b"x" * SMALL_BYTES, done_bytes, due_s)
        each_bytes = (_resident_bytes(server) - empty_bytes) / items
        yield Figure("memory of a delayed item, bytes", each_bytes, EACH_BYTES_MAX)
        live_bytes = items * _item_bytes(SMALL_BYTES)
        limit = 2 * live_bytes + SEGMENTS * SEGMENT_BYTES
        yield Figure("most on disk meanwhile, MiB", disk.most_bytes / MIB, limit / MIB, f"{live_bytes / MIB:.0f} live")
        yield from _costs(options, server, without)
        yield from _waits(options, server, without, admin_port, disk)
        for number, what in ((signal.SIGTERM, "stop"), (signal.SIGKILL, "kill -9")):
            options.say(f"start after {what}")
            stopped = stopped_s(server, number)
            yield Figure(f"start after {what}, s", started_s(server), START_S_MAX, f"stopped in {stopped:.1f} s")
        yield from _due(options, server, without, items, due_s)


def _item_bytes(size: int) -> int:
    """What the journal has of a delayed item."""
    return len(put_record(1, 0, 0, 0, 0, b"x" * size)) + len(due_record(Due(0, Why.DELAYED, 1, 0, 0, size)))


def _costs(options: Options, server: Server, without: Server) -> Iterator[Figure]:
    """A put and a get, with the delayed items and without."""
    for queue, words, limit in (("held", "the same queue", SAME_MAX), ("other", "another queue", OTHER_MAX)):
        cost_us: dict[str, list[float]] = {server.name: [], without.name: []}
        for number in range(options.rounds):
            options.say(f"put and get of {words}: round {number + 1}")
            for one in turned([server, without], number):
                result = measure(one, words, Load(clients=16), queue, number, options.seconds).result
                if result.faults:
                    raise Unusable(result.first_fault)
                cost_us[one.name].append(result.server_cpu_us_op)
        with_us, without_us = median(cost_us[server.name]), median(cost_us[without.name])
        more = f"{with_us:.2f} and {without_us:.2f} µs"
        yield Figure(f"CPU of put and get of {words}, of without", with_us / without_us, limit, more)


def _waits(options: Options, server: Server, without: Server, admin_port: int, disk: Disk) -> Iterator[Figure]:
    """What another client waits for."""
    port = server.port
    idle = waited(without, lambda: time.sleep(IDLE_S), rounds=options.rounds)
    yield Figure("wait beside an idle server, ms", idle.longest_alone_ms, NO_LIMIT, in_words(idle))
    commands: dict[str, Callable[[], None]] = {
        "stats": lambda: ask(port, b"stats\r\n", b"\r\nEND\r\n"),
        "dump_stats": lambda: ask(port, b"dump_stats\r\n", b"\r\nEND\r\n"),
        "/stats.json": lambda: fetch(admin_port, "/stats.json"),
        "/metrics": lambda: fetch(admin_port, "/metrics"),
        "a page of delayed items": lambda: fetch(admin_port, PAGE),
    }
    for name, command in commands.items():
        options.say(name)
        yield above_idle(name, waited(server, command, rounds=options.rounds), idle)
    options.say("rolling")
    yield above_idle("rolling", waited(server, lambda: _elsewhere(_work, port, 4 * SEGMENT_BYTES)), idle)
    options.say("compaction")
    yield above_idle("compaction", waited(server, lambda: _elsewhere(_work_until_smaller, port, disk)), idle)
    for name, request, end in (("flush", b"flush held\r\n", b"\r\n"), ("undo", b"undo held\r\n", b"\r\n")):
        options.say(name)
        yield above_idle(name, waited(server, lambda: _ask_and_wait(port, request, end)), idle)  # noqa: B023


def _due(options: Options, server: Server, without: Server, items: int, due_s: float) -> Iterator[Figure]:
    """All come due in the same moment; and then a flush."""
    left_s = due_s - time.monotonic()
    if left_s < 1:
        raise Unusable(f"the items came due too soon: --due-s {options.due_s - left_s + 60:.0f}")
    if _delayed(server) != items:
        raise Unusable(f"{_delayed(server):,} items are delayed, not {items:,}")
    idle = waited(without, lambda: time.sleep(IDLE_S), rounds=options.rounds)
    options.say("until all are due")
    time.sleep(max(due_s - time.monotonic() - 2, 0))
    yield above_idle("all come due at once", waited(server, lambda: _until_none_is_delayed(server)), idle)
    options.say("flush of what is due")
    flush = waited(server, lambda: _ask_and_wait(server.port, b"flush held\r\n", b"\r\n"))
    yield above_idle("flush of what is due", flush, idle)


def _elsewhere(work: Callable[..., None], port: int, more: object) -> None:
    """In another process: the probing client shall not wait for this one."""
    process = get_context("spawn").Process(target=work, args=(port, more))
    process.start()
    process.join()
    if process.exitcode:
        raise Unusable("the work on the same queue ended with an error")


def _work(port: int, data_bytes: int) -> None:
    """Not as fast as can be: it is not for this work that others wait."""
    with connect(port) as connection:
        for _ in range(data_bytes // DONE_ITEM_BYTES):
            _put_and_get(connection, b"d" * DONE_ITEM_BYTES, 1)
            time.sleep(PAUSE_S)


def _work_until_smaller(port: int, disk: Disk) -> None:
    """Until the journal has been compacted."""
    most_bytes = 0
    while (now_bytes := disk.look()) > most_bytes - 3 * SEGMENT_BYTES:
        most_bytes = max(most_bytes, now_bytes)
        _work(port, MIB)


def _ask_and_wait(port: int, request: bytes, end: bytes) -> None:
    ask(port, request, end)
    time.sleep(SETTLE_S)


def _delayed(server: Server) -> int:
    with connect(server.port) as connection:
        connection.sendall(b"dump_stats held\r\n")
        heard = b""
        while not heard.endswith(b"END\r\n"):
            heard += connection.recv(65536)
    words = next(line for line in heard.decode().splitlines() if line.strip().startswith("delayed"))
    return int(words.rpartition("=")[2])


def _until_none_is_delayed(server: Server) -> None:
    until_s = time.monotonic() + DUE_S_MAX
    while _delayed(server):
        if time.monotonic() > until_s:
            raise Unusable("some items do not come due")
        time.sleep(0.2)


def large(options: Options) -> Iterator[Figure]:
    """Large items, of which only so much is in memory."""
    items = int(LARGE * options.scale)
    with _server(options, "large", f"max_memory_size={LARGE_MEMORY_BYTES}") as (server, disk):
        with connect(server.port) as connection:
            _put_and_get(connection, b"d" * LARGE_BYTES, AT_A_TIME)
        empty_bytes = _resident_bytes(server)
        _fill(options, server, disk, items, b"x" * LARGE_BYTES, 0, time.monotonic() + 86_400)
        grown_bytes = _resident_bytes(server) - empty_bytes
        limit = LARGE_MEMORY_BYTES + items * LARGE_EACH_BYTES_MAX
        yield Figure(f"memory of {items:,} items of 256 KiB, MiB", grown_bytes / MIB, limit / MIB)


def main(given: Sequence[str] | None = None) -> int:
    """0 = measured, and nothing is above its limit; 1 = something is; 2 = it could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.held", description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"what to measure (default all): {', '.join(PARTS)}")
    parser.add_argument("--scale", type=float, default=1, help="so much of the items of small and large (1)")
    parser.add_argument("--rounds", type=int, default=7, help="so many of everything that is repeated (7)")
    parser.add_argument("--seconds", type=float, default=1, help="of each measurement of CPU (1)")
    parser.add_argument("--due-s", type=float, default=900, help="small: all are due so long after it begins (900)")
    parser.add_argument("--kestreld", default="", metavar="COMMAND", help="the kestreld to measure (default: this one)")
    parser.add_argument("--folder", type=Path, default=SCRATCH, help="where journals lie meanwhile")
    options = parser.parse_args(given)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")

    def figures(folder: Path, say: Say) -> Iterator[Figure]:
        wanted = Options(options.kestreld, folder, options.scale, options.rounds, options.seconds, options.due_s, say)
        for part in options.parts or PARTS:
            yield from {"leases": leases, "small": small, "large": large}[part](wanted)

    return judge(figures, options.folder)


if __name__ == "__main__":
    sys.exit(main())
