"""A bar on standard error, if that is a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kestrelctl.output import STDERR, is_terminal

Advance = Callable[[int], object]


@contextmanager
def progress(words: str, total: int | None) -> Iterator[Advance]:
    """What to tell of each step; `total` None = nobody knows how many there are."""
    if not is_terminal(STDERR):
        yield lambda count: None
        return
    # rich takes longer to load than most commands take.
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=total)
        yield lambda count: bar.advance(task, count)
