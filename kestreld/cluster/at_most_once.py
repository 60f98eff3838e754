"""Transfer of jobs that are delivered at most once (RETRY 0), in three steps: never may two nodes deliver one.

    giver                                   receiver
    LENT, LendJob           ->              BORROWED, in its log
                            <-  Stored
    LET_GO, in its log
    LetGo                   ->              its own, queued
                            <-  Released
    forgotten

Until it lets go, the giver may take the job back if the receiver fails; until LetGo comes, the receiver must not
deliver it, and asks (Stored) over each new link. Disque sends such a job and forgets it: a link that breaks loses it.
"""

from collections.abc import Callable

from kestreld.cluster.copying import copy_of, expires_in_ms, job_of
from kestreld.cluster.job_messages import Declined, LendJob, LetGo, Released, Stored, TookBack
from kestreld.cluster.nodes import Node
from kestreld.cluster.peers import Peers
from kestreld.cluster.tombstones import Tombstones
from kestreld.jobs.job import ACTIVE, BORROWED, LENT, LET_GO, NEVER, Job
from kestreld.jobs.node_sets import NOBODY
from kestreld.queues.slices import Work

RELEASED = "deleted"
REMIND_MS = 5_000  # before an unanswered message is repeated: without a link back, the answer was lost


def _comes_back(job: Job) -> bool:
    """Return True if a job that another node lends is only remembered here: the sender could not lend a job that is
    still on its way from here, or this node's own.

    This node had let go of it; or it was on its way here, and a start did not know whether it had been delivered.
    """
    return job.state == LET_GO or (job.state == ACTIVE and not job.terms.retry_ms and job.terms.owners != NOBODY)


