"""A real kestreld for tests: a process of its own, on a port of its own, spooling into a folder of the test."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.support import forked
from tests.support.ports import with_port
from tests.support.process import environment
from tests.support.waiting import PATIENCE_S, PAUSE_S

ROOT: Final = Path(__file__).parents[2]
TIME: Final = re.compile(r"[0-9T:.-]+Z (?=kestreld: )")
READY: Final = re.compile(r"ready .*memcache=(\S+)(?: admin=(\S+))?(?: cache=(\S+))?")
DISQUE: Final = re.compile(r"ready .* disque=(\S+)")
STOP_S: Final = PATIENCE_S


def without_time(line: str) -> str:
    """A line of the log, but for when it was written."""
    return TIME.sub("", line.rstrip("\n"), count=1)


class Daemon:
    """kestreld in a process. It is started by `start`, and always left stopped by `running_daemon`."""

    def __init__(
        self,
        folder: Path,
        settings: Sequence[str] = (),
        config: str = "",
        listen: str = "127.0.0.1:0",
        admin: str = "null",
    ) -> None:
        self.folder = folder
        self.spool = folder / "spool"
        self.config_path = folder / "kestreld.yaml"
        self.settings = [with_port(setting) for setting in settings]
        self.listen = with_port(listen)
        self.admin = with_port(admin)  # where it listens for HTTP; the place it chose once it is ready
        self.address = ""  # HOST:PORT or unix:PATH, once it is ready
        self.cache = ""  # the same of its cache, "" where it has none
        self.disque = ""  # where it listens for Disque's clients, once it is ready; "" where it does not
        self.log: list[str] = []
        self.process: subprocess.Popen[str] | None = None
        self._log_reader = threading.Thread()
        folder.mkdir(parents=True, exist_ok=True)
        self.config_path.write_text(config)

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def cache_port(self) -> int:
        return int(self.cache.rpartition(":")[2])

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def command(self) -> list[str]:
        listen = [f"listen.memcache={self.listen}", f"listen.admin={self.admin}"]
        settings = [*listen, f"queue_path={self.spool}", *self.settings]
        if self.disque:
            settings.append(f"listen.disque={self.disque}")
        sets = [word for setting in settings for word in ("--set", setting)]
        return [sys.executable, "-m", "kestreld", "--config", str(self.config_path), *sets]

    def start(self) -> None:
        """Returns once it listens. A restart listens on the same address."""
        assert self.process is None, "already running"
        self.process = forked.Launched(
            self.command(), cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self.await_ready()

    def await_ready(self) -> None:
        """Returns once the process listens; reads its log from then on."""
        assert self.process is not None
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(without_time(line))
            if ready := READY.search(line):
                self.address = self.listen = ready[1]
                self.admin = ready[2] or self.admin
                self.cache = ready[3] or ""
                self.settings = [
                    f"listen.cache=[{self.cache}]" if setting.startswith("listen.cache=") else setting
                    for setting in self.settings
                ]
                self.disque = found[1] if (found := DISQUE.search(line)) else ""
                break
        else:
            code = self.process.wait()
            self.process = None
            raise AssertionError(f"kestreld exited with {code} before it was ready:\n" + "\n".join(self.log))
        self._log_reader = threading.Thread(target=self._read_log, args=(self.process,), daemon=True)
        self._log_reader.start()

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run kestreld as it is run here, with further arguments, to its end: a start that does not succeed."""
        return forked.run([*self.command(), *arguments], None, STOP_S, cwd=ROOT, env=environment(), text=True)

    def _read_log(self, process: "subprocess.Popen[str]") -> None:
        assert process.stderr is not None
        with process.stderr:
            self.log.extend(map(without_time, process.stderr))

    def logged(self, text: str, since: int = 0) -> str:
        """The first line of the log with `text` in it, as soon as there is one; of the lines from `since` on."""
        end = time.monotonic() + PATIENCE_S
        while (line := next((line for line in self.log[since:] if text in line), None)) is None:
            assert time.monotonic() < end, f"no {text!r} in the log:\n" + "\n".join(self.log)
            time.sleep(PAUSE_S)
        return line

    def reload(self, config: str) -> str:
        """SIGHUP, with this for its YAML file; the line of the log that says what has come of it."""
        self.config_path.write_text(config)
        seen = len(self.log)
        self.signal(signal.SIGHUP)
        return self.logged("reload", seen)

    def disk_bytes(self) -> int:
        """What the spool takes now."""
        used_bytes = 0
        for path in self.spool.rglob("*"):
            with suppress(FileNotFoundError):  # removed meanwhile
                used_bytes += path.stat().st_size if path.is_file() else 0
        return used_bytes

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """The exit code, once it has exited and its log is read to the end."""
        assert self.process is not None
        code = self.process.wait(STOP_S)
        self._log_reader.join()
        self.process = None
        return code

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """kill -9: as a crash."""
        assert self.process is not None
        self.process.kill()
        self.wait()

    def restart(self) -> None:
        """Stop if it runs, and start again on the same spool and address."""
        if self.process is not None:
            self.stop()
        self.start()


@contextmanager
def running_daemon(
    folder: Path, *settings: str, config: str = "", listen: str = "127.0.0.1:0", admin: str = "null"
) -> Iterator[Daemon]:
    """A kestreld that spools into `folder`/spool. `settings` as for --set, `config` the text of its YAML file.

    It has a cache where they have `listen.cache`.
    """
    daemon = Daemon(folder, settings, config, listen, admin)
    daemon.start()
    try:
        yield daemon
    finally:
        if daemon.process is not None:
            daemon.kill()
