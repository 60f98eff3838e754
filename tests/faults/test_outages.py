"""What callers of the client see while their server is away, for threads and for tasks: a table, printed at the end.

Each state has a client, a queue and a gate of its own, so that what is under way is under way for certain: the gate
withholds the request, or the reply. Then the trouble comes, for all of them at once. Whatever it is, no lease and no
confirm is lost, nothing is held by nobody, and consuming goes on soon.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from kestreld.client import AsyncKestrelCluster, KestrelCluster
from kestreld.errors import KestrelError
from tests.support.daemon import Daemon, running_daemon
from tests.support.gate import Gate
from tests.support.waiting import until

LONG_S: Final = 3600.0
WAIT_S: Final = 120.0  # of those who wait: longer than any outage here
TIMEOUT_MS: Final = 1000
ON_AGAIN_S: Final = 2.0  # within which consuming goes on once the server is back
# Of a connection that is dead in silence: a ping after two seconds, its time-out, and a moment.
SILENCE_S: Final = 2 + TIMEOUT_MS / 1000 + ON_AGAIN_S
FIRST: Final = b"first"
NEXT: Final = b"next"
PAGE: Final = (Path(__file__).parents[2] / "docs" / "client.md").read_text()


class Threads:
    """A client for threads, whose calls are futures."""

    def __init__(self, address: str, queue: str) -> None:
        self._cluster = KestrelCluster([address], timeout_ms=TIMEOUT_MS)
        self._queue = self._cluster.queue(queue)
        self._pool = ThreadPoolExecutor(4)

    def begin(self, name: str, **options: Any) -> "Future[Any]":
        """Begin an operation of the queue."""
        return self._pool.submit(getattr(self._queue, name), **options)

    def end(self, lease: Any, how: str) -> "Future[Any]":
        return self._pool.submit(getattr(lease, how))

    def close(self) -> None:
        self._cluster.close()
        self._pool.shutdown()


class Tasks:
    """A client for tasks, in a loop of its own."""

    def __init__(self, address: str, queue: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

        async def cluster() -> AsyncKestrelCluster:
            return AsyncKestrelCluster([address], timeout_ms=TIMEOUT_MS)

        self._cluster = self._run(cluster()).result(10)
        self._queue = self._cluster.queue(queue)

    def _run(self, coroutine: Any) -> "Future[Any]":
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def begin(self, name: str, **options: Any) -> "Future[Any]":
        """Begin an operation of the queue."""
        return self._run(getattr(self._queue, name)(**options))

    def end(self, lease: Any, how: str) -> "Future[Any]":
        return self._run(getattr(lease, how)())

    def close(self) -> None:
        self._run(self._cluster.close()).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


FACES: Final = {"threads": Threads, "tasks": Tasks}


class Case:
    """A client in one state, with a queue and a gate of its own. FIRST and NEXT come to the queue and leave it once."""

    def __init__(self, face: str, state: "State", daemon: Daemon, aside: KestrelCluster) -> None:
        self.face = face
        self.state = state
        self.gate = Gate(daemon.port)
        name = f"{face}-{state.name}".replace(" ", "-")
        self.client = FACES[face](self.gate.address, name)
        self.aside = aside.queue(name)  # past the gate
        self.under_way: Future[Any] | None = None
        self.lease: Any = None
        self.saw = "nothing"
        self.answered_at_s = self.consumed_at_s = 0.0
        self.delivered: list[bytes] = []

    def take(self) -> Any:
        """Return a lease of the item that is put for it."""
        self.aside.put(FIRST)
        lease = self.client.begin("lease", seconds=LONG_S, timeout=WAIT_S).result(WAIT_S)
        assert lease is not None
        return lease

    def begin_withheld(self, what: bytes, begin: "Callable[[], Future[Any]]") -> None:
        self.gate.withhold(what)
        self.under_way = begin()
        assert self.gate.withheld.wait(WAIT_S)

    def figure(self, name: str) -> int:
        return sum(int(counters.get(name, 0)) for counters in self.aside.stats().values())

    # After the trouble

    def go_on(self) -> None:
        """Have the next item consumed, and see what comes of what was under way."""
        self.probe = self.client.begin("lease", seconds=LONG_S, timeout=WAIT_S)
        self.probe.add_done_callback(lambda _: self._note_consumed())
        if self.under_way is not None:
            self.under_way.add_done_callback(lambda _: self._note_answered())
        if self.state.is_waiting:
            self.aside.put(FIRST)
        self.aside.put(NEXT)

    def _note_consumed(self) -> None:
        self.consumed_at_s = time.monotonic()

    def _note_answered(self) -> None:
        self.answered_at_s = time.monotonic()

    def finish(self) -> None:
        """See what came of what was under way, and end all leases."""
        found = None
        try:
            found = None if self.under_way is None else self.under_way.result(WAIT_S)
        except KestrelError as problem:
            self.saw = type(problem).__name__
        if found is False:
            self.saw = "done, or lost" if self.lease.is_unsure else "lost"
        if found is not None and not isinstance(found, bool):
            self._confirm(found)
        elif self.lease is not None:
            self._note_delivered(self.lease) if self.under_way is not None else self._confirm(self.lease)
        self._confirm(self.probe.result(WAIT_S))
        assert self.figure("open_transactions") == 0, f"{self}: held by nobody"
        while (item := self.aside.get()) is not None:
            self.delivered.append(item)

    def _confirm(self, lease: Any) -> None:
        assert lease is not None
        assert self.client.end(lease, "confirm").result(WAIT_S), f"{self}: a lease was lost"
        self._note_delivered(lease)

    def _note_delivered(self, lease: Any) -> None:
        self.delivered.append(lease.item)

    def seen(self, over_at_s: float) -> "Seen":
        answered_s = None if self.under_way is None else self.answered_at_s - over_at_s
        return Seen(self.state.name, self.face, self.saw, answered_s, self.consumed_at_s - over_at_s)

    def __repr__(self) -> str:
        return f"{self.state.name} ({self.face})"


@dataclass(frozen=True)
class State:
    name: str
    enter: Callable[[Case], None]
    sees: str = "nothing"  # what the caller sees of an outage
    is_waiting: bool = False


def be_idle(case: Case) -> None:
    case.aside.put(FIRST)
    case.delivered.append(case.client.begin("get", timeout=WAIT_S).result(WAIT_S))


def wait(case: Case) -> None:
    case.under_way = case.client.begin("lease", seconds=LONG_S, timeout=WAIT_S)
    until(lambda: case.figure("waiters") == 1, "somebody who waits")


def lease_unanswered(case: Case) -> None:
    case.aside.put(FIRST)
    case.begin_withheld(b"VALUE ", lambda: case.client.begin("lease", seconds=LONG_S, timeout=WAIT_S))


def have_lease(case: Case) -> None:
    case.lease = case.take()


def confirm_withheld(what: bytes) -> Callable[[Case], None]:
    def enter(case: Case) -> None:
        case.lease = case.take()
        case.begin_withheld(what, lambda: case.client.end(case.lease, "confirm"))

    return enter


def put_withheld(what: bytes, *, once: bool) -> Callable[[Case], None]:
    def enter(case: Case) -> None:
        case.begin_withheld(what, lambda: case.client.begin("put", data=FIRST, once=once))

    return enter


STATES: Final = [
    State("idle", be_idle),
    State("waiting", wait, is_waiting=True),
    State("lease under way, reply lost", lease_unanswered),
    State("leased", have_lease),
    State("confirm under way, request lost", confirm_withheld(b"delete ")),
    State("confirm under way, reply lost", confirm_withheld(b"DELETED"), "done, or lost"),
    State("put under way, reply lost", put_withheld(b"STORED", once=False), "ConnectionLost"),
    State("put once under way, request lost", put_withheld(b"set ", once=True)),
    State("put once under way, reply lost", put_withheld(b"STORED", once=True)),
]


Trouble = Callable[[Daemon, list[Case]], None]


def reset(daemon: Daemon, cases: list[Case]) -> None:
    for case in cases:
        case.gate.reset()


def go_silent(daemon: Daemon, cases: list[Case]) -> None:
    for case in cases:
        case.gate.go_silent()


def away(seconds: float) -> Trouble:
    def kill(daemon: Daemon, cases: list[Case]) -> None:
        daemon.kill()
        for case in cases:
            case.gate.shut()
        time.sleep(seconds)
        daemon.start()
        for case in cases:
            case.gate.open()

    return kill


TROUBLES: Final[dict[str, tuple[Trouble, float]]] = {
    "reset": (reset, ON_AGAIN_S),
    "half-open": (go_silent, SILENCE_S),
    "away 0.5 s": (away(0.5), ON_AGAIN_S),
    "away 5 s": (away(5), ON_AGAIN_S),
    "away 45 s": (away(45), ON_AGAIN_S),
}


@dataclass(frozen=True)
class Seen:
    """What a caller saw, and when it went on, in seconds from the end of the trouble."""

    state: str
    face: str
    saw: str
    answered_s: float | None  # None = nothing was under way
    consumed_s: float

    def __str__(self) -> str:
        answered = "" if self.answered_s is None else f", answered after {self.answered_s:.2f} s"
        return f"{self.state:34} {self.face:8} {self.saw}{answered}; consuming after {self.consumed_s:.2f} s"


def live_through(folder: Path, name: str, *faces: str) -> None:
    """Bring trouble to a client in each state and of each of these faces, and print what each of them saw."""
    trouble, on_again_s = TROUBLES[name]
    with ExitStack() as stack:
        daemon = stack.enter_context(running_daemon(folder))
        aside = stack.enter_context(KestrelCluster([daemon.address]))
        cases = [Case(face, state, daemon, aside) for state in STATES for face in faces]
        for case in cases:
            stack.callback(case.gate.close)
            stack.callback(case.client.close)
            case.state.enter(case)
        trouble(daemon, cases)
        over_at_s = time.monotonic()
        for case in cases:
            case.go_on()
        for case in cases:
            case.finish()
    seen = [case.seen(over_at_s) for case in cases]
    print(f"\n{name}:", *seen, sep="\n")
    assert [(case, case.saw) for case in cases if case.saw != case.state.sees] == []
    assert [(case, case.delivered) for case in cases if sorted(case.delivered) != [FIRST, NEXT]] == []
    assert [str(one) for one in seen if one.consumed_s > on_again_s] == []


def test_the_page_of_the_client_says_what_callers_see() -> None:
    rows = [row.replace("`", "").strip("| ").split(" | ") for row in PAGE.partition("| state |")[2].splitlines()[2:]]
    assert rows[: len(STATES)] == [[state.name, state.sees] for state in STATES]


@pytest.mark.parametrize("face", FACES)
def test_callers_see_little_of_a_server_that_is_killed_and_started_again(tmp_path: Path, face: str) -> None:
    live_through(tmp_path, "away 0.5 s", face)


@pytest.mark.long
@pytest.mark.parametrize("name", TROUBLES)
def test_callers_see_little_of_any_outage(tmp_path: Path, name: str) -> None:
    live_through(tmp_path, name, *FACES)
