"""How far a long work has come: a bar on standard error if that is a terminal, nothing elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kestrelctl.shell.output import STDERR, is_terminal

Advance = Callable[[int], object]


@contextmanager
def progress(words: str, total: Callable[[], int | None]) -> Iterator[Advance]:
    """What to tell of each step. `total` is asked only where somebody looks; None = nobody knows how many."""
    if not is_terminal(STDERR):
        yield lambda count: None
        return
    # rich takes longer to load than most commands take.
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=total())
        yield lambda count: bar.advance(task, count)
