"""A real disque-server for tests: a process of its own on a free port, in a folder of the test."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support import forked
from tests.support.daemon import ROOT, without_time
from tests.support.process import environment
from tests.support.resp import PATIENCE_S, RespClient

READY: Final = re.compile(r"ready .* disque=(\S+)")


class DisqueServer:
    """disque-server in a process, with `folder` as its working directory and `options` as its arguments."""

    def __init__(self, folder: Path, *options: str, conf: str | None = None) -> None:
        """`conf` is the text of the folder's disque.conf, None = there is none."""
        self.folder = folder
        self.conf_path = folder / "disque.conf"
        self.options = list(options)
        self.address = ""
        self.log: list[str] = []
        self.process: subprocess.Popen[str] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        if conf is not None:
            self.conf_path.write_text(conf)
            self.options.insert(0, "disque.conf")

    def launch(self, *, is_timed: bool = False) -> "subprocess.Popen[str]":
        """The process, as soon as it is there. Where its start `is_timed` it is not forked from one that has imported
        kestreld already.
        """
        make = subprocess.Popen if is_timed else forked.Launched
        return make(
            [sys.executable, "-m", "kestreld.disque_server", *self.options],
            cwd=self.folder,
            env=environment() | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start(self) -> "DisqueServer":
        """Returns once it listens."""
        self.process = self.launch()
        assert self.process.stderr is not None
        self.log = []
        for line in self.process.stderr:
            self.log.append(without_time(line))
            if ready := READY.search(line):
                self.address = ready[1]
                return self
        raise AssertionError(f"exited with {self.process.wait()} before it was ready:\n" + "\n".join(self.log))

    def fail(self) -> tuple[int, str]:
        """Run it to its end: the exit code of a start that does not succeed, and what it has said."""
        with self.launch() as process:
            _, said = process.communicate(timeout=PATIENCE_S)
            return process.returncode, said

    def client(self) -> RespClient:
        """A connection, once the server has loaded its jobs."""
        return RespClient(self.address.partition(",")[0]).until_loaded()

    def wait(self) -> int:
        """The exit code, once it has exited; what it has said by then is in `log`."""
        assert self.process is not None
        _, said = self.process.communicate(timeout=PATIENCE_S)
        self.log += map(without_time, said.splitlines())
        code = self.process.returncode
        self.process = None
        return code

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.wait()


@contextmanager
def disque_server(folder: Path, *options: str, conf: str | None = None) -> Iterator[DisqueServer]:
    """One that runs as long as the block."""
    server = DisqueServer(folder, *options, conf=conf)
    server.start()
    try:
        yield server
    finally:
        if server.process is not None:
            server.kill()
