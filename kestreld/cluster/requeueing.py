"""WILLQUEUE, QUEUED, WORKING and ENQUEUE: lets the holders of a job agree on which of them queues it again.

Each holder has a requeue time for the job, GAP_MS apart but for jitter. A node never queues a shared job again by
its timer before it has told the other holders, NOTICE_MS ahead, or less if a delay is shorter, and for that very time
(WILLQUEUE); once it has queued it, it says so (QUEUED), and they put off their own times. `reactions` is the table of
answers to a notice by state of the job. Messages may be lost, so two nodes may still announce or queue a job at once:
then the one that is not `is_greater` withdraws, which both compute alike. In doubt a job is queued twice, not never.

`_announced` holds only announcements that stand: a notice that puts the job off removes its announcement. A node that
is still catching up after a start queues nothing again. A notice with another number of moves (to a dead-letter queue
or back) than the job has here changes neither counts nor times and is answered MOVED; ENQUEUE is still carried out.
"""

from collections.abc import Callable
from typing import Final

from kestreld.cluster.copying import dead_letter_of, moved_of
from kestreld.cluster.job_messages import Moved, Notice
from kestreld.cluster.nodes import Node
from kestreld.cluster.peers import Peers
from kestreld.cluster.reactions import REACTIONS, Do, Word, is_greater
from kestreld.jobs.job import DELAYED, NEVER, NOTICE_MS, QUEUED, WAIT_REPL, WITHOUT_QUEUE, Job
from kestreld.jobs.job_queue import PAUSED_IN

HELD_BACK_MS: Final = 200  # before a job that may not be queued yet is looked at again


