"""The list of a queue's jobs, as the admin port reports it."""

import base64
import json
import os
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlencode

from tui.admin_port import AdminLost
from tui.admin_queries import Asked

JOBS_MAX: Final = 100
PAGES_MAX: Final = 10  # pages fetched for a list: the server looks for matching jobs among all jobs, part by part
BODY_BYTES: Final = 256


class JobState(StrEnum):
    """Selection of the jobs shown."""

    QUEUED = "queued"
    ACTIVE = "active"
    DELAYED = "delayed"
    COPY = "copy"  # another node has queued or delivered it

    @property
    def words(self) -> str:
        """A phrase for jobs in this state."""
        return "copies of jobs" if self is JobState.COPY else f"{self} jobs"


@dataclass(frozen=True, slots=True)
class ListedJob:
    """A job in the list. Instants are on the server's clock."""

    job_id: str
    state: str
    next_requeue_at_ms: int | None  # None = never
    created_at_ms: int
    expires_at_ms: int
    retry_ms: int
    nacks: int
    deliveries: int  # additional ones
    body_bytes: int
    body: bytes  # its beginning
    origin: str = ""  # of a dead letter: the queue it comes from, and why


@dataclass(slots=True)
class JobList:
    """The answer of one server."""

    server: str
    jobs: list[ListedJob] = field(default_factory=list)
    now_ms: int = 0  # by the server's clock
    has_more: bool = False
    failure: str = ""


def ask_jobs(asked: Asked, queue: str, state: JobState) -> JobList:
    """The first jobs of a queue in that state. Never raises: errors are in `failure`."""
    found = JobList(asked.address)
    try:
        port = asked.admin_port()
        try:
            after: str | None = ""
            for _ in range(PAGES_MAX):
                left = JOBS_MAX - len(found.jobs)
                words = {"queue": os.fsencode(queue), "state": state, "limit": left, "bytes": BODY_BYTES}
                document = json.loads(port.get(f"/jobs?{urlencode({**words, 'after': after or ''})}"))
                found.jobs += [_job(one) for one in document["jobs"]]
                found.now_ms, after = document["now_ms"], document["next"]
                if after is None or len(found.jobs) >= JOBS_MAX:
                    break
            found.has_more = after is not None
            del found.jobs[JOBS_MAX:]
        finally:
            port.close()
    except AdminLost as lost:
        found.failure = str(lost)
    except (ValueError, KeyError, TypeError) as error:
        found.failure = f"unexpected reply: {error}"
    return found


def _job(row: dict[str, Any]) -> ListedJob:
    return ListedJob(
        row["id"],
        row["state"],
        row["next_requeue_at_ms"],
        row["created_at_ms"],
        row["expires_at_ms"],
        row["retry_ms"],
        row["nacks"],
        row["additional_deliveries"],
        row["body_bytes"],
        base64.b64decode(row["base64"]) if "base64" in row else row.get("data", "").encode(),
        f"{row['reason']} on {row['origin']}" if "origin" in row else "",
    )
