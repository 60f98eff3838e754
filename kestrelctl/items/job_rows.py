"""Jobs and their queues as rows, with the field names of -o json."""

import os
from collections.abc import Mapping
from typing import Final

from kestrelctl.items.framing import data_fields, readable
from kestrelctl.shell.output import OBJECTS, Layout, OutputFormat, default_format
from kestreld.client.blocks import Cell
from kestreld.client.job_commands import Job, Shown

QUEUE_COLUMNS: Final = ["queue", "queued", "active", "delayed", "blocked", "jobs_in", "jobs_out", "pause"]
JOB_COLUMNS: Final = ["id", "queue", "nacks", "additional_deliveries", "body"]
SCAN_COLUMNS: Final = ["id", "queue", "state", "nacks", "additional_deliveries", "ttl", "next_requeue_within", "body"]
PEEK_COLUMNS: Final = ["id", "queue", "body"]
DEAD_COLUMNS: Final = ["id", "queue", "origin", "reason", "dead_since", "nacks", "additional_deliveries", "body"]
LETTER_COLUMNS: Final = ["id", "origin", "reason", "nacks", "additional_deliveries", "put_at_ms", "dead_at_ms", "body"]

Row = dict[str, Cell]


def fetched_row(job: Job, layout: Layout) -> Row:
    """Row of a job that was delivered."""
    counters = {"nacks": job.nacks, "additional-deliveries": job.additional_deliveries}
    return shown_record({"id": job.id, "queue": job.queue, **counters, "body": job.body}, layout)


def peeked_row(job: Job, layout: Layout, more: Mapping[str, Shown]) -> Row:
    """Row of a job that was only looked at: the reply has no delivery counters."""
    return shown_record({"id": job.id, "queue": job.queue, **more, "body": job.body}, layout)


def shown_record(fields: Mapping[str, Shown], layout: Layout) -> Row:
    """Fields of a reply without those that are None. `body` is escaped, or `body_base64` in JSON and YAML."""
    form = layout.form or default_format()
    row: Row = {}
    for field, value in fields.items():
        name = field.replace("-", "_")
        if isinstance(value, bytes) and form in OBJECTS:
            row |= {key.replace("data", name): cell for key, cell in data_fields(value).items()}
        elif isinstance(value, bytes):
            row[name] = _escaped(value, form)
        elif isinstance(value, str):
            row[name] = value if form in OBJECTS else _escaped(os.fsencode(value), form)
        elif value is not None:
            row[name] = ",".join(value) if isinstance(value, list) else value
    return row


def _escaped(data: bytes, form: OutputFormat) -> str:
    """Text with control characters escaped for a terminal; tabs and line ends are escaped later, with the row."""
    text = readable(data, form)
    return "".join([one if one.isprintable() or one in "\t\r\n" else f"\\x{ord(one):02x}" for one in text])


def queue_row(figures: Mapping[str, Shown], layout: Layout) -> Row:
    """Row of a queue: the name first, as `queue`, and the length as `queued`."""
    left_out = ("name", "len", "import-from", "import-rate")
    named = {"queue": figures["name"], **{key: value for key, value in figures.items() if key not in left_out}}
    return shown_record(named, layout)
