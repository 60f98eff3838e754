"""The streaming source: items are read by their ids, and acknowledged by a reader once their batch is committed.

An offset is, for each server and queue, "JOURNAL_ID:ITEM_ID", the next item to read. Reading takes nothing: Spark may
read a range again and gets the same items.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from kestrelspark.options import BadOption, check_names, flag, number, option, words
from kestrelspark.ranges import COLUMNS, RangeOfIds, RangeOptions, range_batches
from kestrelspark.readers import Family, Fleet, ItemsLost, Offsets, Position, RemoteQueue, complain
from kestrelspark.servers import OPTIONS as SERVER_OPTIONS
from kestrelspark.servers import servers_in

OPTIONS: Final = (
    *SERVER_OPTIONS,
    "reader",
    "subscribe",
    "subscribepattern",
    "startingoffsets",
    "maxoffsetspertrigger",
    "minpartitions",
    "failondataloss",
)
TYPES: Final = {"id": LongType, "journal_id": LongType, "flags": LongType, "size": LongType, "value": BinaryType}
TIMES: Final = ("add_time", "expire_time")
COMMITTED, EARLIEST, LATEST = "committed", "earliest", "latest"


def item_schema() -> StructType:
    return StructType([StructField(name, _type(name)) for name in COLUMNS])


def _type(name: str) -> Any:
    return TimestampType() if name in TIMES else TYPES.get(name, StringType)()


@dataclass(slots=True, frozen=True)
class Start:
    """Where to begin: a word, except for queues that have an id of their own."""

    word: str
    ids: Mapping[str, int]

    def at(self, remote: RemoteQueue, family: Family) -> Position:
        item_id = self.ids.get(f"{remote.server}/{remote.queue}")
        if item_id is not None:
            return Position(family.journal_id, item_id)
        if self.word == LATEST:
            return Position(family.journal_id, family.next_id)
        if self.word == COMMITTED and family.head is not None:
            return Position(family.journal_id, family.head)
        return Position(family.journal_id, family.first_id)


def start_in(text: str) -> Start:
    """Parse startingOffsets. Raises BadOption."""
    if text in (COMMITTED, EARLIEST, LATEST):
        return Start(text, {})
    try:
        ids = json.loads(text)
        return Start(COMMITTED, {str(name): int(item_id) for name, item_id in ids.items()})
    except (ValueError, AttributeError, TypeError):
        form = '{"HOST:PORT/QUEUE": ID}'
        raise BadOption(f"startingOffsets must be {COMMITTED}, {EARLIEST}, {LATEST} or {form}, not {text}") from None


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, what: RangeOfIds) -> None:
        super().__init__(what)
        self.what = what


class ItemReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """All but `read` runs in one process that lives as long as the query."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        check_names(options, OPTIONS, "the kestrel stream")
        unknown = [field.name for field in schema.fields if field.name not in COLUMNS]
        if unknown:
            raise BadOption(f"the kestrel stream has no column {', '.join(unknown)}; columns are {', '.join(COLUMNS)}")
        reader = option(options, "reader")
        if not reader:
            raise BadOption("the kestrel stream requires the option reader: a name unique to this query")
        names, pattern = words(option(options, "subscribe")), option(options, "subscribepattern")
        if bool(names) == bool(pattern):
            raise BadOption("the kestrel stream requires either subscribe or subscribePattern")
        try:
            compiled = re.compile(pattern) if pattern else None
        except re.error as problem:
            raise BadOption(f"subscribePattern {pattern}: {problem}") from None
        self._fails_on_loss = flag(options, "failondataloss", "true")
        self._range_options = RangeOptions(
            tuple(field.name for field in schema.fields), servers_in(options), self._fails_on_loss
        )
        self._fleet = Fleet(self._range_options.servers, reader, tuple(names), compiled)
        self._start = start_in(option(options, "startingoffsets", COMMITTED))
        self._rows_max = number(options, "maxoffsetspertrigger", 0)
        self._partitions_min = number(options, "minpartitions", 0)
        self._end: Offsets | None = None  # where a run of Trigger.AvailableNow ends

    # Offsets

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._rows_max) if self._rows_max else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        families = self._fleet.look()
        self._end = {remote: Position(family.journal_id, family.next_id) for remote, family in families.items()}

    def initialOffset(self) -> dict[str, Any]:
        return as_json(self._with_new({}, self._fleet.look()))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begun = from_json(start)
        families = self._fleet.look()
        reached = {remote: self._checked(remote, at, families) for remote, at in begun.items()}
        ahead = {remote: self._ahead(remote, at, families) for remote, at in reached.items() if at == begun[remote]}
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        for remote, items in shares(ahead, rows_max).items():
            reached[remote] = Position(reached[remote].journal_id, reached[remote].next_id + items)
        return as_json(self._with_new(reached, families))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None

    def _with_new(self, known: Offsets, families: Mapping[RemoteQueue, Family]) -> Offsets:
        """Add queues that are new: they begin where their reader does."""
        found = dict(known)
        for remote, family in families.items():
            if remote not in known:
                at = self._start.at(remote, family)
                self._fleet.ensure_reader(remote, family, at)
                found[remote] = at
        return found

    def _checked(self, remote: RemoteQueue, at: Position, families: Mapping[RemoteQueue, Family]) -> Position:
        """The offset, moved if items are gone or the journal was replaced. Raises ItemsLost."""
        family = families.get(remote)
        if family is None:
            return at  # the server or the queue is missing, perhaps temporarily
        if family.journal_id != at.journal_id or family.next_id < at.next_id:
            self._lost(f"{remote}: the journal with item {at.next_id} no longer exists")
            at = Position(family.journal_id, family.first_id)
        elif family.first_id > at.next_id:
            self._lost(f"{remote}: items {at.next_id} to {family.first_id - 1} no longer exist")
        if family.head is None:
            self._fleet.ensure_reader(remote, family, at)
        return at

    def _ahead(self, remote: RemoteQueue, at: Position, families: Mapping[RemoteQueue, Family]) -> int:
        """How many ids there are to read."""
        family = families.get(remote)
        if family is None:
            return 0
        end_id = family.next_id
        if self._end is not None:
            end = self._end.get(remote, at)
            end_id = end.next_id if end.journal_id == at.journal_id else at.next_id
        return max(end_id - at.next_id, 0)

    def _lost(self, what: str) -> None:
        if self._fails_on_loss:
            raise ItemsLost(f'{what}; set failOnDataLoss to "false" to continue without them')
        complain(f"{what}; continuing without them")

    def commit(self, end: dict[str, Any]) -> None:
        self._fleet.acknowledge(from_json(end))

    # Reading

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        ranges = ranges_of(from_json(start), from_json(end))
        return [RangePartition(one) for one in divided(ranges, self._partitions_min)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, RangePartition):
            yield from range_batches(partition.what, self._range_options)


def shares(ahead: Mapping[RemoteQueue, int], rows_max: int) -> dict[RemoteQueue, int]:
    """How many items to read of each queue, in proportion to what there is. `rows_max` 0 = all."""
    total = sum(ahead.values())
    if not rows_max or total <= rows_max:
        return dict(ahead)
    found, left = {}, rows_max
    for remote, items in ahead.items():
        found[remote] = min(max(items * rows_max // total, 1), items, left)
        left -= found[remote]
    return found


def ranges_of(start: Offsets, end: Offsets) -> list[RangeOfIds]:
    """The ranges between two offsets, of queues in both."""
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
    """In a fixed order: Spark compares the text."""
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
