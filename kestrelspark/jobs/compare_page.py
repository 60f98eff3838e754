"""The comparison as a self-contained HTML page in the style of the report."""

import html
from typing import Final

from kestrelspark.jobs.compare import SHOWN, WAITS, Compared, Row, change_in_words
from kestrelspark.jobs.page import name_of
from kestrelspark.jobs.plots import STYLE, span

HEADS: Final = {
    "puts": "puts",
    "got": "gets",
    "retried": "retried",
    "wait_p50_ms": "wait p50",
    "wait_p99_ms": "wait p99",
    "wait_max_ms": "longest wait",
    "backlog_items": "backlog",
}
MORE_STYLE: Final = "td i { font-style: normal; opacity: .75; } tbody tr:hover { background: var(--faint); }"


def compare_page(found: Compared) -> str:
    heads = "".join(f'<th colspan="3">{HEADS[name]}</th>' for name in SHOWN)
    sides = "<th>before</th><th>after</th><th></th>" * len(SHOWN)
    lines = "\n".join(_table_row(row) for row in found.rows)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Queues: two periods</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}{MORE_STYLE}</style></head><body>\n<h1>Queues, before and after</h1>\n"
        f"<p>Before: {html.escape(found.before)}. After: {html.escape(found.after)}.</p>\n"
        '<p class="note">Counts cover the whole period; backlogs are those at its end.</p>\n'
        f"<table><thead><tr><th>queue</th>{heads}</tr><tr><th></th>{sides}</tr></thead><tbody>\n{lines}\n"
        "</tbody></table>\n</body></html>\n"
    )


def _table_row(row: Row) -> str:
    cells = [f"<td>{html.escape(name_of(row))}</td>"]
    for name in SHOWN:
        cells += [f"<td>{_cell(row, name, side)}</td>" for side in ("before", "after")]
        cells.append(f"<td><i>{change_in_words(row, name)}</i></td>")
    return f"<tr>{''.join(cells)}</tr>"


def _cell(row: Row, name: str, side: str) -> str:
    value = row[f"{name}_{side}"]
    return span(value) if name in WAITS else f"{value:,}"
