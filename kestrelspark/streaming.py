"""The streaming source: items are read by id, and acknowledged by a reader once their batch is committed.

An offset holds, for each server and queue, "JOURNAL_ID:ITEM_ID", the next item to read. Reading takes nothing: Spark
may read a range again and gets the same items.
"""

import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from kestrelctl.remote.reader_api import Gone
from kestrelctl.shell.exit_codes import Failure
from kestrelspark import subscription
from kestrelspark.boundaries import COMMITTED, EARLIEST, LATEST, STARTING_OPTIONS, start_in
from kestrelspark.options import BadOption, check_names, duration_ms, flag, number, option, size_bytes
from kestrelspark.ranges import COLUMNS, RangeOfIds, RangeOptions, range_batches
from kestrelspark.readers import Family, ItemsLost, Offsets, Position, RemoteQueue, complain
from kestrelspark.servers import OPTIONS as SERVER_OPTIONS
from kestrelspark.servers import servers_in

OPTIONS: Final = (
    *SERVER_OPTIONS,
    *subscription.OPTIONS,
    "reader",
    *STARTING_OPTIONS,
    "maxoffsetspertrigger",
    "maxbytespertrigger",
    "minoffsetspertrigger",
    "maxtriggerdelay",
    "minpartitions",
    "failondataloss",
)
MAX_TRIGGER_DELAY: Final = "15m"
TYPES: Final = {"id": LongType, "journal_id": LongType, "flags": LongType, "size": LongType, "value": BinaryType}
TIMES: Final = ("add_time", "expire_time")


def item_schema() -> StructType:
    return StructType([StructField(name, _type(name)) for name in COLUMNS])


def _type(name: str) -> Any:
    return TimestampType() if name in TIMES else TYPES.get(name, StringType)()


class RangePartition(InputPartition):
    """The range that one task reads."""

    def __init__(self, what: RangeOfIds) -> None:
        super().__init__(what)
        self.what = what


class ItemReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream's reader. All but `read` runs in one process that lives as long as the query."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        check_names(options, (*OPTIONS, "path"), "the kestrel stream")
        unknown = [field.name for field in schema.fields if field.name not in COLUMNS]
        if unknown:
            raise BadOption(f"the kestrel stream has no column {', '.join(unknown)}; columns are {', '.join(COLUMNS)}")
        reader = option(options, "reader")
        if option(options, "path"):
            words = "reads live queues, those of running servers: use the option servers instead of a path"
            raise BadOption(f"the kestrel stream {words}; spark.read reads journals")
        if not reader:
            raise BadOption("the kestrel stream requires the option reader: a name unique to this query")
        self._fails_on_loss = flag(options, "failondataloss", "true")
        self._range_options = RangeOptions(
            tuple(field.name for field in schema.fields), servers_in(options), self._fails_on_loss
        )
        self._fleet = subscription.fleet_of(options, self._range_options.servers, reader, "the kestrel stream")
        self._start = start_in(options, (COMMITTED, EARLIEST, LATEST))
        self._rows_max = number(options, "maxoffsetspertrigger", 0)
        self._bytes_max = size_bytes(options, "maxbytespertrigger")
        self._rows_min = number(options, "minoffsetspertrigger", 0)
        if self._rows_max and self._rows_min > self._rows_max:
            raise BadOption("minOffsetsPerTrigger must not be greater than maxOffsetsPerTrigger")
        self._delay_max_ms = duration_ms(options, "maxtriggerdelay", MAX_TRIGGER_DELAY)
        self._partitions_min = number(options, "minpartitions", 0)
        self._batch_at_s: float | None = None  # time at which the latest batch was planned
        self._rotation = Rotation()
        self._end: Offsets | None = None  # end of a run of Trigger.AvailableNow
        self._latest: Offsets | None = None  # ends of the queues at the last look
        self._families: Mapping[RemoteQueue, Family] = {}  # of the last look

    # Offsets

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit of a batch, which Spark replaces with ReadAllAvailable if limits do not apply (Trigger.Once)."""
        if self._rows_max:
            return ReadMaxRows(self._rows_max)
        if self._bytes_max:
            return ReadMaxBytes(self._bytes_max)
        return ReadMinRows(self._rows_min) if self._rows_min else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._end = _ends(self._look())

    def initialOffset(self) -> dict[str, Any]:
        return as_json(self._with_new({}, self._look()))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begun = from_json(start)
        self._fleet.preferred = frozenset(remote.server for remote in begun)
        families = self._look()
        begun = self._renamed(begun)
        reached = {
            remote: checked
            for remote, at in begun.items()
            if (checked := self._checked(remote, at, families)) is not None
        }
        ahead = {remote: self._ahead(remote, at, families) for remote, at in reached.items() if at == begun[remote]}
        if isinstance(limit, ReadAllAvailable):
            taken = ahead
        elif reached == begun and self._waits(sum(ahead.values())):
            taken = {}
        else:
            taken = self._rotation.shares(ahead, self._rows_max)
            if self._bytes_max:
                taken = self._within_bytes(reached, taken)
        if any(taken.values()):
            self._batch_at_s = time.monotonic()
        for remote, items in taken.items():
            reached[remote] = Position(reached[remote].journal_id, reached[remote].next_id + items)
        return as_json(self._with_new(reached, families))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The end of each queue at the time the batch was planned."""
        if self._latest is None:
            self._look()  # a batch that was planned before a restart
        return as_json(self._latest or {})

    def _look(self) -> dict[RemoteQueue, Family]:
        families = self._families = self._fleet.look()
        self._latest = (self._latest or {}) | _ends(families)
        return families

    def _renamed(self, offsets: Offsets) -> Offsets:
        """Offsets with the servers' present addresses: a journal is the same under any address."""
        addresses = set(self._fleet.servers.addresses())
        journals = {(remote.queue, family.journal_id): remote for remote, family in self._families.items()}
        found: Offsets = {}
        for remote, at in offsets.items():
            other = None if remote.server in addresses else journals.get((remote.queue, at.journal_id))
            found[remote if other is None or other in offsets else other] = at
        return found

    def _with_present_addresses(self, offsets: Offsets) -> Offsets:
        addresses = set(self._fleet.servers.addresses())
        if all(remote.server in addresses for remote in offsets):
            return offsets
        if not self._families:
            self._look()
        return self._renamed(offsets)

    def _waits(self, ahead: int) -> bool:
        """True if there are too few items for a batch yet. The first batch of a run is not delayed."""
        if self._end is not None or self._batch_at_s is None or ahead >= self._rows_min:
            return False
        return (time.monotonic() - self._batch_at_s) * 1000 < self._delay_max_ms

    def _within_bytes(self, reached: Offsets, wanted: Mapping[RemoteQueue, int]) -> dict[RemoteQueue, int]:
        """Number of these items to read of each queue within the limit of bytes; unused shares go to later queues."""
        found: dict[RemoteQueue, int] = {}
        left_bytes, left = self._bytes_max, sum(wanted.values())
        for remote, items in sorted(wanted.items(), key=lambda one: one[1]):
            if not items:
                continue
            at = reached[remote]
            try:
                end_id, size_bytes = self._fleet.end_of_bytes(remote, at, max(left_bytes * items // left, 1))
            except Gone:
                end_id, size_bytes = at.next_id + items, 0  # the read reports the loss
            except Failure as failure:
                self._fleet.note(remote.server, failure)
                end_id, size_bytes = at.next_id, 0
            found[remote] = min(end_id - at.next_id, items)
            left_bytes, left = max(left_bytes - size_bytes, 0), left - items
        return found

    def _with_new(self, known: Offsets, families: Mapping[RemoteQueue, Family]) -> Offsets:
        """Add new queues, which begin at their reader's position or where the options say."""
        found = dict(known)
        new = {remote: family for remote, family in families.items() if remote not in known}
        if new:
            start = self._start.matched(self._fleet, families, is_strict=not known)
            for remote, family in new.items():
                try:
                    at = start.position(self._fleet, remote, family)
                    self._fleet.ensure_reader(remote, family, at)
                except Failure as failure:
                    self._fleet.note(remote.server, failure)  # it is still new at the next look
                else:
                    found[remote] = at
        return found

    def _checked(self, remote: RemoteQueue, at: Position, families: Mapping[RemoteQueue, Family]) -> Position | None:
        """The offset, moved if items are gone or the journal was replaced; None if the queue is. Raises ItemsLost."""
        family = families.get(remote)
        if family is None:
            if remote.server not in self._fleet.answered or not self._fleet.subscribes(remote):
                return at
            return None if self._is_gone(remote, at) else at
        if family.journal_id != at.journal_id or family.next_id < at.next_id:
            self._lost(f"{remote}: the journal with item {at.next_id} no longer exists")
            at = Position(family.journal_id, family.first_id)
        elif family.first_id > at.next_id:
            self._lost(f"{remote}: items {at.next_id} to {family.first_id - 1} no longer exist")
        if family.head is None:
            self._fleet.ensure_reader(remote, family, at)
        return at

    def _is_gone(self, remote: RemoteQueue, at: Position) -> bool:
        """True if a queue has been deleted. Raises ItemsLost unless all of it had been read at the last look."""
        if not self._fleet.is_gone(remote):
            return False
        ended = (self._latest or {}).get(remote)
        if ended is None or ended.journal_id != at.journal_id or ended.next_id > at.next_id:
            self._lost(f"{remote}: the queue was deleted, with its items from {at.next_id} on")
        if self._latest is not None:
            self._latest.pop(remote, None)
        return True

    def _ahead(self, remote: RemoteQueue, at: Position, families: Mapping[RemoteQueue, Family]) -> int:
        """Number of ids left to read."""
        family = families.get(remote)
        if family is None:
            return 0
        end_id = family.next_id
        if self._end is not None:
            end = self._end.get(remote) or self._end_elsewhere(remote, at)
            end_id = end.next_id if end.journal_id == at.journal_id else at.next_id
        return max(end_id - at.next_id, 0)

    def _end_elsewhere(self, remote: RemoteQueue, at: Position) -> Position:
        """The end of a queue whose server had another address when the run began."""
        ends = [one for other, one in (self._end or {}).items() if other.queue == remote.queue]
        return next((one for one in ends if one.journal_id == at.journal_id), at)

    def _lost(self, what: str) -> None:
        if self._fails_on_loss:
            raise ItemsLost(f'{what}; set failOnDataLoss to "false" to continue without them')
        complain(f"{what}; continuing without them")

    def commit(self, end: dict[str, Any]) -> None:
        self._fleet.acknowledge(self._with_present_addresses(from_json(end)))

    # Reading

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begun, reached = self._with_present_addresses(from_json(start)), self._with_present_addresses(from_json(end))
        ranges = ranges_of(begun, reached)
        return [RangePartition(one) for one in divided(ranges, self._partitions_min)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, RangePartition):
            yield from range_batches(partition.what, self._range_options)


def _ends(families: Mapping[RemoteQueue, Family]) -> Offsets:
    return {remote: Position(family.journal_id, family.next_id) for remote, family in families.items()}


class Rotation:
    """Divides batches among queues; if there are more queues than items in a batch, they take turns."""

    def __init__(self) -> None:
        self._latest: RemoteQueue | None = None  # the last queue that got one item more than its share

    def shares(self, ahead: Mapping[RemoteQueue, int], rows_max: int) -> dict[RemoteQueue, int]:
        """Number of items to read of each queue, in proportion to its backlog, at least one if possible.

        `rows_max`: total number, if there are as many; 0 = all.
        """
        total = sum(ahead.values())
        if not rows_max or total <= rows_max:
            return dict(ahead)
        busy = sorted(remote for remote, items in ahead.items() if items)
        least = 1 if rows_max >= len(busy) else 0
        found = {remote: max(items * rows_max // total, min(least, items)) for remote, items in ahead.items()}
        left = rows_max - sum(found.values())
        for remote in sorted(busy, key=lambda one: -found[one]):
            if left < 0:  # minimum shares are taken from the largest shares
                given = min(-left, found[remote] - least)
                found[remote] -= given
                left += given
        begin = 0 if self._latest is None else bisect_right(busy, self._latest)
        for remote in [*busy[begin:], *busy[:begin]]:
            if left and found[remote] < ahead[remote]:
                found[remote] += 1
                left -= 1
                self._latest = remote
        return found


def shares(ahead: Mapping[RemoteQueue, int], rows_max: int) -> dict[RemoteQueue, int]:
    """Number of items to read of each queue in a single batch."""
    return Rotation().shares(ahead, rows_max)


def ranges_of(start: Offsets, end: Offsets) -> list[RangeOfIds]:
    """The ranges between two offsets, for queues in both."""
    return [
        RangeOfIds(remote.server, remote.queue, at.journal_id, start[remote].next_id, at.next_id)
        for remote, at in end.items()
        if remote in start and start[remote].journal_id == at.journal_id and start[remote].next_id < at.next_id
    ]


def divided(ranges: list[RangeOfIds], least: int) -> Iterable[RangeOfIds]:
    """Split into at least `least` parts, if there are as many items."""
    total = sum(one.end - one.first for one in ranges)
    size = max(total // least, 1) if least > len(ranges) else max(total, 1)
    for one in ranges:
        for first in range(one.first, one.end, size):
            yield one.part(first, min(first + size, one.end))


def as_json(offsets: Offsets) -> dict[str, Any]:
    """Offsets in a fixed order, because Spark compares the text."""
    found: dict[str, Any] = {}
    for remote, at in sorted(offsets.items()):
        found.setdefault(remote.server, {})[remote.queue] = f"{at.journal_id}:{at.next_id}"
    return found


def from_json(document: Mapping[str, Any]) -> Offsets:
    found: Offsets = {}
    for server, queues in document.items():
        for queue, text in queues.items():
            journal_id, _, next_id = text.partition(":")
            found[RemoteQueue(server, queue)] = Position(int(journal_id), int(next_id))
    return found
