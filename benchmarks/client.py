"""`python -m benchmarks.client`: what kestreld's client costs a worker, in processor time of the worker's process.

A lease and its confirm, with threads and with asyncio, beside redis-py's BRPOPLPUSH and LREM and nats-py's fetch and
ack where these and their servers are installed; and the heartbeats of many leases, as a share of a core.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.errors import Unusable
from benchmarks.load import SCRATCH
from benchmarks.servers import REDIS as REDIS_SERVER
from benchmarks.servers import Program, Server, Sync, is_installed, kestreld, running
from kestreld.client import AsyncClusterQueue, AsyncKestrelCluster, ClusterQueue, KestrelCluster

ITEM: Final = b"x" * 64
LEASE_S: Final = 30.0
WAIT_MS: Final = 1000
REDIS: Final = "redis-py, BRPOPLPUSH + LREM"
NATS: Final = "nats-py, fetch + ack"


@dataclass
class Cost:
    """Of a part of the client: of one operation, or of all while others sleep."""

    name: str
    processor_us: float = float("inf")


def processor_us(begun_ns: int, count: int) -> float:
    return (time.process_time_ns() - begun_ns) / count / 1000


def expect(found: object) -> Any:
    """What there must be: all items are there before."""
    if not found:
        raise Unusable("an item was not there, or not confirmed")
    return found


# A lease and its confirm


def threads(queue: ClusterQueue, items: int, *, heartbeat: bool) -> float:
    for _ in range(items):
        queue.put(ITEM)
    begun_ns = time.process_time_ns()
    for _ in range(items):
        lease = expect(queue.lease(LEASE_S, WAIT_MS, heartbeat=heartbeat))
        if heartbeat:
            with lease:
                pass
        else:
            expect(lease.confirm())
    return processor_us(begun_ns, items)


async def tasks(queue: AsyncClusterQueue, items: int, *, heartbeat: bool) -> float:
    for _ in range(items):
        await queue.put(ITEM)
    begun_ns = time.process_time_ns()
    for _ in range(items):
        lease = expect(await queue.lease(LEASE_S, WAIT_MS, heartbeat=heartbeat))
        if heartbeat:
            async with lease:
                pass
        else:
            expect(await lease.confirm())
    return processor_us(begun_ns, items)


def redis_py(port: int, items: int) -> float:
    import redis

    client: Any = redis.Redis(port=port)
    for _ in range(items):
        client.lpush("work", ITEM)
    begun_ns = time.process_time_ns()
    for _ in range(items):
        item = expect(client.brpoplpush("work", "busy", 1))
        expect(client.lrem("busy", 1, item))
    return processor_us(begun_ns, items)


async def nats_py(port: int, items: int) -> float:
    import nats

    client: Any = await nats.connect(f"nats://127.0.0.1:{port}")
    try:
        streams = client.jetstream()
        await streams.add_stream(name="work", subjects=["work"])
        queue = await streams.pull_subscribe("work", "workers")
        for _ in range(items):
            await streams.publish("work", ITEM)
        begun_ns = time.process_time_ns()
        for _ in range(items):
            (message,) = expect(await queue.fetch(1, timeout=1))
            await message.ack()
        return processor_us(begun_ns, items)
    finally:
        await client.close()


def leases_and_confirms(servers: list[Server], items: int) -> Iterator[Cost]:
    address = f"127.0.0.1:{servers[0].port}"

    async def in_loop(*, heartbeat: bool) -> float:
        async with AsyncKestrelCluster([address]) as cluster:
            return await tasks(cluster.queue("work"), items, heartbeat=heartbeat)

    for heartbeat, words in ((False, ""), (True, ", heartbeat")):
        with KestrelCluster([address]) as cluster:
            yield Cost(f"threads{words}", threads(cluster.queue("work"), items, heartbeat=heartbeat))
        yield Cost(f"asyncio{words}", asyncio.run(in_loop(heartbeat=heartbeat)))
    for server in servers[1:]:
        if server.protocol == "redis":
            yield Cost(REDIS, redis_py(server.port, items))
        else:
            yield Cost(NATS, asyncio.run(nats_py(server.port, items)))


# Heartbeats


def heartbeats_of_threads(address: str, leases: int, lease_s: float, seconds: float) -> float:
    with KestrelCluster([address]) as cluster, ExitStack() as blocks:
        queue = cluster.queue("kept")
        for _ in range(leases):
            queue.put(ITEM)
            blocks.enter_context(expect(queue.lease(lease_s, heartbeat=True)))
            time.sleep(lease_s / 3 / leases)  # they are not due all at once
        begun_ns = time.process_time_ns()
        time.sleep(seconds)
        return processor_us(begun_ns, 1)


def heartbeats_of_tasks(address: str, leases: int, lease_s: float, seconds: float) -> float:
    async def in_loop() -> float:
        async with AsyncKestrelCluster([address]) as cluster, AsyncExitStack() as blocks:
            queue = cluster.queue("kept")
            for _ in range(leases):
                await queue.put(ITEM)
                await blocks.enter_async_context(expect(await queue.lease(lease_s, heartbeat=True)))
                await asyncio.sleep(lease_s / 3 / leases)
            begun_ns = time.process_time_ns()
            await asyncio.sleep(seconds)
            return processor_us(begun_ns, 1)

    return asyncio.run(in_loop())


def heartbeats(server: Server, leases: int, lease_s: float, seconds: float) -> list[Cost]:
    """What both faces take for some seconds."""
    address = f"127.0.0.1:{server.port}"
    return [
        Cost("threads", heartbeats_of_threads(address, leases, lease_s, seconds)),
        Cost("asyncio", heartbeats_of_tasks(address, leases, lease_s, seconds)),
    ]


def nats() -> Program:
    def command(port: int, folder: Path, sync: Sync) -> list[str]:
        return ["nats-server", "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder)]

    return Program("nats", "nats", command, "nats-server", ["nats-server", "--version"])


def programs() -> list[Program]:
    found = [kestreld("kestreld", f"{sys.executable} -m kestreld")]
    for peer, package in ((REDIS_SERVER, "redis"), (nats(), "nats")):
        if is_installed(peer) and find_spec(package) is not None:
            found.append(peer)
        else:
            sys.stderr.write(f"benchmarks: {peer.name} is left out: it takes its server and {package}-py\n")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many counts (3)")
    parser.add_argument("--items", type=int, default=3000, help="in each round (3,000)")
    parser.add_argument("--leases", type=int, default=1000, help="with heartbeats (1,000)")
    parser.add_argument("--lease", type=float, default=LEASE_S, help=f"of so many seconds ({LEASE_S:g})")
    parser.add_argument("--seconds", type=float, default=10, help="for which they are kept (10)")
    parser.add_argument("--folder", type=Path, default=SCRATCH, help="where journals lie meanwhile")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="run", dir=options.folder))
    best: dict[str, Cost] = {}
    try:
        with running(programs(), folder / "servers") as servers:
            for _ in range(options.rounds):
                for one in leases_and_confirms(servers, options.items):
                    best[one.name] = min(one, best.get(one.name, one), key=lambda cost: cost.processor_us)
            kept = heartbeats(servers[0], options.leases, options.lease, options.seconds)
    except Unusable as unusable:
        sys.stderr.write(f"benchmarks: {unusable}\n")
        return 2
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    table = Table("a lease and its confirm", "CPU µs")
    for cost in best.values():
        table.add_row(cost.name, f"{cost.processor_us:.0f}")
    Console().print(table)
    table = Table(f"{options.leases:,} leases of {options.lease:g} s are kept", "% of a core")
    for cost in kept:
        table.add_row(cost.name, f"{cost.processor_us / options.seconds / 10_000:.2f}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
