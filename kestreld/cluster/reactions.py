"""Decision table of a job's holders: each one's reaction to another's notice, so that one queues the job again.

A job is in one queue at a time because its holders tell each other before they queue it again (WILLQUEUE, half a second
ahead) and when they do (QUEUED): the others put off their own requeue. If two queue it at once, both learn of it, and
one of them takes it back.
"""

from enum import Enum, auto
from typing import Final

from kestreld.jobs.job import ACKED, ACTIVE, BORROWED, COPY, DELAYED, LENT, LET_GO, QUEUED, WAIT_REPL
from kestreld.jobs.job_id import ID_BYTES

_RANDOM_FROM: Final = 11  # start of the random part of a job's id
_RANDOM_BYTES: Final = 24


class Word(Enum):
    """Kinds of `Notice`, a node's message about a job."""

    WILL_QUEUE = auto()
    HAS_QUEUED = auto()
    WORKING = auto()  # a worker has it
    ENQUEUE = auto()  # queue it


class Do(Enum):
    """Reactions to a notice."""

    NOTHING = auto()
    KNOW_OWNER = auto()  # the sender may hold it, too
    NOTE = auto()  # note that it is queued elsewhere, or soon will be
    PUT_OFF = auto()  # out of the queue, and not queued here before another retry time is over
    SETTLE = auto()  # both have queued it: as PUT_OFF if the sender is the greater
    SAY_QUEUED = auto()  # tell all holders that it is queued here
    SAY_DELAYED = auto()  # tell the sender when it will be
    SAY_WORKING = auto()  # tell the sender how long a worker of this node may still have it, if that is long
    SAY_ACKED = auto()  # tell the sender that it is acknowledged
    QUEUE = auto()


_ONLY_ONE_HOLDS_IT: Final = {BORROWED: Do.NOTHING, LENT: Do.NOTHING, LET_GO: Do.NOTHING}

REACTIONS: Final = {
    Word.WILL_QUEUE: {
        WAIT_REPL: Do.NOTE,
        ACTIVE: Do.SAY_WORKING,
        COPY: Do.KNOW_OWNER,
        DELAYED: Do.SAY_DELAYED,
        QUEUED: Do.SAY_QUEUED,
        ACKED: Do.SAY_ACKED,
        **_ONLY_ONE_HOLDS_IT,
    },
    Word.HAS_QUEUED: {
        WAIT_REPL: Do.NOTE,
        ACTIVE: Do.PUT_OFF,
        COPY: Do.PUT_OFF,
        DELAYED: Do.PUT_OFF,
        QUEUED: Do.SETTLE,
        ACKED: Do.SAY_ACKED,
        **_ONLY_ONE_HOLDS_IT,
    },
    Word.WORKING: {
        WAIT_REPL: Do.NOTE,
        ACTIVE: Do.PUT_OFF,
        COPY: Do.PUT_OFF,
        DELAYED: Do.PUT_OFF,
        QUEUED: Do.PUT_OFF,
        ACKED: Do.SAY_ACKED,
        **_ONLY_ONE_HOLDS_IT,
    },
    Word.ENQUEUE: {
        WAIT_REPL: Do.NOTHING,
        ACTIVE: Do.NOTHING,  # a worker of this node has it
        COPY: Do.QUEUE,
        DELAYED: Do.QUEUE,
        QUEUED: Do.NOTHING,
        ACKED: Do.SAY_ACKED,
        **_ONLY_ONE_HOLDS_IT,
    },
}


def is_greater(one: bytes, other: bytes, job_id: bytes) -> bool:
    """Return True if the first of two nodes keeps a job that both have queued; the result varies from job to job.

    Computed as in Disque: the characters of both node ids are XORed with the random ones of the job id, which are fewer
    and repeat, and then compared.
    """
    assert len(job_id) == ID_BYTES
    mask = job_id[_RANDOM_FROM : _RANDOM_FROM + _RANDOM_BYTES]
    for place, (mine, its) in enumerate(zip(one, other, strict=True)):
        if mine != its:
            byte = mask[place % _RANDOM_BYTES]
            return mine ^ byte > its ^ byte
    return False
