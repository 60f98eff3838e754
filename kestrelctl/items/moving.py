"""Moves and copies of items from one queue to another, on the same server or elsewhere."""

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Final

from kestrelctl.items.putting import delay_left_ms, expiry_at_s, explain
from kestrelctl.remote.client import KestrelClient
from kestrelctl.remote.reader_api import Gone, Item, NotReadable, ReaderApi
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.signals import signals_held
from kestreld.client.items import OpenItem, PutItem

# Each item that `move --match` passes over is held open on a connection of its own until the end.
PASSED_OVER_MAX: Final = 100
BATCH_ITEMS: Final = 512
PACES_A_SECOND: Final = 10

Pattern = re.Pattern[bytes] | None


class Pace:
    """Limits a rate to `per_s` a second by sleeping; 0 = no limit."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._started_s = time.monotonic()
        self._count = 0

    def wait(self, count: int = 1) -> None:
        """Sleep until `count` more are within the rate."""
        if self._per_s:
            ahead_s = self._count / self._per_s - (time.monotonic() - self._started_s)
            if ahead_s > 0:
                time.sleep(ahead_s)
        self._count += count

    @property
    def batch_items(self) -> int:
        """Largest batch that keeps the rate even."""
        return max(1, min(BATCH_ITEMS, int(self._per_s / PACES_A_SECOND))) if self._per_s else BATCH_ITEMS


# Copying, by the reader API


def to_put(items: Iterable[Item]) -> Iterator[PutItem]:
    """Items to put. Expired ones are left out, because no client would get them."""
    return (
        PutItem(item.data, expiry_at_s(item.expire_ms), item.flags, delay_left_ms(int(item.known.get("due_at_ms", 0))))
        for item in items
        if not item.expire_ms or item.expire_ms > time.time_ns() // 1_000_000
    )


def put_paced(client: KestrelClient, queue: str, items: Iterator[PutItem], pace: Pace) -> int:
    """Put items in order and return the number stored. Raises Failure if one is refused."""

    def batches() -> Iterator[list[PutItem]]:
        while batch := list(islice(items, pace.batch_items)):
            pace.wait(len(batch))
            yield batch

    report = client.put_items(os.fsencode(queue), batches())
    if report.failure is not None:
        raise explain(report, report.failure)
    return report.stored


# Moving, by open reads: an item is closed once it is stored


class Expiries:
    """Expiry times of items, which a get does not report: read by id, many at a time. Raises Failure."""

    def __init__(self, api: ReaderApi, queue: str) -> None:
        self._api = api
        self._queue = queue
        self._known: dict[int, int] = {}
        self._journal_id = int(api.describe(queue)["journal_id"])
        if not self._journal_id:
            raise NotReadable(f"{queue} has no journal: it is kept in memory only")

    def of(self, number: int) -> int:
        """Expiry of an item, ms since 1970; 0 = never. Raises Failure."""
        if number not in self._known:
            try:
                page = self._api.page(self._queue, {"first": number, "journal_id": self._journal_id})
            except Gone as gone:
                raise Failure(ExitCode.NEGATIVE, f"{self._queue} was deleted meanwhile") from gone
            self._known = {item.id: item.expire_ms for item in page.items}
        return self._known.get(number, 0)


class ItemMover:
    """Moves items from `source`, where each connection holds one item open, to `queue` of `target`."""

    def __init__(
        self,
        connect: Callable[[], KestrelClient],
        source: str,
        target: KestrelClient,
        queue: str,
        expiries: Expiries | None,  # None = they cannot be known here, and are lost
    ) -> None:
        self.moved = 0
        self._connect = connect
        self._source = os.fsencode(source)
        self._target = target
        self._queue = os.fsencode(queue)
        self._expiries = expiries
        self._holding: list[KestrelClient] = []  # in the order of the items that they hold

    def run(self, pattern: Pattern, limit: int | None, pace: Pace) -> None:
        """Move items until the queue is empty or `limit` items are moved. Others return to their places.

        Raises Failure, after which open items have returned, too.
        """
        client, is_stored = self._connect(), False
        try:
            while limit is None or self.moved < limit:
                with signals_held():
                    item = client.open_item(self._source, close=is_stored, with_id=self._expiries is not None)
                    is_stored = False
                    if item is None:
                        return
                    self._holding.append(client)
                if pattern is not None and not pattern.search(item.data):
                    if len(self._holding) > PASSED_OVER_MAX:
                        words = f"{PASSED_OVER_MAX} items ahead do not match, and no more can be held open"
                        raise Failure(ExitCode.REFUSED, f"{words}; copy --match has no such limit")
                    client = self._connect()
                    continue
                pace.wait()
                with signals_held():
                    self._put(item)
                    self._holding.pop()
                    self.moved += 1
                    is_stored = True
        finally:
            if is_stored and client.is_connected:
                client.close_read(self._source)
            self._give_back()

    def _put(self, item: OpenItem) -> None:
        expire_ms = self._expiries.of(item.id) if self._expiries is not None else 0
        report = self._target.put_items(self._queue, [[PutItem(item.data, expiry_at_s(expire_ms), item.flags)]])
        if report.failure is not None:
            raise explain(report, report.failure)

    def _give_back(self) -> None:
        """Abort the open reads, the last one first, because each becomes the head."""
        while self._holding:
            with suppress(Failure):
                self._holding.pop().abort_read(self._source)
