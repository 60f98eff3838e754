"""Commands on queues: QLEN, QSTAT, QPEEK, PAUSE, QDEL, REDRIVE; and the scans QSCAN and JSCAN."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, TypeVar

from kestreld.config.users import Thing
from kestreld.jobs.job import ACTIVE, BORROWED, COPY, DELAYED, GONE, LENT, LET_GO, QUEUED, STATE_NAMES, WAIT_REPL, Job
from kestreld.jobs.job_queue import NOT_PAUSED, PAUSED_IN, PAUSED_OUT, JobQueue
from kestreld.jobs.table import Table
from kestreld.queues.reports import Pieces
from kestreld.server.disque import replies
from kestreld.server.disque.handler import DisqueHandler
from kestreld.server.disque.job_commands import AT_ONCE, are_large, in_pieces, jobs_at_once, let_go
from kestreld.server.disque.numbers import cursor, integer
from kestreld.server.disque.replies import NIL_ARRAY, NOT_AN_INTEGER, SYNTAX_ERROR, bulk

V = TypeVar("V", Job, JobQueue)
PAUSE_NAMES: Final = (b"none", b"in", b"out", b"all")
PAUSE_WORDS: Final = {b"none": NOT_PAUSED, b"in": PAUSED_IN, b"out": PAUSED_OUT, b"all": PAUSED_IN | PAUSED_OUT}
BAD_OPTION: Final = b"-ERR invalid cursor or option name\r\n"
COUNT_DEFAULT: Final = 100
NO_LIMIT: Final = -1  # of MAXLEN, also where a client says so
STEPS_OF_COUNT: Final = 10  # parts of the table that a scan examines for each element requested
# States that have one name for clients.
STATES_OF: Final = {ACTIVE: frozenset({ACTIVE, DELAYED, COPY, LENT}), WAIT_REPL: frozenset({WAIT_REPL, BORROWED})}


def qlen(handler: DisqueHandler, words: list[bytes]) -> None:
    queue = handler.jobs.queues.get(words[1])
    handler.out.append(replies.integer(0 if queue is None else queue.jobs.count))


def qstat(handler: DisqueHandler, words: list[bytes]) -> None:
    jobs = handler.jobs
    queue = jobs.find_queue(words[1])
    if queue is None:
        handler.out.append(NIL_ARRAY)
        return
    now_ms = jobs.now_ms
    blocked = len(queue.waiters) + jobs.patterns.count(queue.name)
    fields = [
        (b"name", bulk(queue.name)),
        (b"len", replies.integer(queue.jobs.count)),
        (b"age", replies.integer((now_ms - queue.created_at_ms) // 1000)),
        (b"idle", replies.integer((now_ms - queue.used_at_ms) // 1000)),
        (b"blocked", replies.integer(blocked)),
        (b"import-from", replies.array(map(bulk, handler.node.import_sources(queue)))),
        (b"import-rate", replies.integer(handler.node.import_rate(queue))),
        (b"jobs-in", replies.integer(queue.jobs_in)),
        (b"jobs-out", replies.integer(queue.jobs_out)),
        (b"pause", bulk(PAUSE_NAMES[queue.pause])),
    ]
    handler.out.append(replies.pairs(fields))


def qcount(handler: DisqueHandler, words: list[bytes]) -> None:
    queue = handler.jobs.queues.get(words[1])
    counts = (0, 0, 0) if queue is None else (queue.jobs.count, queue.active, queue.delayed)
    named = zip((b"queued", b"active", b"delayed"), counts, strict=True)
    handler.out.append(replies.pairs([(name, replies.integer(count)) for name, count in named]))


def qpeek(handler: DisqueHandler, words: list[bytes]) -> None:
    count = integer(words[2])
    if count is None:
        handler.out.append(NOT_AN_INTEGER)
        return
    queue = handler.jobs.queues.get(words[1])
    if queue is None or not count:
        handler.out.append(replies.array([]))
        return
    if min(abs(count), queue.jobs.count) <= AT_ONCE:
        order = queue.jobs.oldest() if count > 0 else queue.jobs.newest()
        jobs = list(islice(order, abs(count)))
        fetched = map(replies.fetched, jobs, [job.body for job in jobs])
        if are_large(jobs):
            handler.answer_in_pieces(in_pieces(len(jobs), fetched))
        else:
            handler.out.append(replies.array(fetched))
    else:
        handler.answer_in_pieces(_peeked(handler, queue, count))


def _peeked(handler: DisqueHandler, queue: JobQueue, count: int) -> Pieces:
    """Yield many jobs of a queue that changes meanwhile, as far as they are in it when looked at."""
    some, bodies = list[Job](), list[bytes]()
    try:
        for chunk in queue.jobs.chunks(is_newest_first=count < 0):
            there = [job for job in chunk[: abs(count) - len(some)] if job.state == QUEUED]
            some += there
            bodies += [job.body for job in there]
            yield None
            if len(some) >= abs(count):
                break
        yield from in_pieces(len(some), map(replies.fetched, some, bodies))
    finally:
        let_go(handler, some, bodies)


def pause(handler: DisqueHandler, words: list[bytes]) -> None:
    jobs, name = handler.jobs, words[1]
    state, is_set, is_everywhere = NOT_PAUSED, False, False
    for word in words[2:]:
        word = word.lower()
        if word in PAUSE_WORDS:
            is_set = True
            state = state | PAUSE_WORDS[word] if word != b"none" else NOT_PAUSED
        elif word == b"bcast":
            is_everywhere = True
        elif word != b"state":
            handler.out.append(SYNTAX_ERROR)
            return
    queue = jobs.queue(name) if is_set and state else jobs.find_queue(name)
    if is_set and state and queue is None:
        handler.out.append(replies.TOO_MANY_QUEUES)
        return
    if is_set and queue is not None:
        jobs.pause(queue, state)
        handler.depend_on_log()
    pause = queue.pause if queue is not None else NOT_PAUSED
    if is_everywhere and handler.node.shared is not None:
        handler.node.shared.pause_everywhere(name, pause)
    handler.out.append(replies.status(PAUSE_NAMES[pause]))


def qdel(handler: DisqueHandler, words: list[bytes]) -> None:
    where = words[2].lower() if len(words) == 3 else b"local"
    if where not in (b"local", b"bcast"):
        handler.out.append(SYNTAX_ERROR)
        return
    if where == b"bcast" and handler.node.shared is not None:
        handler.node.shared.empty_everywhere(words[1])
    queue = handler.jobs.queues.get(words[1])
    if queue is None:
        handler.out.append(replies.integer(0))
        return
    handler.carry_out(_delete_all(handler, queue), is_short=queue.jobs.count == queue.total <= jobs_at_once(handler))


def _delete_all(handler: DisqueHandler, queue: JobQueue) -> Iterator[None]:
    """Delete the jobs that the queue has now."""
    deleted = 0
    for so_far in handler.jobs.delete_all(queue):
        deleted = so_far
        yield
    handler.depend_on_log()
    handler.out.append(replies.integer(deleted))


def redrive(handler: DisqueHandler, words: list[bytes]) -> None:
    count: int | None = 1 << 62
    if len(words) == 4 and words[2].lower() == b"count":
        count = integer(words[3])
    elif len(words) != 2:
        handler.out.append(SYNTAX_ERROR)
        return
    if count is None or count <= 0:
        handler.out.append(b"-ERR COUNT must be a number greater than zero\r\n")
        return
    queue = handler.jobs.queues.get(words[1])
    if queue is None:
        handler.out.append(replies.integer(0))
    else:
        handler.carry_out(
            _redriven(handler, queue, count), is_short=min(queue.jobs.count, count) <= jobs_at_once(handler)
        )


def _redriven(handler: DisqueHandler, queue: JobQueue, count: int) -> Iterator[None]:
    """Put dead letters back where they came from, the oldest first; other jobs are skipped."""
    jobs, done = handler.jobs, 0
    for chunk in queue.jobs.chunks(is_newest_first=False):
        for job in chunk:
            if done == count:
                break
            if job.state == QUEUED and job.terms.queue is queue and jobs.has(queue) and jobs.redrive(job):
                done += 1
            yield
    handler.depend_on_log()
    handler.out.append(replies.integer(done))


# QSCAN, JSCAN


class ScanOptions:
    """Options of a scan."""

    __slots__ = ("count", "cursor", "error", "filters", "is_busy", "queues", "reply", "states")

    def __init__(self) -> None:
        self.cursor: int | None = None
        self.count = COUNT_DEFAULT
        self.is_busy = False
        self.filters: dict[bytes, int] = {}
        self.queues = set[bytes]()
        self.states = set[int]()
        self.reply = b"id"
        self.error = b""


def scan_options(words: list[bytes], numbers: frozenset[bytes], *, of_jobs: bool) -> ScanOptions:
    """Parse the options of a scan; `error` is set by the first mistake. `numbers` are options with a number."""
    options = ScanOptions()
    at, last = 1, len(words) - 1
    while at <= last and not options.error:
        word, value = words[at].lower(), words[at + 1] if at < last else None
        if word == b"busyloop":
            options.is_busy = True
        elif value is not None and word in numbers:
            number = integer(value)
            if number is None:
                options.error = NOT_AN_INTEGER
            elif word == b"count":
                options.count = max(number, 1)
            else:
                options.filters[word] = number
            at += 1
        elif of_jobs and value is not None and word in (b"queue", b"state", b"reply"):
            _job_filter(options, word, value)
            at += 1
        elif options.cursor is not None:
            options.error = SYNTAX_ERROR
        else:
            options.cursor = cursor(words[at])
            if options.cursor is None:
                options.error = BAD_OPTION
        at += 1
    return options


def _job_filter(options: ScanOptions, word: bytes, value: bytes) -> None:
    if word == b"queue":
        options.queues.add(value)
    elif word == b"reply":
        options.reply = value.lower()
        if options.reply not in (b"id", b"all"):
            options.error = b"-ERR Invalid REPLY type, try ID or ALL\r\n"
    elif (state := STATE_NAMES.get(value.lower())) is None:
        options.error = b"-ERR Invalid job state name\r\n"
    else:
        options.states |= STATES_OF.get(state, frozenset({state}))


_QUEUE_NUMBERS: Final = frozenset([b"count", b"minlen", b"maxlen", b"importrate"])
_JOB_NUMBERS: Final = frozenset([b"count"])


def qscan(handler: DisqueHandler, words: list[bytes]) -> None:
    options = scan_options(words, _QUEUE_NUMBERS, of_jobs=False)
    filters, account = options.filters, handler.account
    least, most = filters.get(b"minlen", 0), filters.get(b"maxlen", NO_LIMIT)
    rate = filters.get(b"importrate", 0)

    def fits(queue: JobQueue) -> bool:
        if account is not None and not account.sees(queue.name.decode("latin-1"), Thing.JOB):
            return False
        is_short = most == NO_LIMIT or queue.jobs.count <= most
        return queue.is_listed and least <= queue.jobs.count and is_short and rate <= handler.node.import_rate(queue)

    _scan(handler, options, handler.jobs.queues, fits, lambda queue: bulk(queue.name), lambda queues: False)


def jscan(handler: DisqueHandler, words: list[bytes]) -> None:
    options = scan_options(words, _JOB_NUMBERS, of_jobs=True)
    queues, states, account = options.queues, options.states, handler.account

    def fits(job: Job) -> bool:
        name = job.terms.queue.name
        if job.state in (GONE, LET_GO) or handler.node.is_dummy(job):
            return False
        if account is not None and not account.sees(name.decode("latin-1"), Thing.JOB):
            return False
        return (not states or job.state in states) and (not queues or name in queues)

    def as_id(job: Job) -> bytes:
        return replies.status(job.id)

    def as_all(job: Job) -> bytes:
        return handler.node.shown(job)

    _scan(handler, options, handler.jobs.table, fits, as_id if options.reply == b"id" else as_all, are_large)


def _scan(
    handler: DisqueHandler,
    options: ScanOptions,
    table: Table[V],
    fits: Callable[[V], bool],
    written: Callable[[V], bytes],
    are_large: Callable[[list[V]], bool],
) -> None:
    if options.error:
        handler.out.append(options.error)
        return
    pieces = _found(handler, options, table, fits, written, are_large)
    is_long = table.count > AT_ONCE and (options.is_busy or options.count > AT_ONCE)
    if is_long or options.reply == b"all":
        handler.answer_in_pieces(pieces)
    else:
        handler.out += [piece for piece in pieces if piece is not None]


def _found(
    handler: DisqueHandler,
    options: ScanOptions,
    table: Table[V],
    fits: Callable[[V], bool],
    written: Callable[[V], bytes],
    are_large: Callable[[list[V]], bool],
) -> Pieces:
    """Yield a scan's reply, which begins with the number of elements: a few are written as of one instant."""
    found: list[V] = []
    next_cursor, left = 0, options.count * STEPS_OF_COUNT
    try:
        for following, some in table.scan(options.cursor or 0):
            next_cursor = following
            found += [one for one in some if fits(one)]
            left -= max(len(some), 1)
            if not options.is_busy and (len(found) >= options.count or left <= 0):
                break
            yield None
        yield b"*2\r\n" + bulk(b"%d" % next_cursor)
        if len(found) <= AT_ONCE and not are_large(found):
            yield replies.array([written(one) for one in found if fits(one)])
        else:
            yield from in_pieces(len(found), map(written, found))
    finally:
        let_go(handler, found)
