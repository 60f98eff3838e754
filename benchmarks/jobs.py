"""`python -m benchmarks.jobs`: kestreld's jobs beside redis: processor time, memory, a start, and what others wait for.

`cpu` adds, fetches and acknowledges jobs of 64 bytes, logged, beside LPUSH and RPOP of a redis with its AOF. `memory`
adds a million jobs, `load` starts a server that was killed with them, `timers` has a million wait for their time while
others come and go, `waits` probes a server where two million come, are listed, fetched, deleted and expire. Each figure
stands beside its limit; the exit status is 1 where one is above. Waits are judged by how long the server worked
meanwhile: that is the same on a machine that others use, too.
"""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import parts
from benchmarks.compare import measure, turned
from benchmarks.errors import Unusable
from benchmarks.limits import NO_LIMIT, Figure, above_idle, best_of, in_words, ratio, waited
from benchmarks.load import Load
from benchmarks.machine import engine
from benchmarks.parts import Options, Part, Shape
from benchmarks.results import Run
from benchmarks.servers import REDIS, Program, Server, free_port, is_installed, kestreld_jobs, running
from benchmarks.waits import IDLE_S, Talk, Waits, ask, connect

JOBS: Final = 1_000_000
FEW_TIMERS: Final = 1_000
QUEUES_OF_JOBS: Final = 10  # jobs for each queue that a scan of queues finds
QUEUE: Final = "many"
AT_A_TIME: Final = 500
COMING_CLIENTS: Final = 4  # each with 64 jobs on the way: it is not for those that the others may wait
DELAY_S: Final = 3600  # to twice that
SETTLE_S: Final = 2.0  # what is dropped is freed in parts
EXPIRY_SPARE_S: Final = 15.0
EXPIRY_S_MAX: Final = 60.0
SHAPES: Final = (
    Shape("16 clients", 16, 1, 1.85, 1.5),
    Shape("64 clients", 64, 1, 1.75, 1.4),
    Shape("16 clients x 32", 16, 32, 3.8, 2.2),
)
EACH_BYTES_MAX, COUNTED_MAX = 450, 0.15
LOAD_S_MAX, COMPILED_LOAD_S_MAX = 8, 5
TIMERS_MAX: Final = 1.15


def words(*given: bytes) -> bytes:
    """A command as clients send it."""
    return b"*%d\r\n%b" % (len(given), b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in given]))


def add_and_acknowledge() -> Talk:
    """A small job that is added, fetched and acknowledged."""
    while True:
        added = yield words(b"ADDJOB", b"probe", b"x", b"0")
        if not added.startswith(b"+D-"):
            raise Unusable(f"the probing client got {added!r}")
        job = yield words(b"GETJOB", b"NOHANG", b"FROM", b"probe")
        if job.startswith(b"*1"):  # else all jobs were deleted meanwhile
            yield words(b"ACKJOB", job.split(b"\r\n")[5])


def info(server: Server, name: str) -> str:
    """One line of INFO; "" where there is none."""
    with connect(server.port) as connection:
        connection.sendall(b"INFO\r\nQUIT\r\n")
        heard = b"".join(iter(lambda: connection.recv(65536), b""))
    lines = dict(line.partition(":")[::2] for line in heard.decode().split("\r\n"))
    return lines.get(name, "")


@contextmanager
def _server(program: Program, folder: Path) -> Iterator[Server]:
    """With room for all jobs."""
    with running([program], folder) as (server,):
        _make_room(server)
        yield server


def _make_room(server: Server) -> None:
    ask(server.port, b"CONFIG SET maxmemory 64gb\r\n", b"+OK\r\n")


def _programs(options: Options, memcache_port: int = 0) -> list[Program]:
    return [kestreld_jobs(name, command, memcache_port) for name, command in options.programs.items()]


def is_compiled(server: Server) -> bool:
    return engine(server).startswith("compiled")


def fill(server: Server, jobs: int, *, clients: int = 16, queues: int = 1, queue: str = QUEUE) -> None:
    """Add so many of 64 bytes."""
    result = measure(server, "", Load(fill=jobs, clients=clients, queues=queues, leave=True), queue, 0, 0).result
    if result.faults:
        raise Unusable(f"{server.name}: {result.first_fault}")


def _add(server: Server, queue: bytes, jobs: int, options_of: Callable[[int], Sequence[bytes]]) -> None:
    """Add so many, each with the options that its number has."""
    with connect(server.port) as connection:
        for first in range(0, jobs, AT_A_TIME):
            some = range(first, min(first + AT_A_TIME, jobs))
            connection.sendall(b"".join([words(b"ADDJOB", queue, b"x" * 64, b"0", *options_of(one)) for one in some]))
            missing = len(some)
            while missing:
                heard = connection.recv(65536)
                if not heard or b"-" in heard[:1]:
                    raise Unusable(f"{server.name}: {heard[:80]!r}")
                missing -= heard.count(b"\n")


# The parts


