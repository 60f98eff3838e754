"""Repair and undo as an operator asks for them, on an engine that goes on with its turns meanwhile."""

from collections.abc import Callable
from typing import TypeVar

from kestreld.errors import KestrelError
from kestreld.journal.repair import RepairReport
from kestreld.queues.repairing import Repairer, Undone
from tests.support.engine import Engine, LateFiles

T = TypeVar("T")
STEPS_MAX = 100_000


def repaired(engine: Engine, name: str) -> RepairReport | None:
    """What became of it; None = no such queue. Raises what the client is told."""
    return outcome(
        engine, lambda done: Repairer(engine.collection, engine.maintenance, engine.slices).repair(name, done)
    )


def undone(engine: Engine, name: str) -> Undone | None:
    """Items back, items left; None = nothing to undo. Raises what the client is told."""
    return outcome(engine, lambda done: Repairer(engine.collection, engine.maintenance, engine.slices).undo(name, done))


def outcome(engine: Engine, ask: Callable[[Callable[[T | KestrelError], None]], None]) -> T:
    """Ask, and take turns and slices of work until there is an answer."""
    answers: list[T | KestrelError] = []
    ask(answers.append)
    for _ in range(STEPS_MAX):
        step(engine)
        if answers:
            break
    (answer,) = answers
    if isinstance(answer, KestrelError):
        raise answer
    return answer


def step(engine: Engine) -> None:
    """As little work as can be done, then a turn."""
    engine.slices.run(engine.clock.stopwatch_us())
    if isinstance(engine.files, LateFiles):
        engine.files.finish_background()
    engine.end_turn()
