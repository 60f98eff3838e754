"""ADDJOB and GETJOB: their options, checks, execution, and replies with many or large jobs."""

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from kestreld.cluster.shared_jobs import SharedJobs
from kestreld.jobs.globs import Glob
from kestreld.jobs.job import Job
from kestreld.jobs.job_queue import PAUSED_IN, AddedWith, JobQueue
from kestreld.jobs.keys import key_in
from kestreld.jobs.store import FOREVER_MS
from kestreld.queues.reports import Pieces
from kestreld.queues.slices import Work
from kestreld.server.disque import replies
from kestreld.server.disque.handler import DisqueHandler
from kestreld.server.disque.numbers import integer
from kestreld.server.disque.pending_addjob import STOPPING, Adding
from kestreld.server.disque.replies import NIL_ARRAY, SYNTAX_ERROR
from kestreld.server.disque.rights import OwnGlob

SPAN_S_MAX: Final = 36_500 * 86_400  # a century, the longest life of a job
TTL_S_DEFAULT: Final = 86_400
RETRY_S_DEFAULT: Final = 300
REPLICATE_MAX: Final = 65_535
AT_ONCE: Final = 256  # jobs that a command handles without a pause,
SHARED_AT_ONCE: Final = 32  # and if other nodes must be told of each
QUEUES_MAX: Final = 4096  # of a GETJOB
PIECE_BYTES: Final = 1 << 16
LARGE_BYTES: Final = 1 << 18  # of bodies: more are not put into one reply without a pause
FIRST: Final = 1 << 62

NO_REPLICAS: Final = b"NOREPL Not enough reachable nodes for the requested replication level"
NO_OWN_COPY: Final = NO_REPLICAS + b", since I'm unable to hold a copy of the message for the following reason: "


