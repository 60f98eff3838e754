"""Tables of a catalog: CREATE TABLE … USING kestrel.

Spark does not pass a table's options on to those who read it, only its columns. So they are kept in the metadata of
its first column.
"""

import json
from collections.abc import Collection, Mapping
from typing import Final

from pyspark.sql.types import StructField, StructType

from kestrelspark.options import check_names

METADATA: Final = "kestrel.options"
PROVIDER: Final = "provider"  # among what a catalog says of a table, and only there
OPTION: Final = "option."
FILE: Final = "file:"


def with_options(schema: StructType, options: Mapping[str, str], known: Collection[str]) -> StructType:
    """The schema that remembers the options, if it is for a table of a catalog. Raises BadOption."""
    if PROVIDER not in options:
        return schema
    given = {name.removeprefix(OPTION): value for name, value in options.items() if name.startswith(OPTION)}
    if "path" in options:
        given["path"] = _local(options["path"])
    check_names(given, known, "a table of the kestrel format")
    first, *others = schema.fields
    return StructType([StructField(first.name, first.dataType, first.nullable, {METADATA: json.dumps(given)}), *others])


def options_of(schema: StructType, options: Mapping[str, str], known: Collection[str]) -> dict[str, str]:
    """The options, and behind them those of the table with this schema that are `known` to whoever reads it."""
    found: dict[str, str] = {}
    for field in schema.fields:
        kept = json.loads((field.metadata or {}).get(METADATA, "{}"))
        found.update({name: value for name, value in kept.items() if name in known})
    return {**found, **{name.lower(): value for name, value in options.items()}}


def _local(path: str) -> str:
    """A path without the scheme that a catalog puts before it."""
    return "/" + path.removeprefix(FILE).lstrip("/") if path.startswith(FILE) else path
