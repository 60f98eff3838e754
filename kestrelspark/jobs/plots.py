"""Plots over time as SVG, and formats and styles that the pages share. No scripts, no network."""

import datetime
import html
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 560, 180, 64, 22, 8
COLORS: Final = ("#2a6fb0", "#c2571a", "#3c8a4e", "#8a4ea0")
TICKS_MAX: Final = 6
BAND_MIN, WORD_WIDTH = 3, 32  # of a mark, in pixels
LINE_HEIGHT: Final = 11
EXACT_BELOW: Final = 10_000_000
DAY_S: Final = 86_400
TICK_STEPS_S: Final = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200,
    DAY_S, 2 * DAY_S, 7 * DAY_S, 14 * DAY_S, 30 * DAY_S, 90 * DAY_S, 365 * DAY_S,
)  # fmt: skip
WAIT_MARKS_MS: Final = (
    1, 10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, DAY_S * 1000, 10 * DAY_S * 1000,
    100 * DAY_S * 1000, 1000 * DAY_S * 1000,
)  # fmt: skip
Points = list[tuple[int, float | None]]


@dataclass(slots=True, frozen=True)
class Mark:
    """An event in a part of a plot: `kind` is the label on the plot, `words` the text in a list, with the time."""

    kind: str
    from_ms: int
    until_ms: int
    words: str


STYLE: Final = """
:root { color-scheme: light dark; --ink: #222; --faint: #8886; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #ddd; --paper: #191b1e; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 1232px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; }
table { border-collapse: collapse; font-size: .87rem; font-variant-numeric: tabular-nums;
        display: block; overflow-x: auto; }
th, td { padding: .25rem .55rem; border-bottom: 1px solid var(--faint); text-align: right; white-space: nowrap;
         vertical-align: top; }
td small { display: block; font-size: .75rem; opacity: .75; }
th:first-child, td:first-child { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 12em; }
section table { margin-top: .6rem; }
.note { max-width: 60em; opacity: .8; }
.plots { display: flex; flex-wrap: wrap; gap: 1rem; } figure { margin: 0; } figcaption { font-size: .85rem; }
svg { max-width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: var(--ink); }
.grid { stroke: var(--faint); } .line { fill: none; stroke-width: 1.6; } .key { font-weight: 600; }
.stall { fill: #d33; fill-opacity: .16; } .burst { fill: #d90; fill-opacity: .22; }
.marks { max-width: 75em; padding-left: 1.2rem; } .marks li { margin: .15rem 0; }
"""


def head(title: str, heading: str, words: str, notes: list[str]) -> str:
    """The page's beginning; `words` is HTML."""
    noted = "\n".join(f'<p class="note">{html.escape(note)}</p>' for note in notes)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body>\n<h1>{heading}</h1>\n<p>{words}</p>\n{noted}"
    )


def table_of(head_cells: list[str], lines: list[list[str]]) -> str:
    """A table whose cells are HTML."""
    heads = "".join(f"<th>{cell}</th>" for cell in head_cells)
    body = "\n".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>" for cells in lines)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>\n{body}\n</tbody></table>"


def span(span_ms: float | None) -> str:
    if span_ms is None:
        return ""
    for unit_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s")):
        if span_ms >= unit_ms:
            return f"{span_ms / unit_ms:.3g} {unit}"
    return f"{span_ms:.0f} ms"


def count(items: float) -> str:
    """A number, with all digits up to ten million."""
    for unit_items, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if items >= max(unit_items, EXACT_BELOW):
            return f"{items / unit_items:.3g} {unit}"
    return short(items)


def rate(per_s: float) -> str:
    unit, unit_s = rate_unit(per_s)
    return f"{short(per_s * unit_s)}/{unit}"


def rate_unit(per_s: float) -> tuple[str, int]:
    """The unit of time, and its seconds, in which there is at least one, else a day."""
    units = {"s": 1, "min": 60, "h": 3600}
    return next(((unit, unit_s) for unit, unit_s in units.items() if per_s * unit_s >= 1 or not per_s), ("d", DAY_S))


def size(size_bytes: float) -> str:
    for unit_bytes, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size_bytes >= unit_bytes:
            return f"{size_bytes / unit_bytes:.3g} {unit}"
    return f"{size_bytes:.0f} B"


def day_and_time(at_ms: int) -> str:
    return _instant(at_ms).strftime("%Y-%m-%d %H:%M:%S")


def _instant(at_ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC)


