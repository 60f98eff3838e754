"""An ADDJOB that waits: for nodes that may know its client's own id, then for the requested copies."""

from collections.abc import Callable
from typing import Final

from kestreld.cluster.client_keys import KeySearch
from kestreld.cluster.shared_jobs import SharedJobs
from kestreld.jobs.job_queue import AddedWith, JobQueue
from kestreld.jobs.keys import key_in
from kestreld.queues.agenda import TimedWait
from kestreld.server.disque import replies

NOT_IN_TIME: Final = b"-NOREPL Timeout reached before replicating to the requested number of nodes\r\n"
REMOVED: Final = b"-NOREPL job removed (expired?) before the requested replication level was achieved\r\n"
STOPPING: Final = b"-NOREPL The node stops before the job is replicated to the requested number of nodes\r\n"
NOBODY: Final = b""


class Adding(TimedWait):
    """One job on its way into the cluster. The reply comes at once or later; a client that leaves gives up the job."""

    __slots__ = ("_answered", "_body", "_job_id", "_key", "_options", "_queue_name", "_replicate", "_search", "_shared")

    def __init__(
        self, answered: Callable[["Adding", bytes], None], shared: SharedJobs, due_at_ms: int, queue: JobQueue,
        body: bytes, options: AddedWith, key: bytes, replicate: int,
    ) -> None:  # fmt: skip
        super().__init__(due_at_ms)
        self._answered = answered
        self._shared = shared
        self._queue_name = queue.name
        self._body = body
        self._options = options
        self._key = key
        self._replicate = replicate
        self._search: KeySearch | None = None
        self._job_id = NOBODY  # of the job that waits for copies

    def begin(self, *, waits: bool) -> None:
        """Start; `waits` is True if the reply waits for copies, which it does not with ASYNC."""
        keys, jobs = self._shared.keys, self._shared.jobs
        if not self._key or not self._shared.peers.has_members():
            self._add(NOBODY, waits=waits)
        elif (queue := jobs.queue(self._queue_name)) is None:
            self._answer(replies.TOO_MANY_QUEUES)
        else:
            new_id = jobs.new_id(queue.terms_of(self._options))
            search = keys.find(
                key_in(self._queue_name, self._key), new_id, lambda known: self._found(known, new_id, waits=waits)
            )
            if not self.over and not self._job_id:
                self._search = search

    def _found(self, known: bytes, new_id: bytes, *, waits: bool) -> None:
        self._search = None
        if known:
            self._answer(replies.status(known))
        else:
            self._add(new_id, waits=waits)

    def _add(self, job_id: bytes, *, waits: bool) -> None:
        replicating = self._shared.replicating
        # While the key was looked for, the queue may have been flushed or collected.
        queue = self._shared.jobs.queue(self._queue_name)
        if queue is None:
            self._answer(replies.TOO_MANY_QUEUES)
        elif not waits:
            added = replicating.add_without_waiting(
                queue, self._body, self._options, self._key, self._replicate, job_id
            )
            self._answer(replies.status(added))
        elif replicating.copies_possible() < self._replicate:  # nodes were lost while the key was looked for
            self._answer(NOT_IN_TIME)
        else:
            job = replicating.add(queue, self._body, self._options, self._key, self._replicate, self._added, job_id)
            if job is not None:
                self._job_id = job.id
        self._body = b""

    def _added(self, job_id: bytes | None) -> None:
        self._job_id = NOBODY
        self._answer(REMOVED if job_id is None else replies.status(job_id))

    def _answer(self, reply: bytes) -> None:
        if not self.over:
            self.over = True
            self._answered(self, reply)

    def leave(self) -> None:
        """Give up the job, because the client no longer waits."""
        if self.over:
            return
        self.over = True
        if self._search is not None:
            self._shared.keys.cancel(self._search)
        if self._job_id:
            self._shared.replicating.give_up(self._job_id)

    def fall_due(self, now_ms: int) -> None:
        self.leave()
        self._answered(self, NOT_IN_TIME)
