"""Which node queues a job again: what each owner does when another says something of it, as a table.

A job is handed out by one node at a time because its owners tell each other before they queue it (WILLQUEUE, half a
second ahead) and when they do (QUEUED): the others put off the time at which they would. Should two queue it at once,
both learn of it, and one of them takes it back.
"""

from enum import Enum, auto
from typing import Final

from kestreld.jobs.job import ACKED, ACTIVE, DELAYED, QUEUED, WAIT_REPL
from kestreld.jobs.job_id import ID_BYTES

WILL_QUEUE_MS: Final = 500  # so long before it queues a job, a node says so
_RANDOM_FROM: Final = 11  # where the part of a job's id begins that is by chance
_RANDOM_BYTES: Final = 24


class Word(Enum):
    """What a node says of a job."""

    WILL_QUEUE = auto()
    HAS_QUEUED = auto()
    WORKING = auto()  # a worker is at it
    ENQUEUE = auto()  # queue it


class Do(Enum):
    """What becomes of the job here."""

    NOTHING = auto()
    KNOW_OWNER = auto()  # the sender may have it, too
    PUT_OFF = auto()  # it is not queued here before another retry time is over
    TAKE_BACK = auto()  # out of the queue, and as PUT_OFF
    SETTLE = auto()  # both have it in their queues: as TAKE_BACK where the sender is the greater
    SAY_QUEUED = auto()  # tell all owners that it is queued here
    SAY_ACKED = auto()  # tell the sender that it is acknowledged
    QUEUE = auto()


REACTIONS: Final = {
    Word.WILL_QUEUE: {
        WAIT_REPL: Do.NOTHING,
        ACTIVE: Do.KNOW_OWNER,
        DELAYED: Do.KNOW_OWNER,
        QUEUED: Do.SAY_QUEUED,
        ACKED: Do.SAY_ACKED,
    },
    Word.HAS_QUEUED: {
        WAIT_REPL: Do.NOTHING,
        ACTIVE: Do.PUT_OFF,
        DELAYED: Do.PUT_OFF,
        QUEUED: Do.SETTLE,
        ACKED: Do.SAY_ACKED,
    },
    Word.WORKING: {
        WAIT_REPL: Do.NOTHING,
        ACTIVE: Do.PUT_OFF,
        DELAYED: Do.PUT_OFF,
        QUEUED: Do.TAKE_BACK,
        ACKED: Do.SAY_ACKED,
    },
    Word.ENQUEUE: {
        WAIT_REPL: Do.NOTHING,
        ACTIVE: Do.QUEUE,
        DELAYED: Do.QUEUE,
        QUEUED: Do.NOTHING,
        ACKED: Do.SAY_ACKED,
    },
}


def is_greater(one: bytes, other: bytes, job_id: bytes) -> bool:
    """Whether the first of two nodes keeps a job that both have queued: which one it is differs from job to job.

    As Disque has it: ids of nodes are compared after each of their characters was XORed with those of the job's id that
    are by chance, which are fewer and come again.
    """
    assert len(job_id) == ID_BYTES
    chance = job_id[_RANDOM_FROM : _RANDOM_FROM + _RANDOM_BYTES]
    for place, (mine, its) in enumerate(zip(one, other, strict=True)):
        if mine != its:
            mask = chance[place % _RANDOM_BYTES]
            return mine ^ mask > its ^ mask
    return False
