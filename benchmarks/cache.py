"""`python -m benchmarks.cache`: kestreld's cache beside memcached: processor time, memory, and what others wait for.

`cpu` puts and gets values of 64 to 100 bytes on both in turn, under few keys and under a million that are walked at
random. `memory` fills the cache three times over, `waits` probes it while two million keys come, expire and are
flushed. Each figure stands beside its limit; the exit status is 1 where one is above. Waits are judged by how long the
server worked meanwhile: that is the same on a machine that others use, too.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks import parts
from benchmarks.compare import measure, turned
from benchmarks.errors import Unusable
from benchmarks.limits import NO_LIMIT, Figure, above_idle, best_of, in_words, ratio, waited
from benchmarks.load import Load
from benchmarks.machine import engine
from benchmarks.parts import QUICK_COUNT, Options, Part, Shape
from benchmarks.results import Run
from benchmarks.servers import Program, Server, is_installed, kestreld_cache, memcached, running
from benchmarks.waits import IDLE_S, ask, connect

MIB: Final = 1024**2
SIZE: Final = "64-100"
KEYS: Final = 1_000_000
FEW_KEYS: Final = 1_000
ROOMY_MIB: Final = 1024  # nothing is evicted
MEMORY_MIB: Final = (64, 256)
QUICK_MEMORY_MIB: Final = (8,)
ITEM_BYTES_MIN: Final = 100  # what an item of 64 bytes takes at least: so many fill a cache several times over
RSS_MAX: Final = 1.3  # of cache_memory
MANY_KEYS_MAX: Final = 1.1  # of the limit with few keys
COMING_CLIENTS: Final = 4  # each with 64 sets on the way
EXPIRY_SPARE_S: Final = 5.0
EXPIRY_S_MAX: Final = 15.0  # after that, what has expired may well stay until somebody asks for it
SETTLE_S: Final = 2.0


SHAPES: Final = (
    Shape("16 clients", 16, 1, 1.7, 1.5),
    Shape("64 clients", 64, 1, 1.55, 1.4),
    Shape("16 clients x 32", 16, 32, 0.7, 0.45),
)
WORKS: Final = {"set+get": "put+take", "get": "take"}  # a set and a get by turns, each of a random key


def row_name(words: str, keys: int, shape: Shape) -> str:
    return f"{words} of {keys:,} keys, {shape.name}"


def runs(
    servers: Sequence[Server], *, keys: int, rounds: int, seconds: float, say: Callable[[str], None]
) -> Iterator[Run]:
    """The same loads on all servers in turn, under few keys and then under so many."""
    for key_count in (FEW_KEYS, keys):
        for server in servers:
            say(f"{key_count:,} keys for {server.name}")
            fill(server, key_count, size=SIZE)
        for number in range(rounds):
            for shape in SHAPES:
                for words, work in WORKS.items():
                    row = row_name(words, key_count, shape)
                    load = Load(work=work, clients=shape.clients, depth=shape.depth, size=SIZE, keys=key_count)
                    for server in turned(servers, number):
                        say(f"round {number + 1}: {row}: {server.name}")
                        yield measure(server, row, load, prefix(key_count), number, seconds)


def prefix(keys: int) -> str:
    """What the names of so many keys begin with."""
    return f"k{keys}"


def fill(server: Server, keys: int, *, clients: int = 16, size: str = "64", expires_at_s: int = 0) -> None:
    """Set every key once."""
    load = Load(work="put", clients=clients, fill=keys, keys=keys, size=size, expires_at_s=expires_at_s)
    _checked(measure(server, "", load, prefix(keys), 0, 0))


def _checked(run: Run) -> Run:
    if run.result.faults:
        raise Unusable(f"{run.server}: {run.result.first_fault}")
    return run


def cpu(options: Options) -> Iterator[Figure]:
    """Server CPU of an operation, of memcached's in the same round."""
    peer = memcached(ROOMY_MIB)
    if not is_installed(peer):
        raise Unusable(f"{peer.name} is not installed (apt-get install {peer.package})")
    programs = [kestreld_cache(name, command, ROOMY_MIB) for name, command in options.programs.items()]
    with running([*programs, peer], options.folder / "cpu") as servers:
        compiled = {server.name: engine(server).startswith("compiled") for server in servers[:-1]}
        found: dict[tuple[str, str], list[float]] = {}
        for run in runs(servers, keys=options.count, rounds=options.rounds, seconds=options.seconds, say=options.say):
            found.setdefault((run.row, run.server), []).append(_checked(run).result.server_cpu_us_op)
    for keys, more in ((FEW_KEYS, 1.0), (options.count, MANY_KEYS_MAX)):
        for words in WORKS:
            for shape in SHAPES:
                for name, is_compiled in compiled.items():
                    row = row_name(words, keys, shape)
                    limit = (shape.compiled_limit if is_compiled else shape.limit) * more
                    yield ratio(f"{name}: {row}", found[row, name], found[row, peer.name], limit)


def compare(
    programs: Sequence[Program], folder: Path, *, rounds: int, seconds: float, quick: bool, done: Callable[[str], None]
) -> Iterator[Run]:
    """What `cpu` measures, of any caches. `done` hears what is being measured."""
    with running(programs, folder / "caches") as servers:
        yield from runs(servers, keys=QUICK_COUNT if quick else KEYS, rounds=rounds, seconds=seconds, say=done)


