"""DataFrames made with a task for each pack of files, for reads that the source's paths cannot express."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from pyspark.sql.types import StructType

from kestreld.journal.discovery import JournalFile
from kestrelspark.batch import field_of
from kestrelspark.packing import earlier_files
from kestrelspark.rows import RowSelection, batches

Pack = TypeVar("Pack")


def table(spark: Any, packs: Sequence[Pack], rows: Callable[[Pack], Iterator[Any]], schema: StructType | str) -> Any:
    """A DataFrame of the Arrow batches that `rows` makes of each pack in a task. Rows of a pack keep their order."""
    kept = list(packs)

    def made(numbers: Iterable[Any]) -> Iterator[Any]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from rows(kept[number])

    return spark.range(0, len(kept), 1, max(len(kept), 1)).mapInArrow(made, schema)


def columns_schema(columns: Iterable[str]) -> StructType:
    """A schema of the source's columns with these names."""
    return StructType([field_of(name) for name in columns])


def events(spark: Any, packs: Sequence[list[JournalFile]], selection: RowSelection) -> Any:
    """The rows of the source."""
    work = list(zip(packs, earlier_files(packs), strict=True))
    return table(spark, work, lambda one: batches(one[0], selection, earlier=one[1]), columns_schema(selection.columns))
