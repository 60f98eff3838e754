"""`python -m benchmarks.cluster`: several nodes on this machine: latency, messages, processor time, and draining.

`latency` adds jobs with three copies from one client, `messages` counts what a job costs on the bus and of all nodes'
processors, `adds` adds jobs with the default number of copies at one of seven nodes, `drain` has one of seven nodes
fetch jobs that were added at all of them, `waits` probes a node meanwhile. Jobs are in memory only. Each figure stands
beside its limit; the exit status is 1 where one is above.
"""

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import parts
from benchmarks.errors import Unusable
from benchmarks.jobs import info, words
from benchmarks.limits import NO_LIMIT, Figure, above_idle, best_of, in_words, waited
from benchmarks.parts import Options, Part
from benchmarks.servers import Program, Server, base_command, free_port, running
from benchmarks.waits import IDLE_S, Talk, connect
from kestrelctl.bench.process import cpu_us
from kestreld.client.resp import RespReader, RespValue

JOBS: Final = 100_000
NODES: Final = 7
ADDS: Final = 1_000
ADDS_S_MAX, DRAIN_S_MAX, LATENCY_MS_MAX = 2.0, 60.0, 0.6
MEETING_S_MAX: Final = 20.0
SETTLE_S_MAX: Final = 120.0
PINGS_S_MAX: Final = 0.6  # and as many PONGs, from each node to each other
AT_ONCE: Final = 100
SETTLED_S: Final = 3.0
PROBES_LEFT: Final = 20  # jobs of clients that were stopped
BODY: Final = b"x" * 64


def kestreld_node(name: str, command: str) -> tuple[Program, int]:
    """A node whose jobs are in memory, and its bus port."""
    base, bus_port = base_command(command), free_port()

    def with_options(port: int, folder: Path, sync: object) -> list[str]:
        config = folder / "kestreld.yaml"
        config.write_text(
            f"listen: {{memcache: 127.0.0.1:{free_port()}, disque: 127.0.0.1:{port}, admin: null}}\n"
            f"cluster: {{port: {bus_port}}}\n"
            f"queue_path: {folder / 'spool'}\n"
        )
        return [*base, "--config", str(config)]

    return Program(name, "disque", with_options, "", [*base, "--version"]), bus_port


