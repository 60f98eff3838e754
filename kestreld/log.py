"""The log: one line per event, as text, JSON or for journald; it never contains an item's data."""

import contextlib
import json
import logging
import sys
import traceback
from collections.abc import Callable
from enum import IntEnum

from kestreld.clock import Clock, utc_text
from kestreld.config.config import LogFormat


class Level(IntEnum):
    """Severity of a line, by the numbers of syslog(3)."""

    CRITICAL = 2  # the server stops
    ERROR = 3  # it does not start
    WARNING = 4  # somebody should look into it
    INFO = 6  # done as asked


class Log:
    """Writer of log lines to stderr or a file; lines that cannot be written are dropped."""

    def __init__(
        self,
        form: LogFormat,
        *,
        is_journal: bool = False,
        is_timed: bool = False,
        write: Callable[[str], None] | None = None,
    ) -> None:
        """`is_journal` is True if journald reads the log: it has times of its own, and sorts lines by level.

        `write` may raise OSError; None = to stderr.
        """
        self._form = form
        self._write = write
        self._last_level = Level.INFO
        self._is_journal = is_journal
        self._clock = Clock() if is_timed and not is_journal else None

    def say_up_to(self, level: Level) -> None:
        """Drop lines less severe than `level`."""
        self._last_level = level

    def say(self, level: Level, source: str, message: str, details: str = "") -> None:
        """Log a message of `source`, a part of the server; `details` may have several lines."""
        if level > self._last_level:
            return
        time = ""
        if self._clock is not None:
            self._clock.read()
            time = utc_text(self._clock.wall_ms)
        if self._form is LogFormat.JSON:
            fields = {"time": time, "level": level.name.lower(), "source": source, "message": message}
            fields["details"] = details
            lines = [json.dumps({name: value for name, value in fields.items() if value})]
        else:
            name = "" if self._is_journal else "kestreld: "
            lines = [f"{time} {name}{_on_a_line(message)}".lstrip(), *details.splitlines()]
        priority = f"<{level.value}>" if self._is_journal else ""
        text = "".join(f"{priority}{line}\n" for line in lines)
        with contextlib.suppress(OSError):  # the reader of the log is gone; the server continues
            if self._write is not None:
                self._write(text)
            elif sys.stderr is not None:
                sys.stderr.write(text)
                sys.stderr.flush()

    def of(self, source: str, level: Level) -> Callable[[str], None]:
        """Return a function that logs messages of one part of the server."""
        return lambda message: self.say(level, source, message)


class FromLibraries(logging.Handler):
    """Turns warnings of libraries such as asyncio into lines of the log."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        details = "".join(traceback.format_exception(error)) if error is not None else ""
        self._log.say(Level.WARNING, record.name, record.getMessage(), details)


def _on_a_line(message: str) -> str:
    return message if message.isprintable() else message.encode("unicode_escape").decode("ascii")
