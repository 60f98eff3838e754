"""Looks into the nodes of a run: whether their books are right, what is left in them, what they may answer."""

from typing import TYPE_CHECKING, Final

from kestreld.jobs.job import ACKED, ACTIVE, BORROWED, COPY, DELAYED, GONE, LENT, LET_GO, QUEUED, WAIT_REPL, Job
from kestreld.jobs.levels import BASE_BYTES, JOB_BYTES
from kestreld.jobs.replicated_jobs import ReplicatedJobs
from tests.simulation.cluster.books import Act
from tests.simulation.cluster.machine import Machine
from tests.simulation.cluster.watching import Take, WatchedJobs

if TYPE_CHECKING:
    from tests.simulation.cluster.world import ClusterWorld

TOLD_US: Final = 1_500_000  # in such a time nodes have told each other all they know
UNPLACED: Final = frozenset({ACKED, WAIT_REPL, BORROWED, LENT, LET_GO})  # states in which nobody is told of moves
NAMES: Final = {
    WAIT_REPL: "wait-repl", ACTIVE: "active", QUEUED: "queued", ACKED: "acked", DELAYED: "delayed",
    BORROWED: "borrowed", LENT: "lent", LET_GO: "let go", COPY: "copy", GONE: "gone",
}  # fmt: skip


class Inspector:
    """Sees what no client does."""

    def __init__(self, world: "ClusterWorld") -> None:
        self._world = world
        self._together: dict[frozenset[str], int] = {}

    # Who is up for whom

    def look_at_links(self) -> None:
        """Note which nodes are up for each other, and since when."""
        now_us, machines = self._world.schedule.now_us, self._world.machines
        up: dict[str, set[bytes]] = {}
        for machine in machines:
            if machine.serves and machine.server is not None and machine.server.node.shared is not None:
                up[machine.host] = {node.id for node in machine.server.node.shared.peers.up()}
        for machine in machines:
            for other in machines[: machine.number]:
                pair = frozenset((machine.host, other.host))
                one_way, back = up.get(machine.host, set()), up.get(other.host, set())
                if other.node_id in one_way and machine.node_id in back:
                    self._together.setdefault(pair, now_us)
                else:
                    self._together.pop(pair, None)

    def note_take(self, take: Take) -> None:
        """Note which nodes were up for the one where a job was taken, long enough to tell it all they know."""
        long_ago_us = take.at_us - TOLD_US
        for other in self._world.machines:
            pair = frozenset((take.host, other.host))
            if self._together.get(pair, take.at_us) <= long_ago_us:
                take.together += (other.host,)

    def note_woken(self, store: WatchedJobs, job: Job) -> None:
        """A node has queued a copy as its time has come. None that it could ask knows of a later move."""
        world = self._world
        watch, now_us = world.watch, world.schedule.now_us
        long_ago_us = now_us - TOLD_US
        mine = watch.placed[store.host, job.id]
        for other in watch.stores.values():
            its = other.find(job.id)
            if other is store or its is None or its.state in UNPLACED or its.terms.moves <= job.terms.moves:
                continue
            has_known = max(watch.placed[other.host, job.id].since_us, mine.since_us) <= long_ago_us
            is_asked = job.terms.owners & store.node_sets.of(other.node_id)
            hosts = frozenset((store.host, other.host))
            if not (has_known and is_asked) or self._together.get(hosts, now_us) > long_ago_us:
                continue
            if world.troubles.was_on_link(store.host, other.host, long_ago_us, now_us):
                continue
            if any(world.by_host[host].stopped_us(long_ago_us, now_us) for host in hosts):
                continue
            world.complain(
                f"{store.host} queued {job.id!r} in {job.terms.queue.name!r} by move {job.terms.moves}, and"
                f" {other.host} knows of move {its.terms.moves}, to {its.terms.queue.name!r}"
            )

    # What may be answered

    def is_expected(self, act: Act, error: bytes) -> bool:
        """Whether an error may be the answer, as far as can be told from what has gone wrong so far."""
        world = self._world
        word, machine = error.split(b" ", 1)[0], world.by_host[act.host]
        acts = world.books.acts
        is_paused = any(one.kind in ("pause", "pause all") and one.queue == act.queue for one in acts)
        if word == b"PAUSED":
            return is_paused
        if word == b"NOREPL":
            if error.startswith(b"NOREPL Timeout") and (is_paused or act.wait_ms < 100):
                return True  # nodes where it is paused take no copies
            return not world.plan.is_calm or error.startswith((b"NOREPL The node stops", b"NOREPL job removed"))
        if word == b"LEAVING":
            return any(one.kind == "leave" and one.host == act.host for one in acts)
        if word in (b"NOJOB", b"TOOLATE"):
            return act.kind in ("working", "wait")
        if word == b"LOADING":
            is_reloading = any(one.kind == "reload" and one.host == act.host for one in acts)
            return is_reloading or (world.plan.nodes[machine.number].has_log and len(machine.lives) > 1)
        if word == b"MISCONF":
            return machine.faults.failed > 0 or bool(machine.repairs) or b"cannot be read" in error
        if word == b"OOM":
            return any(one.kind == "set" and one.host == act.host for one in acts)
        if error.startswith(b"ERR Unknown node"):
            return act.kind == "forget"
        if b"could not be recorded" in error:
            return act.kind == "reset" and machine.faults.failed > 0
        if error.startswith(b"ERR Background append only file rewriting already"):
            return act.kind == "look"
        if act.kind in ("reload", "look", "flush"):
            return machine.faults.failed > 0 or not world.plan.nodes[machine.number].has_log
        return False

    # What is left

    def left(self) -> list[str]:
        """What nodes still hold that is to go: not jobs that are delivered at most once, and may not be any more."""
        found = []
        for machine in self._world.machines:
            server = machine.server
            if not machine.serves or server is None:
                found.append(f"{machine.name} does not serve")
                continue
            shared = server.node.shared
            assert shared is not None
            jobs = server.node.jobs
            for job in jobs.table:
                if job.state == ACTIVE and not job.terms.retry_ms:
                    continue
                if job.state in (BORROWED, LET_GO) and not job.terms.owners & shared.peers.members:
                    continue  # its other owner was forgotten: should that come back, it is told
                found.append(f"{machine.name} {job.id[11:17].decode()} {NAMES[job.state]}")
            if shared.acks.count and not any(job.state == ACKED for job in jobs.table):
                found.append(f"{machine.name} collects {shared.acks.count} acknowledgements of no job")
        return found

    def state(self) -> str:
        """How the nodes see each other."""
        lines = []
        for machine in self._world.machines:
            server = machine.server
            if server is None or not server.is_up:
                lines.append(f"{machine.name} is down")
                continue
            node = server.node
            seen = [
                f"{self._world.watch.hosts.get(one.id, one.id.decode()[:8])[-1]}"
                f"{'' if one.is_up else '!'}{int(one.flags) or ''}{'' if one.knows_us else 's'}"
                for one in node.cluster.table.others()
            ]
            lines.append(
                f"{machine.name} {node.persistence.obstacle[:20]!r} {node.persistence.failure!r} {' '.join(seen)}"
            )
        return "; ".join(lines)

    # Books

    def look(self) -> None:
        """Now and then."""
        for machine in self._world.machines:
            if machine.serves:
                self._check(machine)

    def check_books(self) -> None:
        """At the end."""
        self.look()

    def _check(self, machine: Machine) -> None:
        server = machine.server
        assert server is not None
        jobs = server.node.jobs
        problems = problems_of(jobs)
        shared = server.node.shared
        if shared is not None:
            for job in jobs.table:
                if job.state == ACKED and shared.acks._acks.get(job.id) is None:
                    problems.append(f"{job.id!r} is acked, and nobody collects that")
                if job.state == WAIT_REPL and not shared.replicating.is_pending(job.id):
                    problems.append(f"{job.id!r} waits for copies, and no ADDJOB does")
                lent = {*shared.lending._lent, *shared.lending._let_go, *shared.lending._borrowed}
                if job.state in (LENT, LET_GO, BORROWED) and job.id not in lent:
                    problems.append(f"{job.id!r} is {NAMES[job.state]}, and on its way to nobody")
        for problem in problems[:3]:
            self._world.complain(f"{machine.name}: {problem}")


