"""Placeholder for the attributes that `setup` of a queue sets."""

from typing import Any, NoReturn

from kestreld.errors import QueueNotOpen


class _Unopened:
    """Object whose every use raises QueueNotOpen."""

    def __init__(self, queue: str) -> None:
        self._queue = queue

    def _refuse(self) -> NoReturn:
        raise QueueNotOpen(self._queue)

    def __getattr__(self, name: str) -> NoReturn:
        self._refuse()

    def __len__(self) -> NoReturn:
        self._refuse()


def unopened(queue: str) -> Any:
    """Return a placeholder for any object. Its use raises QueueNotOpen with the name of the queue."""
    return _Unopened(queue)
