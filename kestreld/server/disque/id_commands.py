"""Commands on jobs by their ids: ACKJOB, NACK, ENQUEUE, SHOW, WAITJOB, DEADJOB and others."""

from collections.abc import Callable, Iterator
from typing import Final

from kestreld.cluster.job_watches import UNKNOWN
from kestreld.cluster.shared_jobs import SharedJobs
from kestreld.jobs.importing import JobImporter
from kestreld.jobs.job import ACKED, BORROWED, LENT, LET_GO, WAIT_REPL, Job
from kestreld.jobs.job_id import is_job_id, is_retried, ttl_ms_of
from kestreld.jobs.replicated_jobs import ACKNOWLEDGED
from kestreld.jobs.store import FOREVER_MS
from kestreld.journal.disque_aof import read_saved_job
from kestreld.queues.agenda import TimedWait
from kestreld.server.disque import replies
from kestreld.server.disque.handler import DisqueHandler
from kestreld.server.disque.job_commands import SPAN_S_MAX, jobs_at_once
from kestreld.server.disque.numbers import integer
from kestreld.server.disque.replies import BAD_ID, NIL, NIL_ARRAY, NO_JOB

Do = Callable[[bytes, Job | None], bool]  # acts on the job of that id, None = it is not on this node
NOT_MOVED: Final = frozenset({ACKED, LET_GO, BORROWED, LENT, WAIT_REPL})


def _each(handler: DisqueHandler, words: list[bytes], do: Callable[[Job], bool]) -> None:
    """`_each_id` for jobs that this node has."""
    _each_id(handler, words, lambda job_id, job: job is not None and do(job))


def _each_id(handler: DisqueHandler, words: list[bytes], do: Do) -> None:
    """Answer with the number of ids for which `do` did something; with an invalid id, nothing is done."""
    ids = words[1:]
    if not all(map(is_job_id, ids)):
        handler.out.append(BAD_ID)
        return
    handler.depend_on_log()
    if len(ids) <= jobs_at_once(handler):
        find = handler.jobs.table.get
        handler.out.append(b":%d\r\n" % sum([do(job_id, find(job_id)) for job_id in ids]))
    else:
        handler.carry_out(_many_ids(handler, ids, do), is_short=False)


def _many_ids(handler: DisqueHandler, ids: list[bytes], do: Do) -> Iterator[None]:
    done = 0
    for job_id in ids:
        done += do(job_id, handler.jobs.table.get(job_id))
        yield
    handler.depend_on_log()
    handler.out.append(replies.integer(done))


def ackjob(handler: DisqueHandler, words: list[bytes]) -> None:
    jobs = handler.jobs
    shared = handler.node.shared
    if jobs.copies is not None and shared is not None:
        _each_id(handler, words, _acknowledge_in_cluster(shared))
        return
    # Nobody else has a copy, so an acknowledged job need not be remembered.
    if len(words) == 2:
        job = jobs.find(words[1])
        if job is not None:
            jobs.remove(job, ACKNOWLEDGED)
            handler.depend_on_log()
            handler.out.append(b":1\r\n")
            return
    _each(handler, words, _acknowledge(handler))


def _acknowledge(handler: DisqueHandler) -> Callable[[Job], bool]:
    def acknowledge(job: Job) -> bool:
        handler.jobs.remove(job, ACKNOWLEDGED)
        return True

    return acknowledge


def _acknowledge_in_cluster(shared: SharedJobs) -> Do:
    def acknowledge(job_id: bytes, job: Job | None) -> bool:
        if job is not None and job.state == WAIT_REPL:
            shared.replicating.achieve(job_id)
            job = shared.jobs.find(job_id)
        if job is not None:
            return shared.acks.acknowledge(job)
        if is_retried(job_id):
            shared.acks.acknowledge_unknown(job_id, ttl_ms_of(job_id))
        return False

    return acknowledge


def fastack(handler: DisqueHandler, words: list[bytes]) -> None:
    shared = handler.node.shared
    if handler.jobs.copies is None or shared is None:
        ackjob(handler, words)
    else:
        _each_id(handler, words, lambda job_id, job: shared.delete_everywhere(job_id))


def deljob(handler: DisqueHandler, words: list[bytes]) -> None:
    def delete(job: Job) -> bool:
        if job.state == ACKED:
            return False  # it has ended, and must be remembered until other nodes know
        is_seen = job.state != LET_GO
        handler.jobs.remove(job)
        return is_seen

    _each(handler, words, delete)


def enqueue(handler: DisqueHandler, words: list[bytes]) -> None:
    _each(handler, words, handler.jobs.enqueue)


def dequeue(handler: DisqueHandler, words: list[bytes]) -> None:
    _each(handler, words, handler.jobs.dequeue)


def nack(handler: DisqueHandler, words: list[bytes]) -> None:
    delay_ms: int | None = None
    if len(words) > 3 and words[-2].lower() == b"delay":
        delay_s = integer(words[-1])
        if delay_s is None or not 0 <= delay_s <= SPAN_S_MAX:
            handler.out.append(b"-ERR DELAY time must be a non negative number\r\n")
            return
        delay_ms, words = delay_s * 1000, words[:-2]
    _each(handler, words, lambda job: handler.jobs.nack(job, delay_ms))


