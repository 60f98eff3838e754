"""The measurements as plots: SVG files for docs/benchmarks.md."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.results import Results, cells
from benchmarks.tables import SYNCED, ours

OURS: Final = ("#1f5fa8", "#5b9bd5", "#9cc3e6")
PEERS: Final = {"redis": "#b5483a", "beanstalkd": "#c9963a", "memcached": "#8a8a8a"}
STYLE: Final[dict[Any, Any]] = {
    "svg.hashsalt": "kestreld",  # the same figures make the same file
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "legend.frameon": False,
}
PANEL_INCHES: Final = (3.9, 2.6)


def draw(compare: Results, growth: Results, folder: Path) -> None:
    """Write cost.svg and growth.svg."""
    # Slow to import, and only needed here.
    import matplotlib as mpl

    mpl.use("svg")
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        figures = {"cost.svg": _cost(compare), "growth.svg": _growth(growth)}
        for name, figure in figures.items():
            figure.savefig(folder / name, metadata={"Date": None, "Creator": None}, bbox_inches="tight")


def _colors(results: Results) -> dict[str, str]:
    own = dict(zip(ours(results), OURS, strict=False))
    return {name: own.get(name) or PEERS[name] for name in results.machine.servers}


def _cost(results: Results) -> Any:
    """Bars: processor time per operation, a group for each row."""
    from matplotlib.figure import Figure

    found = cells(results.runs)
    # Large items cost many times as much, and would flatten the others.
    names = dict.fromkeys(row for row, _, _ in found)
    rows = [name for name in names if not name.startswith(SYNCED) and "64 KiB" not in name]
    colors = _colors(results)
    figure = Figure(figsize=(8, 0.3 + 0.2 * len(rows) * (len(colors) + 1)))
    axes = figure.subplots()
    height = 1 / (len(colors) + 1)
    for number, (server, color) in enumerate(colors.items()):
        at = [place + number * height for place, row in enumerate(rows) if (row, 0, server) in found]
        costs = [found[row, 0, server].cpu_us for row in rows if (row, 0, server) in found]
        bars = axes.barh(at, costs, height, color=color, label=server)
        axes.bar_label(bars, fmt="%.1f", padding=2, fontsize=7)
    axes.set_yticks([place + height * (len(colors) - 1) / 2 for place in range(len(rows))], rows)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("server CPU, µs per operation: less is better")
    axes.legend(loc="lower right")
    return figure


def _growth(results: Results) -> Any:
    """A panel for each thing that grows."""
    from matplotlib.figure import Figure

    found = cells(results.runs)
    rows = list(dict.fromkeys(row for row, _, _ in found))
    colors = _colors(results)
    width, height = PANEL_INCHES
    figure = Figure(figsize=(2 * width, height * ((len(rows) + 1) // 2)), layout="constrained")
    panels = figure.subplots((len(rows) + 1) // 2, 2, squeeze=False).flatten()
    for axes, row in zip(panels, rows, strict=False):
        for server in ours(results):
            places = sorted(at for name, at, of in found if name == row and of == server)
            costs = [found[row, at, server].cpu_us for at in places]
            axes.plot(places, costs, marker="o", markersize=4, color=colors[server], label=server)
        _count_axis(axes, [at for name, at, _ in found if name == row])
        axes.set_xlabel(row)
        axes.set_ylim(0, 1.15 * max(cell.cpu_us for (name, _, _), cell in found.items() if name == row))
        axes.set_ylabel("CPU, µs per operation")
    if len(ours(results)) > 1:
        panels[0].legend()
    for axes in panels[len(rows) :]:
        axes.set_visible(False)
    return figure


def _count_axis(axes: Any, places: Sequence[int]) -> None:
    """Each decade as wide as the next; 0 has a place of its own."""
    axes.set_xscale("symlog", linthresh=max(1, min((at for at in places if at), default=1)))
    ticks = sorted(set(places))
    axes.set_xticks(ticks, [_short(at) for at in ticks])
    axes.minorticks_off()


def _short(count: int) -> str:
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if count >= size and count % (size // 10) == 0:
            return f"{count / size:g}{unit}"
    return str(count)
