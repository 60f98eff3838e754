"""The tables of figures in docs/protocol.md, from those in kestreld/figures.py. `make pages` writes them."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kestreld.figures import HELD, KESTREL, OF_CACHE, OF_SERVER, OURS, TROUBLE, Figure, Kind

PAGE: Final = Path(__file__).parents[2] / "docs" / "protocol.md"
UNITS: Final = {
    Kind.COUNTER: "counter",
    Kind.GAUGE: "number",
    Kind.BYTES: "bytes",
    Kind.STATE: "1 or 0",
    Kind.ID: "id",
    Kind.TEXT: "text",
    Kind.S: "s",
    Kind.MS: "ms",
    Kind.US: "µs",
    Kind.SINCE: "ms",
    Kind.UNTIL: "ms",
}
TABLES: Final = {
    "of the server": ("kestrel_", OF_SERVER),
    "of the cache": ("kestrel_", OF_CACHE),
    "of a queue": ("kestrel_queue_", (*KESTREL, *OURS, *TROUBLE)),
    "of a queue with held items": ("kestrel_queue_", HELD),
}


def rendered(page: str) -> str:
    """The page with its tables as they should be. Raises ValueError where one has no place."""
    for name, (prefix, figures) in TABLES.items():
        pattern = re.compile(rf"(<!-- figures {name} -->\n)(?:.*?\n)??(<!-- end -->)", re.DOTALL)
        page, count = pattern.subn(lambda found: found[1] + _table(prefix, figures) + found[2], page)  # noqa: B023
        if count != 1:
            raise ValueError(f"docs/protocol.md: {count} places for the figures {name}")
    return page


def _table(prefix: str, figures: Iterable[Figure]) -> str:
    rows = [
        f"| `{one.key}` | {UNITS[one.kind]} | {one.help} | {f'`{prefix}{one.metric}`' if one.metric else ''} |\n"
        for one in figures
        if one.key
    ]
    return "\n| key | unit | | metric |\n|---|---|---|---|\n" + "".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text()))