def runs(servers: Sequence[Server], *, rounds: int, seconds: float, say: Callable[[str], None]) -> Iterator[Run]:
    """The same loads on all servers in turn."""
    for number in range(rounds):
        for shape in SHAPES:
            for server in turned(servers, number):
                say(f"round {number + 1}: {shape.name}: {server.name}")
                load = Load(clients=shape.clients, depth=shape.depth)
                yield measure(server, shape.name, load, f"q{number}", number, seconds)


def compare(
    programs: Sequence[Program], folder: Path, *, rounds: int, seconds: float, done: Callable[[str], None]
) -> Iterator[Run]:
    """What `cpu` measures, of any servers. `done` hears what is being measured."""
    with running(programs, folder / "jobs") as servers:
        yield from runs(servers, rounds=rounds, seconds=seconds, say=done)


def cpu(options: Options) -> Iterator[Figure]:
    """Server CPU of a command, of redis's in the same round."""
    if not is_installed(REDIS):
        raise Unusable(f"{REDIS.name} is not installed (apt-get install {REDIS.package})")
    with running([*_programs(options), REDIS], options.folder / "cpu") as servers:
        compiled = {server.name: is_compiled(server) for server in servers[:-1]}
        found: dict[tuple[str, str], list[float]] = {}
        for run in runs(servers, rounds=options.rounds, seconds=options.seconds, say=options.say):
            if run.result.faults:
                raise Unusable(f"{run.server}: {run.result.first_fault}")
            found.setdefault((run.row, run.server), []).append(run.result.server_cpu_us_op)
    for shape in SHAPES:
        for name, is_fast in compiled.items():
            limit = shape.compiled_limit if is_fast else shape.limit
            yield ratio(f"{name}: CPU, {shape.name}", found[shape.name, name], found[shape.name, REDIS.name], limit)


def memory(options: Options) -> Iterator[Figure]:
    """What a job takes, and what is counted of it for maxmemory."""
    for program in _programs(options):
        with _server(program, options.folder / "memory") as server:
            idle_bytes, idle_counted = server.resident_bytes, int(info(server, "used_memory"))
            options.say(f"{server.name}: {options.count:,} jobs")
            fill(server, options.count)
            time.sleep(1)  # the server gives back what it has no use for
            each_bytes = (server.resident_bytes - idle_bytes) / options.count
            counted_bytes = (int(info(server, "used_memory")) - idle_counted) / options.count
        yield Figure(f"{server.name}: RSS of a job, bytes", each_bytes, EACH_BYTES_MAX, f"{options.count:,} jobs")
        away = abs(counted_bytes / each_bytes - 1)
        yield Figure(f"{server.name}: how far that is counted wrong", away, COUNTED_MAX, f"{counted_bytes:.0f} bytes")


def load(options: Options) -> Iterator[Figure]:
    """How long a server that was killed takes to have its jobs again, and what clients of another port wait for."""
    memcache_port = free_port()
    for program in _programs(options, memcache_port):
        with _server(program, options.folder / "load") as server:
            limit_s = COMPILED_LOAD_S_MAX if is_compiled(server) else LOAD_S_MAX
            options.say(f"{server.name}: {options.count:,} jobs")
            fill(server, options.count)
            idle = waited(server, lambda: time.sleep(IDLE_S), port=memcache_port)
            took_s: list[float] = []
            loading: list[Waits] = []
            for number in range(options.rounds):
                options.say(f"{server.name}: start {number + 1} with {options.count:,} jobs")
                server.stop(signal.SIGKILL)
                began_s = time.monotonic()
                server.start()
                server.wait_until_ready()
                loading.append(waited(server, server.wait_until_loaded, port=memcache_port))
                took_s.append(time.monotonic() - began_s)
                if int(info(server, "registered_jobs")) != options.count:
                    raise Unusable(f"{server.name}: {info(server, 'registered_jobs')} jobs of {options.count}")
        rounds = f"rounds {min(took_s):.2f} to {max(took_s):.2f}"
        yield Figure(f"{server.name}: start with {options.count:,} jobs, s", median(took_s), limit_s, rounds)
        yield above_idle(f"{server.name}: another port meanwhile", reduce(Waits.best, loading), idle)


def timers(options: Options) -> Iterator[Figure]:
    """Server CPU of commands while many jobs wait for their time, of that with few."""
    counts = {options.count: "many", FEW_TIMERS: "few"}
    for name, command in options.programs.items():
        programs = [kestreld_jobs(f"{name}-{some}", command) for some in counts.values()]
        with running(programs, options.folder / "timers") as servers:
            for server, count in zip(servers, counts, strict=True):
                options.say(f"{server.name}: {count:,} delayed jobs")
                _make_room(server)
                _add(server, b"delayed", count, lambda number: (b"DELAY", b"%d" % (DELAY_S + number % DELAY_S)))
            for shape in SHAPES:
                cost_us: dict[str, list[float]] = {server.name: [] for server in servers}
                for number in range(options.rounds):
                    options.say(f"{name}: {shape.name} beside delayed jobs: round {number + 1}")
                    for server in turned(servers, number):
                        one = Load(clients=shape.clients, depth=shape.depth)
                        result = measure(server, shape.name, one, f"q{number}", number, options.seconds).result
                        if result.faults:
                            raise Unusable(f"{server.name}: {result.first_fault}")
                        cost_us[server.name].append(result.server_cpu_us_op)
                what = f"{name}: CPU beside {options.count:,} timers, {shape.name}"
                many_us, few_us = cost_us.values()
                yield ratio(what, many_us, few_us, TIMERS_MAX)


