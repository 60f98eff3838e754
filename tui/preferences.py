"""The user's preferences, kept in a file: the columns of the table of queues."""

import json
import os
from collections.abc import Sequence
from typing import Final

from kestrelctl.remote.contexts import file_path as contexts_path
from tui.queue_rows import HEADINGS
from tui.table import COLUMNS_KNOWN, COLUMNS_SHOWN, DEPTH

_NAMES: Final = {heading: column for column, heading in HEADINGS.items()} | {DEPTH: DEPTH}


def file_path() -> str:
    return os.path.join(os.path.dirname(contexts_path()), "top.json")


def columns_named(names: Sequence[str], known: Sequence[str] = COLUMNS_KNOWN) -> tuple[str, ...]:
    """Columns by their headings or their names in JSON. Raises ValueError."""
    columns = tuple(dict.fromkeys(_NAMES.get(name, name) for name in names))
    if unknown := [column for column in columns if column not in known]:
        raise ValueError(f"no column {unknown[0]!r}; columns are {', '.join(known)}")
    return columns


def load_columns() -> tuple[str, ...]:
    """The saved columns, or the default, also if the file cannot be read: the console must start."""
    try:
        with open(file_path(), encoding="utf-8") as file:
            return columns_named(json.load(file)["columns"]) or COLUMNS_SHOWN
    except (OSError, ValueError, KeyError, TypeError):
        return COLUMNS_SHOWN


def keep_columns(columns: Sequence[str]) -> None:
    """Save the columns. Raises OSError."""
    path = file_path()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump({"columns": list(columns)}, file)
    os.replace(f"{path}.new", path)
