"""Nodes of jobs that kestrelctl starts on this machine for the trial of a cluster."""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from kestrelctl.shell.exit_codes import ExitCode, Failure

STOP_S: Final = 10
PORT_MAX: Final = 65_535
BUS_PORT_OFFSET: Final = 10_000
_READY: Final = re.compile(r"\bready (\S+)(.*)")
_PLACE: Final = re.compile(r"(memcache|admin|disque|cluster)=(\S+)")

Tell = Callable[[str], None]


class StartedNode:
    """A kestreld with its own folder. Its log lines go to `tell`."""

    def __init__(self, name: str, folder: Path, port: int | None, settings: Sequence[str], tell: Tell) -> None:
        """`port`: for clients; None = any free port."""
        self.name = name
        self.folder = folder
        self.places: dict[str, str] = {}  # addresses of its listeners, once it is ready
        places = ["memcache=127.0.0.1:0", "admin=127.0.0.1:0", f"disque=127.0.0.1:{port or 0}"]
        of_bus = [f"cluster.port={port + BUS_PORT_OFFSET}"] if port else []
        self._settings = [*[f"listen.{place}" for place in places], *of_bus, f"queue_path={folder}", *settings]
        self._tell = tell
        self._process: subprocess.Popen[str] | None = None
        self._has_told = threading.Event()  # that it is ready, or has ended

    @property
    def command(self) -> list[str]:
        """The command line of the node, with its actual ports once it is ready."""
        settings = list(self._settings)
        if "cluster" in self.places:
            fixed = {f"listen.{name}": self.places[name] for name in ("memcache", "admin", "disque")}
            fixed["cluster.port"] = self.places["cluster"].rpartition(":")[2]
            settings = [one for one in settings if one.partition("=")[0] not in fixed]
            settings = [*[f"{name}={value}" for name, value in fixed.items()], *settings]
        sets = [word for setting in settings for word in ("--set", setting)]
        return [sys.executable, "-m", "kestreld", "--config", os.devnull, "--log-format", "text", *sets]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, ended: SimpleQueue["StartedNode"]) -> None:
        """Start the node; it is put in `ended` once it has exited. Raises Failure."""
        try:
            # A process group of its own: Ctrl-C reaches only kestrelctl, which stops the nodes in order.
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, process_group=0
            )
        except OSError as error:
            raise Failure(ExitCode.IO, f"cannot start kestreld: {(error.strerror or str(error)).lower()}") from error
        threading.Thread(target=self._read, args=(self._process, ended), daemon=True).start()

    def _read(self, process: "subprocess.Popen[str]", ended: SimpleQueue["StartedNode"]) -> None:
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                if found := _READY.search(line):
                    self.places = {name: place.partition(",")[0] for name, place in _PLACE.findall(found[2])}
                    self._has_told.set()
                else:
                    self._tell(f"{self.name}: {line.rstrip().replace(' kestreld: ', ' ', 1)}")
        process.wait()
        self._has_told.set()
        ended.put(self)

    def wait_until_ready(self) -> None:
        """Raise Failure if the node exits instead of becoming ready; its log has the reason."""
        self._has_told.wait()
        if not self.places:
            raise Failure(ExitCode.REFUSED, f"{self.name} has not started: see above")

    @property
    def how_it_ended(self) -> str:
        """Exit of the node in words; "" while it runs."""
        code = self._process.poll() if self._process is not None else None
        if code is None:
            return ""
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"has ended with exit code {code}"

    @property
    def shell_line(self) -> str:
        """The shell command that starts the node again with the same ports."""
        return shlex.join(self.command)

    def stop(self) -> None:
        """Send SIGTERM."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def wait_until_stopped(self) -> None:
        """Wait for the exit; kill the node after STOP_S seconds."""
        if self._process is not None:
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def stop_all(nodes: Sequence[StartedNode]) -> None:
    for node in nodes:
        node.stop()
    for node in nodes:
        node.wait_until_stopped()
