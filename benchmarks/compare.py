"""kestreld beside the other servers: the same load on each in turn, round after round, while all of them run."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from benchmarks.load import Load, run
from benchmarks.results import Run
from benchmarks.servers import Program, Server, Sync, running

T = TypeVar("T")

ALL: Final = ("kestrel", "memcached", "redis", "beanstalkd")
QUEUES: Final = ("kestrel", "redis", "beanstalkd")
KESTREL: Final = ("kestrel",)
MANY_QUEUES: Final = ("kestrel", "redis")
RELIABLE_ITEMS: Final = 200_000


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    load: Load
    protocols: Sequence[str]
    sync: Sync = Sync.NOTHING


def rows(*, quick: bool) -> list[Row]:
    fill = 5_000 if quick else RELIABLE_ITEMS
    return [
        Row("set+get, 1 client", Load(clients=1), ALL),
        Row("set+get, 16 clients", Load(clients=16), ALL),
        Row("set+get, 64 clients", Load(clients=64), ALL),
        Row("set+get, 16 clients x 32", Load(clients=16, depth=32), ALL),
        Row("reliable fetch, 16 clients", Load(work="reliable", clients=16, fill=fill), QUEUES),
        Row("reliable fetch, 64 clients", Load(work="reliable", clients=64, fill=fill), QUEUES),
        Row(
            "reliable fetch, 64 clients, acknowledged with the next",
            Load(work="reliable", clients=64, fill=fill, join_acks=True),
            QUEUES,
        ),
        Row("set+get of 64 KiB, 16 clients", Load(clients=16, size="65536"), ALL),
        Row("set+get of 16 B to 4 KiB, 64 clients", Load(clients=64, size="16-4096"), ALL),
        # The mean of the sizes above.
        Row("set+get of 712 B, 64 clients", Load(clients=64, size="712"), ALL),
        Row("synced set, 1 client", Load(work="put", clients=1), QUEUES, sync=Sync.JOURNAL),
        Row("synced set, 16 clients", Load(work="put", clients=16), QUEUES, sync=Sync.JOURNAL),
        Row("synced set, 64 clients", Load(work="put", clients=64), QUEUES, sync=Sync.JOURNAL),
        Row("synced set, 16 clients x 32", Load(work="put", clients=16, depth=32), QUEUES, sync=Sync.JOURNAL),
        Row(
            "synced set, 64 clients on 32 queues",
            Load(work="put", clients=64, queues=32, fill=32),
            MANY_QUEUES,
            sync=Sync.JOURNAL,
        ),
        Row(
            "synced set, 64 clients on 32 queues, together",
            Load(work="put", clients=64, queues=32, fill=32),
            KESTREL,
            sync=Sync.TOGETHER,
        ),
    ]


def compare(
    programs: Sequence[Program], folder: Path, *, rounds: int, seconds: float, quick: bool, done: Callable[[str], None]
) -> Iterator[Run]:
    """`done` hears what is being measured."""
    for sync in Sync:
        of_this_kind = [row for row in rows(quick=quick) if row.sync == sync]
        protocols = {protocol for row in of_this_kind for protocol in row.protocols}
        fitting = [program for program in programs if program.protocol in protocols]
        with running(fitting, folder / sync.name.lower(), sync=sync) as servers:
            for round_number in range(rounds):
                for row_number, row in enumerate(of_this_kind):
                    for server in turned(servers, round_number + row_number):
                        if server.protocol in row.protocols:
                            done(f"round {round_number + 1}: {row.name}: {server.name}")
                            queue = f"q{round_number}_{row_number}"
                            yield measure(server, row.name, row.load, queue, round_number, seconds)


def measure(server: Server, row: str, load: Load, queue: str, round_number: int, seconds: float, *, at: int = 0) -> Run:
    result = run(load, protocol=server.protocol, port=server.port, pid=server.pid, queue=queue, seconds=seconds)
    return Run(server.name, row, at, round_number, result)


def turned(servers: Sequence[T], by: int) -> list[T]:
    """No server always comes first, or always after the same one's dirty pages."""
    first = by % len(servers)
    return [*servers[first:], *servers[:first]]
