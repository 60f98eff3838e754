"""Heartbeat: what keeps a lease or a job while its holder works, and the pauses between attempts."""

from collections.abc import Callable, Iterator
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Final, Self

from kestreld.client.server import event_in_child
from kestreld.forks import restart_in_child

AGAIN_MS: Final = 100  # before the second attempt; it doubles with each
AGAIN_MS_MAX: Final = 2000

# Sends a beat, and returns the seconds until the next one is due; None = none is.
Beat = Callable[[], float | None]


def pauses_ms() -> Iterator[int]:
    """Iterate over the pauses between the attempts at a server that is away, without end."""
    pause_ms = AGAIN_MS
    while True:
        yield pause_ms
        pause_ms = min(2 * pause_ms, AGAIN_MS_MAX)


class Heartbeat:
    """Keeping a lease or a job until that is stopped: by `stop`, or at the end of a block."""

    def start(self) -> None:
        """Start it. If this raises, it may be running nevertheless."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop, and return once no beat is on its way: one would take back what is given back meanwhile."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        is_begun = False
        try:
            self.start()
            is_begun = True
        finally:
            if not is_begun:
                self.stop()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class ThreadHeartbeat(Heartbeat):
    """A thread that calls `beat` whenever that is due."""

    def __init__(self, name: str, beat: Beat, first_s: float = 0) -> None:
        """The first beat is due in `first_s` seconds."""
        self._beat = beat
        self._first_s = first_s
        self._over = Event()
        self._beating = Lock()  # held during a beat; none begins once `_over` is set
        self._thread = Thread(target=self._run, name=name, daemon=True)
        restart_in_child(self)

    def after_fork(self) -> None:
        """Prepare a forked child, which has no thread: the parent goes on beating. Its lock may be the thread's."""
        self._over = event_in_child(self._over)
        self._beating = Lock()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        with self._beating:
            pass  # the thread may run although `start` was interrupted, and cannot be joined then
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        pause_s: float | None = self._first_s
        while pause_s is not None and not self._over.wait(pause_s):
            with self._beating:
                pause_s = None if self._over.is_set() else self._beat()
