"""Entries of the table of commands: name, arity, flags, and the function that executes each."""

from collections.abc import Callable
from typing import Any, Final

Run = Callable[[Any, list[bytes]], None]

WRITE: Final = 1
DENY_OOM: Final = 2
FAST: Final = 4
ADMIN: Final = 8
READ_ONLY: Final = 16
LOADING: Final = 32
WORDS_MAX: Final = 1024**2  # of a command, with its name

_FLAG_NAMES: Final = (
    (WRITE, b"write"),
    (READ_ONLY, b"readonly"),
    (DENY_OOM, b"denyoom"),
    (ADMIN, b"admin"),
    (LOADING, b"loading"),
    (FAST, b"fast"),
)


class Command:
    """One command. `arity` counts the name; of 0 or less, the absolute value is the minimum.

    `calls` and `spent_us` are for INFO.
    """

    __slots__ = ("arity", "calls", "flags", "name", "run", "spent_us", "words_max", "words_min")

    def __init__(self, name: bytes, run: Run, arity: int, flags: int) -> None:
        self.name = name
        self.run = run
        self.arity = arity
        self.flags = flags
        self.words_min = abs(arity)
        self.words_max = arity if arity > 0 else WORDS_MAX
        self.calls = 0
        self.spent_us = 0

    @property
    def flag_names(self) -> list[bytes]:
        return [name for flag, name in _FLAG_NAMES if self.flags & flag]
