"""RESP2 replies, and the replies that describe a job."""

from collections.abc import Iterable, Sequence
from typing import Final

from kestreld.jobs.job import ACKED, DELAYED, NAMES, Job, created_of

OK: Final = b"+OK\r\n"
NIL: Final = b"$-1\r\n"
NIL_ARRAY: Final = b"*-1\r\n"
TOO_MANY_QUEUES: Final = b"-ERR too many queues\r\n"
SYNTAX_ERROR: Final = b"-ERR syntax error\r\n"
NOT_AN_INTEGER: Final = b"-ERR value is not an integer or out of range\r\n"
BAD_ID: Final = b"-BADID Invalid Job ID format.\r\n"
NO_JOB: Final = b"-NOJOB Job not known in the context of this node.\r\n"


def status(text: bytes) -> bytes:
    return b"+%b\r\n" % text


def error(text: bytes) -> bytes:
    """Make an error. `text` begins with its code; line ends in it, which would end the reply early, become blanks."""
    return b"-%b\r\n" % text.replace(b"\r", b" ").replace(b"\n", b" ")


def integer(number: int) -> bytes:
    return b":%d\r\n" % number


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def array(items: Iterable[bytes]) -> bytes:
    """Make an array of replies."""
    listed = list(items)
    return b"*%d\r\n%b" % (len(listed), b"".join(listed))


def pairs(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Make an array of keys and values; the values are replies."""
    return array([one for key, value in fields for one in (bulk(key), value)])


def fetched(job: Job, body: bytes) -> bytes:
    """Describe a job as GETJOB does. `body` is passed separately, because a later reply may find the job gone."""
    return b"".join((job.terms.queue.fetched_from, job.id, b"\r\n$%d\r\n" % len(body), body, b"\r\n"))


def fetched_with(job: Job, body: bytes, *, counters: bool, origin: bool) -> bytes:
    """Describe a job as GETJOB does WITHCOUNTERS or WITHORIGIN."""
    items = [bulk(job.terms.queue.name), bulk(job.id), bulk(body)]
    if counters:
        items += [bulk(b"nacks"), integer(job.nacks), bulk(b"additional-deliveries"), integer(job.deliveries)]
    if origin:
        dead = job.terms.dead
        items += [bulk(b"origin"), bulk(dead.origin if dead is not None else job.terms.queue.name)]
        items += [bulk(b"reason"), bulk(dead.reason) if dead is not None else NIL]
    return array(items)


def wrong_count(name: bytes) -> bytes:
    """Make the reply to a command with too few or too many words."""
    return error(b"ERR wrong number of arguments for '%b' command" % name)


def shown(job: Job, delivered: Sequence[bytes], confirmed: Sequence[bytes], now_ms: int) -> bytes:
    """Describe a job as SHOW does.

    `delivered` are ids of nodes that may hold it, empty for an acknowledged job that was never here. `confirmed` are
    ids of nodes that have said that they hold it, or know of its acknowledgement.
    """
    terms = job.terms
    expires_at_ms, requeue_at_ms = job.expires_at_ms, job.next_requeue_at_ms(now_ms)
    within: bytes = NIL
    awake_at_ms = expires_at_ms + 1000
    if requeue_at_ms:
        within = integer(max(requeue_at_ms - now_ms, 0))
        # A node tells others half a second before that it will queue a job that it has queued already.
        awake_at_ms = min(awake_at_ms, requeue_at_ms - (500 if job.state != DELAYED else 0))
    return pairs(
        [
            (b"id", bulk(job.id)),
            (b"queue", bulk(terms.queue.name) if delivered else NIL),
            (b"state", bulk(NAMES[job.state])),
            (b"repl", integer(terms.replicate)),
            (b"ttl", integer(max((expires_at_ms - now_ms + 999) // 1000, 0))),
            (b"ctime", integer(created_of(job.ctime))),
            (b"delay", integer(terms.delay_s)),
            (b"retry", integer(terms.retry_ms // 1000)),
            (b"nacks", integer(job.nacks)),
            (b"additional-deliveries", integer(job.deliveries)),
            (b"nodes-delivered", array(map(bulk, delivered))),
            (b"nodes-confirmed", array(map(bulk, confirmed))),
            (b"next-requeue-within", within),
            (b"next-awake-within", integer(max(awake_at_ms - now_ms, 0))),
            (b"body", bulk(job.body) if job.state != ACKED else NIL),
        ]
    )


def quoted(word: bytes) -> bytes:
    """Quote a word as MONITOR and logs show it."""
    return b'"%b"' % b"".join([_QUOTED[byte] for byte in word])


_NAMED: Final = {34: b'\\"', 92: b"\\\\", 10: b"\\n", 13: b"\\r", 9: b"\\t", 7: b"\\a", 8: b"\\b"}
_QUOTED: Final = [_NAMED.get(byte, b"%c" % byte if 32 <= byte < 127 else b"\\x%02x" % byte) for byte in range(256)]
