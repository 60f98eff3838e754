"""What stands in a queue for all that `setup` brings."""

from typing import Any, NoReturn

from kestreld.errors import QueueNotOpen


class _Unopened:
    """Whatever is asked of it, the answer is the same."""

    def __init__(self, queue: str) -> None:
        self._queue = queue

    def _refuse(self) -> NoReturn:
        raise QueueNotOpen(self._queue)

    def __getattr__(self, name: str) -> NoReturn:
        self._refuse()

    def __len__(self) -> NoReturn:
        self._refuse()


def unopened(queue: str) -> Any:
    """Stands for anything. Its use raises QueueNotOpen with the name of the queue."""
    return _Unopened(queue)
