"""WAITJOB at a node that does not hold the job: asks the nodes that do to report how it ends."""

from collections.abc import Callable
from functools import partial
from typing import Final

from kestreld.cluster.job_messages import JobEnded, WatchJob
from kestreld.cluster.nodes import Node
from kestreld.cluster.peers import Peers
from kestreld.cluster.tombstones import ELSEWHERE, Tombstones
from kestreld.jobs.job import ACKED, LET_GO
from kestreld.jobs.replicated_jobs import ACKNOWLEDGED
from kestreld.jobs.store import Watch
from kestreld.queues.agenda import Scheduled

AGAIN_MS: Final = 2_000
WATCHED_MAX: Final = 10_000  # for one other node
UNKNOWN: Final = "unknown"
NEVER_MS: Final = 1 << 62


class RemoteWatch(Scheduled):
    """Clients of this node that wait for the end of one job."""

    def __init__(self, job_id: bytes, again: Callable[["RemoteWatch"], None]) -> None:
        super().__init__(NEVER_MS)
        self.job_id = job_id
        self.told: list[Watch] = []
        self.awaited: set[bytes] = set()  # nodes that hold the job, or have yet to say that they do not
        self._again = again

    def begin(self, nodes: set[bytes], due_at_ms: int) -> None:
        self.awaited, self.due_at_ms = nodes, due_at_ms

    def end(self) -> None:
        self.due_at_ms = NEVER_MS

    def fall_due(self, now_ms: int) -> None:
        self._again(self)


class JobWatches:
    """Watches of this node on other nodes' jobs, and of other nodes on its own."""

    def __init__(self, peers: Peers, tombstones: Tombstones) -> None:
        self._peers = peers
        self._jobs = peers.jobs
        self._tombstones = tombstones
        self._watches: dict[bytes, RemoteWatch] = {}
        self._for_others: dict[bytes, dict[bytes, Watch]] = {}  # by node and job

    # For clients of this node

    def watch(self, job_id: bytes, told: Watch) -> None:
        """Call `told` with the end of a job that is not here, maybe at once; UNKNOWN if no node knows the job."""
        watch = self._watches.get(job_id)
        if watch is not None:
            watch.told.append(told)
            return
        end = self._end_of(job_id)
        if end != UNKNOWN:
            told(end)
            return
        watch = self._watches[job_id] = RemoteWatch(job_id, self._ask)
        watch.told.append(told)
        self._ask(watch)

    def _end_of(self, job_id: bytes) -> str:
        """Return the end of a job that is not here, UNKNOWN if this node does not know it."""
        end = self._tombstones.end_of(job_id)
        return end if end and end != ELSEWHERE else UNKNOWN

    def unwatch(self, job_id: bytes, told: Watch) -> None:
        """Remove a client that no longer waits."""
        watch = self._watches.get(job_id)
        if watch is not None and told in watch.told:
            watch.told.remove(told)
            if not watch.told:
                watch.end()
                del self._watches[job_id]

    def _ask(self, watch: RemoteWatch) -> None:
        """Ask all nodes: some may have been down, or have got the job since."""
        if self._watches.get(watch.job_id) is not watch or self._has_come(watch):
            return
        nodes = self._peers.up()
        if not nodes:
            self._tell(watch.job_id, UNKNOWN)
            return
        watch.begin({node.id for node in nodes}, self._jobs.clock.monotonic_ms + AGAIN_MS)
        self._peers.tell_each(nodes, WatchJob(watch.job_id))
        self._jobs.agenda.add(watch)

    def _has_come(self, watch: RemoteWatch) -> bool:
        """If the job has come to this node meanwhile, let its waiting clients watch it here. Return True then."""
        job = self._jobs.find(watch.job_id)
        if job is None or job.state in (ACKED, LET_GO):
            return False
        watch.end()
        del self._watches[watch.job_id]
        for told in watch.told:
            self._jobs.watch(job, told)
        return True

    def _tell(self, job_id: bytes, end: str) -> None:
        watch = self._watches.pop(job_id, None)
        if watch is not None:
            watch.end()
            for told in watch.told:
                told(end)

    def job_ended(self, sender: Node, message: JobEnded) -> None:
        """Pass on an end that the sender knows; UNKNOWN once no node knows it."""
        end = message.end.decode("ascii", "replace")
        watch = self._watches.get(message.job_id)
        if watch is None:
            return
        if end != UNKNOWN:
            self._tell(message.job_id, end)
            return
        watch.awaited.discard(sender.id)
        if not watch.awaited and not self._has_come(watch):
            self._tell(message.job_id, UNKNOWN)

    # For other nodes

    def watch_job(self, sender: Node, message: WatchJob) -> None:
        """Report the end of a job to the sender, whose clients wait for it."""
        job_id = message.job_id
        watched = self._for_others.setdefault(sender.id, {})
        if job_id in watched:
            return
        job = self._jobs.find(job_id)
        if job is None or job.state == ACKED:
            end = ACKNOWLEDGED if job is not None else self._end_of(job_id)
            self._peers.bus.send(sender, JobEnded(job_id, end.encode()))
        elif len(watched) < WATCHED_MAX:
            watched[job_id] = partial(self._ended, sender, job_id)
            self._jobs.watch(job, watched[job_id])

    def _ended(self, node: Node, job_id: bytes, end: str) -> None:
        self._for_others.get(node.id, {}).pop(job_id, None)
        self._tombstones.add(job_id, end)  # JobEnded may be lost: then the node asks again
        self._peers.bus.send(node, JobEnded(job_id, end.encode()))

    def went_down(self, node: Node) -> None:
        """Drop the watches of a node that is down: it asks again when it is back."""
        for job_id, told in self._for_others.pop(node.id, {}).items():
            self._jobs.unwatch(job_id, told)
        for watch in list(self._watches.values()):
            watch.awaited.discard(node.id)

    def moves_away(self, job_id: bytes) -> None:
        """Keep watching a job that will be another node's. Other nodes repeat their requests, and find it there."""
        of_others = [watched.pop(job_id) for watched in self._for_others.values() if job_id in watched]
        clients = [told for told in self._jobs.take_watches(job_id) if told not in of_others]
        if clients:
            watch = self._watches.setdefault(job_id, RemoteWatch(job_id, self._ask))
            watch.told += clients
            watch.begin(set(), self._jobs.clock.monotonic_ms)  # once it has gone
            self._jobs.agenda.add(watch)

    def clear(self) -> None:
        """Reset after all jobs were deleted."""
        self._for_others = {}
