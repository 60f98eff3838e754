"""The servers that recipes run on: a real memcached, and kestreld with `listen.cache`, each a process with a port."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, Protocol

import pytest
from pymemcache import Client

from tests.support.daemon import Daemon
from tests.support.wire import connected

READY_S: Final = 60
MEMORY_MIB: Final = 64


class CacheProcess(Protocol):
    """A memcached of some kind."""

    @property
    def address(self) -> str: ...

    @property
    def pid(self) -> int: ...

    def restart(self) -> None:
        """Stopped and started anew, empty, at the same address."""

    def stop(self) -> object: ...


class Memcached:
    """A memcached that chooses its port."""

    def __init__(self, folder: Path, memory_mib: int = MEMORY_MIB) -> None:
        self.address = ""
        self._folder = folder
        self._memory_mib = memory_mib
        self._port = "-1"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def port(self) -> int:
        return int(self._port)

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        ports = self._folder / "ports"
        ports.unlink(missing_ok=True)
        program = shutil.which("memcached")
        assert program is not None
        self._process = subprocess.Popen(
            [
                program,
                "-u",
                "root",
                "-l",
                "127.0.0.1",
                "-p",
                self._port,
                "-U",
                "0",
                "-t",
                "1",
                "-m",
                f"{self._memory_mib}",
            ],
            env=os.environ | {"MEMCACHED_PORT_FILENAME": str(ports)},
        )
        until = time.monotonic() + READY_S
        while not ports.exists():  # renamed to this once it listens
            assert self._process.poll() is None, "memcached exited"
            assert time.monotonic() < until, f"memcached does not listen after {READY_S} s"
            time.sleep(0.005)
        self._port = ports.read_text().partition("TCP INET: ")[2].split()[0]
        self.address = f"127.0.0.1:{self._port}"

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()


@contextmanager
def running_memcached(folder: Path, memory_mib: int = MEMORY_MIB) -> Iterator[Memcached]:
    """A memcached. Skips the test where it is not installed."""
    if shutil.which("memcached") is None:
        pytest.skip("needs memcached: apt install memcached")
    memcached = Memcached(folder, memory_mib)
    memcached.start()
    try:
        yield memcached
    finally:
        memcached.stop()


class KestrelCache:
    """The cache of a kestreld."""

    def __init__(self, daemon: Daemon, memory_mib: int) -> None:
        self.daemon = daemon
        daemon.settings = ["listen.cache=127.0.0.1:0", f"cache_memory={memory_mib}MiB"]

    @property
    def address(self) -> str:
        return self.daemon.cache

    @property
    def pid(self) -> int:
        return self.daemon.pid

    def stop(self) -> None:
        if self.daemon.process is not None:
            self.daemon.stop()

    def restart(self) -> None:
        self.daemon.settings[0] = f"listen.cache={self.address}"
        self.daemon.restart()


@contextmanager
def running_cache(kind: str, folder: Path, memory_mib: int = MEMORY_MIB) -> Iterator[CacheProcess]:
    """A server of one of the two kinds."""
    if kind == "memcached":
        with running_memcached(folder, memory_mib) as memcached:
            yield memcached
    else:
        cache = KestrelCache(Daemon(folder), memory_mib)
        cache.daemon.start()
        try:
            yield cache
        finally:
            cache.stop()


def expire(address: str, key: bytes, within_s: int) -> None:
    """What is there for so many more seconds at most is gone now, as when these are over."""
    with connected(address) as client:
        client.send(b"mg %b t\r\n" % key)
        left = client.read_line()
        assert left.startswith(b"HD t"), left
        assert 0 < int(left.removeprefix(b"HD t")) <= within_s
        client.ask(b"touch %b -1\r\n" % key, b"TOUCHED\r\n")


def hits(address: str) -> int:
    """How many keys that were asked for were there."""
    with closing(Client(address)) as client:
        return int(client.stats()[b"get_hits"])


def evictions(address: str) -> int:
    """How many values have been evicted."""
    with closing(Client(address)) as client:
        return int(client.stats()[b"evictions"])
