"""The batch source for live queues of running servers, read by item id.

Nothing is taken and no reader is created, so nothing keeps the items while they are read.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kestrelctl.shell.exit_codes import Failure
from kestrelspark import subscription
from kestrelspark.boundaries import EARLIEST, ENDING_OPTIONS, LATEST, STARTING_OPTIONS, end_in, start_in
from kestrelspark.options import BadOption, check_names, flag, number
from kestrelspark.ranges import COLUMNS, RangeOptions, lose, range_batches
from kestrelspark.readers import Family, Offsets, Position, RemoteQueue
from kestrelspark.servers import OPTIONS as SERVER_OPTIONS
from kestrelspark.servers import Patience, servers_in
from kestrelspark.streaming import RangePartition, divided, ranges_of

OPTIONS: Final = (
    *SERVER_OPTIONS,
    *subscription.OPTIONS,
    *STARTING_OPTIONS,
    *ENDING_OPTIONS,
    "minpartitions",
    "failondataloss",
)


class LiveReader(DataSourceReader):
    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        check_names(options, OPTIONS, "reading live queues")
        unknown = [field.name for field in schema.fields if field.name not in COLUMNS]
        if unknown:
            raise BadOption(f"live queues have no column {', '.join(unknown)}; columns are {', '.join(COLUMNS)}")
        servers = servers_in(options)
        self._range_options = RangeOptions(
            tuple(field.name for field in schema.fields), servers, flag(options, "failondataloss", "true")
        )
        self._fleet = subscription.fleet_of(options, servers, "", "reading live queues")
        self._start = start_in(options, (EARLIEST, LATEST))
        self._end = end_in(options)
        self._partitions_min = number(options, "minpartitions", 0)

    def partitions(self) -> list[InputPartition]:
        """Ranges of the items that exist now. Raises ServerTrouble, ItemsLost, BadOption."""
        families = self._fleet.look_at_all()
        missing = sorted(self._named() - {remote.queue for remote in families})
        if missing:
            raise BadOption(f"no queue {', '.join(missing)} on {', '.join(self._fleet.servers.addresses())}")
        self._start = self._start.matched(self._fleet, families)
        self._end = self._end.matched(self._fleet, families)
        start: Offsets = {}
        end: Offsets = {}
        for remote, family in families.items():
            start[remote], end[remote] = self._bounds(remote, family)
        return [RangePartition(one) for one in divided(ranges_of(start, end), self._partitions_min)]

    def _named(self) -> set[str]:
        if self._fleet.assigned is None:
            return set(self._fleet.queues)
        return {queue for queues in self._fleet.assigned.values() for queue in queues}

    def _bounds(self, remote: RemoteQueue, family: Family) -> tuple[Position, Position]:
        patience = Patience(self._fleet.servers.retries)
        while True:
            try:
                start = self._start.position(self._fleet, remote, family)
                end = self._end.position(self._fleet, remote, family)
                break
            except Failure as failure:
                patience.spend(failure)
        if end.next_id > family.next_id and self._end.names_id(remote):
            words = f"{remote}: items {max(start.next_id, family.next_id)} to {end.next_id - 1} do not exist yet"
            lose(words, self._range_options)
        if start.next_id > end.next_id and self._start.names_id(remote) and self._end.names_id(remote):
            words = f"begins at item {start.next_id}, which is after its end, item {end.next_id}"
            raise BadOption(f"startingOffsets: {remote} {words}")
        # Items put since then do not count.
        return start, Position(end.journal_id, min(end.next_id, family.next_id))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, RangePartition):
            yield from range_batches(partition.what, self._range_options)
