"""A progress bar on stderr if that is a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kestrelctl.shell.output import STDERR, is_terminal

Advance = Callable[[int], object]


@contextmanager
def progress(words: str, total: Callable[[], int | None]) -> Iterator[Advance]:
    """Yield a function that advances the bar. `total` is called only if a bar is shown; None = number unknown."""
    if not is_terminal(STDERR):
        yield lambda count: None
        return
    # rich takes longer to load than most commands take.
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=total())
        yield lambda count: bar.advance(task, count)