def problems_of(jobs: ReplicatedJobs) -> list[str]:
    """What is wrong with the books of a store."""
    found: list[str] = []
    totals: dict[int, list[int]] = {}
    memory_bytes, once, number = BASE_BYTES, 0, 0
    for job in jobs.table:
        number += 1
        memory_bytes += JOB_BYTES + len(job.body)
        queue, state = job.terms.queue, job.state
        if state == GONE:
            found.append(f"{job.id!r} is gone, and in the table")
        if state == ACTIVE and not job.terms.retry_ms:
            once += 1
        if not job.wakes_at_ms or job.wakes_at_ms > job.expires_at_ms:
            found.append(f"{job.id!r} {NAMES[state]} does not wake at its end")
        if state in (ACKED, LET_GO):
            continue
        if state not in (WAIT_REPL, QUEUED, LENT, BORROWED) and 0 < job.requeue_at_ms < job.wakes_at_ms:
            found.append(f"{job.id!r} {NAMES[state]} wakes {job.wakes_at_ms - job.requeue_at_ms} ms behind its time")
        if jobs.queues.get(queue.name) is not queue:
            found.append(f"{job.id!r} {NAMES[state]} is in a queue that nobody knows")
        total = totals.setdefault(id(queue), [0, 0, 0])
        total[0] += 1
        total[1] += state == DELAYED
        total[2] += state == QUEUED
    if number != jobs.table.count:
        found.append(f"the table has {number} jobs, and counts {jobs.table.count}")
    if memory_bytes != jobs.memory.used_bytes:
        found.append(f"memory is {memory_bytes}, counted as {jobs.memory.used_bytes}")
    if once != jobs.memory.delivered_once:
        found.append(f"delivered once are {once}, counted as {jobs.memory.delivered_once}")
    for queue in jobs.queues:
        expected = totals.get(id(queue), [0, 0, 0])
        counted = [queue.total, queue.delayed, queue.jobs.count]
        in_order = list(queue.jobs.oldest())
        if counted != expected or any(job.state != QUEUED for job in in_order) or len(in_order) != queue.jobs.count:
            found.append(f"queue {queue.name!r} has (total, delayed, queued) {expected}, counted as {counted}")
        if not (queue.total or queue.is_listed):
            found.append(f"queue {queue.name!r} is unused, and there")
    return found
