"""Options of tables in a catalog (CREATE TABLE … USING kestrel), kept in the metadata of the first column.

Spark passes a table's columns to its readers, but not its options.
"""

import json
from collections.abc import Collection, Mapping
from typing import Final

from pyspark.sql.types import StructField, StructType

from kestrelspark.options import check_names

METADATA: Final = "kestrel.options"
PROVIDER: Final = "provider"  # an option present only for tables of a catalog
OPTION: Final = "option."
FILE: Final = "file:"


def with_options(schema: StructType, options: Mapping[str, str], known: Collection[str]) -> StructType:
    """The schema with the options in its metadata, if it is for a catalog's table. Raises BadOption."""
    if PROVIDER not in options:
        return schema
    given = {name.removeprefix(OPTION): value for name, value in options.items() if name.startswith(OPTION)}
    if "path" in options:
        given["path"] = _local(options["path"])
    check_names(given, known, "a table of the kestrel format")
    first, *others = schema.fields
    return StructType([StructField(first.name, first.dataType, first.nullable, {METADATA: json.dumps(given)}), *others])


def options_of(schema: StructType, options: Mapping[str, str], known: Collection[str]) -> dict[str, str]:
    """The given options, and for others those of the table with this schema that are among `known`."""
    found: dict[str, str] = {}
    for field in schema.fields:
        kept = json.loads((field.metadata or {}).get(METADATA, "{}"))
        found.update({name: value for name, value in kept.items() if name in known})
    return {**found, **{name.lower(): value for name, value in options.items()}}


def _local(path: str) -> str:
    """A path without the scheme that a catalog puts before it."""
    return "/" + path.removeprefix(FILE).lstrip("/") if path.startswith(FILE) else path
