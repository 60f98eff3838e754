"""How far a long reading has come: a bar on a terminal, nothing elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kestrelctl.output import STDERR, is_terminal

Advance = Callable[[int], None]


@contextmanager
def progress(doing: str, total: Callable[[], int]) -> Iterator[Advance]:
    """A function to call with how much more is done. `total` is asked only where somebody looks."""
    if not is_terminal(STDERR):
        yield lambda more: None
        return
    # 60 ms that cron need not wait.
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=total())
        yield lambda more: bar.advance(task, more)
