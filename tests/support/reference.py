"""The tables of figures in docs/protocol.md and docs/admin.md, from kestreld/figures.py. `make pages` writes them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kestreld.figures import (
    HELD,
    KESTREL,
    OF_CACHE,
    OF_JOB_QUEUES,
    OF_JOBS,
    OF_NODES,
    OF_SERVER,
    OURS,
    TROUBLE,
    Figure,
    Kind,
)

DOCS: Final = Path(__file__).parents[2] / "docs"
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
    "protocol.md": {
        "of the server": ("kestrel_", OF_SERVER),
        "of the cache": ("kestrel_", OF_CACHE),
        "of jobs": ("kestrel_jobs_", OF_JOBS),
        "of a queue": ("kestrel_queue_", (*KESTREL, *OURS, *TROUBLE)),
        "of a queue with held items": ("kestrel_queue_", HELD),
    },
    "admin.md": {
        "of a queue of jobs": ("kestrel_jobs_queue_", OF_JOB_QUEUES),
        "of a node": ("kestrel_jobs_node_", OF_NODES),
    },
}


def rendered(page: str) -> str:
    """A page of docs/ with its tables as they should be. Raises ValueError if one has no place."""
    text = (DOCS / page).read_text()
    for name, (prefix, figures) in TABLES[page].items():
        head, begin, rest = text.partition(f"<!-- figures {name} -->\n")
        _, end, tail = rest.partition("<!-- end -->")
        if not begin or not end:
            raise ValueError(f"docs/{page}: no place for the figures {name}")
        text = head + begin + _table(prefix, figures) + end + tail
    return text


def _table(prefix: str, figures: Iterable[Figure]) -> str:
    rows = [
        f"| `{one.key}` | {UNITS[one.kind]} | {one.help} | {f'`{prefix}{one.metric}`' if one.metric else ''} |\n"
        for one in figures
        if one.key
    ]
    return "\n| key | unit | | metric |\n|---|---|---|---|\n" + "".join(rows) + "\n"


if __name__ == "__main__":
    for page in TABLES:
        (DOCS / page).write_text(rendered(page))