def whole_buckets(first_ms: int, last_ms: int, bucket_s: int) -> range:
    """Start times of the buckets that lie entirely within the period: partial ones would look low."""
    step_ms = bucket_s * 1000
    return range(-(-first_ms // step_ms) * step_ms, (last_ms + 1) // step_ms * step_ms, step_ms)


@dataclass(slots=True, frozen=True)
class Scale:
    """The vertical axis: the height of a value, from 0 to 1, and the labels."""

    height: Callable[[float], float]
    labels: list[tuple[float, str]]


def _linear(top: float) -> Scale:
    return Scale(lambda value: value / top, [(top * share, count(top * share)) for share in (0.0, 0.5, 1.0)])


def _of_waits(least_ms: float, most_ms: float) -> Scale:
    """A logarithmic scale between common durations. A wait of less than a millisecond counts as one."""
    below = [at for at, mark_ms in enumerate(WAIT_MARKS_MS) if mark_ms <= max(least_ms, 1)]
    above = [at for at, mark_ms in enumerate(WAIT_MARKS_MS) if mark_ms >= most_ms] or [len(WAIT_MARKS_MS) - 1]
    first = below[-1]
    marks_ms = WAIT_MARKS_MS[first : max(above[0], first + 1) + 1]
    low, high = math.log(marks_ms[0]), math.log(max(marks_ms[-1], most_ms))
    return Scale(
        lambda value: (math.log(max(value, marks_ms[0])) - low) / (high - low),
        [(mark_ms, span(mark_ms)) for mark_ms in marks_ms],
    )


def plot(title: str, lines: dict[str, Points], *, are_waits: bool = False, marks: Sequence[Mark] = ()) -> str:
    """A line for each name, over `marks`, or a note if there are no values. `are_waits`: in ms, logarithmic."""
    caption = " · ".join(
        f'<span class="key" style="color:{color}">{html.escape(name)}</span>'
        for name, color in zip(lines, COLORS, strict=False)
    )
    values = [value for points in lines.values() for _, value in points if value is not None]
    instants = [at_ms for points in lines.values() for at_ms, _ in points]
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" aria-label="{html.escape(title)}">']
    if values:
        scale = _of_waits(min(values), max(values)) if are_waits else _linear(_round_up(max(values)))
        parts += _marked(marks, min(instants), max(instants))
        parts += _drawn(lines, min(instants), max(instants), scale)
    else:
        words = "nothing in this period" if instants else "the period is shorter than an interval"
        parts.append(f'<text x="{WIDTH / 2:.0f}" y="{HEIGHT / 2:.0f}" text-anchor="middle">{words}</text>')
    return f"<figure><figcaption>{html.escape(title)}: {caption}</figcaption>{''.join(parts)}</svg></figure>"


def _drawn(lines: dict[str, Points], first: int, last: int, scale: Scale) -> Iterator[str]:
    free_below = float(HEIGHT)
    for value, label in scale.labels:
        y = _y(value, scale)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 4}" y1="{y:.1f}" y2="{y:.1f}"/>'
        if y <= free_below:
            yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
            free_below = y - LINE_HEIGHT
    for at_ms, label in _ticks(first, last):
        x = _x(at_ms, first, last)
        anchor = "start" if x < LEFT + 30 else "end" if x > WIDTH - 34 else "middle"
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM + 4}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}">{label}</text>'
    for (_, points), color in zip(lines.items(), COLORS, strict=False):
        for run in _runs(points, first, last, scale):
            yield f'<polyline class="line" stroke="{color}" points="{run}"/>'


def _marked(marks: Sequence[Mark], first: int, last: int) -> Iterator[str]:
    """A band for each mark, labelled if there is room."""
    free_from = 0.0
    for one in marks:
        left, right = (_x(min(max(at_ms, first), last), first, last) for at_ms in (one.from_ms, one.until_ms))
        width = max(right - left, BAND_MIN)
        left = min(left, WIDTH - 4 - width)
        yield (
            f'<rect class="{one.kind}" x="{left:.1f}" y="{TOP}" width="{width:.1f}" height="{HEIGHT - BOTTOM - TOP}">'
            f"<title>{html.escape(f'{one.kind}: {one.words}')}</title></rect>"
        )
        at = min(left, WIDTH - 4 - WORD_WIDTH)
        if at >= free_from:
            yield f'<text class="mark" x="{at + 2:.1f}" y="{TOP + 10}">{one.kind}</text>'
            free_from = at + WORD_WIDTH


def _ticks(first: int, last: int) -> list[tuple[int, str]]:
    """Instants at round times, with labels: the date at midnight, else the time; at least the first instant."""
    step_ms = next(
        (step * 1000 for step in TICK_STEPS_S if (last - first) // (step * 1000) < TICKS_MAX), TICK_STEPS_S[-1] * 1000
    )
    found = list(range(-(-first // step_ms) * step_ms, last + 1, step_ms)) or [first]
    return [(at_ms, _tick_label(at_ms, step_ms)) for at_ms in found]


def _tick_label(at_ms: int, step_ms: int) -> str:
    if at_ms % (DAY_S * 1000) == 0:
        return _instant(at_ms).strftime("%Y-%m-%d")
    return _instant(at_ms).strftime("%H:%M" if step_ms % 60_000 == 0 else "%H:%M:%S")


def _runs(points: Points, first: int, last: int, scale: Scale) -> Iterator[str]:
    """Unbroken segments of a line; a single point becomes a short one."""
    run: list[str] = []
    for at_ms, value in [*points, (0, None)]:
        if value is not None:
            run.append(f"{_x(at_ms, first, last):.1f},{_y(value, scale):.1f}")
        elif run:
            if len(run) == 1:
                left, _, height = run[0].partition(",")
                run.append(f"{float(left) + 2:.1f},{height}")
            yield " ".join(run)
            run = []


def _x(at_ms: int, first: int, last: int) -> float:
    return LEFT + (WIDTH - 4 - LEFT) * (at_ms - first) / max(last - first, 1)


def _y(value: float, scale: Scale) -> float:
    return TOP + (HEIGHT - BOTTOM - TOP) * (1 - scale.height(value))


def short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _round_up(value: float) -> float:
    """Round up to one or two digits, for an axis."""
    step = 1.0
    while step * 10 <= value:
        step *= 10
    while step > value > 0:
        step /= 10
    return next((step * share for share in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * share >= value), step) or 1.0
