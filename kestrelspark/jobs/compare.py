"""The job compare: figures of two periods, or of two reports, side by side."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from kestrelctl.journals.times import now_ms
from kestrelspark.jobs.convert import Choice
from kestrelspark.jobs.report import GROUP, percentile_names, report, rows
from kestrelspark.jobs.time_in_work import FIGURES as WORK
from kestrelspark.options import BadOption, instant_ms

COUNTS: Final = ("puts", "put_bytes", "got", "expired", "discarded", "retried", "backlog_items", "backlog_max_items")
WAITS: Final = (*(f"wait_{name}_ms" for name in percentile_names()), "wait_max_ms")
FIGURES: Final = (*COUNTS[:-2], *WAITS, *WORK, *COUNTS[-2:])
SHOWN: Final = ("puts", "got", "retried", "wait_p50_ms", "wait_p99_ms", "wait_max_ms", "backlog_items")
Row = dict[str, Any]


@dataclass(slots=True)
class Compared:
    """A row for each server, queue and reader, with `…_before`, `…_after` and their difference `…_change` per figure.

    Counts of a missing queue are 0, its waits None. `before` and `after` are the two arguments.
    """

    before: str
    after: str
    rows: list[Row]


def compare(spark: Any, paths: Sequence[str], choice: Choice, before: str, after: str) -> Compared | None:
    """Compare two sides: each is SINCE..UNTIL, a period of the journals under paths, or the folder of a report.

    None if there are no events in either. Raises BadOption, and FileNotFoundError for a missing path or table.
    """
    at_ms = now_ms()  # one instant for both periods: one may begin where the other ends
    choices = [_chosen(paths, choice, given, name, at_ms) for given, name in ((before, "before"), (after, "after"))]
    sides = [_side(spark, paths, one, given) for one, given in zip(choices, (before, after), strict=True)]
    return Compared(before, after, side_by_side(*sides)) if any(sides) else None


def _chosen(paths: Sequence[str], choice: Choice, given: str, name: str, at_ms: int) -> Choice | None:
    """A period, with times in ms since 1970; None for the folder of a report."""
    if os.path.isdir(given):
        if not os.path.isdir(f"{given}/queues"):
            raise FileNotFoundError(f"{given}/queues: no such table; create it with report --to {given}")
        return None
    since, dots, until = given.partition("..")
    if not dots:
        raise BadOption(f"--{name} must be SINCE..UNTIL or the folder of a report, not {given}")
    if not paths:
        raise BadOption(f"--{name} {given} is a period and requires paths of journals")
    return replace(choice, since=_resolved(since, "since", at_ms), until=_resolved(until, "until", at_ms))


def _resolved(text: str, name: str, at_ms: int) -> str:
    found = instant_ms(text, name, at_ms)
    return "" if found is None else str(max(found, 0))


def _side(spark: Any, paths: Sequence[str], choice: Choice | None, given: str) -> list[Row]:
    if choice is None:
        return list(rows(spark.read.parquet(f"{given}/queues")))
    found = report(spark, paths, choice)
    return [] if found is None else list(rows(found.queues))


def side_by_side(before: Iterable[Row], after: Iterable[Row]) -> list[Row]:
    """Rows of both sides, the busiest queues first."""
    sides = [{tuple(row[name] for name in GROUP): row for row in side} for side in (before, after)]
    compared = [
        _compared(dict(zip(GROUP, key, strict=True)), *(side.get(key, {}) for side in sides))
        for key in sides[0] | sides[1]
    ]
    compared.sort(key=lambda row: (-row["puts_before"] - row["puts_after"], [row[name] for name in GROUP]))
    return compared


def _compared(row: Row, before: Row, after: Row) -> Row:
    for name in FIGURES:
        nothing = 0 if name in COUNTS else None
        # Percentiles are fractions to Spark.
        was, is_now = (nothing if side.get(name) is None else int(side[name]) for side in (before, after))
        change = is_now - was if was is not None and is_now is not None else None
        row |= {f"{name}_before": was, f"{name}_after": is_now, f"{name}_change": change}
    return row


def change_in_words(row: Row, name: str) -> str:
    """`+12.5 %`; "" if there is nothing to compare or no change."""
    was, change = row[f"{name}_before"], row[f"{name}_change"]
    if not change:
        return ""
    return f"{change / was:+,.1%}".replace("%", " %") if was else "new"


def write_table(spark: Any, found: Compared, target: str) -> None:
    """Write the rows as Parquet."""
    kinds = [f"{name} string" for name in GROUP]
    kinds += [f"{name}_{side} long" for name in FIGURES for side in ("before", "after", "change")]
    columns = [kind.partition(" ")[0] for kind in kinds]
    values = [tuple(row[name] for name in columns) for row in found.rows]
    frame = spark.createDataFrame(values, ", ".join(kinds)).coalesce(1)
    frame.write.mode("overwrite").option("compression", "zstd").parquet(f"{target}/compared")