class Client:
    """One connection."""

    def __init__(self, server: Server) -> None:
        self._socket = connect(server.port)
        self._reader = RespReader()
        self._heard: deque[RespValue] = deque()
        self.id = b""  # of its node

    def __call__(self, *given: bytes) -> RespValue:
        """The reply to a command."""
        self._socket.sendall(words(*given))
        return self.reply()

    def learn_id(self) -> None:
        self.id = bytes(self(b"CLUSTER", b"MYID"))  # type: ignore[arg-type]

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def reply(self) -> RespValue:
        """The next one."""
        while not self._heard:
            self._heard += self._reader.feed(self._socket.recv(1 << 16))
        return self._heard.popleft()

    def close(self) -> None:
        self._socket.close()


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes that know one another, and a client at each."""

    servers: list[Server]
    clients: list[Client]

    def messages(self) -> int:
        """Sent on the bus so far, by all nodes."""
        return sum(int(info(server, "cluster_stats_messages_sent")) for server in self.servers)

    def cpu_us(self) -> int:
        """Used so far by all nodes."""
        return sum(cpu_us(server.pid) for server in self.servers)

    def wait_for_jobs(self, count: int) -> None:
        """Until so many copies are left in all."""
        began_s = time.monotonic()
        while sum(int(info(server, "registered_jobs")) for server in self.servers) > count:
            if time.monotonic() - began_s > SETTLE_S_MAX:
                left = [info(server, "registered_jobs") for server in self.servers]
                raise Unusable(f"jobs are left: {', '.join(left)}")
            time.sleep(0.02)


@contextmanager
def cluster(options: Options, name: str, count: int) -> Iterator[Cluster]:
    """So many nodes of a kestreld."""
    nodes = [kestreld_node(f"{name}{number}", options.programs[name]) for number in range(count)]
    with running([program for program, _ in nodes], options.folder / "cluster") as servers:
        clients = [Client(server) for server in servers]
        for client in clients:
            client.learn_id()
        for client in clients[1:]:
            answer = client(b"CLUSTER", b"MEET", b"127.0.0.1", b"%d" % servers[0].port, b"%d" % nodes[0][1])
            if answer != b"OK":
                raise Unusable(f"CLUSTER MEET: {answer!r}")
        began_s = time.monotonic()
        while any(int(info(server, "cluster_reachable_nodes") or 0) < count - 1 for server in servers):
            if time.monotonic() - began_s > MEETING_S_MAX:
                raise Unusable("the nodes do not find one another")
            time.sleep(0.05)
        time.sleep(1)  # and are linked both ways
        yield Cluster(servers, clients)
        for client in clients:
            client.close()


def add(client: Client, *options: bytes, queue: bytes = b"q") -> bytes:
    """The id of a new job."""
    job_id = client(b"ADDJOB", queue, BODY, b"0", *options)
    if not isinstance(job_id, bytes):
        raise Unusable(f"ADDJOB: {job_id!r}")
    return job_id


# The parts


def latency(options: Options) -> Iterator[Figure]:
    """From ADDJOB to its answer, with a copy on each of three nodes."""
    for name in options.programs:
        with cluster(options, name, 3) as nodes:
            client = nodes.clients[0]
            took_ms: list[float] = []
            for _ in range(max(options.count // 10, 10)):
                began_s = time.perf_counter()
                add(client, b"REPLICATE", b"3")
                took_ms.append(1000 * (time.perf_counter() - began_s))
        took_ms.sort()
        tail = f"p99 {took_ms[len(took_ms) * 99 // 100]:.2f} ms"
        yield Figure(f"{name}: ADDJOB REPLICATE 3, p50, ms", median(took_ms), LATENCY_MS_MAX, tail)


def messages(options: Options) -> Iterator[Figure]:
    """On the bus, and processor time of all nodes, for each step of a job with n copies on as many nodes."""
    jobs = max(options.count // 20, 10)
    for name in options.programs:
        for copies in (1, 2, 3, 5):
            with cluster(options, name, max(copies, 2)) as nodes:
                yield from _of_steps(nodes, name, copies, jobs)


def _of_steps(nodes: Cluster, name: str, copies: int, jobs: int) -> Iterator[Figure]:
    client = nodes.clients[0]
    ids: list[bytes] = []

    def step(word: str, do: Callable[[], None], others: int) -> Figure:
        before, used_us = nodes.messages(), nodes.cpu_us()
        began_s = time.monotonic()
        do()
        nodes.wait_for_jobs(jobs * copies if word == "ADDJOB" else 0)
        pings = int(PINGS_S_MAX * len(nodes.servers) ** 2 * (time.monotonic() - began_s)) + 1
        each = (nodes.messages() - before) / jobs
        used = (nodes.cpu_us() - used_us) / jobs
        limit = others * (copies - 1) + pings / jobs
        return Figure(f"{name}: messages for {word}, {copies} copies", each, limit, f"{used:.0f} µs of all processors")

    def add_all() -> None:
        ids[:] = [add(client, b"REPLICATE", b"%d" % copies) for _ in range(jobs)]

    def each(command: bytes) -> Callable[[], None]:
        def run() -> None:
            for job_id in ids:
                client(command, job_id)

        return run

    for word, others in ((b"ACKJOB", 3), (b"FASTACK", 1)):
        yield step("ADDJOB", add_all, 2)
        yield step(word.decode(), each(word), others)


def adds(options: Options) -> Iterator[Figure]:
    """Jobs with the default number of copies, one after the other at one of seven nodes."""
    jobs = min(options.count, ADDS)
    for name in options.programs:
        with cluster(options, name, NODES) as nodes:
            began_s = time.monotonic()
            for _ in range(jobs):
                add(nodes.clients[0])
            took_s = time.monotonic() - began_s
        yield Figure(f"{name}: {jobs:,} ADDJOBs at one of {NODES} nodes, s", took_s, ADDS_S_MAX)


def drain(options: Options) -> Iterator[Figure]:
    """Jobs that were added at all of seven nodes, fetched and acknowledged at one of them."""
    for name in options.programs:
        with cluster(options, name, NODES) as nodes:
            for number, client in enumerate(nodes.clients):
                options.say(f"{name}: jobs at node {number}")
                for first in range(0, options.count // NODES, AT_ONCE):
                    some = min(AT_ONCE, options.count // NODES - first)
                    client.send(words(b"ADDJOB", b"q", BODY, b"0", b"REPLICATE", b"1") * some)
                    for _ in range(some):
                        client.reply()
            options.say(f"{name}: fetching them at one node")
            client, left = nodes.clients[0], options.count // NODES * NODES
            began_s = time.monotonic()
            while left:
                found = client(b"GETJOB", b"TIMEOUT", b"5000", b"COUNT", b"%d" % AT_ONCE, b"FROM", b"q")
                if not isinstance(found, list):
                    raise Unusable(f"{left} jobs do not come: {found!r}")
                left -= len(found)
                client(b"ACKJOB", *[job[1] for job in found if isinstance(job, list) and isinstance(job[1], bytes)])
            took_s = time.monotonic() - began_s
        yield Figure(f"{name}: {options.count:,} jobs of {NODES} nodes drained at one, s", took_s, DRAIN_S_MAX)


def add_and_acknowledge() -> Talk:
    """A small job that only this node holds, added, fetched and acknowledged."""
    while True:
        added = yield words(b"ADDJOB", b"probe", b"x", b"0", b"REPLICATE", b"1")
        if not added.startswith(b"+D-"):
            raise Unusable(f"the probing client got {added!r}")
        job = yield words(b"GETJOB", b"NOHANG", b"FROM", b"probe")
        if job.startswith(b"*1"):
            yield words(b"ACKJOB", job.split(b"\r\n")[5])


def waits(options: Options) -> Iterator[Figure]:
    """What another client of the first of three nodes waits for meanwhile."""
    for name in options.programs:
        yield from best_of(options.rounds, lambda: _waits(options, name))  # noqa: B023


def _waits(options: Options, name: str) -> Iterator[Figure]:
    jobs = options.count
    with cluster(options, name, 3) as nodes:
        first, last = nodes.servers[0], nodes.servers[-1]
        idle = waited(first, lambda: time.sleep(IDLE_S), talk=add_and_acknowledge)
        yield Figure(f"{name}: wait beside idle nodes, ms", idle.longest_alone_ms, NO_LIMIT, in_words(idle))

        def figure(what: str, command: Callable[[], None]) -> Figure:
            options.say(f"{name}: {what}")
            return above_idle(f"{name}: {what}", waited(first, command, talk=add_and_acknowledge), idle)

        def add_to(queue: bytes, copies: int) -> None:
            for client in nodes.clients[1:] if copies == 1 else nodes.clients[:1]:
                for _ in range(0, jobs // (2 if copies == 1 else 1), AT_ONCE):
                    client.send(words(b"ADDJOB", queue, BODY, b"0", b"REPLICATE", b"%d" % copies) * AT_ONCE)
                    for _ in range(AT_ONCE):
                        client.reply()

        def fetch(queue: bytes, *, acknowledges: bool) -> None:
            left = jobs // AT_ONCE * AT_ONCE
            while left > 0:
                found = nodes.clients[0](b"GETJOB", b"TIMEOUT", b"5000", b"COUNT", b"1000", b"FROM", queue)
                if not isinstance(found, list):
                    raise Unusable(f"{left} jobs do not come: {found!r}")
                left -= len(found)
                ids = [job[1] for job in found if isinstance(job, list) and isinstance(job[1], bytes)]
                if acknowledges:
                    nodes.clients[0](b"ACKJOB", *ids)

        add_to(b"far", 1)
        yield figure(f"{jobs:,} jobs come from two nodes", lambda: fetch(b"far", acknowledges=True))
        yield figure(f"{jobs:,} ADDJOB REPLICATE 3", lambda: add_to(b"near", 3))
        os.kill(last.pid, signal.SIGSTOP)
        yield figure(f"{jobs:,} acknowledged, a holder is stopped", lambda: fetch(b"near", acknowledges=True))
        yield figure("it goes on", lambda: _go_on(nodes, last))
        add_to(b"near", 3)
        os.kill(last.pid, signal.SIGSTOP)
        fetch(b"near", acknowledges=True)
        gone = nodes.clients[-1].id
        yield figure("it is forgotten", lambda: _forget(nodes, gone))


def _go_on(nodes: Cluster, server: Server) -> None:
    os.kill(server.pid, signal.SIGCONT)
    nodes.wait_for_jobs(PROBES_LEFT)


def _forget(nodes: Cluster, node_id: bytes) -> None:
    for client in nodes.clients[:-1]:
        client(b"CLUSTER", b"FORGET", node_id)
    time.sleep(SETTLED_S)


PARTS: Final = {
    "latency": Part(latency, 1),
    "messages": Part(messages, 1),
    "adds": Part(adds, 1),
    "drain": Part(drain, 1),
    "waits": Part(waits, 1),
}


def main(given: Sequence[str] | None = None) -> int:
    """See `parts.judge`."""
    return parts.main("cluster", __doc__.partition("\n")[0], PARTS, "jobs", JOBS, given)


if __name__ == "__main__":
    sys.exit(main())
