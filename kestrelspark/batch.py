"""The batch source of the format "kestrel", which reads journals as events; also the entry points of the format.

spark.read.format("kestrel").load("/srv/archive/server=*/")
"""

import datetime
import functools
import gc
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from pyspark.sql import datasource
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from kestreld.journal.discovery import JournalFile, discover
from kestrelspark.catalog import options_of, with_options
from kestrelspark.live import OPTIONS as LIVE_OPTIONS
from kestrelspark.live import LiveReader
from kestrelspark.options import BadOption, check_names, flag, instant_ms, option, size_bytes, words
from kestrelspark.packing import earlier_files, input_bytes, packed
from kestrelspark.rows import COLUMNS, VALUE, Mode, RowSelection, batches
from kestrelspark.sink import batch_sink, stream_sink
from kestrelspark.storage import OPTIONS as STORAGE_OPTIONS
from kestrelspark.storage import storage_in
from kestrelspark.streaming import OPTIONS as STREAM_OPTIONS
from kestrelspark.streaming import ItemReader, item_schema
from kestrelspark.wal_reader import OPTIONS as WAL_OPTIONS
from kestrelspark.wal_reader import WalReader, taken_schema

MIB: Final = 1 << 20
PARTITION_BYTES_MIN: Final = 64 * MIB
PARTITION_BYTES_MAX: Final = 256 * MIB
PARTITIONS_WISHED: Final = 8
PUSHDOWN_SETTING: Final = "spark.sql.python.filterPushdown.enabled"
_TIMES: Final = ("at", "add_time", "expire_time", "due_time")
_NUMBERS: Final = ("id", "flags", "size", "attempts", "journal_id", "lease")
TABLE_HINT: Final = "For CREATE TABLE, name no columns: the table would not know its options"
OPTIONS: Final = {
    "path": "",
    "paths": "",
    "queue": "",
    "since": "",
    "until": "",
    "mode": Mode.PERMISSIVE.value,
    "includevalue": "false",
    "maxpartitionbytes": "",
    "ignoremissingfiles": "false",
    **STORAGE_OPTIONS,
}


