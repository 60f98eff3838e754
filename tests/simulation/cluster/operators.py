"""Who looks after a cluster: connects, introduces and removes nodes, and fetches all there is at the end."""

from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.cluster.books import Act, Sent
from tests.simulation.cluster.clients import Client
from tests.simulation.cluster.machine import Machine
from tests.support.resp import ErrorReply, Status

if TYPE_CHECKING:
    from tests.simulation.cluster.world import ClusterWorld

FETCHED_AT_ONCE: Final = 50
ANSWER_US: Final = 3_000_000
_KINDS: Final = {
    b"PAUSE": "pause", b"CLUSTER FORGET": "forget", b"CLUSTER RESET": "reset", b"CLUSTER LEAVING": "leave",
    b"CLUSTER MEET": "meet", b"DEBUG LOADAOF": "reload", b"DEBUG FLUSHALL": "flush", b"CONFIG SET": "set",
}  # fmt: skip


class Operator(Client):
    """One client with a connection to each node."""

    def __init__(self, world: "ClusterWorld", chance: Random) -> None:
        super().__init__(world, "operator", "operator", chance)
        self._cluster = world

    def tell(self, machine: Machine, *words: bytes | int) -> bool:
        """Have a node do something; whether it could be asked."""
        if not machine.is_up or not self.connect(machine):
            return False
        self.machine = machine
        name = b" ".join([word for word in words[:2] if isinstance(word, bytes)])
        kind = _KINDS.get(name) or _KINDS[name.split(b" ")[0]]
        named = [word for word in words if isinstance(word, bytes)]
        act = self.act(kind, queue=named[1] if kind == "pause" else b"", word=named[2] if len(named) > 2 else b"")
        self.ask(act, *words)
        return True

    def connect_all(self) -> None:
        for machine in self._cluster.machines:
            self.connect(machine)

    # The end of a run

    def _answers(self) -> None:
        """Wait for all that was asked."""
        schedule = self._cluster.schedule
        schedule.run(schedule.now_us + ANSWER_US, lambda: self.is_idle)

    def drain(self) -> None:
        """Fetch and acknowledge what there is now, at each node."""
        for machine in self._cluster.machines:
            if machine.serves and self.connect(machine):
                self.machine = machine
                self.fetch([b"NOHANG", b"COUNT", FETCHED_AT_ONCE], self._cluster.plan.all_queues)
        self._answers()
        held, self.held = self.held, []
        for handout in held:
            machine = self._cluster.by_host[handout.host]
            if self.chance.random() < 0.3:
                machine = self.chance.choice(self._cluster.machines)
            if machine.serves and self.connect(machine):
                self.machine = machine
                self.ask(self.act("ack", handout.job_id), b"ACKJOB", handout.job_id)
        self._answers()

    def probe(self) -> None:
        """Add a job at each node, all at once; each is to stay there, and to come from there."""
        world = self._cluster
        added: list[tuple[Machine, Sent, Act]] = []
        for machine in world.machines:
            if not self.connect(machine):
                world.complain(f"{machine.name} takes no connection at the end")
                return
            self.machine = machine
            job = self.new_job(retry_s=5)
            job.delay_s, job.ttl_s, job.key, job.retries, job.queue = 0, 600, b"", -1, b"mail"
            added.append((machine, job, self.add(job, replicate=1, wait_ms=500).act))
        self._answers()
        for machine, job, act in added:
            if act.count != 1:
                world.complain(f"{machine.name} does not add a job at the end")
                continue
            hosts = [host for host, store in world.watch.stores.items() if store.has_queued(act.ids[0])]
            if hosts != [machine.host]:
                world.complain(
                    f"job {job.number}, which nobody waits for, was added at {machine.host} and is at {hosts}"
                )
        self._fetch_probes(added)

    def _fetch_probes(self, added: list[tuple[Machine, Sent, Act]]) -> None:
        for machine, job, act in added:
            self.machine = machine
            self.held = []
            self.fetch([b"NOHANG"], [job.queue])
            self._answers()
            if [one.job_id for one in self.held] != list(act.ids):
                self._cluster.complain(f"{machine.name} does not serve the job that was added there at the end")
            for one in self.held:
                self.ask(self.act("ack", one.job_id), b"ACKJOB", one.job_id)
            self._answers()

    def _answered(self, act: Act, reply: Any, served_us: int) -> None:
        if act.kind in _KINDS.values() and isinstance(reply, (ErrorReply, Status)):
            self._cluster.say(f"{act.kind} at {act.host}: {bytes(reply)!r}")
        super()._answered(act, reply, served_us)
