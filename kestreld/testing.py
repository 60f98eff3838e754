"""Servers for tests: a pytest fixture, and a context manager, each a real kestreld on a free port.

pytest finds the fixture by itself where kestreld is installed. docs/celery.md has an example.
"""

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Final

import pytest

_READY: Final = re.compile(r"ready .*memcache=(\S+)")
_STOP_S: Final = 30


class RunningServer:
    """A kestreld in a process of its own. It can be stopped or killed, and started again on the same port and spool."""

    def __init__(self, folder: Path, settings: Mapping[str, object] | None = None) -> None:
        """`folder` gets the spool; `settings` are those of the configuration, such as `{"max_item_size": "1MiB"}`."""
        self.spool = folder / "spool"
        self.log: list[str] = []
        self._settings = dict(settings or {})
        self._listen = "127.0.0.1:0"
        self._process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        """HOST:PORT, as clients take it."""
        return self._listen

    @property
    def port(self) -> int:
        return int(self._listen.rpartition(":")[2])

    @property
    def url(self) -> str:
        """The broker URL for Celery."""
        return f"kestrel://{self._listen}"

    def start(self) -> None:
        """Start the server, and return once it listens. Raises RuntimeError, with its log, if it does not."""
        if self._process is not None:
            raise RuntimeError("the server is running")
        settings = {"listen.memcache": self._listen, "listen.admin": "null", "queue_path": self.spool, **self._settings}
        words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        process = subprocess.Popen(
            [sys.executable, "-m", "kestreld", *words], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        for line in process.stderr:
            self.log.append(line.rstrip("\n"))
            if ready := _READY.search(line):
                self._listen = ready[1]
                self._process = process
                Thread(target=self._read_log, args=(process,), daemon=True).start()
                return
        raise RuntimeError("\n".join([f"kestreld exited with {process.wait()}:", *self.log]))

    def stop(self) -> None:
        """Stop the server in good order, if it is running."""
        if (process := self._ended()) is not None:
            process.terminate()
            process.wait(_STOP_S)

    def kill(self) -> None:
        """Kill the server, as a crash does, if it is running."""
        if (process := self._ended()) is not None:
            process.kill()
            process.wait(_STOP_S)

    def _ended(self) -> "subprocess.Popen[str] | None":
        process, self._process = self._process, None
        return process

    def _read_log(self, process: "subprocess.Popen[str]") -> None:
        assert process.stderr is not None
        with process.stderr:
            self.log.extend(line.rstrip("\n") for line in process.stderr)


@contextmanager
def running_server(folder: Path, settings: Mapping[str, object] | None = None) -> Iterator[RunningServer]:
    """Run a server for a `with` block. `folder` gets its spool."""
    server = RunningServer(folder, settings)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def kestreld_server(tmp_path: Path) -> Iterator[RunningServer]:
    """Run a server for one test, with an empty spool."""
    with running_server(tmp_path / "kestreld") as server:
        yield server
