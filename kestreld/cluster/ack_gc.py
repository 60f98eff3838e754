"""SETACK, GOTACK and DELJOB: keeps acknowledged jobs until every owner knows that they are.

`ack_confirmations` has the state of each such job.
"""

from kestreld.cluster.ack_confirmations import TOLD_MS_MAX, Ack
from kestreld.cluster.job_messages import CaughtUp, DelJob, GotAck, SetAck
from kestreld.cluster.nodes import Node
from kestreld.cluster.peers import Peers
from kestreld.cluster.tombstones import Tombstones
from kestreld.jobs.job import ACKED, BORROWED, LENT, LET_GO, Job, JobTerms
from kestreld.jobs.job_queue import JobQueue
from kestreld.jobs.replicated_jobs import ACKNOWLEDGED
from kestreld.jobs.table import MASK, Table
from kestreld.queues.slices import WAITS, Work


class AckCollector:
    """Acknowledged jobs that this node remembers, by id."""

    def __init__(self, peers: Peers, tombstones: Tombstones) -> None:
        self._peers = peers
        self._jobs = peers.jobs
        self._tombstones = tombstones
        self._acks: Table[Ack] = Table()
        self._nowhere = JobQueue(b"")  # of dummies

    @property
    def count(self) -> int:
        """Number of acknowledgements that some nodes have yet to know."""
        return self._acks.count

    def is_dummy(self, job: Job) -> bool:
        """Return True if an acknowledged job was never here."""
        ack = self._acks.get(job.id)
        return ack is not None and not ack.owners

    # Commands of clients

    def acknowledge(self, job: Job) -> bool:
        """Acknowledge a job that is here for a client. Return True if it was not acknowledged before."""
        if job.state in (ACKED, LET_GO):
            return False
        if not self._peers.members & job.terms.owners or job.state in (BORROWED, LENT):
            self._jobs.remove(job, ACKNOWLEDGED)
            return True
        self._jobs.remember_ack(job)
        self._collect(job)
        return True

    def acknowledge_unknown(self, job_id: bytes, ttl_ms: int) -> None:
        """Acknowledge a job that is not here for a client: another node may hold it."""
        peers = self._peers
        # A job that was deleted here may still be held elsewhere; so may one whose FASTACK did not reach all, or that
        # has expired by a clock that was set.
        if not peers.members or self._tombstones.is_known_to_all(job_id):
            return
        if peers.is_leaving:  # a leaving node remembers nothing new (Disque's README, "Gracefully removal of nodes")
            peers.tell_each(peers.up(), SetAck(job_id, ()))
            return
        terms = JobTerms(self._nowhere, ttl_ms, 1)
        job = self._jobs.keep_dummy(job_id, terms)
        self._collect(job)

    def delete_everywhere(self, job_id: bytes) -> bool:
        """FASTACK: drop a job on all nodes that can be reached. Return True if it was here."""
        peers, job = self._peers, self._jobs.find(job_id)
        if job is None:
            self._tombstones.add(job_id, ACKNOWLEDGED)
            peers.tell_each(peers.up(), DelJob((job_id,)))
            return False
        if job.state == ACKED:
            return False  # all nodes are being told already, including those that are down now
        was_here = job.state != LET_GO
        peers.tell(job.terms.owners, DelJob((job_id,)))
        self._drop(job)
        return was_here

    # Collecting

    def restored(self, job: Job) -> None:
        """Resume collecting for a job that the log has as acknowledged."""
        if self._acks.get(job.id) is None:
            self._collect(job, told_by=0)

    def _collect(self, job: Job, told_by: int | None = None) -> None:
        jobs = self._jobs
        now_ms = jobs.clock.monotonic_ms
        ack = Ack(jobs.me, job.terms.owners, now_ms, told_by)
        self._acks.add(job.id, ack)
        if told_by is None and not self._settle(job, ack):
            self._peers.tell(ack.missing(self._peers.members), SetAck(job.id, self._peers.ids(ack.owners)))
            ack.try_again(now_ms, jobs.jitter_ms())
        if job.state == ACKED:
            jobs.ask_at(job, jobs.now_ms + ack.next_at_ms - now_ms)

    def woken(self, job: Job) -> None:
        """Tell all nodes again that have yet to confirm, or leave that for now to the node that is collecting."""
        ack = self._acks.get(job.id)
        if ack is None or self._settle(job, ack):
            return
        peers, jobs = self._peers, self._jobs
        now_ms = jobs.clock.monotonic_ms
        if not ack.is_left and any(node.is_up for node in peers.nodes_in(ack.told_by)):
            ack.leave_it(now_ms)
        else:
            for node in peers.nodes_in(ack.missing(peers.members)):
                if peers.hears(node):  # else it has yet to read earlier messages
                    peers.bus.send(node, SetAck(job.id, peers.ids(ack.owners)))
            ack.try_again(now_ms, jobs.jitter_ms())
        jobs.ask_at(job, jobs.now_ms + ack.next_at_ms - now_ms)

    def _settle(self, job: Job, ack: Ack) -> bool:
        """Drop a job and have its owners drop it, if all nodes know that it is acknowledged. Return True if so."""
        if ack.missing(self._peers.members):
            return False
        self._peers.tell(ack.owners, DelJob((job.id,)))
        self._drop(job)
        self._tombstones.add(job.id, ACKNOWLEDGED, is_known_to_all=True)
        return True

    def _drop(self, job: Job) -> None:
        self._jobs.remove(job, ACKNOWLEDGED)

    def owners_of(self, job: Job) -> int:
        """Return the set of nodes that may hold a job, as far as is known here."""
        ack = self._acks.get(job.id)
        return ack.owners if ack is not None else job.terms.owners

    def confirmed_of(self, job: Job) -> int:
        """Return the set of nodes known to have the acknowledgement of a job."""
        ack = self._acks.get(job.id)
        return ack.confirmed if ack is not None else 0

    def say_acked(self, node: Node, job_id: bytes) -> None:
        """Tell a node that a job is acknowledged, whether or not the job is still remembered here."""
        job = self._jobs.find(job_id)
        owners = self.owners_of(job) if job is not None else 0
        self._peers.bus.send(node, SetAck(job_id, self._peers.ids(owners or self._jobs.me)))

    # Messages of other nodes

    def set_ack(self, sender: Node, message: SetAck) -> None:
        """Remember that a job is acknowledged, never deliver it, and confirm."""
        jobs, peers, job_id = self._jobs, self._peers, message.job_id
        job = jobs.find(job_id)
        if job is None or job.state in (BORROWED, LENT, LET_GO):
            self._tombstones.add(job_id, ACKNOWLEDGED)
            peers.bus.send(sender, GotAck(job_id, is_known=False, owners=()))
            return
        told = jobs.node_sets.of_all(message.owners)
        if job.state != ACKED:
            owners = (job.terms.owners or jobs.me) | told
            if owners != job.terms.owners:
                jobs.own(job, owners)
            jobs.remember_ack(job)
            # SetAck of a leaving node, or of one with a tombstone only: neither is collecting.
            self._collect(job, told_by=peers.set_of(sender) if told & ~peers.set_of(sender) else 0)
        ack = self._acks.parts[hash(job_id) & MASK][job_id]
        ack.confirm(peers.set_of(sender), told)
        answer = GotAck(job_id, is_known=bool(ack.owners), owners=peers.ids(ack.owners))
        peers.bus.send_once_written(sender, answer)

    def got_ack(self, sender: Node, message: GotAck) -> None:
        """Note that the sender knows, and tell owners that were unknown here."""
        job, ack = self._jobs.find(message.job_id), self._acks.get(message.job_id)
        if job is None or ack is None:
            return
        peers = self._peers
        has_new = ack.confirm(peers.set_of(sender), self._jobs.node_sets.of_all(message.owners))
        if not self._settle(job, ack) and has_new:
            peers.tell(ack.missing(peers.members), SetAck(job.id, peers.ids(ack.owners)))

    def left(self, job: Job, node: Node) -> None:
        """Note that a node no longer holds an acknowledged job."""
        ack = self._acks.get(job.id)
        if ack is not None:
            ack.leave(self._peers.set_of(node))
            self._settle(job, ack)

    def del_job(self, message: DelJob) -> None:
        """Drop jobs that are acknowledged and that no node has to know of any longer."""
        for job_id in message.job_ids:
            job = self._jobs.find(job_id)
            if job is None:
                self._tombstones.add(job_id, ACKNOWLEDGED)
            else:
                self._jobs.remove(job, ACKNOWLEDGED)

    # Events of nodes and jobs

    def catch_up(self, node: Node) -> Work:
        """Tell a node that is back of all acknowledgements that it has missed, then that it has caught up.

        If the link breaks meanwhile, the next link starts from the beginning.
        """
        peers, bit = self._peers, self._peers.set_of(node)
        members, linked_at_ms = peers.members, node.linked_at_ms
        for part in self._acks.parts:
            for job_id, ack in list(part.items()):
                while peers.bus.is_crowded(node) and node.linked_at_ms == linked_at_ms:
                    yield WAITS
                if node.linked_at_ms != linked_at_ms:
                    return
                job = self._jobs.find(job_id)
                if job is None or part.get(job_id) is not ack:
                    continue
                if ack.missing(members) & bit:
                    peers.bus.send(node, SetAck(job_id, peers.ids(ack.owners)))
                elif ack.told_by & bit:
                    self._take_over(job, ack)
                yield None
        if node.linked_at_ms == linked_at_ms:
            peers.bus.send(node, CaughtUp())

    def caught_up(self, node: Node) -> Work:
        """Take over the sender's collections: it has sent its whole state over a new link, and DelJobs may be lost."""
        bit = self._peers.set_of(node)
        for part in self._acks.parts:
            for job_id, ack in list(part.items()):
                job = self._jobs.find(job_id)
                if ack.told_by & bit and job is not None and part.get(job_id) is ack:
                    self._take_over(job, ack)
                yield None

    def _take_over(self, job: Job, ack: Ack) -> None:
        """Collect for a job that another node was collecting for: its DelJob may have been lost with a broken link."""
        ack.leave_it(self._jobs.clock.monotonic_ms - TOLD_MS_MAX)
        self.woken(job)

    def settle_all(self) -> Work:
        """Drop jobs that only waited for a node that has left the cluster."""
        for part in self._acks.parts:
            for job_id, ack in list(part.items()):
                job = self._jobs.find(job_id)
                if job is not None and part.get(job_id) is ack:
                    self._settle(job, ack)
                yield None

    def gone(self, job: Job) -> None:
        """Forget a job that has ended."""
        if self._acks.get(job.id) is not None:
            self._acks.remove(job.id)

    def clear(self) -> None:
        self._acks = Table()
