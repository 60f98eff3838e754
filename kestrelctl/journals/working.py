"""Time in work, from the grant of a lease to the confirm of its item, by holder."""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from kestrelctl.journals.events import Event, RunningLeases, Step, child_of, events
from kestrelctl.journals.locations import JournalLocation, replaying
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.client.blocks import Cell

SHARES: Final = {"p50": 50, "p95": 95, "p99": 99}
STEPS: Final = {
    Step.LEASED: "leases",
    Step.CONFIRMED: "leases_confirmed",
    Step.RETURNED: "leases_returned",
    Step.FAILED: "leases_failed",
}
WORK_COLUMNS: Final = [*STEPS.values(), *(f"work_{name}_ms" for name in SHARES), "work_max_ms"]
COLUMNS: Final = ["holder", *WORK_COLUMNS]


@dataclass(slots=True)
class Happened:
    """A lease was granted or ended. `work_ms`: its time in work, None = it was not confirmed."""

    step: Step
    at_ms: int
    holder: str
    work_ms: int | None = None


@dataclass(slots=True)
class Worked:
    """Counts of leases, and the times in work."""

    counts: Counter[str] = field(default_factory=Counter)
    times_ms: "array[int]" = field(default_factory=lambda: array("Q"))

    def add(self, one: Happened) -> None:
        self.counts[STEPS[one.step]] += 1
        if one.work_ms is not None:
            self.times_ms.append(one.work_ms)

    def row(self) -> dict[str, Cell]:
        """WORK_COLUMNS: exact percentiles by nearest rank, "" where nothing was confirmed."""
        row: dict[str, Cell] = {name: self.counts[name] for name in STEPS.values()}
        times_ms = sorted(self.times_ms)
        for name, share in SHARES.items():
            row[f"work_{name}_ms"] = times_ms[-(-share * len(times_ms) // 100) - 1] if times_ms else ""
        return row | {"work_max_ms": times_ms[-1] if times_ms else ""}


def happened(leases: RunningLeases, event: Event) -> Iterator[Happened]:
    """What an event did to leases, without extensions and what ended in another way."""
    for step, work in leases.see(event):
        if step in STEPS:
            is_confirmed = step == Step.CONFIRMED
            work_ms = max(event.at_ms - work.leased_at_ms, 0) if is_confirmed else None
            yield Happened(step, event.at_ms, work.holder, work_ms)


def by_holder(place: JournalLocation, queue: str, since_ms: int | None, until_ms: int) -> list[dict[str, Cell]]:
    """A row of COLUMNS for each holder, those with the most leases first; "" is unknown. Raises Failure."""
    with replaying(str(place)):
        found = _by_holder(events(place.segments(queue), child_of(queue)), since_ms or 0, until_ms)
    if not found:
        raise Failure(ExitCode.NEGATIVE, f"no leases of {queue} in that period are in {place}")
    ordered = sorted(found.items(), key=lambda one: (-one[1].counts["leases"], one[0]))
    return [{"holder": holder, **worked.row()} for holder, worked in ordered]


def _by_holder(happenings: Iterable[Event], since_ms: int, until_ms: int) -> dict[str, Worked]:
    found: dict[str, Worked] = {}
    leases = RunningLeases()
    for event in happenings:
        for one in happened(leases, event):
            if since_ms <= one.at_ms < until_ms:
                found.setdefault(one.holder, Worked()).add(one)
    return found