class Lending:
    """Jobs on their way from this node or to it, by id."""

    def __init__(
        self,
        peers: Peers,
        tombstones: Tombstones,
        moves_away: Callable[[bytes], None],
        is_held_back: Callable[[], bool],
    ) -> None:
        """`moves_away` is called with a job that this node is about to forget because another one has it.
        `is_held_back` is True while nodes that were up before this one started may yet come back.
        """
        self._peers = peers
        self._jobs = peers.jobs
        self._tombstones = tombstones
        self._moves_away = moves_away
        self._is_held_back = is_held_back
        self._lent: dict[bytes, bytes] = {}  # job id -> receiver
        self._let_go: dict[bytes, bytes] = {}
        # Job id -> givers: after one has lent a job and taken it back, another one may lend it again.
        self._borrowed: dict[bytes, list[bytes]] = {}

    @property
    def lent(self) -> int:
        """Number of this node's jobs that other nodes have yet to confirm as stored."""
        return len(self._lent)

    # The giver

    def lend(self, job: Job, node: Node) -> None:
        """Send a node a job that was taken out of its queue here."""
        peers = self._peers
        self._jobs.lend(job, self._jobs.me | peers.set_of(node))
        self._lent[job.id] = node.id
        self._send(job, node)

    def _send(self, job: Job, node: Node) -> None:
        owners = self._jobs.me | self._peers.set_of(node)
        self._peers.bus.send_once_written(node, LendJob(copy_of(self._jobs, job, owners), is_new=False))
        self._remind(job)

    def _remind(self, job: Job) -> None:
        self._jobs.remind_at(job, self._jobs.now_ms + REMIND_MS)

    def offer(self, job: Job, node: Node) -> None:
        """Ask a node to store a job that is being added. The first node that stores it gets it."""
        owners = self._jobs.me | self._peers.set_of(node)
        self._peers.bus.send(node, LendJob(copy_of(self._jobs, job, owners), is_new=True))

    def left(self, job: Job, node: Node) -> None:
        """Leave a job that was being added to the node that has stored it."""
        self._let_go[job.id] = node.id
        self._say_let_go(job, node)

    def _say_let_go(self, job: Job, node: Node) -> None:
        self._peers.bus.send_once_written(node, LetGo(job.id))
        self._remind(job)

    def woken(self, job: Job) -> None:
        """Repeat the message that was not answered in time, or take a lent job back if its receiver is down."""
        self._jobs.wake_at_end(job)
        if self._is_taker_away(job):
            self._take_back(job.id)
            return
        for on_their_way, say in ((self._lent, self._send), (self._let_go, self._say_let_go)):
            node = self._peers.table.get(on_their_way.get(job.id, b""))
            if node is not None:
                say(job, node)
        for giver in self._borrowed.get(job.id, []):
            node = self._peers.table.get(giver)
            if node is not None:
                self._say_stored(job, node)

    def _is_taker_away(self, job: Job) -> bool:
        """Return True if a job is lent to a node that is down, even one that has not come up since this one started."""
        taker = self._lent.get(job.id)
        if taker is None or self._is_held_back():
            return False
        node = self._peers.table.get(taker)
        return node is None or not node.is_up

    def stored(self, sender: Node, message: Stored) -> None:
        """Let the sender have a job that it has stored, or tell it that this node took the job back."""
        job_id = message.job_id
        job = self._jobs.find(job_id)
        if job is not None and self._lent.get(job_id) == sender.id:
            del self._lent[job_id]
            self._jobs.let_go(job, self._peers.set_of(sender))
            self._let_go[job_id] = sender.id
        if job is not None and self._let_go.get(job_id) == sender.id:
            self._say_let_go(job, sender)
        else:
            self._peers.bus.send(sender, TookBack(job_id))

    def released(self, sender: Node, message: Released) -> bool:
        """Note that the sender has LetGo of a job. Return True if this node can forget the job."""
        if self._let_go.get(message.job_id) != sender.id:
            return False
        del self._let_go[message.job_id]
        return True

    def declined(self, sender: Node, message: Declined) -> None:
        """Take a job back that the sender does not want."""
        if self._lent.get(message.job_id) == sender.id:
            self._take_back(message.job_id)

    def _take_back(self, job_id: bytes) -> None:
        del self._lent[job_id]
        job = self._jobs.find(job_id)
        if job is not None and job.state == LENT:
            self._jobs.keep_for_itself(job)

    # The receiver

    def lend_job(self, sender: Node, message: LendJob) -> None:
        """Store a job that the sender lends, or decline it."""
        copy, jobs, peers = message.copy, self._jobs, self._peers
        job = jobs.find(copy.job_id)
        if (job is None and not self._tombstones.has(copy.job_id)) or (job is not None and _comes_back(job)):
            may_keep = peers.keeps_copies if message.is_new else peers.stores
            has_room = jobs.queues.get(copy.queue) is not None or not jobs.has_all_queues
            if not (may_keep and has_room) or expires_in_ms(jobs, copy, sender) <= 0:
                peers.bus.send(sender, Declined(copy.job_id))
                return
            borrowed = job_of(jobs, copy, sender, jobs.me | peers.set_of(sender))
            if job is None:
                jobs.keep(borrowed, BORROWED, NEVER)
            else:
                self._let_go.pop(job.id, None)
                jobs.keep_again(job, borrowed)
            self._borrowed[copy.job_id] = [sender.id]
            job = jobs.find(copy.job_id)
        if job is not None and job.state == BORROWED:
            givers = self._borrowed[job.id]
            if sender.id not in givers:
                givers.append(sender.id)
                jobs.own(job, job.terms.owners | peers.set_of(sender))
            self._say_stored(job, sender)
        else:
            peers.bus.send_once_written(sender, Stored(copy.job_id))

    def _say_stored(self, job: Job, node: Node) -> None:
        self._peers.bus.send_once_written(node, Stored(job.id))
        self._remind(job)

    def let_go(self, sender: Node, message: LetGo) -> None:
        """Queue a borrowed job: it is now this node's own."""
        job = self._jobs.find(message.job_id)
        is_next = sender.id in self._borrowed.get(message.job_id, [])
        # First of all: the job may be sent back at once.
        self._peers.bus.send_once_written(sender, Released(message.job_id))
        if job is not None and is_next:
            del self._borrowed[job.id]
            self._jobs.keep_for_itself(job)

    def took_back(self, sender: Node, message: TookBack) -> None:
        """Drop a borrowed job: the sender keeps it."""
        job = self._jobs.find(message.job_id)
        givers = self._borrowed.get(message.job_id, [])
        if job is not None and sender.id in givers:
            givers.remove(sender.id)
            if not givers:
                self._moves_away(job.id)
                self._jobs.remove(job, RELEASED)

    # Events of nodes and jobs

    def came_up(self, node: Node) -> Work:
        """Repeat all messages of jobs on their way to the node or from it: they may have been lost."""
        linked_at_ms = node.linked_at_ms
        lent = [one for one, taker in self._lent.items() if taker == node.id]
        let_go = [one for one, taker in self._let_go.items() if taker == node.id]
        borrowed = [one for one, givers in self._borrowed.items() if node.id in givers]
        for job_id in (*lent, *let_go, *borrowed):
            job = self._jobs.find(job_id)
            if node.linked_at_ms != linked_at_ms:
                return
            if job is not None:
                self._say_again(job, node)
            yield None

    def _say_again(self, job: Job, node: Node) -> None:
        if self._lent.get(job.id) == node.id:
            self._send(job, node)
        elif self._let_go.get(job.id) == node.id:
            self._say_let_go(job, node)
        elif node.id in self._borrowed.get(job.id, []):
            self._say_stored(job, node)

    def went_down(self, node: Node) -> Work:
        """Queue jobs here again that were lent to a node that cannot be reached."""
        for job_id in [one for one, taker in self._lent.items() if taker == node.id]:
            if node.is_up:
                return
            if self._lent.get(job_id) == node.id:
                self._take_back(job_id)
            yield None

    def restored(self, job: Job) -> None:
        """Resume for a job that is on its way according to the log."""
        jobs = self._jobs
        others = list(jobs.node_sets.ids(job.terms.owners & ~jobs.me))
        if job.state == BORROWED:
            self._borrowed[job.id] = others
        elif others:
            (self._lent if job.state == LENT else self._let_go)[job.id] = others[0]
            self._remind(job)

    def gone(self, job: Job) -> None:
        """Forget a job that has ended."""
        self._lent.pop(job.id, None)
        self._let_go.pop(job.id, None)
        self._borrowed.pop(job.id, None)

    def clear(self) -> None:
        self._lent, self._let_go, self._borrowed = {}, {}, {}
