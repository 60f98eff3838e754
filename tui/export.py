"""Export of the view to a new CSV, JSON or SVG file."""

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from typing import Final

from tui.queue_rows import QueueRow, as_record

# Opening the picture must not load fonts from the network.
_FONTS: Final = re.compile(r"@font-face\s*\{.*?\}", re.DOTALL)
SUFFIXES: Final = (".csv", ".json", ".svg")


def export(path: str, rows: Sequence[QueueRow], draw: Callable[[], str]) -> None:
    """Write rows as CSV or JSON, or the screen as SVG, by the file's extension. `draw` returns the SVG.

    Raises OSError, and ValueError for another extension.
    """
    if path.endswith(".csv"):
        text = _csv(rows)
    elif path.endswith(".json"):
        text = json.dumps([as_record(row) for row in rows], indent=2) + "\n"
    elif path.endswith(".svg"):
        text = without_fonts(draw())
    else:
        raise ValueError(f"the name must end in {', '.join(SUFFIXES)}")
    with open(path, "x", encoding="utf-8", errors="surrogateescape", newline="") as file:
        file.write(text)


def without_fonts(picture: str) -> str:
    """A self-contained SVG."""
    return _FONTS.sub("", picture)


def _csv(rows: Sequence[QueueRow]) -> str:
    """A header and a line per row; unknown values are empty."""
    text = io.StringIO()
    records = [as_record(row) for row in rows]
    if records:
        writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
    return text.getvalue()