def working(handler: DisqueHandler, words: list[bytes]) -> None:
    job = _known(handler, words[1])
    if job is None:
        return
    elapsed_ms = handler.jobs.now_ms - job.created_at_ms
    if 2 * elapsed_ms > job.terms.ttl_ms:
        handler.out.append(
            b"-TOOLATE Half of job TTL already elapsed, you are no longer allowed to postpone the next delivery.\r\n"
        )
        return
    handler.jobs.working(job)
    handler.depend_on_log()
    handler.out.append(replies.integer(job.terms.retry_ms // 1000))


def _known(handler: DisqueHandler, job_id: bytes) -> Job | None:
    """Return the job, or answer with an error and return None."""
    if not is_job_id(job_id):
        handler.out.append(BAD_ID)
        return None
    job = handler.jobs.table.get(job_id)
    if job is None or job.state in NOT_MOVED:
        handler.out.append(NO_JOB)
        return None
    return job


def show(handler: DisqueHandler, words: list[bytes]) -> None:
    if not is_job_id(words[1]):
        handler.out.append(BAD_ID)
        return
    job = handler.jobs.table.get(words[1])
    handler.out.append(NIL if job is None or job.state == LET_GO else handler.node.shown(job))


def importjob(handler: DisqueHandler, words: list[bytes]) -> None:
    """Import a job saved by an original Disque, in the format of its append-only file."""
    jobs = handler.jobs
    try:
        saved = read_saved_job(words[1])
    except ValueError as error:
        handler.out.append(replies.error(b"ERR " + str(error).encode()))
        return
    if jobs.queues.get(saved.queue) is None and jobs.has_all_queues:
        handler.out.append(replies.TOO_MANY_QUEUES)
        return
    handler.out.append(replies.integer(JobImporter(jobs).take_over(saved)))
    handler.depend_on_log()


def waitjob(handler: DisqueHandler, words: list[bytes]) -> None:
    wait_ms = integer(words[2])
    if wait_ms is None or wait_ms > 1 << 52:
        handler.out.append(b"-ERR timeout is not an integer or out of range\r\n")
    elif wait_ms < 0:
        handler.out.append(b"-ERR timeout is negative\r\n")
    elif not is_job_id(words[1]):
        handler.out.append(BAD_ID)
    else:
        _wait_for_end(handler, words[1], wait_ms)


class _EndOfJob(TimedWait):
    """Wait of a WAITJOB for the end of a job."""

    __slots__ = ("_handler", "_job_id")

    def __init__(self, handler: DisqueHandler, job_id: bytes, due_at_ms: int) -> None:
        super().__init__(due_at_ms)
        self._handler = handler
        self._job_id = job_id

    def leave(self) -> None:
        if not self.over:
            self.over = True
            self._handler.node.unwatch(self._job_id, self.told)

    def told(self, end: str) -> None:
        """Answer with the end of the job, which may have moved to another node meanwhile."""
        self.over = True
        self._handler.wait_is_over(NO_JOB if end == UNKNOWN else replies.status(end.encode()))

    def fall_due(self, now_ms: int) -> None:
        self.leave()
        self._handler.wait_is_over(NIL)


def _wait_for_end(handler: DisqueHandler, job_id: bytes, wait_ms: int) -> None:
    jobs, shared = handler.jobs, handler.node.shared
    job = jobs.table.get(job_id)
    wait = _EndOfJob(handler, job_id, handler.state.clock.monotonic_ms + wait_ms if wait_ms else FOREVER_MS)
    if job is not None and job.state == ACKED:
        handler.out.append(replies.status(ACKNOWLEDGED.encode()))
    elif job is not None and job.state != LET_GO:
        handler.wait(wait, NIL)
        jobs.watch(job, wait.told)
    elif jobs.copies is None or shared is None:
        handler.out.append(NO_JOB)
    else:
        handler.wait(wait, NIL)
        shared.watches.watch(job_id, wait.told)


def deadjob(handler: DisqueHandler, words: list[bytes]) -> None:
    def bury(job: Job) -> bool:
        return job.state not in NOT_MOVED and job.terms.dead is None and handler.jobs.bury(job, b"asked")

    _each(handler, words, bury)


def deadshow(handler: DisqueHandler, words: list[bytes]) -> None:
    if not is_job_id(words[1]):
        handler.out.append(BAD_ID)
        return
    job = handler.jobs.table.get(words[1])
    dead = job.terms.dead if job is not None else None
    if job is None or dead is None:
        handler.out.append(NIL_ARRAY)
        return
    fields = [
        (b"id", replies.bulk(job.id)),
        (b"queue", replies.bulk(job.terms.queue.name)),
        (b"origin", replies.bulk(dead.origin)),
        (b"reason", replies.bulk(dead.reason)),
        (b"dead-since", replies.integer(dead.dead_at_ms + handler.jobs.drift_ms)),
        (b"nacks", replies.integer(job.nacks)),
        (b"additional-deliveries", replies.integer(job.deliveries)),
    ]
    handler.out.append(replies.pairs(fields))