class KestrelSource(datasource.DataSource):
    """The format "kestrel": reads journals of kestreld and of Kestrel 1.x and 2.x as events; writes rows to queues."""

    @classmethod
    def name(cls) -> str:
        return "kestrel"

    def schema(self) -> StructType:
        if option(self.options, "walpath"):
            return with_options(taken_schema(), self.options, WAL_OPTIONS)
        if option(self.options, "servers"):
            return with_options(item_schema(), self.options, {*LIVE_OPTIONS, *STREAM_OPTIONS})
        with_value = flag(self.options, "includevalue")
        columns = StructType([field_of(name) for name in COLUMNS if name != VALUE or with_value])
        return with_options(columns, self.options, OPTIONS)

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        live = options_of(schema, self.options, LIVE_OPTIONS)
        if "servers" in live:
            _check_live(live)
            return LiveReader(schema, live)
        return self.journal_reader(schema, options_of(schema, self.options, OPTIONS))

    def journal_reader(self, schema: StructType, options: Mapping[str, str]) -> "JournalReader":
        return JournalReader(schema, options)

    def streamReader(self, schema: StructType) -> datasource.DataSourceStreamReader:
        taking = options_of(schema, self.options, WAL_OPTIONS)
        if "walpath" in taking:
            return WalReader(schema, taking)
        return ItemReader(schema, options_of(schema, self.options, STREAM_OPTIONS))

    def writer(self, schema: StructType, overwrite: bool) -> datasource.DataSourceWriter:
        return batch_sink(schema, self.options, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> datasource.DataSourceStreamWriter:
        return stream_sink(schema, self.options)


class PushdownSource(KestrelSource):
    """KestrelSource with pushdown of filters on queue and at."""

    def journal_reader(self, schema: StructType, options: Mapping[str, str]) -> "JournalReader":
        return PushdownReader(schema, options)


def _check_live(options: Mapping[str, str]) -> None:
    """Check options of live queues. Raises BadOption."""
    if "path" in options:
        raise BadOption("a path is for journals, servers for live queues, those of running servers: use one of them")
    if "walpath" in options:
        raise BadOption("walPath is for streams only, because reading it removes items from the servers")


def register(spark: Any) -> None:
    """Register the format "kestrel" with a session."""
    # Spark fails for a reader that takes filters when the setting is off.
    pushes = spark.conf.get(PUSHDOWN_SETTING, "false") == "true"
    spark.dataSource.register(PushdownSource if pushes else KestrelSource)


def field_of(name: str) -> StructField:
    if name in _TIMES:
        return StructField(name, TimestampType())
    if name in _NUMBERS:
        return StructField(name, LongType())
    return StructField(name, BinaryType() if name == VALUE else StringType())


class FilePartition(datasource.InputPartition):
    """The files that one task reads, and those before them that may have the leases which they extend."""

    def __init__(self, files: list[JournalFile], earlier: list[JournalFile]) -> None:
        super().__init__(files)
        self.files = files
        self.earlier = earlier


class JournalReader(datasource.DataSourceReader):
    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        check_names(options, OPTIONS, "the kestrel source")
        self._schema = schema
        self._paths = _paths(options)
        self._storage = storage_in(options)
        self._queues = words(_option(options, "queue"))
        self._bytes_max = size_bytes(options, "maxpartitionbytes")
        self._missing_is_fine = flag(options, "ignoremissingfiles")
        unknown = [field.name for field in schema.fields if field.name not in COLUMNS]
        if unknown:
            raise BadOption(f"the kestrel source has no column {', '.join(unknown)}; columns are {', '.join(COLUMNS)}")
        try:
            mode = Mode(_option(options, "mode").upper())
        except ValueError:
            raise BadOption(f"mode must be one of {', '.join(Mode)}, not {_option(options, 'mode')}") from None
        self._selection = RowSelection(
            tuple(field.name for field in schema.fields),
            mode,
            instant_ms(_option(options, "since"), "since"),
            instant_ms(_option(options, "until"), "until"),
        )

    def partitions(self) -> list[datasource.InputPartition]:
        found = discover(self._paths, self._queues, self._selection.since_ms, self._storage.files)
        files = [*found.files, *found.missing]
        bytes_max = self._bytes_max or partition_bytes(input_bytes(files))
        packs = packed(files, bytes_max)
        return list(map(FilePartition, packs, earlier_files(packs)))

    def read(self, partition: datasource.InputPartition) -> Iterator[Any]:
        if not isinstance(partition, FilePartition):
            return  # Spark creates a partition of its own if there is none
        _spare_the_collector()
        arrow_schema = to_arrow_schema(self._schema, timezone="UTC")
        as_declared = [field.type for field in arrow_schema] == [COLUMNS[name] for name in self._selection.columns]
        for batch in batches(
            partition.files,
            self._selection,
            missing_is_fine=self._missing_is_fine,
            storage=self._storage,
            earlier=partition.earlier,
        ):
            yield batch if as_declared else batch.cast(arrow_schema)


@functools.cache
def _spare_the_collector() -> None:
    """Freeze all objects: Spark's worker collects garbage after each task, which takes 80 ms with all imports."""
    gc.freeze()


class PushdownReader(JournalReader):
    def pushFilters(self, filters: list[datasource.Filter]) -> Iterable[datasource.Filter]:
        """Use filters to read less. Spark applies all of them, too."""
        for one in filters:
            self._narrow(one)
            yield one

    def _narrow(self, one: datasource.Filter) -> None:
        match one:
            case datasource.EqualTo(("queue",), str(name)) if not self._queues:
                self._queues = [_literally(name)]
            case datasource.In(("queue",), names) if not self._queues:
                self._queues = [_literally(name) for name in names if name is not None]
            case datasource.GreaterThanOrEqual(("at",), datetime.datetime() as at) | datasource.GreaterThan(
                ("at",), datetime.datetime() as at
            ):
                since_ms = max(_floor_ms(at), self._selection.since_ms or 0)
                self._selection = replace(self._selection, since_ms=since_ms)
            case datasource.LessThan(("at",), datetime.datetime() as at) | datasource.LessThanOrEqual(
                ("at",), datetime.datetime() as at
            ):
                until_ms = min(_floor_ms(at) + 1, self._selection.until_ms or 1 << 62)
                self._selection = replace(self._selection, until_ms=until_ms)


def _literally(name: str) -> str:
    """A pattern that matches only this name."""
    return re.sub(r"([*?[])", r"[\1]", name)


def _floor_ms(at: datetime.datetime) -> int:
    return (at.astimezone(datetime.UTC) - datetime.datetime.fromtimestamp(0, datetime.UTC)) // datetime.timedelta(
        milliseconds=1
    )


# Options


def _option(options: Mapping[str, str], name: str) -> str:
    return option(options, name, OPTIONS[name])


def _paths(options: Mapping[str, str]) -> list[str]:
    several = _option(options, "paths")
    paths = list(json.loads(several)) if several else []
    if single := _option(options, "path"):
        paths.append(single)
    if not paths:
        words = 'journals, load(PATH), or live queues, those of running servers: option("servers", "HOST:PORT,…")'
        raise BadOption(f"the kestrel source reads {words}; neither is given. {TABLE_HINT}")
    return [str(path) for path in paths]


def partition_bytes(total_bytes: int) -> int:
    """The default size of a task's files, in bytes: enough to be worth a task."""
    return min(max(total_bytes // PARTITIONS_WISHED, PARTITION_BYTES_MIN), PARTITION_BYTES_MAX)
