"""Progress bar of an ingest on stderr, if that is a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kestrelctl.shell.output import STDERR, is_terminal
from kestrelspark.lag import Lags


@contextmanager
def bar(name: str) -> Iterator[Callable[[int, Lags], None] | None]:
    """Yield a function to call with each batch's number of items and the lag of each queue; None without a terminal."""
    if not is_terminal(STDERR):
        yield None
        return
    # rich takes long to load.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    with Progress(TextColumn("{task.description}"), BarColumn(20), console=console, transient=True) as shown:
        task = shown.add_task(f"{name}: no batch yet", total=None)
        count = 0

        def tell(rows: int, lags: Lags) -> None:
            nonlocal count
            count += rows
            left = sum(lags.values())
            words = f"{name}: {in_words(count, lags)}"
            shown.update(task, description=words, completed=count, total=count + left or None, refresh=True)

        yield tell


def in_words(count: int, lags: Lags) -> str:
    """`1,200 items, 34 behind (30 orders of a:22133)`: with several queues, the one that is furthest behind."""
    words = f"{count:,} items, {sum(lags.values()):,} behind"
    if len(lags) > 1:
        remote, most = max(lags.items(), key=lambda one: one[1])
        if most:
            words += f" ({most:,} {remote})"
    return words
