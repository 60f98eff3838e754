"""A console with figures that are always the same, for pictures of its screens."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from kestrelctl.remote.client import NOBODY
from tests.tui.sights import figures
from tui.admin_queries import Consumer, Consumers, QueueDetails, Shown, WaitingItem
from tui.app import Console
from tui.job_lists import JobList, JobState, ListedJob
from tui.journals import Check, JournalDetails, read_check, read_journal
from tui.plain import ViewOptions
from tui.recording import Player
from tui.requests import Requests
from tui.session import Session
from tui.snapshots import NODE_KEYS, Figures, JobFigures, NodeFigures, Outage, Snapshot

NOW_MS: Final = 1_767_225_600_000  # 2026-01-01 00:00:00 UTC
LOOKS: Final = 40
NORTH, SOUTH = "north:22133", "south:22133"
JOB: Final = b'{"job": "resize", "image": "cat-4711.jpg", "width": 640, "tags": ["cat", "garden"]}'
CORRUPT: Final = "corrupt: the checksum of the record does not match"


def _busy(look: int, base: int, wave: int, put_per_look: int, number: int) -> Figures:
    """A queue whose depth goes up and down."""
    items = round(base + wave * math.sin((look + 3 * number) / 4))
    return figures(
        items=items,
        bytes=items * 83,
        total_items=1_000_000 + put_per_look * look,
        logsize=4_200_000 + items * 83,
        expired_items=0,
        mem_items=min(items, 20_000),
        mem_bytes=min(items, 20_000) * 83,
        age=items * 3,
        discarded=0,
        waiters=number % 4,
        open_transactions=number % 3,
        oldest_at_ms=at_ms(look) - items * 3,
        full=0,
        journal_failed=0,
        stopped=0,
    )


def _idle(stopped: int = 0) -> Figures:
    known = ("items", "bytes", "total_items", "logsize", "expired_items", "mem_items", "mem_bytes", "age", "discarded")
    return figures(
        **dict.fromkeys(known, 0),
        waiters=0,
        open_transactions=0,
        oldest_at_ms=0,
        full=0,
        journal_failed=0,
        stopped=stopped,
    )


def look_at(server: str, look: int) -> Snapshot:
    """What a server said `look` seconds after the first time."""
    queues = {
        "orders": _busy(look, 1200, 700, 850, 1),
        "orders+audit": _busy(look, 48_000, 900, 850, 2),
        "mail": _busy(look, 60, 55, 40, 3),
        "thumbnails": _busy(look, 310_000, 2500, 2100, 4),
        "käse": _busy(look, 9, 8, 3, 5),
        "imports": _idle(),
        "letters:dead": _idle(),
        "payments": _idle(stopped=1),
        **{f"shard-{number:02d}": _busy(look, 100 * number, 10 * number, 80, number) for number in range(24)},
    }
    counters: dict[str, int | str] = {
        "uptime": 90_000 + look,
        "version": "1.0.0",
        "curr_connections": 42,
        "journal_bytes": 123_456_789,
        "sync_us_mean": 1400,
        "cmd_set": 4000 * look,
        "cmd_get": 3900 * look,
        "queues_stopped": 1,
    }
    return Snapshot(server, at_ms(look), 1000 * look, queues, counters)


def _jobs(look: int, number: int, pause: str = "none") -> JobFigures:
    """A queue of jobs that are worked off."""
    queued = round(900 * number * (1 + math.sin(look / 4)))
    oldest_at_ms = at_ms(look) - 700 * number if queued else 0
    return (
        queued,
        40 * number,
        7 * number,
        number % 3,
        0,
        350 * look * number,
        340 * look * number,
        pause,
        oldest_at_ms,
    )


def look_at_jobs(server: str, look: int) -> Snapshot:
    """The same server, with jobs that take more of its memory than they should."""
    snapshot = look_at(server, look)
    snapshot.jobs = {
        "mail": _jobs(look, 3),
        "mail.dead": _jobs(look, 1, "out"),
        "thumbnails": _jobs(look, 12),
        "käse": _jobs(look, 0),
        "reports": _jobs(look, 2, "all"),
    }
    snapshot.counters |= {
        "jobs_registered": 33_000,
        "jobs_queued": 31_000,
        "jobs_active": 720,
        "jobs_delayed": 126,
        "jobs_queues": 5,
        "jobs_queues_paused": 2,
        "jobs_in": 6300 * look,
        "jobs_out": 6100 * look,
        "jobs_import_rate": 0,
        "jobs_blocked_clients": 4,
        "jobs_memory_bytes": 850_000_000,
        "jobs_memory_limit_bytes": 1_073_741_824,
        "jobs_memory_level": 75,
        "jobs_log_failed": 0,
    }
    return snapshot


def _node(number: int, **known: int | str | None) -> tuple[str, NodeFigures]:
    """The figures of one of three nodes."""
    figures = {"address": f"10.0.0.{number}:7711", "flags": "noflags", "link": 1, "up": 1, "knows_us": 1, "links": 1}
    figures |= {"queued_bytes": 0, "problem": ""} | known  # type: ignore[dict-item]
    return f"{number}b0c4d5e" * 5, tuple([figures.get(key) for key in NODE_KEYS])


def look_at_cluster(server: str, look: int) -> Snapshot:
    """The same server, with two other nodes, one of which is down."""
    snapshot = look_at_jobs(server, look)
    nothing = dict.fromkeys(("link", "up", "knows_us", "queued_bytes", "links"))
    snapshot.nodes = dict(
        [
            _node(1, flags="myself", jobs=33_000, **nothing),
            _node(2, lag_us=740, jobs_given=210 * look, jobs_taken=40 * look),
            _node(3, flags="fail", link=0, up=0, lag_us=1800, jobs_given=7, jobs_taken=0, problem="Connection refused"),
        ]
    )
    snapshot.counters |= {
        "jobs_cluster_size": 3,
        "jobs_cluster_down": 1,
        "jobs_default_copies": 2,
        "jobs_being_added": 1,
        "jobs_acked": 730,
    }
    return snapshot


def _listed(number: int, state: str, requeue_ms: int | None, body: bytes = JOB, origin: str = "") -> ListedJob:
    added_at_ms = NOW_MS - 61_000 + 1000 * number
    return ListedJob(
        f"D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI{number:02d}-05a1",
        state,
        NOW_MS + requeue_ms if requeue_ms is not None else None,
        added_at_ms,
        added_at_ms + 86_400_000,
        300_000 if requeue_ms is not None else 0,
        number % 3,
        number % 2,
        len(body),
        body,
        origin,
    )


JOBS: Final = {
    JobState.QUEUED: [
        *(_listed(number, "queued", 239_000 + 1000 * number) for number in range(12)),
        _listed(12, "queued", None, bytes(range(24))),
        _listed(13, "queued", 252_000, b"failed too often", "retries on mail"),
    ],
    JobState.ACTIVE: [_listed(14, "active", 12_000), _listed(15, "active", None, b"at most once")],
    JobState.DELAYED: [],
    JobState.COPY: [],
}


def at_ms(look: int) -> int:
    return NOW_MS - 1000 * (LOOKS - 1 - look)


OUTAGE: Final = Outage(SOUTH, at_ms(LOOKS - 1), f"cannot reach {SOUTH}: connection refused", 8000)

DETAILS: Final = QueueDetails(
    NORTH,
    figures={
        "orders": {
            "queue": "orders",
            "head_id": 33_151,
            "next_id": 34_962,
            "delayed": 40,
            "retrying": 2,
            "leased": 1,
            "next_due_ms": 18_000,
        },
        "orders+audit": {"queue": "orders+audit", "head_id": 1, "next_id": 34_962},
    },
    settings={
        "queue": "orders",
        "max_items": 1_000_000,
        "max_size": "infinite",
        "max_item_size": "infinite",
        "discard_old_when_full": "false",
        "journal": "true",
        "sync_journal": "true",
        "max_journal_size": 16_777_216,
        "max_memory_size": 134_217_728,
        "max_age": 0,
    },
    consumers=Consumers(
        waiting=[Consumer("10.0.0.17:50122", "", 3500), Consumer("10.0.0.18:41876", "", 400)],
        holding=[Consumer("10.0.0.21:38114", "resizer", 12_000, open_reads=1, first_id=33_151)],
        waiters=2,
        open_reads=2,
        leasing=[Consumer("worker-7", "", 4000, open_reads=1, first_id=33_154, is_seen=False)],
    ),
    items=[
        WaitingItem(JOB, 33_151, NOW_MS - 61_000, is_open=True),
        WaitingItem(b"a line of text", 33_152, NOW_MS - 60_500, NOW_MS + 30_000, flags=7),
        WaitingItem(bytes(range(24)), 33_153, NOW_MS - 60_000),
        WaitingItem(
            b"a lease outlives its connection",
            33_154,
            NOW_MS - 59_500,
            state="leased",
            since_at_ms=NOW_MS - 4000,
            until_at_ms=NOW_MS + 26_000,
            client="10.0.0.22:40512",
            holder="worker-7",
            is_seen=False,
        ),
        WaitingItem(
            b"has failed before", 33_155, NOW_MS - 59_000, state="retrying", due_at_ms=NOW_MS + 18_000, attempts=2
        ),
        *(
            WaitingItem(JOB.replace(b"4711", b"%d" % number), number, NOW_MS - 59_000)
            for number in range(33_156, 33_174)
        ),
    ],
)


def _segment(number: int, first_id: int, end_id: int, state: str, needed: int, pinned_by: list[str]) -> dict[str, Any]:
    return {
        "segment": number,
        "file": f"{number:010d}-{first_id:020d}.seg",
        "state": state,
        "first_id": first_id,
        "end_id": end_id,
        "needed_ids": needed,
        "bytes": 200 + 120 * (end_id - first_id),
        "pins": len(pinned_by),
        "pinned_by": pinned_by,
    }


JOURNAL: Final = {
    "queue": "orders",
    "journal_id": 7,
    "next_id": 34_962,
    "bytes_on_disk": 4_196_240,
    "failed": None,
    "stopped": None,
    "is_synced": True,
    "is_compacting": False,
    "is_retiring": True,
    "readers": [
        {"reader": "audit", "kind": "queue", "head": 9_001},
        {"reader": "spark", "kind": "stream", "head": 20_000},
        {"reader": "", "kind": "queue", "head": 33_151},
    ],
    "segments": [
        _segment(3, 4_001, 8_200, "dead", 0, []),
        _segment(4, 8_200, 16_400, "compacted", 7_399, ["audit"]),
        _segment(5, 16_400, 24_500, "full", 8_100, ["audit", "spark"]),
        _segment(6, 24_500, 32_600, "full", 8_100, ["audit", "spark"]),
        _segment(7, 32_600, 34_962, "live", 2_362, ["audit", "spark", ""]),
    ],
    "folder": "/var/spool/kestreld/orders.journal",
}
CHECKED: Final = [
    {
        "segment": segment["file"],
        "records": 1 + 2 * number,
        "live_items": number,
        "finding": CORRUPT if place == 2 else "",
    }
    for place, (segment, number) in enumerate(zip(JOURNAL["segments"], (0, 41, 3010, 8100, 2362), strict=True))
]


class StillRequests(Requests):
    """Whatever is asked is answered at once, with the same words."""

    def details_of(self, queue: str, shown: Shown = Shown.FIRST) -> Callable[[], list[QueueDetails]]:
        return lambda: [DETAILS]

    def journals_of(self, queue: str) -> Callable[[], list[JournalDetails]]:
        journals = [read_journal(NORTH, JOURNAL)]
        if len(self._board.servers) > 1:
            journals.append(JournalDetails(SOUTH, failure="no admin port"))
        return lambda: journals

    def jobs_of(self, queue: str, state: JobState) -> Callable[[], list[JobList]]:
        return lambda: [JobList(NORTH, JOBS[state], NOW_MS, has_more=state is JobState.QUEUED)]

    def check_journals(
        self, queue: str, journals: Sequence[JournalDetails], is_given_up: Callable[[], bool]
    ) -> dict[str, Check]:
        return {NORTH: Check(NOW_MS, *read_check(CHECKED))}


class StillSession(Session):
    """It is always the same moment."""

    def __init__(self, *servers: str, is_read_only: bool = False, player: Player | None = None) -> None:
        super().__init__(servers, interval_ms=1000, timeout_ms=1000, is_read_only=is_read_only, player=player)
        self.requests = StillRequests(self.board, 1000, NOBODY)

    def now_ms(self) -> int:
        return self.player.at_ms if self.player is not None else NOW_MS


class StillConsole(Console):
    """One that nobody feeds but `tell`."""

    def tick(self) -> None:
        pass


def still(*servers: str, is_read_only: bool = False, theme: str = "dark") -> StillConsole:
    session = StillSession(*servers or (NORTH,), is_read_only=is_read_only)
    return StillConsole([], ViewOptions(sort="items", descending=True), session, theme_name=theme)


def tell(app: StillConsole, south_is_gone: bool = False, *, looked: Callable[[str, int], Snapshot] = look_at) -> None:
    """Everything that servers said until now."""
    for look in range(LOOKS):
        for server in app.board.servers:
            is_gone = south_is_gone and server == SOUTH and look > LOOKS - 13
            app.board.receive(Outage(server, at_ms(look), OUTAGE.reason, 8000) if is_gone else looked(server, look))
        app.board.advance(at_ms(look))
    app._show()


def replay() -> StillConsole:
    """A recording, half-way."""
    return StillConsole(
        [], ViewOptions(), StillSession(player=Player([look_at(NORTH, look) for look in range(LOOKS)], 1000))
    )


Making = Callable[[], StillConsole]
