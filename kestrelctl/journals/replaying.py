"""Replay of a journal's or an archive's items on another server or queue, at their original intervals."""

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from kestrelctl.items.delivering import KEEP_ALIVE_S
from kestrelctl.items.putting import expiry_s, explain
from kestrelctl.journals.events import Came, child_of, items
from kestrelctl.journals.locations import JournalLocation, replaying
from kestrelctl.shell.exit_codes import Failure, Interrupted
from kestrelctl.shell.output import say
from kestrelctl.shell.progress import progress
from kestreld.client.items import PutItem
from kestreld.journal.records import item_data, item_expire_at_ms, item_flags

if TYPE_CHECKING:
    from kestrelctl.remote.client import KestrelClient

COLUMNS: Final = ["queue", "items", "bytes", "last_id", "took_ms"]
BATCH_ITEMS: Final = 512


@dataclass(frozen=True, slots=True)
class Choice:
    """The items to replay: put from `since_ms` to before `until_ms`, after an id, with matching data."""

    since_ms: int | None = None
    until_ms: int | None = None
    after_id: int = 0
    pattern: re.Pattern[bytes] | None = None

    def of(self, place: JournalLocation, queue: str) -> Iterator[Came]:
        """The chosen items of a queue. Raises Failure."""
        files = place.segments(queue)
        with replaying(str(place)):
            for item in items(files, child_of(queue)):
                if self._takes(item):
                    yield item

    def _takes(self, item: Came) -> bool:
        if item.item_id <= self.after_id or (self.since_ms is not None and item.at_ms < self.since_ms):
            return False
        if self.until_ms is not None and item.at_ms >= self.until_ms:
            return False
        return self.pattern is None or self.pattern.search(item_data(item.record)) is not None


@dataclass(frozen=True, slots=True)
class Pace:
    """Speed relative to the original, None = no pauses; at most `rate` items a second, None = no limit."""

    speed: float | None = 1.0
    rate: float | None = None


def parse_speed(words: str) -> float | None:
    """Parse `2x`; None for `max`. Raises ValueError."""
    if words == "max":
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)x", words, re.ASCII)
    if found is None or not float(found[1]):
        raise ValueError(f"{words!r} is not a speed: write 1x, 10x, 0.5x or max")
    return float(found[1])


def parse_rate(words: str) -> float:
    """Parse `100/s` or `100`, items a second. Raises ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(?:/s)?", words, re.ASCII)
    if found is None or not float(found[1]):
        raise ValueError(f"{words!r} is not a rate: write 100/s")
    return float(found[1])


class Dated(Protocol):
    """Anything with the time at which it was put."""

    @property
    def at_ms(self) -> int: ...


T = TypeVar("T", bound=Dated)


@dataclass(slots=True)
class Replayed:
    """Totals of a replay so far."""

    items: int = 0
    data_bytes: int = 0
    last_id: int = 0


def replay(client: "KestrelClient", queue: str, came: Iterable[Came], pace: Pace, total: int | None) -> Replayed:
    """Put the items on `queue`. Before it raises Failure or Interrupted, it prints the id to continue after."""
    done = Replayed()
    try:
        with progress("replaying", lambda: total) as advance:
            for batch in due(came, pace, client.keep_alive):
                _put(client, queue, batch, done)
                advance(len(batch))
    except (Failure, Interrupted):
        if done.items:
            say(f"items={done.items} were put, the last of them item {done.last_id}: go on with --after {done.last_id}")
        raise
    return done


def _put(client: "KestrelClient", queue: str, batch: list[Came], done: Replayed) -> None:
    dated = [
        PutItem(item_data(item.record), _time_to_live_s(item), item_flags(item.record), _delay_ms(item))
        for item in batch
    ]
    report = client.put_items(os.fsencode(queue), [dated])
    for item, put in zip(batch[: report.stored], dated, strict=False):
        done.items += 1
        done.data_bytes += len(put.data)
        done.last_id = item.item_id
    if report.failure is not None:
        raise explain(report, report.failure)


def _delay_ms(item: Came) -> int:
    """The delay that the item was put with; 0 = none."""
    return max(item.due_at_ms - item.at_ms, 0) if item.due_at_ms else 0


def _time_to_live_s(item: Came) -> int:
    """Time to live that the item was put with, in seconds; 0 = it does not expire."""
    expire_at_ms = item_expire_at_ms(item.record)
    return expiry_s(max(expire_at_ms - item.at_ms, 1)) if expire_at_ms else 0


def due(
    came: Iterable[T],
    pace: Pace,
    keep_alive: Callable[[], None],
    first_ms: int | None = None,
    begun_s: float | None = None,
) -> Iterator[list[T]]:
    """Yield the items in batches when they are due.

    An item put at `first_ms` is due at `begun_s` of this process's monotonic clock; None = the first item, now.
    """
    came = iter(came)
    if pace.speed is None and pace.rate is None:
        while some := list(islice(came, BATCH_ITEMS)):
            yield some
        return
    now_s = due_s = time.monotonic()
    begun_s = now_s if begun_s is None else begun_s
    batch: list[T] = []
    for count, item in enumerate(came):
        first_ms = item.at_ms if first_ms is None else first_ms
        if pace.speed is not None:
            due_s = max(due_s, begun_s + (item.at_ms - first_ms) / 1000 / pace.speed)
        if pace.rate is not None and count:
            due_s = max(due_s, now_s + count / pace.rate)
        if batch and (due_s > time.monotonic() or len(batch) == BATCH_ITEMS):
            yield batch
            batch = []
        _wait_until(due_s, keep_alive)
        batch.append(item)
    if batch:
        yield batch


def _wait_until(due_s: float, keep_alive: Callable[[], None]) -> None:
    """Sleep until `due_s`, with a request every KEEP_ALIVE_S to keep the connection open."""
    while (left_s := due_s - time.monotonic()) > 0:
        time.sleep(min(left_s, KEEP_ALIVE_S))
        if left_s > KEEP_ALIVE_S:
            keep_alive()
