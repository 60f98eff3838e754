"""The console in a real terminal, of a kestreld under load."""

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.daemon import ROOT, Daemon, running_daemon
from tests.support.queue_client import QueueClient

PATIENCE_S = 60
QUEUES = 50


class Terminal:
    """A tmux of our own with one window, 80 by 24."""

    def __init__(self, folder: Path, command: str) -> None:
        self._tmux = ["tmux", "-S", str(folder / "tmux"), "-f", "/dev/null"]
        self._run("new-session", "-d", "-x", "80", "-y", "24", "-c", str(ROOT), f"{command}; echo ended with $?; cat")

    def _run(self, *words: str) -> str:
        return subprocess.run(
            [*self._tmux, *words], capture_output=True, text=True, check=True, timeout=PATIENCE_S
        ).stdout

    def keys(self, *keys: str) -> None:
        self._run("send-keys", *keys)

    def type(self, text: str) -> None:
        self._run("send-keys", "-l", text)

    def until(self, *texts: str) -> str:
        """What is on the screen when all of them are."""
        end = time.monotonic() + PATIENCE_S
        while not all(text in (seen := self._run("capture-pane", "-p")) for text in texts):
            assert time.monotonic() < end, f"waited for {texts}:\n{seen}"
            time.sleep(0.05)
        return seen

    def close(self) -> None:
        self._run("kill-server")


@contextmanager
def load(daemon: Daemon) -> Iterator[None]:
    """Somebody puts and takes all the time."""
    is_over = threading.Event()

    def work() -> None:
        with QueueClient(daemon.port) as client:
            number = 0
            while not is_over.is_set():
                name = f"load-{number % QUEUES:02d}"
                client.put(name, *[b'{"number": %d}' % number] * 20)
                for _ in range(19):
                    client.get(name)
                number += 1
                is_over.wait(0.002)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        is_over.set()
        worker.join()


@pytest.mark.long
@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux, which is not installed")
def test_every_screen_in_a_terminal_while_the_server_is_busy(tmp_path: Path, short_path: Path) -> None:
    command = f"{sys.executable} -m kestrelctl top -i 200ms --sort -items -s"
    with running_daemon(tmp_path / "kestreld", admin="127.0.0.1:0") as daemon:
        terminal = Terminal(short_path, f"{command} {daemon.address}")
        try:
            with load(daemon):
                look_at_every_screen(terminal, daemon)
            daemon.kill()
            terminal.until("▲", "stale for")
            daemon.start()
            terminal.until(f"● {daemon.address}")
            terminal.keys("q")
            terminal.until("ended with 0")
        finally:
            terminal.close()


def look_at_every_screen(terminal: Terminal, daemon: Daemon) -> None:
    terminal.until(f"queues {QUEUES}", f"● {daemon.address}", "› load-", "? help")
    terminal.keys("/")
    terminal.until("oldest_ms>500")
    terminal.type("load-07")
    terminal.until("/load-07", "queues 1 ")
    terminal.keys("Enter")
    terminal.until("/load-07", "enter details")
    terminal.keys("Enter")
    terminal.until("load-07  items", "waiting items", '{"number"', "head ")
    terminal.keys("m")
    terminal.until("0000 7b226e")
    terminal.keys("J")
    terminal.until("load-07  journal", "held by", "not checked yet", "the queue")
    terminal.keys("c")
    terminal.until("● all checksums match")
    terminal.keys("Escape")
    terminal.until("waiting items")
    terminal.keys("Escape")
    terminal.until("/load-07")
    terminal.keys("Escape")
    terminal.until(f"queues {QUEUES}")
    terminal.keys("?")
    terminal.until("Everywhere")
    terminal.keys("Escape")
    terminal.until("› load-")
    terminal.keys("f")
    terminal.until("Discard all items")
    terminal.keys("Escape")
