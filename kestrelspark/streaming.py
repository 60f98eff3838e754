"""The streaming source: items of queues, read by their ids, and acknowledged by a reader when their batch is committed.

An offset is, for each server and queue, "JOURNAL_ID:ITEM_ID", the item to go on with. Reading a range takes nothing:
Spark may read it again, and gets the same items.
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
from kestrelspark.ranges import COLUMNS, RangeOfIds, Wanted, range_batches
from kestrelspark.readers import Family, Fleet, ItemsLost, Offsets, Place, Position, complain
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
    """Where to begin with a queue: a word, but for the places that have an id of their own."""

    word: str
    ids: Mapping[str, int]

    def at(self, place: Place, family: Family) -> Position:
        said = self.ids.get(f"{place.server}/{place.queue}")
        if said is not None:
            return Position(family.journal_id, said)
        if self.word == LATEST:
            return Position(family.journal_id, family.next_id)
        if self.word == COMMITTED and family.head is not None:
            return Position(family.journal_id, family.head)
        return Position(family.journal_id, family.first_id)


def start_in(text: str) -> Start:
    """Of startingOffsets. Raises BadOption."""
    if text in (COMMITTED, EARLIEST, LATEST):
        return Start(text, {})
    try:
        said = json.loads(text)
        return Start(COMMITTED, {str(name): int(item_id) for name, item_id in said.items()})
    except (ValueError, AttributeError, TypeError):
        form = '{"HOST:PORT/QUEUE": ID}'
        raise BadOption(f"startingOffsets is {COMMITTED}, {EARLIEST}, {LATEST} or {form}, not {text}") from None


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
            raise BadOption(f"the kestrel stream has no column {', '.join(unknown)}; it has {', '.join(COLUMNS)}")
        reader = option(options, "reader")
        if not reader:
            raise BadOption("the kestrel stream needs the option reader: a name of this query's own")
        names, pattern = words(option(options, "subscribe")), option(options, "subscribepattern")
        if bool(names) == bool(pattern):
            raise BadOption("the kestrel stream needs one of subscribe (names) and subscribePattern")
        try:
            wanted = re.compile(pattern) if pattern else None
        except re.error as problem:
            raise BadOption(f"subscribePattern {pattern}: {problem}") from None
        self._fails_on_loss = flag(options, "failondataloss", "true")
        self._wanted = Wanted(tuple(field.name for field in schema.fields), servers_in(options), self._fails_on_loss)
        self._fleet = Fleet(self._wanted.servers, reader, tuple(names), wanted)
        self._start = start_in(option(options, "startingoffsets", COMMITTED))
        self._rows_max = number(options, "maxoffsetspertrigger", 0)
        self._partitions_min = number(options, "minpartitions", 0)
        self._end: Offsets | None = None  # where a run of Trigger.AvailableNow ends

    # Offsets

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._rows_max) if self._rows_max else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        families = self._fleet.look()
        self._end = {place: Position(family.journal_id, family.next_id) for place, family in families.items()}

    def initialOffset(self) -> dict[str, Any]:
        return as_json(self._with_new({}, self._fleet.look()))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begun = from_json(start)
        families = self._fleet.look()
        reached = {place: self._checked(place, at, families) for place, at in begun.items()}
        ahead = {place: self._ahead(place, at, families) for place, at in reached.items() if at == begun[place]}
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        for place, items in shares(ahead, rows_max).items():
            reached[place] = Position(reached[place].journal_id, reached[place].next_id + items)
        return as_json(self._with_new(reached, families))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None

    def _with_new(self, known: Offsets, families: Mapping[Place, Family]) -> Offsets:
        """With the queues that are new: they begin where their reader does."""
        found = dict(known)
        for place, family in families.items():
            if place not in known:
                at = self._start.at(place, family)
                self._fleet.hold(place, family, at)
                found[place] = at
        return found

    def _checked(self, place: Place, at: Position, families: Mapping[Place, Family]) -> Position:
        """Where to go on: not there any more if the journal is another one. Raises ItemsLost."""
        family = families.get(place)
        if family is None:
            return at  # the server or the queue is away, and may come again
        if family.journal_id != at.journal_id or family.next_id < at.next_id:
            self._lost(f"{place}: item {at.next_id} and those before it are of a journal that is not there any more")
            at = Position(family.journal_id, family.first_id)
        elif family.first_id > at.next_id:
            self._lost(f"{place}: the items from {at.next_id} to {family.first_id - 1} are not there any more")
        if family.head is None:
            self._fleet.hold(place, family, at)
        return at

    def _ahead(self, place: Place, at: Position, families: Mapping[Place, Family]) -> int:
        """How many ids there are to read."""
        family = families.get(place)
        if family is None:
            return 0
        end_id = family.next_id
        if self._end is not None:
            end = self._end.get(place, at)
            end_id = end.next_id if end.journal_id == at.journal_id else at.next_id
        return max(end_id - at.next_id, 0)

    def _lost(self, what: str) -> None:
        if self._fails_on_loss:
            raise ItemsLost(f'{what}; with failOnDataLoss "false" the stream goes on without them')
        complain(f"{what}; going on without them")

    def commit(self, end: dict[str, Any]) -> None:
        self._fleet.acknowledge(from_json(end))

    # Reading

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        ranges = ranges_of(from_json(start), from_json(end))
        return [RangePartition(one) for one in divided(ranges, self._partitions_min)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, RangePartition):
            yield from range_batches(partition.what, self._wanted)


def shares(ahead: Mapping[Place, int], rows_max: int) -> dict[Place, int]:
    """How far to go with each place, in proportion to what there is. `rows_max` 0 = all the way."""
    total = sum(ahead.values())
    if not rows_max or total <= rows_max:
        return dict(ahead)
    found, left = {}, rows_max
    for place, items in ahead.items():
        found[place] = min(max(items * rows_max // total, 1), items, left)
        left -= found[place]
    return found


def ranges_of(start: Offsets, end: Offsets) -> list[RangeOfIds]:
    """What is between the two, of the places that both know."""
    return [
        RangeOfIds(place.server, place.queue, at.journal_id, start[place].next_id, at.next_id)
        for place, at in end.items()
        if place in start and start[place].journal_id == at.journal_id and start[place].next_id < at.next_id
    ]


def divided(ranges: list[RangeOfIds], least: int) -> Iterable[RangeOfIds]:
    """In at least so many parts, where there are so many items."""
    total = sum(one.end - one.first for one in ranges)
    size = max(total // least, 1) if least > len(ranges) else max(total, 1)
    for one in ranges:
        for first in range(one.first, one.end, size):
            yield one.part(first, min(first + size, one.end))


def as_json(offsets: Offsets) -> dict[str, Any]:
    """Always in one order: Spark compares the text."""
    found: dict[str, Any] = {}
    for place, at in sorted(offsets.items()):
        found.setdefault(place.server, {})[place.queue] = f"{at.journal_id}:{at.next_id}"
    return found


def from_json(said: Mapping[str, Any]) -> Offsets:
    found: Offsets = {}
    for server, queues in said.items():
        for queue, text in queues.items():
            journal_id, _, next_id = text.partition(":")
            found[Place(server, queue)] = Position(int(journal_id), int(next_id))
    return found
