"""What the server asks of the log that keeps jobs on disk. Without one, jobs are in memory only."""

from collections.abc import Callable
from typing import Final

from kestreld.queues.commit import Committed
from kestreld.stats import Figures

Done = Callable[[str], None]  # told why something has failed, "" = it has not
NO_LOG: Final = "jobs are in memory only"


class Persistence:
    """`committed` is what replies wait for, None while there is no log."""

    def __init__(self) -> None:
        self.committed: Committed | None = None
        self.failure = b""  # why the log takes no changes

    @property
    def is_on(self) -> bool:
        """Whether changes are written."""
        return self.committed is not None

    def switch(self, done: Done, *, on: bool) -> None:
        """Begin a fresh log of what memory holds, or write no more."""
        done(NO_LOG if on else "")

    def set_sync(self, fsync: str) -> None:
        """always, everysec or no."""

    def rewrite(self, done: Done) -> None:
        """Compact the log. Replaces it by one of what memory holds, with the queues, where `done` ends the process."""
        done(NO_LOG)

    @property
    def is_rewriting(self) -> bool:
        """Whether the log is being compacted."""
        return False

    def save_for_restart(self, done: Done) -> None:
        """Write all jobs with their queues: the next start restores these once."""
        done(NO_LOG)

    def load(self, done: Done) -> None:
        """Forget what is in memory and read the log."""
        done(NO_LOG)

    def figures(self) -> Figures:
        """Lines of INFO about the log, beside those that there are without one."""
        return ()
