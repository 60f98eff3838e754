"""Jobs on the admin port: pages of job queues, and lists of jobs.

GET /jobs/queues?after=&limit=                             a page of queues
GET /jobs?queue=&state=&after=&limit=&bytes=               jobs of queues, in a state
"""

import base64
import json
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

from aiohttp import web

from kestreld.config.users import Right, Thing
from kestreld.jobs.job import ACTIVE, COPY, DELAYED, QUEUED, Job
from kestreld.jobs.jobs import Jobs
from kestreld.jobs.table import PARTS
from kestreld.server.accounts import Account
from kestreld.server.admin.answers import Refused, Share, number_in, sees_jobs, stream
from kestreld.server.disque.figures import COLUMNS, JobFigures, Row

LIMIT_DEFAULT: Final = 100
LIMIT_MAX: Final = 1000
BODY_BYTES_MAX: Final = 4096
LOOKED_AT_MAX: Final = 200_000  # jobs, for one answer
STEP_JOBS: Final = 50
BAD_AFTER: Final = "after must be the next field of the previous reply"
STATES: Final = {"queued": QUEUED, "active": ACTIVE, "delayed": DELAYED, "copy": COPY}
_WORDS: Final = {state: word for word, state in STATES.items()}


@dataclass(frozen=True, slots=True)
class JobQuery:
    """Selection of jobs. `queues` empty = all that `sees` allows, `state` None = any."""

    queues: frozenset[bytes]
    state: int | None
    part: int  # of the table of jobs, where to begin,
    place: tuple[int, bytes] | None  # or ctime and id in a queue, to begin behind; None = jobs in no order
    limit: int
    body_bytes: int  # the most shown of each body
    sees: Callable[[bytes], bool]


class JobPages:
    """Pages about jobs. Nothing is changed here."""

    def __init__(self, figures: JobFigures, share: Share) -> None:
        self._figures = figures
        self._share = share

    async def answer(self, request: web.BaseRequest, parts: list[str], account: Account | None) -> web.StreamResponse:
        """Answer a request; `parts` is the path behind /jobs."""
        limit = number_in(request, "limit", 1, LIMIT_MAX, LIMIT_DEFAULT)
        words = parse_qsl(request.rel_url.raw_query_string, keep_blank_values=True, encoding="latin-1")
        after = dict(words).get("after", "")
        match parts:
            case []:
                pieces = listed(self._figures.jobs, self._query(request, words, after, limit, account))
            case ["queues"]:
                pieces = self._queues(_number(after), limit, account)
            case _:
                raise Refused(404, "not found")
        if request.method not in ("GET", "HEAD"):
            raise Refused(405, f"method {request.method} not allowed: use GET or HEAD")
        return await stream(request, pieces, "application/json", self._share)

    def _queues(self, part: int, limit: int, account: Account | None) -> Iterator[str | None]:
        """Yield a page of about `limit` queues."""
        jobs, sees, rows, next_part = self._figures.jobs, sees_jobs(account), list[Row](), 0
        for following, some in jobs.queues.scan(part):
            rows += [self._figures.row(queue) for queue in some if sees is None or sees(queue.name.decode("latin-1"))]
            yield None
            if len(rows) >= limit:
                next_part = following
                break
        head = {"now_ms": jobs.clock.wall_ms, "columns": COLUMNS, "next": str(next_part) if next_part else None}
        yield _json(head)[:-1] + ',"rows":['
        for start in range(0, len(rows), STEP_JOBS):
            yield ("," if start else "") + _json(rows[start : start + STEP_JOBS])[1:-1]
        yield "]}\n"

    def _query(
        self, request: web.BaseRequest, words: list[tuple[str, str]], after: str, limit: int, account: Account | None
    ) -> JobQuery:
        queues = frozenset([value.encode("latin-1") for word, value in words if word == "queue"])
        state = dict(words).get("state", "")
        if state and state not in STATES:
            raise Refused(400, f"state must be one of {', '.join(STATES)}")

        def sees(queue: bytes) -> bool:
            return account is None or account.may(Right.PEEK, queue.decode("latin-1"), Thing.JOB)

        for queue in queues:
            if not sees(queue):
                raise Refused(403, f"not allowed: peek on the jobs of {queue.decode('latin-1')!r}")
        body_bytes = number_in(request, "bytes", 0, BODY_BYTES_MAX, 0)
        is_in_order = state == "queued" and len(queues) == 1
        part, place = (0, _place(after)) if is_in_order else (_number(after), None)
        return JobQuery(queues, STATES.get(state), part, place, limit, body_bytes, sees)


