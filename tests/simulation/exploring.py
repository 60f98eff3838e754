"""Scripts, tried with everything that may go wrong: a crash at any change to the disk, any call that fails."""

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.simulation.crash_states import crash_states
from tests.simulation.disk import Disk, in_order
from tests.simulation.history import KILLED, POWER_CUT, STOPPED
from tests.simulation.host import GaveUp
from tests.simulation.process_files import KINDS
from tests.simulation.requests import order, put, read
from tests.simulation.scripted import Scripted
from tests.simulation.scripts import Script

BESIDE: Final = "beside"  # a queue that none of the scripts is about
SYNCED: Final = 0
MODES: Final = (SYNCED, None)
SHORT: Final = "short"
FAILURES: Final = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EINTR": errno.EINTR, SHORT: errno.ENOSPC}


@dataclass(slots=True)
class Findings:
    """How many ways were tried, and what was wrong with some."""

    tried: int = 0
    bad: list[str] = field(default_factory=list)

    def add(self, where: str, violations: list[str]) -> None:
        self.tried += 1
        if violations:
            self.bad.append(f"{where}: {violations[0]}")


def every_crash(script: Script, sync_ms: int | None) -> Findings:
    """Killed at any change to the disk, and any disk that a power cut there may leave: each started from."""
    found = Findings()
    for where, run, how, disk in _crashes(script, sync_ms):
        found.add(where, run.verdict(disk, how))
    return found


def a_crash_is_bad(script: Script, sync_ms: int | None, since: int) -> bool:
    """Whether one at a change is, from the `since`-th on."""
    return any(run.verdict(disk, how) for _, run, how, disk in _crashes(script, sync_ms, since))


def every_disagreement(script: Script, sync_ms: int | None) -> Findings:
    """Of the same disks those on which verify finds a journal bad that works, or does not find one that is stopped."""
    found = Findings()
    for where, run, how, disk in _crashes(script, sync_ms):
        bad = run.found_bad(disk)
        stopped = run.stopped(disk, how)
        found.add(where, [f"bad: {family}" for family in bad - stopped] + [f"stopped: {one}" for one in stopped - bad])
    return found


def _crashes(script: Script, sync_ms: int | None, since: int = 1) -> Iterator[tuple[str, Scripted, str, Disk]]:
    """Where it was, the run, how it ended, and a disk that is left of it."""
    judged: set[tuple[object, ...]] = set()
    is_over = False
    dies_at = since - 1
    while not is_over:
        dies_at += 1
        run = Scripted(script, sync_ms, dies_at)
        is_over = run.play()
        if is_over:
            run.end_life(KILLED)  # unless it has stopped
        has_stopped = is_over and run.history.lives[-1].how == STOPPED
        for crash, disk in left_by_a_crash(run.disk):
            how = STOPPED if has_stopped else crash  # whatever becomes of the machine then, all is on disk
            key = (how, run.knowledge(), frozenset(disk.content().items()))
            if key not in judged:
                judged.add(key)
                yield f"{script.name}, {how} at change {dies_at}", run, how, disk


def left_by_a_crash(disk: Disk) -> Iterator[tuple[str, Disk]]:
    """What a kill leaves of it, and whatever a power cut may; and which of the two it was."""
    yield KILLED, disk.copy()
    for state in crash_states(disk):
        yield POWER_CUT, state


def every_failure(script: Script, sync_ms: int | None, error: str, kind: str) -> Findings:
    """The n-th call of a kind fails, for n from 1 until none does. Error "short": a write takes half, then fails."""
    found = Findings()
    call = 0
    while True:
        call += 1
        run = Scripted(script, sync_ms, beside=(BESIDE,))
        run.faults.error, run.faults.kinds, run.faults.fails_at = FAILURES[error], frozenset({kind}), call
        run.faults.is_short = error == SHORT
        where = f"{script.name}, {error} at {kind} {call}"
        try:
            run.play()
            has_failed = bool(run.faults.failed)
            _must_go_on(run, script)
        except GaveUp:
            found.add(where, run.history.problems)
            continue
        if not has_failed:
            return found
        run.end_life(KILLED)
        if script.name == "repair" and kind == "read":
            run.history.damaged.update(run.plan.families)  # to a repair, what cannot be read is damaged
        for how, disk in ((KILLED, run.disk.copy()), (POWER_CUT, _after_a_power_cut(run.disk))):
            found.add(f"{where}, then {how}", run.verdict(disk, how))


def failures(error: str) -> tuple[str, ...]:
    """The kinds of call that may fail so."""
    return ("write",) if error == SHORT else KINDS


def _must_go_on(run: Scripted, script: Script) -> None:
    """The disk is well again: others are served as ever, and after a reload so is this queue."""
    run.faults.heal()
    if run.server is None:
        run.start()
    for name in (BESIDE, script.readers[0]):
        run.ask([order("reload")])
        if name != BESIDE and _is_stopped(run, name):
            return
        asked = [put(name, run.puts), read(name)]
        run.ask(asked)
        assert asked[0].put is not None
        if asked[0].put.outcome != "stored":
            run.complain(f"{name} takes nothing after the fault")


def _is_stopped(run: Scripted, name: str) -> bool:
    """Whether its journal could not be read: that takes a repair, or a start."""
    assert run.server is not None
    assert run.server.collection is not None
    family = name.partition("+")[0]
    queue = run.server.collection.families.get(family)
    return family in run.server.collection.broken or (queue is not None and queue.stopped is not None)


def _after_a_power_cut(disk: Disk) -> Disk:
    """Nothing has got there but what was synced."""
    return disk.after_power_cut(in_order(disk.name_changes, lambda: False, loosely=False), lambda file, change: None)
