"""Seven real nodes under load, and what goes wrong: kill -9, SIGSTOP, hosts that are cut off, a slow network that
loses connections.
"""

import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

from tests.faults.cluster_load import Client, History, Judge, Trouble, add, finish, work
from tests.support.cluster_nodes import ClusterNode
from tests.support.daemon import ROOT
from tests.support.forwarder import Forwarder
from tests.support.namespaces import Host, hosts
from tests.support.ports import free_port
from tests.support.process import environment
from tests.support.waiting import until

NODES: Final = 7
DOWN_MAX: Final = 2  # at a time: one less than there are copies
TIMEOUT_S: Final = 2.0
HEALED_S: Final = 3.0
LEFT_S_MAX: Final = 90.0
JOB_PORT, BUS_PORT = 7711, 17_711
SETTINGS: Final = ("jobs.journal=true", "jobs.sync_journal=true", "max_journal_size=200KiB")


class HostNode(ClusterNode):
    """A node on a host of its own."""

    def __init__(self, folder: Path, host: Host, secret: Path) -> None:
        super().__init__(
            folder, *SETTINGS, f"cluster.node_timeout={TIMEOUT_S:g}s", f"cluster.secret_file={secret}", "insecure=true"
        )
        self.host = host
        self.settings[0] = f"listen.disque={host.address}:{JOB_PORT}"
        self.settings.append(f"cluster.port={BUS_PORT}")

    def command(self) -> list[str]:
        return [*self.host.prefix, *super().command()]

    def start(self) -> None:
        """A process in another namespace is not forked by the tests': it is started as users do."""
        self.process = subprocess.Popen(
            self.command(), cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        self.await_ready()

    def meet(self, other: "ClusterNode") -> bytes:
        assert isinstance(other, HostNode)
        return self("CLUSTER", "MEET", other.host.address, JOB_PORT, BUS_PORT)


class World:
    """The nodes, their clients, and the trouble they are in. `heal` ends what a network does."""

    def __init__(self, nodes: list[ClusterNode], chance: Random) -> None:
        self.nodes = nodes
        self.history = History()
        self.down: dict[int, Trouble] = {}
        self.stopped: dict[int, Trouble] = {}
        self.figures: Counter[str] = Counter()
        self._chance = chance
        addresses = [node.disque.partition(",")[0] for node in nodes]
        tasks = [add, add, work, work, work, work]
        self._clients = [
            Client(self.history, addresses, Random(f"{chance.random()} {number}"), task)
            for number, task in enumerate(tasks)
        ]

    def kill(self) -> None:
        up = [number for number in range(len(self.nodes)) if number not in self.down and number not in self.stopped]
        if len(self.down) + len(self.stopped) < DOWN_MAX:
            number = self._chance.choice(up)
            self.down[number] = self.history.begin("kill -9", number)
            self.nodes[number].end()

    def restart(self) -> None:
        if self.down:
            number = self._chance.choice(list(self.down))
            self.nodes[number].start()
            self.history.end(self.down.pop(number))

    def stop(self) -> None:
        up = [number for number in range(len(self.nodes)) if number not in self.down and number not in self.stopped]
        if len(self.down) + len(self.stopped) < DOWN_MAX:
            number = self._chance.choice(up)
            self.stopped[number] = self.history.begin("SIGSTOP", number)
            self.nodes[number].signal(signal.SIGSTOP)

    def go_on(self) -> None:
        if self.stopped:
            number = self._chance.choice(list(self.stopped))
            self.nodes[number].signal(signal.SIGCONT)
            self.history.end(self.stopped.pop(number))

    def kill_all(self) -> None:
        """Every node at once, and start them again."""
        trouble = self.history.begin("kill -9 of all", *range(len(self.nodes)))
        for node in self.nodes:
            node.signal(signal.SIGKILL)
        for node in self.nodes:
            node.end()
        for node in self.nodes:
            node.start()
        self.history.end(trouble)

    def run(self, seconds: float, more: list[Callable[[], None]]) -> None:
        """Trouble of all kinds."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            time.sleep(self._chance.uniform(0.2, 3.0))
            self._chance.choice([self.kill, self.restart, self.restart, self.stop, self.go_on, self.go_on, *more])()

    def end(self, heal: Callable[[], None]) -> list[str]:
        """All is well again: what was wrong?"""
        heal()
        while self.stopped:
            self.go_on()
        while self.down:
            self.restart()
        time.sleep(HEALED_S)
        for client in self._clients:
            client.is_over.set()
        for client in self._clients:
            client.join(20)
        others = {node: [one for one in self.nodes if one is not node] for node in self.nodes}
        until(lambda: all(node.sees(others[node]) for node in self.nodes), "one table at all nodes")
        self.history.healed_at = time.monotonic()
        self._fetch_all()
        judge = Judge(self.history)
        found = judge.judge()
        self.figures = judge.figures
        print(f"\n{dict(self._kinds())}\n{dict(judge.figures)}\nrefused: {dict(self.history.refused)}")
        return found

    def _kinds(self) -> Iterator[tuple[str, int]]:
        kinds = [trouble.kind for trouble in self.history.troubles]
        return ((kind, kinds.count(kind)) for kind in dict.fromkeys(kinds))

    def _fetch_all(self) -> None:
        """Fetch and acknowledge what is left, until nothing is: some have to wait for their retry time."""
        clients = [
            Client(self.history, [node.disque.partition(",")[0]], Random(number), finish)
            for number, node in enumerate(self.nodes)
        ]
        until_s = time.monotonic() + LEFT_S_MAX
        while (left := self._left()) and time.monotonic() < until_s:
            time.sleep(0.5)
        if left:
            self.history.strange.append(f"jobs are left: {left}")
        for client in clients:
            client.is_over.set()
        for client in clients:
            client.join(20)

    def _left(self) -> list[tuple[int, bytes]]:
        """Where jobs are that do not come once at most; of those it is not known whether they were delivered."""
        found = []
        for number, node in enumerate(self.nodes):
            _, jobs = node("JSCAN", "BUSYLOOP", "REPLY", "ALL")
            fields = [dict(zip(one[::2], one[1::2], strict=True)) for one in jobs]
            found += [(number, job[b"id"]) for job in fields if job[b"retry"] or job[b"state"] == b"acked"]
        return found


@contextmanager
def on_hosts(folder: Path, chance: Random) -> Iterator[tuple[World, list[Callable[[], None]], Callable[[], None]]]:
    """Each node on a host of its own. Hosts are cut off from each other, also in one direction only."""
    secret = folder / "secret"
    secret.write_text("a secret that all nodes share\n")
    secret.chmod(0o600)
    with hosts(NODES) as machines:
        nodes: list[ClusterNode] = [HostNode(folder / host.name, host, secret) for host in machines]
        cuts: list[Trouble] = []

        def cut() -> None:
            if cuts:
                heal()
            inside = chance.sample(range(NODES), chance.randint(1, NODES // 2))
            is_one_way = chance.random() < 0.3
            cuts.append(world.history.begin("partition, one way" if is_one_way else "partition", *range(NODES)))
            for one in machines:
                for other in machines:
                    if (one.number in inside, other.number in inside) == (True, False):
                        one.hear_nothing_from(other)
                        if not is_one_way:
                            other.hear_nothing_from(one)

        def heal() -> None:
            for host in machines:
                host.hear_all()
            while cuts:
                world.history.end(cuts.pop())

        with _met(nodes):
            world = World(nodes, chance)
            yield world, [cut, cut, heal, heal], heal


@contextmanager
def over_a_bad_network(
    folder: Path, chance: Random
) -> Iterator[tuple[World, list[Callable[[], None]], Callable[[], None]]]:
    """What nodes say to each other takes up to a tenth of a second longer now and then, and connections break."""
    forwarder = Forwarder(Random(chance.random()))
    nodes = []
    for number in range(NODES):
        port, bus_port, seen_at = free_port(), free_port(), free_port()
        node = ClusterNode(folder / f"node{number}", *SETTINGS, f"cluster.node_timeout={TIMEOUT_S:g}s")
        node.settings[0] = f"listen.disque=127.0.0.1:{port}"
        node.settings += [f"cluster.port={bus_port}", f"cluster.announce=127.0.0.1:{port}:{seen_at}"]
        nodes.append(node)
        forwarder.forward(seen_at, bus_port)
    troubles: list[Trouble] = []

    def worsen() -> None:
        better()
        troubles.append(world.history.begin("bad network", *range(NODES)))
        forwarder.delay_s, forwarder.loss = chance.choice([0.0, 0.02, 0.1]), chance.choice([0.0, 0.001, 0.02])

    def better() -> None:
        forwarder.delay_s = forwarder.loss = 0.0
        while troubles:
            world.history.end(troubles.pop())

    try:
        with _met(nodes):
            world = World(nodes, chance)
            yield world, [worsen, worsen, better], better
    finally:
        forwarder.close()


@contextmanager
def _met(nodes: list[ClusterNode]) -> Iterator[None]:
    try:
        for node in nodes:
            node.start()
        for node in nodes[1:]:
            assert node.meet(nodes[0]) == b"OK"
        for node in nodes:
            until(lambda node=node: node.sees([one for one in nodes if one is not node]), "a cluster")  # type: ignore[misc]
        yield
    finally:
        for node in nodes:
            if node.process is not None and node.process.poll() is None:
                node.signal(signal.SIGCONT)
            node.end()
