"""The commands on jobs by their ids."""

from collections.abc import Callable, Iterator
from typing import Final

from kestreld.jobs.importing import JobImporter
from kestreld.jobs.job import Job
from kestreld.jobs.job_id import is_job_id
from kestreld.journal.disque_aof import read_saved_job
from kestreld.server.disque import replies
from kestreld.server.disque.handler import DisqueHandler
from kestreld.server.disque.job_commands import AT_ONCE, SPAN_S_MAX, TOO_MANY_QUEUES
from kestreld.server.disque.numbers import integer
from kestreld.server.disque.replies import BAD_ID, NIL, NIL_ARRAY

ACKNOWLEDGED: Final = "acked"


def _each(handler: DisqueHandler, words: list[bytes], do: Callable[[Job], bool]) -> None:
    """Answer for how many of the jobs named something was done; nothing is, if one of the ids cannot be one."""
    ids = words[1:]
    if not all(map(is_job_id, ids)):
        handler.out.append(BAD_ID)
        return
    handler.depend_on_log()
    if len(ids) <= AT_ONCE:
        find = handler.jobs.table.get
        handler.out.append(b":%d\r\n" % sum([do(job) for job_id in ids if (job := find(job_id)) is not None]))
    else:
        handler.carry_out(_many_ids(handler, ids, do), is_short=False)


def _many_ids(handler: DisqueHandler, ids: list[bytes], do: Callable[[Job], bool]) -> Iterator[None]:
    done = 0
    for job_id in ids:
        job = handler.jobs.table.get(job_id)
        if job is not None:
            done += do(job)
        yield
    handler.depend_on_log()
    handler.out.append(replies.integer(done))


def ackjob(handler: DisqueHandler, words: list[bytes]) -> None:
    # Nobody else has a copy, so an acknowledged job need not be remembered.
    jobs = handler.jobs
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


def deljob(handler: DisqueHandler, words: list[bytes]) -> None:
    def delete(job: Job) -> bool:
        handler.jobs.remove(job)
        return True

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
    """The job, or an error as the answer."""
    if not is_job_id(job_id):
        handler.out.append(BAD_ID)
        return None
    job = handler.jobs.table.get(job_id)
    if job is None:
        handler.out.append(b"-NOJOB Job not known in the context of this node.\r\n")
    return job


def show(handler: DisqueHandler, words: list[bytes]) -> None:
    if not is_job_id(words[1]):
        handler.out.append(BAD_ID)
        return
    job = handler.jobs.table.get(words[1])
    handler.out.append(NIL if job is None else replies.shown(job, handler.jobs.node_id, handler.jobs.now_ms))


def importjob(handler: DisqueHandler, words: list[bytes]) -> None:
    """A job that an original Disque has saved, as in its append-only file."""
    jobs = handler.jobs
    try:
        saved = read_saved_job(words[1])
    except ValueError as error:
        handler.out.append(replies.error(b"ERR " + str(error).encode()))
        return
    if jobs.queues.get(saved.queue) is None and jobs.has_all_queues:
        handler.out.append(TOO_MANY_QUEUES)
        return
    handler.out.append(replies.integer(JobImporter(jobs).take_over(saved)))
    handler.depend_on_log()


def waitjob(handler: DisqueHandler, words: list[bytes]) -> None:
    wait_ms = integer(words[2])
    if wait_ms is None or wait_ms > 1 << 52:
        handler.out.append(b"-ERR timeout is not an integer or out of range\r\n")
    elif wait_ms < 0:
        handler.out.append(b"-ERR timeout is negative\r\n")
    else:
        job = _known(handler, words[1])
        if job is not None:
            handler.wait_for_end(job, wait_ms)


def deadjob(handler: DisqueHandler, words: list[bytes]) -> None:
    _each(handler, words, lambda job: job.terms.dead is None and handler.jobs.bury(job, b"asked"))


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