class Requeueing:
    """Announced requeues of this node, and its reactions to notices of other holders.

    `is_held_back` is True while this node has yet to catch up with what it missed. `say_acked` tells a node that a job
    is acknowledged; `note_queued` notes that another node queues a job which is still being added here.
    """

    def __init__(
        self,
        peers: Peers,
        is_held_back: Callable[[], bool],
        say_acked: Callable[[Node, bytes], None],
        note_queued: Callable[[bytes], None],
    ) -> None:
        self._peers = peers
        self._jobs = peers.jobs
        self._is_held_back = is_held_back
        self._say_acked = say_acked
        self._note_queued = note_queued
        self._announced: dict[bytes, int] = {}  # job id -> requeue time that its holders were told

    # This node's timers

    def may_queue(self, job: Job, now_ms: int) -> bool:
        """Announce a job to its holders NOTICE_MS before it is due. Return True once it is due and was announced."""
        jobs, peers = self._jobs, self._peers
        at_ms = job.requeue_at_ms
        if self._is_held_back():
            self._announced.pop(job.id, None)
            jobs.ask_at(job, now_ms + HELD_BACK_MS)
            return False
        if self._announced.get(job.id) == at_ms:
            if now_ms < at_ms:
                jobs.ask_at(job, at_ms)
                return False
            del self._announced[job.id]
            return True
        nodes = peers.nodes_in(job.terms.owners)
        if any(node.is_up and peers.bus.is_crowded(node) for node in nodes):
            jobs.ask_at(job, now_ms + HELD_BACK_MS)
            return False
        if job.state != DELAYED or at_ms <= now_ms:  # a delay may be shorter than the notice
            at_ms = max(at_ms, now_ms + NOTICE_MS)
        self._announced[job.id] = at_ms
        peers.tell_each(nodes, self._notice(Word.WILL_QUEUE, job))
        jobs.ask_at(job, at_ms)
        return False

    def gone(self, job: Job) -> None:
        """Forget the announcement of a job that has ended."""
        if self._announced:
            self._announced.pop(job.id, None)

    def clear(self) -> None:
        self._announced = {}

    # Notices to other holders

    def say(self, word: Word, job: Job, after_ms: int = 0) -> None:
        """Send a notice to all holders of a job."""
        self._peers.tell(job.terms.owners, self._notice(word, job, after_ms))

    def _notice(self, word: Word, job: Job, after_ms: int = 0) -> Notice:
        return Notice(word, job.id, job.nacks, job.deliveries, after_ms, job.terms.moves)

    def say_moved(self, job: Job) -> None:
        """Tell all holders of a job that it is in another queue."""
        self._peers.tell(job.terms.owners, moved_of(job))

    # Notices of other holders

    def notice(self, sender: Node, job: Job, message: Notice) -> None:
        """React to another node's notice of a job that is here."""
        reaction = REACTIONS[message.word][job.state]
        if reaction is Do.NOTHING:
            return
        if reaction is Do.SAY_ACKED:
            self._say_acked(sender, job.id)
            return
        if reaction is Do.NOTE:
            self._note_queued(job.id)
            return
        if message.word is not Word.ENQUEUE:  # ENQUEUE may come from a node that holds no copy
            self._know(job, sender)
        if message.moves != job.terms.moves:  # the job was moved: either node may be the one that does not know
            self._peers.bus.send(sender, moved_of(job))
            if message.word is not Word.ENQUEUE:
                return
        else:
            self._jobs.count(job, message.nacks, message.deliveries)
        if message.word is Word.WILL_QUEUE and job.id in self._announced:
            self._leave_it_to_the_greater(sender, job)
        self._carry_out(reaction, sender, job, message)

    def _leave_it_to_the_greater(self, sender: Node, job: Job) -> None:
        """Settle two announcements of the same job: the lesser node withdraws its own and waits for the other."""
        if is_greater(sender.id, self._jobs.node_id, job.id):
            del self._announced[job.id]
            self._jobs.ask_at(job, self._jobs.now_ms + 2 * NOTICE_MS)

    def _know(self, job: Job, node: Node) -> None:
        owners = (job.terms.owners or self._jobs.me) | self._peers.set_of(node)
        if owners != job.terms.owners:
            self._jobs.own(job, owners)

    def _carry_out(self, reaction: Do, sender: Node, job: Job, message: Notice) -> None:
        bus, now_ms = self._peers.bus, self._jobs.now_ms
        if reaction is Do.SAY_QUEUED:
            self.say(Word.HAS_QUEUED, job)
        elif reaction is Do.SAY_DELAYED:
            bus.send(sender, self._notice(Word.HAS_QUEUED, job, max(job.requeue_at_ms - now_ms, 1)))
        elif reaction is Do.SAY_WORKING:
            if job.requeue_at_ms > now_ms + 2 * NOTICE_MS:
                bus.send(sender, self._notice(Word.WORKING, job, job.requeue_at_ms - now_ms))
        elif reaction is Do.SETTLE:
            if is_greater(sender.id, self._jobs.node_id, job.id):
                self._put_off(sender, job, message)
            else:
                bus.send(sender, self._notice(Word.HAS_QUEUED, job))
        elif reaction is Do.PUT_OFF:
            self._put_off(sender, job, message)
        elif reaction is Do.QUEUE and not job.terms.queue.pause & PAUSED_IN:
            if message.after_ms:
                self._jobs.delay(job, message.after_ms)
            else:
                self._jobs.queue_here(job)

    def _put_off(self, sender: Node, job: Job, message: Notice) -> None:
        jobs = self._jobs
        self._announced.pop(job.id, None)
        requeue_at_ms = NEVER
        if job.terms.retry_ms:
            gap_ms = self._peers.rank_ms(job.terms.owners, sender)
            if message.word is Word.WORKING:
                requeue_at_ms = jobs.now_ms + message.after_ms + gap_ms
            else:
                requeue_at_ms = jobs.requeue_at_ms(job.terms) + message.after_ms + gap_ms
        jobs.put_off(job, requeue_at_ms)

    def moved(self, sender: Node, message: Moved) -> None:
        """Follow a job that the sender has moved to another queue, or answer with a later move that is known here."""
        jobs = self._jobs
        job = jobs.find(message.job_id)
        if job is None or job.state in WITHOUT_QUEUE or not job.terms.retry_ms:
            return
        moves = max(message.moves, message.death is not None)
        if job.state == WAIT_REPL:
            self._note_queued(job.id)
        elif moves < job.terms.moves:
            self._peers.bus.send(sender, moved_of(job))
        elif moves == job.terms.moves and job.state == QUEUED:
            self._peers.bus.send(sender, self._notice(Word.HAS_QUEUED, job))
        else:
            if moves > job.terms.moves:
                to, dead = jobs.unlisted_queue(message.queue), dead_letter_of(message.death, sender)
                jobs.follow(job, to, dead, moves, message.nacks, message.deliveries)
            self._put_off(sender, job, Notice(Word.HAS_QUEUED, job.id))