def waits(options: Options) -> Iterator[Figure]:
    """What another client waits for meanwhile."""
    for program in _programs(options):
        yield from best_of(options.rounds, lambda: _waits(options, program))  # noqa: B023


def _waits(options: Options, program: Program) -> Iterator[Figure]:
    jobs = options.count
    with _server(program, options.folder / "waits") as server:
        idle = waited(server, lambda: time.sleep(IDLE_S), talk=add_and_acknowledge)
        yield Figure(f"{server.name}: wait beside an idle server, ms", idle.longest_alone_ms, NO_LIMIT, in_words(idle))

        def figure(what: str, command: Callable[[], None]) -> Figure:
            options.say(f"{server.name}: {what}")
            name = f"{server.name}: {what}"
            return above_idle(name, waited(server, command, talk=add_and_acknowledge), idle)

        def asked(*given: bytes) -> Callable[[], None]:
            """Until it is answered, however long the answer is."""

            def command() -> None:
                ask(server.port, words(*given) + words(b"PING"), b"+PONG\r\n")
                time.sleep(SETTLE_S)

            return command

        name = QUEUE.encode()
        began_s = time.monotonic()
        yield figure(f"{2 * jobs:,} jobs come", lambda: fill(server, 2 * jobs, clients=COMING_CLIENTS))
        each_s = (time.monotonic() - began_s) / (2 * jobs)
        yield figure("BGREWRITEAOF", lambda: _rewrite(server))
        yield figure(f"QPEEK {jobs}", asked(b"QPEEK", name, b"%d" % jobs))
        yield figure(f"QPEEK -{jobs}", asked(b"QPEEK", name, b"-%d" % jobs))
        yield figure("JSCAN BUSYLOOP", asked(b"JSCAN", b"BUSYLOOP"))
        yield figure("JSCAN BUSYLOOP ALL", asked(b"JSCAN", b"BUSYLOOP", b"REPLY", b"ALL"))
        queues = max(jobs // QUEUES_OF_JOBS, 1)
        fill(server, queues, queues=queues, queue="queue")
        yield figure(f"QSCAN BUSYLOOP of {queues:,}", asked(b"QSCAN", b"BUSYLOOP"))
        yield figure(f"GETJOB COUNT {jobs}", asked(b"GETJOB", b"COUNT", b"%d" % jobs, b"FROM", name))
        yield figure(f"QDEL of {2 * jobs:,}", asked(b"QDEL", name))
        fill(server, jobs)
        yield figure(f"CLUSTER RESET of {jobs:,}", asked(b"CLUSTER", b"RESET"))
        fill(server, jobs)
        yield figure(f"DEBUG FLUSHALL of {jobs:,}", asked(b"DEBUG", b"FLUSHALL"))
        expires_at_s = int(time.time() + 4 * each_s * jobs + EXPIRY_SPARE_S)
        _add(server, name, jobs, lambda number: (b"TTL", b"%d" % max(expires_at_s - int(time.time()), 0)))
        if (left_s := expires_at_s - 1.5 - time.time()) < 0:
            raise Unusable("the first of the jobs expired before the last had come: the machine is too busy")
        time.sleep(left_s)
        yield figure(f"{jobs:,} expire in one second", lambda: _until_expired(server, expires_at_s))


def _rewrite(server: Server) -> None:
    ask(server.port, b"BGREWRITEAOF\r\n", b"started\r\n")
    time.sleep(SETTLE_S)
    while info(server, "aof_rewrite_in_progress") == "1":
        time.sleep(0.2)


def _until_expired(server: Server, expires_at_s: int) -> None:
    while int(info(server, "registered_jobs")) > 1:  # one is the probing client's
        if time.time() > expires_at_s + EXPIRY_S_MAX:
            raise Unusable("some jobs do not expire")
        time.sleep(0.2)


PARTS: Final = {
    "cpu": Part(cpu, 7),
    "memory": Part(memory, 1),
    "load": Part(load, 3),
    "timers": Part(timers, 7),
    "waits": Part(waits, 2),
}


def main(given: Sequence[str] | None = None) -> int:
    """See `parts.judge`."""
    return parts.main("jobs", __doc__.partition("\n")[0], PARTS, "jobs", JOBS, given)


if __name__ == "__main__":
    sys.exit(main())