class AddOptions:
    """Options of ADDJOB. `retry_s` -1 and `replicate` 0 = not given; `maxlen` 0 = no limit."""

    __slots__ = (
        "added_with", "delay_s", "error", "is_async", "key", "maxlen", "replicate", "retries", "retry_s", "ttl_s"
    )  # fmt: skip

    def __init__(self) -> None:
        self.replicate = 0
        self.is_async = False
        self.ttl_s = TTL_S_DEFAULT
        self.retry_s = -1
        self.delay_s = 0
        self.maxlen = 0
        self.retries = -1
        self.key = b""
        self.error = b""  # reply to a mistake in them
        self.added_with: AddedWith = (0, 0, 0, 0)

    def settle(self) -> None:
        """Compute the values that depend on others; called after all options."""
        if self.retry_s < 0:
            self.retry_s = RETRY_S_DEFAULT if self.ttl_s >= 10 * RETRY_S_DEFAULT else max(self.ttl_s // 10, 1)
        self.added_with = (self.ttl_s * 1000, self.retry_s * 1000, self.delay_s, self.retries)


# Word -> the attribute, the least and the greatest value, and the error for any other.
_NUMBERS: Final = {
    b"replicate": ("replicate", 1, REPLICATE_MAX, b"REPLICATE must be between 1 and 65535"),
    b"ttl": ("ttl_s", 1, FIRST, b"TTL must be a number > 0"),
    b"retry": ("retry_s", 0, FIRST, b"RETRY time must be a non negative number"),
    b"delay": ("delay_s", 0, FIRST, b"DELAY time must be a non negative number"),
    b"maxlen": ("maxlen", 1, FIRST, b"MAXLEN must be a positive number"),
    b"retries": ("retries", 0, FIRST, b"RETRIES must be a non negative number"),
}


def add_options(words: list[bytes]) -> AddOptions:
    """Parse the options; `error` is set by the first mistake in them."""
    options = AddOptions()
    at, last = 0, len(words) - 1
    while at <= last:
        word = words[at].lower()
        at += 1
        if word == b"async":
            options.is_async = True
            continue
        if at > last or (word != b"id" and word not in _NUMBERS):
            options.error = SYNTAX_ERROR
            return options
        value = words[at]
        at += 1
        if word == b"id":
            options.key = value
            continue
        field, least, most, problem = _NUMBERS[word]
        number = integer(value)
        if number is None or not least <= number <= most:
            options.error = replies.error(b"ERR " + problem)
            return options
        setattr(options, field, number)
    options.settle()
    return options


_PLAIN: Final = AddOptions()
_PLAIN.settle()


def addjob(handler: DisqueHandler, words: list[bytes]) -> None:
    jobs = handler.jobs
    queue = jobs.find_queue(words[1])
    options = _PLAIN if len(words) == 4 else add_options(words[4:])
    shared = handler.node.shared if jobs.copies is not None else None
    replicate = options.replicate
    if shared is not None and not (replicate or options.error):
        replicate = shared.replicating.default_copies()
    refusal = options.error or _cannot_add(handler, words, options, replicate, queue)
    if refusal:
        handler.out.append(refusal)
        return
    if options.key and (known := _known_job(handler, words[1], options.key)) is not None:
        handler.depend_on_log()
        handler.out.append(replies.status(known))
        return
    if queue is None:
        queue = jobs.queue(words[1])
    if queue is None:
        handler.out.append(replies.TOO_MANY_QUEUES)
        return
    if shared is not None and not options.replicate:
        shared.replicating.note_default(replicate)
    if shared is not None and (replicate > 1 or options.key or not shared.peers.keeps_copies):
        _add_to_cluster(handler, shared, queue, words, options, replicate)
        return
    job = jobs.add(words[2], queue.terms_of(options.added_with, options.key))
    handler.depend_on_log()
    handler.out.append(b"+%b\r\n" % job.id)


def _add_to_cluster(
    handler: DisqueHandler, shared: SharedJobs, queue: JobQueue, words: list[bytes], options: AddOptions, replicate: int
) -> None:
    """Add a job that other nodes are to hold, or must be asked about."""
    wait_ms = 0 if words[3] == b"0" else integer(words[3]) or 0
    due_at_ms = handler.state.clock.monotonic_ms + wait_ms if wait_ms else FOREVER_MS
    adding = Adding(handler.added, shared, due_at_ms, queue, words[2], options.added_with, options.key, replicate)
    adding.begin(waits=not options.is_async)
    if not adding.over:
        handler.wait(adding, STOPPING)


def _known_job(handler: DisqueHandler, queue: bytes, key: bytes) -> bytes | None:
    """Return the id of the job added with this key; None if there is none, or other nodes must be asked."""
    jobs, shared = handler.jobs, handler.node.shared
    if shared is not None and jobs.copies is not None:
        return shared.keys.known_here(key_in(queue, key))
    return jobs.keys.find(key_in(queue, key), jobs.now_ms)


def _cannot_add(
    handler: DisqueHandler, words: list[bytes], options: AddOptions, replicate: int, queue: JobQueue | None
) -> bytes:
    """Return the reply that refuses the job, b"" = none, by Disque's order. `replicate` 0 = this node only."""
    node = handler.node
    if words[3] != b"0":
        wait_ms = integer(words[3])
        if wait_ms is None:
            return b"-ERR timeout is not an integer or out of range\r\n"
        if wait_ms < 0:
            return b"-ERR timeout is negative\r\n"
    if options is not _PLAIN:
        if not options.retry_s and (options.replicate > 1 or (not options.replicate and node.has_others)):
            return b"-ERR With RETRY set to 0 please explicitly set  REPLICATE to 1 (at-most-once delivery)\r\n"
        if options.delay_s >= options.ttl_s:
            return b"-ERR The specified DELAY is greater than TTL. Job refused since would never be delivered\r\n"
        if options.ttl_s > SPAN_S_MAX or options.retry_s > SPAN_S_MAX:
            return b"-ERR TTL and RETRY must not exceed %d seconds\r\n" % SPAN_S_MAX
        if options.key and _known_job(handler, words[1], options.key) is not None:
            return b""  # nothing is added: the queue may be full of just this job
    refusal = _no_replicas(handler, replicate or 1, is_default=not options.replicate)
    if refusal:
        return refusal
    if node.job_bytes_max is not None and len(words[2]) > node.job_bytes_max:
        return b"-ERR job body too large: the maximum is %d bytes\r\n" % node.job_bytes_max
    if queue is not None:
        if 0 < options.maxlen <= queue.jobs.count:
            return b"-MAXLEN Queue is already longer than the specified MAXLEN count\r\n"
        if queue.pause & PAUSED_IN:
            return b"-PAUSED Queue paused in input, try later\r\n"
    return b""


def _no_replicas(handler: DisqueHandler, replicate: int, *, is_default: bool) -> bytes:
    """Return the reply if there are too few nodes for the copies of a job now, b"" = there are enough."""
    node, jobs = handler.node, handler.jobs
    shared = node.shared if jobs.copies is not None else None
    if is_default and replicate < node.min_replicate:
        return b"-%b: jobs.min_replicate is %d\r\n" % (NO_REPLICAS, node.min_replicate)
    others = 0 if shared is None else len(shared.peers.takers())
    keeps = not (node.is_leaving or jobs.memory.level)
    if others + keeps >= replicate:
        return b""
    if keeps or others + 1 < replicate:
        return b"-%b\r\n" % NO_REPLICAS
    return b"-%b%b\r\n" % (NO_OWN_COPY, b"I'm leaving the cluster" if node.is_leaving else b"I'm out of memory")


class GetOptions:
    """Options of GETJOB, and the names after FROM."""

    __slots__ = ("count", "counters", "error", "is_pattern", "names", "nohang", "origin", "wait_ms")

    def __init__(self) -> None:
        self.nohang = False
        self.counters = False
        self.origin = False
        self.is_pattern = False  # the names are patterns
        self.wait_ms = 0  # 0 = forever
        self.count = 1
        self.names: list[bytes] = []
        self.error = b""


def get_options(words: list[bytes]) -> GetOptions:
    """Parse the options and names; `error` is set by the first mistake in them."""
    options = GetOptions()
    at, last = 1, len(words) - 1
    while at <= last:
        word = words[at].lower()
        at += 1
        if word == b"from":
            options.names = words[at:]
            break
        if word == b"nohang":
            options.nohang = True
        elif word == b"withcounters":
            options.counters = True
        elif word == b"withorigin":
            options.origin = True
        elif word == b"match":
            options.is_pattern = True
        elif word in (b"timeout", b"count") and at <= last:
            number = integer(words[at])
            at += 1
            if word == b"count":
                if number is None or number <= 0:
                    options.error = b"-ERR COUNT must be a number greater than zero\r\n"
                    return options
                options.count = number
            elif number is None or number > 1 << 52:
                options.error = b"-ERR timeout is not an integer or out of range\r\n"
                return options
            elif number < 0:
                options.error = b"-ERR timeout is negative\r\n"
                return options
            else:
                options.wait_ms = number
        else:
            break
    if not options.names:
        options.error = SYNTAX_ERROR
    elif len(options.names) > QUEUES_MAX:
        options.error = b"-ERR too many queues in one GETJOB: the maximum is %d\r\n" % QUEUES_MAX
    return options


def getjob(handler: DisqueHandler, words: list[bytes]) -> None:
    jobs = handler.jobs
    if len(words) == 3 and words[1] == b"FROM":
        queue = jobs.queue(words[2])
        job = jobs.take(queue) if queue is not None else None
        if job is not None:
            if not job.terms.retry_ms:
                handler.hand_out(job)
            handler.out.append(b"*1\r\n" + replies.fetched(job, job.body))
            return
    options = get_options(words)
    if options.error:
        handler.out.append(options.error)
        return
    if options.is_pattern:
        handler.carry_out(_fetch_like(handler, options), is_short=jobs.queues.count <= AT_ONCE)
        return
    queues: dict[JobQueue, None] = {}
    for name in options.names:
        queue = jobs.queue(name)
        if queue is None:
            handler.out.append(replies.TOO_MANY_QUEUES)
            return
        queues[queue] = None
    fetch(handler, options, list(queues), [])


def _fetch_like(handler: DisqueHandler, options: GetOptions) -> Iterator[None]:
    """Fetch from the queues whose names match the patterns, those of the first pattern first."""
    account = handler.account
    globs = [Glob(name) if account is None else OwnGlob(name, account) for name in options.names]
    found: list[list[JobQueue]] = [[] for _ in globs]
    for place, queue in enumerate(handler.jobs.queues, 1):
        if queue.jobs.count:
            for glob, queues in zip(globs, found, strict=True):
                if glob.matches(queue.name):
                    queues.append(queue)
                    break
        if place % AT_ONCE == 0:
            yield
    if not handler.gone:
        jobs = handler.jobs
        fetch(handler, options, [queue for queues in found for queue in queues if jobs.has(queue)], globs)


def jobs_at_once(handler: DisqueHandler) -> int:
    """Number of jobs that a command hands out, or ends, without a pause."""
    return AT_ONCE if handler.jobs.copies is None else SHARED_AT_ONCE


def fetch(handler: DisqueHandler, options: GetOptions, queues: list[JobQueue], globs: list[Glob]) -> None:
    """Answer with jobs, or wait for one if there are none."""
    at_once = jobs_at_once(handler)
    if options.count > at_once and sum([queue.jobs.count for queue in queues]) > at_once:
        handler.answer_in_pieces(_many(handler, options, queues, globs))
        return
    taken: list[Job] = []
    for job in rounds(handler, queues, options.count):
        if job is not None:
            taken.append(job)
    for one in taken:
        handler.hand_out(one)
    if len(taken) > 1 and are_large(taken):
        handler.answer_in_pieces(_written(options, taken, [job.body for job in taken]))
    elif taken:
        handler.out.append(b"*%d\r\n%b" % (len(taken), b"".join([_fetched(job, job.body, options) for job in taken])))
    else:
        _wait(handler, options, queues, globs)


def _wait(handler: DisqueHandler, options: GetOptions, queues: list[JobQueue], globs: list[Glob]) -> None:
    """Wait for a job, unless the client does not want to or the node is leaving."""
    if options.nohang:
        handler.out.append(NIL_ARRAY)
    elif handler.node.is_leaving:
        handler.out.append(handler.node.LEAVING)
    elif not handler.gone:
        handler.wait_for_job(queues, globs, options.wait_ms, partial(_fetched, options=options))


def rounds(handler: DisqueHandler, queues: list[JobQueue], count: int) -> Iterator[Job | None]:
    """Yield up to `count` jobs, one of each queue in turn; None where a queue has none."""
    while count > 0 and queues:
        left: list[JobQueue] = []
        for queue in queues:
            job = handler.jobs.take(queue)
            yield job
            if job is not None:
                left.append(queue)
                count -= 1
                if count == 0:
                    return
        queues = left


def _fetched(job: Job, body: bytes, options: GetOptions) -> bytes:
    if options.counters or options.origin:
        return replies.fetched_with(job, body, counters=options.counters, origin=options.origin)
    return replies.fetched(job, body)


def _many(handler: DisqueHandler, options: GetOptions, queues: list[JobQueue], globs: list[Glob]) -> Pieces:
    """Hand out more jobs than are taken without a pause, then write the reply."""
    taken, bodies, table = list[Job](), list[bytes](), handler.jobs.table
    once: Job | None = None  # one that is delivered at most once
    try:
        for job in rounds(handler, queues, options.count):
            if job is not None:
                taken.append(job)
                bodies.append(job.body)
                once = once if job.terms.retry_ms else job
            yield None
            if handler.jobs.table is not table:
                break  # all jobs have been replaced, and these queues with them
        if taken:
            if once is not None:
                handler.hand_out(once)
            yield from _written(options, taken, bodies)
        else:
            _wait(handler, options, [queue for queue in queues if handler.jobs.has(queue)], globs)
    finally:
        let_go(handler, taken, bodies)


def _written(options: GetOptions, taken: list[Job], bodies: list[bytes]) -> Pieces:
    return in_pieces(len(taken), map(partial(_fetched, options=options), taken, bodies))


def are_large(jobs: list[Job]) -> bool:
    """Return True if a reply with the bodies of all jobs must be written in pieces."""
    return sum([len(job.body) for job in jobs]) > LARGE_BYTES


def let_go(handler: DisqueHandler, *lists: list[Any]) -> None:
    """Empty long lists in steps: releasing a million references takes 20 ms."""
    if max(map(len, lists)) <= AT_ONCE:
        return

    def emptied() -> Work:
        for some in lists:
            while some:
                del some[-AT_ONCE:]
                yield None

    handler.state.control.take_on(emptied())


def in_pieces(count: int, parts: Iterator[bytes]) -> Pieces:
    """Yield an array of `count` elements as a long reply."""
    piece, size_bytes = [b"*%d\r\n" % count], 0
    for part in parts:
        piece.append(part)
        size_bytes += len(part)
        if size_bytes >= PIECE_BYTES:
            yield b"".join(piece)
            piece, size_bytes = [], 0
        else:
            yield None
    if piece:
        yield b"".join(piece)
