"""NEEDJOBS and YOURJOBS: gives jobs to the nodes whose clients wait for them.

A node that cannot serve a client asks the others for jobs (NEEDJOBS); `federation` decides when it asks, and whom. A
node that has none to give remembers the request and gives the next job that no client of its own waits for.

A given job with a retry time becomes a copy: the giver adds the receiver to the owners before it sends the job, and
remains an owner with its own requeue put off; the receiver queues the job and tells the remaining owners (QUEUED). So a
lost message loses no job. A job with RETRY 0 is lent (see `at_most_once`): never may two nodes deliver it. A link keeps
the order of messages, so TOOKJOBS answers all YOURJOBS up to its number. When the link breaks, the giver does not wait
for the retry time of jobs in unanswered YOURJOBS: it announces soon (WILLQUEUE) that it will queue them, unless another
owner objects. Interest of a node ends with a NEEDJOBS of 0, INTEREST_MS after its last NEEDJOBS, or with the
NEEDNOTHING that it sends whenever this node comes up for it.
"""

from collections.abc import Callable
from typing import Final

from kestreld.cluster.at_most_once import Lending
from kestreld.cluster.copying import copy_of, dead_letter_of, expires_in_ms, job_of, moved_of
from kestreld.cluster.federation import Imports, Interest, to_give
from kestreld.cluster.job_messages import JobCopy, NeedJobs, NeedNothing, Notice, TookJobs, YourJobs
from kestreld.cluster.nodes import Node
from kestreld.cluster.peers import Peers
from kestreld.cluster.reactions import Word
from kestreld.cluster.tombstones import Tombstones
from kestreld.jobs.job import ACKED, ACTIVE, COPY, DELAYED, NOTICE_MS
from kestreld.jobs.job_queue import PAUSED_OUT, JobQueue
from kestreld.jobs.replicated_jobs import ACKNOWLEDGED
from kestreld.queues.agenda import Scheduled
from kestreld.queues.slices import Work

LOOK_MS: Final = 100
LOOKED_AT_ONCE: Final = 200  # queues
KEPT_ANNOUNCED_MS: Final = 1_000  # after the last client has ceased to wait
GIVEN_AT_ONCE: Final = 100  # jobs, even if more are asked for
GIVEN_BYTES_MAX: Final = 1 << 20
GIVEN_IN_ONE: Final = 20  # jobs in one message: each has to be told to all its other holders
INTEREST_MAX: Final = 10_000  # queues
UNANSWERED_MAX: Final = 1_000  # jobs on the way to one node
NEVER_MS: Final = 1 << 62


class _Look(Scheduled):
    """A timer that calls a function when it falls due."""

    def __init__(self, do: Callable[[], None]) -> None:
        super().__init__(NEVER_MS)
        self._do = do

    def fall_due(self, now_ms: int) -> None:
        self.due_at_ms = NEVER_MS
        self._do()

    @property
    def is_planned(self) -> bool:
        return self.due_at_ms != NEVER_MS

    def plan(self, due_at_ms: int) -> None:
        self.due_at_ms = due_at_ms