@contextmanager
def _server(options: Options, program: Program) -> Iterator[Server]:
    with running([program], options.folder / "server") as (server,):
        yield server


def _kestrelds(options: Options, memory_mib: int) -> list[Program]:
    return [kestreld_cache(name, command, memory_mib) for name, command in options.programs.items()]


def memory(options: Options) -> Iterator[Figure]:
    """Resident memory of a full cache, less that of an idle server, of what the cache may take."""
    for memory_mib in _sizes_mib(options):
        for program in [*_kestrelds(options, memory_mib), *filter(is_installed, [memcached(memory_mib)])]:
            with _server(options, program) as server:
                for what, share, limit in _fillings(server, memory_mib * MIB, options):
                    words = f"{int(statistic(server, 'curr_items')):,} items"
                    name = f"{server.name}: RSS of {memory_mib} MiB, {what}"
                    yield Figure(name, share, limit if program.is_ours else NO_LIMIT, words)


def _sizes_mib(options: Options) -> Sequence[int]:
    return QUICK_MEMORY_MIB if options.is_quick else MEMORY_MIB


def _fillings(server: Server, memory_bytes: int, options: Options) -> Iterator[tuple[str, float, float]]:
    """What the cache has been filled with, what share of its limit that is resident, and what it may be."""
    idle_bytes, keys = _resident_bytes(server), memory_bytes // ITEM_BYTES_MIN
    again = Load(work="put", clients=16, depth=16, keys=keys, at_least=keys)
    for what, load, limit in (
        ("64-byte values", None, RSS_MAX),
        ("set again at random", again, RSS_MAX),
        ("then 16 bytes to 4 KiB", replace(again, size="16-4096"), NO_LIMIT),
        ("then 64-byte values", again, NO_LIMIT),
    ):
        options.say(f"{server.name}: {memory_bytes:,} bytes: {what}")
        if load is None:
            fill(server, keys)
        else:
            _checked(measure(server, what, load, prefix(keys), 0, options.seconds))
        yield what, (_resident_bytes(server) - idle_bytes) / memory_bytes, limit


def _resident_bytes(server: Server) -> int:
    time.sleep(1)  # the server gives back what it has no use for
    return server.resident_bytes


def statistic(server: Server, name: str) -> str:
    """One line of `stats`."""
    heard = b""
    with connect(server.port) as connection:
        connection.sendall(b"stats\r\n")
        while not heard.endswith(b"END\r\n"):
            heard += connection.recv(65536)
    return next(line.split()[2] for line in heard.decode().splitlines() if line.startswith(f"STAT {name} "))


def waits(options: Options) -> Iterator[Figure]:
    """What a client with one small item waits for meanwhile: the best of the rounds, for what else runs only adds."""
    for program in _kestrelds(options, 2 * ROOMY_MIB):
        yield from best_of(options.rounds, lambda: _waits(options, program, 2 * options.count))  # noqa: B023


def _waits(options: Options, program: Program, keys: int) -> Iterator[Figure]:
    with _server(options, program) as server:
        idle = waited(server, lambda: time.sleep(IDLE_S))
        yield Figure(f"{server.name}: wait beside an idle server, ms", idle.longest_alone_ms, NO_LIMIT, in_words(idle))

        def figure(what: str, command: Callable[[], None]) -> Figure:
            options.say(f"{server.name}: {keys:,} keys {what}")
            return above_idle(f"{keys:,} keys {what}", waited(server, command), idle)

        began_s = time.monotonic()

        def come(expires_at_s: int = 0) -> None:
            # So few that most of a turn is not their sets: it is not for those that the others may wait.
            fill(server, keys, clients=COMING_CLIENTS, expires_at_s=expires_at_s)

        yield figure("come", come)
        took_s = time.monotonic() - began_s
        expires_at_s = int(time.time() + 4 * took_s + EXPIRY_SPARE_S)
        yield figure("come again, to expire", lambda: come(expires_at_s))
        if (left_s := expires_at_s - 1 - time.time()) < 0:
            raise Unusable("the first of the keys expired before the last had come: the machine is too busy")
        time.sleep(left_s)
        yield figure("expire at once", lambda: _until_expired(server, expires_at_s))
        yield figure("come where others expired", come)
        yield figure("are flushed", lambda: _flush_all(server))
        yield figure("come where others were flushed", come)
    with _server(options, _with_little_memory(program, options)) as server:
        yield figure("come where there is no room", come)


def _with_little_memory(program: Program, options: Options) -> Program:
    """The same kestreld with the smallest of the caches."""
    return kestreld_cache(program.name, options.programs[program.name], min(_sizes_mib(options)))


def _until_expired(server: Server, expires_at_s: int) -> None:
    while time.time() < expires_at_s + EXPIRY_S_MAX:
        if time.time() > expires_at_s + SETTLE_S and int(statistic(server, "curr_items")) <= 1:
            break
        time.sleep(0.2)


def _flush_all(server: Server) -> None:
    ask(server.port, b"flush_all\r\n", b"OK\r\n")
    time.sleep(SETTLE_S)  # what is dropped may be freed in parts


PARTS: Final = {"cpu": Part(cpu, 7), "memory": Part(memory, 1), "waits": Part(waits, 2)}


def main(given: Sequence[str] | None = None) -> int:
    """See `parts.judge`."""
    return parts.main("cache", __doc__.partition("\n")[0], PARTS, "keys", KEYS, given)


if __name__ == "__main__":
    sys.exit(main())