def _number(after: str) -> int:
    if after and not (after.isascii() and after.isdecimal() and int(after[:9]) < PARTS):
        raise Refused(400, BAD_AFTER)
    return int(after or "0")


def _place(after: str) -> tuple[int, bytes]:
    ctime, _, job_id = after.partition("-")
    try:
        return int(ctime or "0"), bytes.fromhex(job_id)
    except ValueError as error:
        raise Refused(400, BAD_AFTER) from error


def listed(jobs: Jobs, query: JobQuery) -> Iterator[str | None]:
    """Yield jobs as JSON: those queued in one queue from the oldest on, else about `limit` in no order.

    An answer may have fewer jobs than exist, even none, since the number examined is limited: `next` continues.
    """
    if query.place is not None:
        found, following = _oldest(jobs, query, query.place)
    else:
        found, following = yield from _scanned(jobs, query)
    now_ms, drift_ms = jobs.now_ms, jobs.drift_ms
    yield _json({"now_ms": jobs.clock.wall_ms, "next": following or None})[:-1] + ',"jobs":['
    separator = ""
    for start in range(0, len(found), STEP_JOBS):
        some = [
            described(job, now_ms, drift_ms, query.body_bytes)
            for job in found[start : start + STEP_JOBS]
            if job.state in _WORDS  # it may be gone by now
        ]
        if some:
            yield separator + _json(some)[1:-1]
            separator = ","
    yield "]}\n"


def _oldest(jobs: Jobs, query: JobQuery, place: tuple[int, bytes]) -> tuple[list[Job], str]:
    (name,) = query.queues
    queue = jobs.queues.get(name)
    found: list[Job] = []
    for some in queue.jobs.behind(*place) if queue is not None else ():
        found += some
        if len(found) > query.limit:
            del found[query.limit :]
            return found, f"{found[-1].ctime}-{found[-1].id.hex()}"
    return found, ""


def _scanned(jobs: Jobs, query: JobQuery) -> Generator[None, None, tuple[list[Job], str]]:
    found: list[Job] = []
    looked_at = 0
    queues, state = query.queues, query.state

    def fits(queue: bytes) -> bool:
        return queue in queues if queues else query.sees(queue)

    for following, some in jobs.table.scan(query.part):
        found += [job for job in some if (state is None or job.state == state) and fits(job.terms.queue.name)]
        looked_at += len(some)
        yield
        if len(found) >= query.limit or looked_at >= LOOKED_AT_MAX:
            return found, str(following) if following else ""
    return found, ""


def described(job: Job, now_ms: int, drift_ms: int, body_bytes: int) -> dict[str, Any]:
    """Describe a job by the fields of the answer. Times are on the system clock."""
    terms = job.terms
    requeue_at_ms = job.next_requeue_at_ms(now_ms)
    found: dict[str, Any] = {
        "id": job.id.decode(),
        "queue": terms.queue.name.decode("utf-8", "surrogateescape"),
        "state": _WORDS[job.state],
        "next_requeue_at_ms": requeue_at_ms + drift_ms if requeue_at_ms else None,
        "created_at_ms": job.created_at_ms + drift_ms,
        "expires_at_ms": job.expires_at_ms + drift_ms,
        "retry_ms": terms.retry_ms,
        "nacks": job.nacks,
        "additional_deliveries": job.deliveries,
        "body_bytes": len(job.body),
    }
    if terms.dead is not None:
        found["origin"] = terms.dead.origin.decode("utf-8", "surrogateescape")
        found["reason"] = terms.dead.reason.decode()
    if body_bytes:
        try:
            found["data"] = job.body[:body_bytes].decode()
        except UnicodeDecodeError:
            found["base64"] = base64.b64encode(job.body[:body_bytes]).decode()
    return found


def _json(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"))