class Federating:
    """Jobs that this node imports, interest of other nodes in its jobs, and jobs on their way to other nodes.

    `say_acked` tells a node that a job is acknowledged.
    """

    def __init__(
        self, peers: Peers, lending: Lending, tombstones: Tombstones, say_acked: Callable[[Node, bytes], None]
    ) -> None:
        self._peers = peers
        self._jobs = peers.jobs
        self._lending = lending
        self._tombstones = tombstones
        self._say_acked = say_acked
        self._imports: dict[bytes, Imports] = {}  # by queue name, like the three below
        self._interest: dict[bytes, Interest] = {}
        # Last time that a client waited, of queues whose jobs the other nodes know to be wanted here.
        self._waited_at_ms: dict[bytes, int] = {}
        self._to_announce: dict[bytes, None] = {}
        self._on_the_way: dict[bytes, dict[int, list[bytes]]] = {}  # ids of jobs, by node and number of the message
        self._number = 0  # of YourJobs
        self._announcing = _Look(self._announce_some)
        self._look = _Look(self._look_after_waits)
        self._looked_at: list[bytes] = []  # names that are still to be looked at in this round
        self.jobs_given: dict[bytes, int] = {}  # by node, how many jobs
        self.jobs_taken: dict[bytes, int] = {}

    @property
    def _now_ms(self) -> int:
        return self._jobs.clock.monotonic_ms

    # Events of queues here

    def missed(self, queue: JobQueue) -> None:
        """Ask for jobs: a client wants a job of a queue that has none."""
        self._ask(queue, is_just_empty=False)

    def emptied(self, queue: JobQueue) -> None:
        """Ask for more jobs if the queue is importing: its last job was handed out."""
        if queue.name in self._imports:
            self._ask(queue, is_just_empty=True)

    def waited_for(self, queue: JobQueue) -> None:
        """Announce the queue to other nodes: its first client begins to wait."""
        if self._peers.is_leaving or not self._peers.has_members():
            return
        if queue.name not in self._waited_at_ms:
            self._to_announce[queue.name] = None
            self._plan(self._announcing, 0)
            return
        self._waited_at_ms[queue.name] = self._now_ms
        imports = self._imports.get(queue.name)
        if imports is not None:  # the nodes that have given jobs do not know that another one is wanted
            for node in self._nodes(imports.sources(self._now_ms)):
                self._peers.bus.send(node, NeedJobs(queue.name, 1, is_waiting=True))

    def came(self, queue: JobQueue) -> None:
        """Give jobs to interested nodes: a job has come into a queue, and no client of this node waits for it."""
        interest = self._interest.get(queue.name)
        if interest is None:
            return
        while queue.jobs.count:
            peers = self._peers
            node_id = interest.take(self._now_ms, [node.id for node in peers.up() if not peers.bus.is_crowded(node)])
            node = peers.table.get(node_id) if node_id is not None else None
            if node is None or not self._give(queue, node, 1):
                break
        if not interest:
            self._interest.pop(queue.name, None)

    def import_rate(self, queue: JobQueue) -> int:
        """Jobs per second that the queue gets from other nodes."""
        imports = self._imports.get(queue.name)
        return imports.rate(self._now_ms) if imports is not None else 0

    def import_sources(self, queue: JobQueue) -> list[bytes]:
        """Ids of the nodes that have lately given jobs of the queue."""
        imports = self._imports.get(queue.name)
        return imports.sources(self._now_ms) if imports is not None else []

    # Asking

    def _nodes(self, ids: list[bytes]) -> list[Node]:
        return self._peers.nodes_in(self._jobs.node_sets.of_all(ids))

    def _ask(self, queue: JobQueue, *, is_just_empty: bool) -> None:
        peers = self._peers
        if peers.is_leaving or not peers.has_members():
            return
        imports = self._imports.setdefault(queue.name, Imports())
        now_ms, is_waiting = self._now_ms, bool(queue.waiters) and queue.name in self._waited_at_ms
        if not is_just_empty and imports.ask_all(now_ms):
            peers.tell_each(peers.up(), NeedJobs(queue.name, max(len(queue.waiters), 1), is_waiting=is_waiting))
        count = imports.ask_sources(now_ms, is_just_empty=is_just_empty)
        if count:  # may be more than clients wait for, so jobs that come later are not wanted
            peers.tell_each(self._nodes(imports.sources(now_ms)), NeedJobs(queue.name, count))
        self._look_soon()

    def _want_another(self, node: Node, queue: JobQueue) -> None:
        """Tell a node that has just given a job that clients still wait for others."""
        if queue.waiters:
            self._peers.bus.send(node, NeedJobs(queue.name, len(queue.waiters), is_waiting=True))

    def _announce_some(self) -> None:
        """Tell the other nodes which queues clients have begun to wait for, some queues at a time."""
        now_ms, up = self._now_ms, self._peers.up()
        for _ in range(min(LOOKED_AT_ONCE, len(self._to_announce))):
            name, _ = self._to_announce.popitem()
            queue = self._jobs.queues.get(name)
            if queue is not None and queue.waiters:
                self._waited_at_ms[name] = now_ms
                self._imports.setdefault(name, Imports()).ask_all(now_ms)
                self._peers.tell_each(up, NeedJobs(name, len(queue.waiters), is_waiting=True))
        if self._to_announce:
            self._plan(self._announcing, 1)
        self._look_soon()

    def _plan(self, look: _Look, delay_ms: int) -> None:
        if not look.is_planned:
            look.plan(self._now_ms + delay_ms)
            self._jobs.agenda.add(look)

    def _look_soon(self) -> None:
        self._plan(self._look, LOOK_MS)

    def _look_after_waits(self) -> None:
        """Ask again for clients that still wait, and withdraw interest that has ended, some queues at a time."""
        now_ms = self._now_ms
        if not self._looked_at:
            self._looked_at = list(self._imports)
        for _ in range(min(LOOKED_AT_ONCE, len(self._looked_at))):
            name = self._looked_at.pop()
            imports = self._imports.get(name)
            if name in self._waited_at_ms:
                self._look_after(name, now_ms)
            elif imports is not None and imports.is_over(now_ms):
                del self._imports[name]
        if self._imports:
            self._plan(self._look, 1 if self._looked_at else LOOK_MS)

    def _look_after(self, name: bytes, now_ms: int) -> None:
        queue = self._jobs.queues.get(name)  # none of them is kept: an idle one is collected, and made anew
        if queue is not None and queue.waiters:
            self._waited_at_ms[name] = now_ms
            if not queue.jobs.count:
                self._ask(queue, is_just_empty=False)
        elif now_ms - self._waited_at_ms[name] >= KEPT_ANNOUNCED_MS:
            del self._waited_at_ms[name]
            self._peers.tell_each(self._peers.up(), NeedJobs(name, 0))

    # Giving

    def need_jobs(self, sender: Node, message: NeedJobs) -> None:
        """Give the sender jobs, and remember how many more its clients wait for; a count of 0 ends its interest."""
        name = message.queue
        interest = self._interest.get(name)
        if not message.count:
            if interest is not None:
                interest.remove(sender.id)
                if not interest:
                    del self._interest[name]
            return
        queue, now_ms = self._jobs.queues.get(name), self._now_ms
        imports = self._imports.get(name)
        is_importing = imports is not None and imports.rate(now_ms) > 0
        given = 0
        may_give = message.is_waiting or not is_importing
        if queue is not None and may_give and not queue.pause & PAUSED_OUT:
            given = self._give(queue, sender, to_give(message.count, queue.jobs.count))
        if message.is_waiting and given < message.count:
            if interest is None:
                if len(self._interest) >= INTEREST_MAX and not self._has_dropped_expired(now_ms):
                    return
                interest = self._interest[name] = Interest()
            interest.add(sender.id, message.count - given, now_ms)

    def need_nothing(self, sender: Node) -> None:
        """Drop all interest of the sender: the messages that would have withdrawn it may have been lost."""
        for name, interest in list(self._interest.items()):
            interest.remove(sender.id)
            if not interest:
                del self._interest[name]

    def _has_dropped_expired(self, now_ms: int) -> bool:
        """Drop expired interest. Return True if any queue was dropped."""
        before = len(self._interest)
        self._interest = {name: one for name, one in self._interest.items() if not one.is_over(now_ms)}
        return len(self._interest) < before

    def _give(self, queue: JobQueue, node: Node, count: int) -> int:
        """Send a node up to `count` jobs of a queue, within the limits. Return how many were given."""
        jobs, peers = self._jobs, self._peers
        unanswered = self._on_the_way.setdefault(node.id, {})
        if not count or not node.is_up or peers.bus.is_crowded(node):
            return 0
        if sum(map(len, unanswered.values())) + self._lending.lent >= UNANSWERED_MAX:
            return 0
        copies: list[JobCopy] = []
        given = size_bytes = 0
        bit = peers.set_of(node)
        while given < min(count, GIVEN_AT_ONCE) and size_bytes < GIVEN_BYTES_MAX:
            job = jobs.first_to_give(queue)
            if job is None:
                break
            given += 1
            size_bytes += len(job.body)
            if not job.terms.retry_ms:
                self._lending.lend(job, node)
                continue
            owners = (job.terms.owners or jobs.me) | bit
            if owners != job.terms.owners:
                jobs.own(job, owners)
            copies.append(copy_of(jobs, job, owners))
            jobs.put_off(job, jobs.requeue_at_ms(job.terms) + peers.rank_ms(owners, node))
        for first in range(0, len(copies), GIVEN_IN_ONE):
            part = copies[first : first + GIVEN_IN_ONE]
            self._number += 1
            unanswered[self._number] = [copy.job_id for copy in part]
            peers.bus.send(node, YourJobs(self._number, tuple(part)))
        self.jobs_given[node.id] = self.jobs_given.get(node.id, 0) + given
        return given

    def took_jobs(self, sender: Node, message: TookJobs) -> None:
        """Note that all YourJobs up to this number have arrived: links keep the order, and answers may be lost."""
        unanswered = self._on_the_way.get(sender.id, {})
        for number in [number for number in unanswered if number <= message.number]:
            del unanswered[number]

    def link_broken(self, node: Node) -> None:
        """Have jobs of unanswered YourJobs looked at soon: if no other holder has a job, it is queued here."""
        jobs = self._jobs
        for ids in self._on_the_way.pop(node.id, {}).values():
            for job_id in ids:
                job = jobs.find(job_id)
                if job is not None and job.state == COPY:
                    jobs.ask_at(job, jobs.now_ms + 2 * NOTICE_MS)

    # Taking

    def your_jobs(self, sender: Node, message: YourJobs) -> None:
        """Take the jobs that this node has asked for, and confirm them."""
        jobs, peers = self._jobs, self._peers
        by_queue: dict[bytes, int] = {}
        for copy in message.copies:
            by_queue[copy.queue] = by_queue.get(copy.queue, 0) + 1
            self._take(sender, copy)
        for name, count in by_queue.items():
            self._imports.setdefault(name, Imports()).came(sender.id, count, self._now_ms)
        self.jobs_taken[sender.id] = self.jobs_taken.get(sender.id, 0) + len(message.copies)
        peers.bus.send(sender, TookJobs(message.number))
        for name in by_queue:
            queue = jobs.queues.get(name)
            if queue is not None and queue.waiters and not queue.jobs.count:
                self._want_another(sender, queue)
                self._ask(queue, is_just_empty=True)
        self._look_soon()

    def _take(self, sender: Node, copy: JobCopy) -> None:
        jobs, peers = self._jobs, self._peers
        job = jobs.find(copy.job_id)
        owners = jobs.node_sets.of_all(copy.owners) | jobs.me | peers.set_of(sender)
        if job is None:
            if self._tombstones.end_of(copy.job_id) == ACKNOWLEDGED:
                self._say_acked(sender, copy.job_id)
            if self._tombstones.has(copy.job_id) or expires_in_ms(jobs, copy, sender) <= 0:
                return
            job = job_of(jobs, copy, sender, owners)
            # With a requeue time, because the log may keep only this record, and not that it was queued.
            jobs.keep(job, COPY, jobs.requeue_at_ms(job.terms))
        elif job.state == ACKED:
            self._say_acked(sender, job.id)
            return
        elif job.state not in (ACTIVE, COPY, DELAYED):
            return  # it is queued here already, or still being added: the giver's timer continues
        elif job.terms.owners | owners != job.terms.owners:
            jobs.own(job, job.terms.owners | owners)
        if copy.moves < job.terms.moves:  # its giver does not know that the job is in another queue
            peers.bus.send(sender, moved_of(job))
            return
        if copy.moves > job.terms.moves:
            to, dead = jobs.unlisted_queue(copy.queue), dead_letter_of(copy.death, sender)
            jobs.follow(job, to, dead, copy.moves, copy.nacks, copy.deliveries)
        jobs.count(job, copy.nacks, copy.deliveries)
        notice = Notice(Word.HAS_QUEUED, job.id, job.nacks, job.deliveries, moves=job.terms.moves)
        peers.tell(owners & ~peers.set_of(sender), notice)
        jobs.queue_here(job)

    # Events of nodes

    def announce_waits(self) -> Work:
        """Announce the queues that clients began to wait for while no other node was known."""
        queues = self._jobs.queues
        for number, queue in enumerate(queues, 1):
            if queue.waiters and queue.name not in self._waited_at_ms and queues is self._jobs.queues:
                self._to_announce[queue.name] = None
                self._plan(self._announcing, 0)
            if number % LOOKED_AT_ONCE == 0:
                yield None

    def came_up(self, node: Node) -> None:
        """Replace this node's interests at the node: withdraw all of them, then announce the current ones."""
        self._peers.bus.send(node, NeedNothing())
        if self._waited_at_ms:
            self._to_announce |= dict.fromkeys(self._waited_at_ms)
            self._plan(self._announcing, 0)

    def give_again(self, node: Node) -> Work:
        """Give the node jobs that have come since it asked: it may not know that it counted as down meanwhile."""
        for number, (name, interest) in enumerate(list(self._interest.items()), 1):
            queue = self._jobs.queues.get(name)
            if interest.wants(node.id) and queue is not None and not queue.pause & PAUSED_OUT:
                self.came(queue)
            if number % LOOKED_AT_ONCE == 0:
                yield None

    def imported(self, sender: Node, queue: JobQueue) -> None:
        """Count a job that a node has lent to this one, and ask that node for more if clients still wait."""
        self._imports.setdefault(queue.name, Imports()).came(sender.id, 1, self._now_ms)
        self.jobs_taken[sender.id] = self.jobs_taken.get(sender.id, 0) + 1
        self._want_another(sender, queue)
        self._look_soon()

    def clear(self) -> None:
        """Reset after all jobs were deleted and waiting clients sent away, and withdraw this node's interest."""
        if self._waited_at_ms:
            self._peers.tell_each(self._peers.up(), NeedNothing())
        self._imports, self._waited_at_ms, self._to_announce, self._on_the_way = {}, {}, {}, {}
        self._interest = {}
        self._looked_at = []
