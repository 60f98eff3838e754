"""Absences of holders, step by step: when they are over, and what a clock that leaps says of that."""

from pathlib import Path

import pytest

from kestreld.queues import presence
from kestreld.queues.presence import STEP_MS, Presence, Present
from kestreld.queues.slices import Work
from tests.support.engine import Engine

HOUR_MS = 3_600_000


class Run:
    """An engine whose time passes in steps, and what it knows of holders."""

    def __init__(self, spool: Path) -> None:
        self.engine = Engine(spool)
        self.notes: list[str] = []
        self.note = self.notes.append
        self.presence = Presence(self.engine.collection, self)

    def take_on(self, work: Work) -> None:
        self.engine.slices.take_on(work)

    def finish_turn(self) -> None:
        self.engine.end_turn()

    def lease(self, holder: str, queue: str = "work") -> None:
        self.engine.put(queue, b"x")
        assert self.engine.collection.reader(queue).lease(self.engine.clock.wall_ms, HOUR_MS, f"{holder}/a:1")

    def leased(self, queue: str = "work") -> list[str]:
        held = self.engine.collection.reader(queue).held
        return sorted(lease.name for lease in held.leases.values()) if held is not None else []

    def a_slice(self) -> None:
        self.engine.slices.run(self.engine.clock.stopwatch_us())

    def pass_at_once(self, ms: int) -> None:
        self.engine.clock.advance(ms)
        self.engine.collection.agenda.fall_due(self.engine.clock.monotonic_ms)

    def pass_ms(self, ms: int) -> None:
        for _ in range(0, ms, STEP_MS):
            self.pass_at_once(STEP_MS)

    def end(self) -> None:
        while self.engine.slices.is_busy:
            self.a_slice()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def away(run: Run, name: str, absence_ms: int) -> None:
    present = Present(name, absence_ms, None)
    run.presence.enter(present)
    run.presence.leave(present)


def test_a_clock_that_leaps_has_all_absences_counted_anew(run: Run) -> None:
    """The server did not run, and has not heard who is back."""
    run.lease("a")
    away(run, "a", 1000)
    run.pass_ms(900)
    run.pass_at_once(60_000)
    run.pass_ms(900)
    run.end()
    assert run.leased() == ["a"]
    run.pass_ms(100)
    run.end()
    assert run.leased() == []
    assert run.notes == ["holder a has been absent for 1000 ms: ended 1 lease"]


def test_steps_that_are_late_count_for_as_long_as_they_were_to(tmp_path: Path) -> None:
    """On a busy machine absences take longer, and end."""
    run = Run(tmp_path)
    run.lease("a")
    away(run, "a", 1000)
    for _ in range(9):
        run.pass_at_once(5 * STEP_MS)
    run.end()
    assert run.leased() == ["a"]
    for _ in range(3):
        run.pass_at_once(5 * STEP_MS)
    run.pass_ms(STEP_MS)
    run.end()
    assert run.leased() == []


def test_whoever_is_back_while_leases_are_ended_keeps_the_others(run: Run) -> None:
    for number in range(10):
        run.lease("a", f"q{number}")
        run.lease("b", f"q{number}")
    for name in ("a", "b"):
        away(run, name, STEP_MS)
    run.pass_ms(STEP_MS)
    run.a_slice()
    assert all(run.leased(f"q{number}") == ["a", "b"] for number in range(10)), "what has arrived is read first"
    run.presence.enter(Present("a", STEP_MS, None))
    run.end()
    assert all(run.leased(f"q{number}") == ["a"] for number in range(10))


def test_nothing_ends_while_the_server_stops(run: Run) -> None:
    run.lease("a")
    away(run, "a", 500)
    run.engine.collection.stopping = True
    run.pass_ms(1000)
    run.end()
    assert run.leased() == ["a"]


def test_of_too_many_that_are_absent_the_first_is_forgotten(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "ABSENT_MAX", 3)
    for name in "abcd":
        run.lease(name)
    for name in "abcd":
        away(run, name, 500)
    run.pass_ms(1000)
    run.end()
    assert run.leased() == ["a"]
    assert run.engine.collection.agenda.next_at_ms() == run.engine.clock.monotonic_ms + HOUR_MS - 1000


def test_of_many_holders_the_log_names_a_few(run: Run) -> None:
    for number in range(13):
        run.lease(f"w{number}.1")
        away(run, f"w{number}", 500)
    run.pass_ms(1000)
    run.end()
    assert run.leased() == []
    assert len(run.notes) == 11
    assert run.notes[-1] == "3 more holders have been absent: ended 3 leases"
