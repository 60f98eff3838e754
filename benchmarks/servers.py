"""The servers: how each is started, stopped and asked for its first item."""

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from benchmarks.errors import Unusable
from kestrelctl.bench.process import family, resident_bytes

ROOT: Final = Path(__file__).parents[1]
READY_S_MAX: Final = 120
LOADED_S_MAX: Final = 300.0
LOADING_S: Final = 0.01  # between questions whether it has
STOP_S_MAX: Final = 120


class Sync(StrEnum):
    """What is on disk before an answer leaves."""

    NOTHING = "unsynced"
    JOURNAL = "synced"
    TOGETHER = "synced together"  # as JOURNAL; several journals by one call


Command = Callable[[int, Path, Sync], list[str]]  # of port, folder, and what to sync before each answer


@dataclass(frozen=True, slots=True)
class Program:
    """A server that can be started."""

    name: str
    protocol: str
    command: Command
    package: str  # of Debian, "" = it is a kestreld
    version: Sequence[str]  # the command that prints it

    @property
    def is_ours(self) -> bool:
        return not self.package


def kestreld(name: str, command: str, *, admin_port: int | None = None) -> Program:
    """`command` starts it, options excepted. "" = the one beside the interpreter that runs this."""
    base = base_command(command)
    admin = "null" if admin_port is None else f"127.0.0.1:{admin_port}"

    def with_options(port: int, folder: Path, sync: Sync) -> list[str]:
        config = folder / "kestreld.yaml"
        config.write_text(
            f"listen: {{memcache: 127.0.0.1:{port}, admin: {admin}}}\n"
            f"queue_path: {folder / 'spool'}\n"
            f"sync_journal: {'false' if sync is Sync.NOTHING else 'true'}\n"
            f"sync_together: {'true' if sync is Sync.TOGETHER else 'false'}\n"
        )
        return [*base, "--config", str(config)]

    return Program(name, "kestrel", with_options, "", [*base, "--version"])


def kestreld_cache(name: str, command: str, memory_mib: int) -> Program:
    """As `kestreld`, but its port is that of the cache, which may take so much memory."""
    base = base_command(command)

    def with_options(port: int, folder: Path, sync: Sync) -> list[str]:
        config = folder / "kestreld.yaml"
        config.write_text(
            f"listen: {{memcache: 127.0.0.1:{free_port()}, cache: 127.0.0.1:{port}, admin: null}}\n"
            f"queue_path: {folder / 'spool'}\n"
            f"cache_memory: {memory_mib}MiB\n"
        )
        return [*base, "--config", str(config)]

    return Program(name, "memcached", with_options, "", [*base, "--version"])


def kestreld_jobs(name: str, command: str, memcache_port: int = 0) -> Program:
    """As `kestreld`, but its port is that of its jobs, which are logged. `memcache_port` 0 = any."""
    base = base_command(command)

    def with_options(port: int, folder: Path, sync: Sync) -> list[str]:
        config = folder / "kestreld.yaml"
        config.write_text(
            f"listen: {{memcache: 127.0.0.1:{memcache_port or free_port()}, disque: 127.0.0.1:{port}, admin: null}}\n"
            f"queue_path: {folder / 'spool'}\n"
            "max_queues: infinite\n"
            f"jobs: {{journal: true, sync_journal: {'false' if sync is Sync.NOTHING else 'true'}}}\n"
        )
        return [*base, "--config", str(config)]

    return Program(name, "disque", with_options, "", [*base, "--version"])


def base_command(command: str) -> list[str]:
    """The words that start a kestreld; `command` "" = the one beside the interpreter that runs this."""
    return shlex.split(command) or [sys.executable, "-m", "kestreld"]


def memcached(memory_mib: int = 1024) -> Program:
    def command(port: int, folder: Path, sync: Sync) -> list[str]:
        as_root = ["-u", "root"] if os.geteuid() == 0 else []
        return ["memcached", "-l", "127.0.0.1", "-p", str(port), "-t", "1", "-m", str(memory_mib), *as_root]

    return Program("memcached", "memcached", command, "memcached", ["memcached", "-V"])


def _redis(port: int, folder: Path, sync: Sync) -> list[str]:
    options = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder), "--save", "", "--appendonly", "yes"]
    return ["redis-server", *options, "--appendfsync", "no" if sync is Sync.NOTHING else "always"]


def _beanstalkd(port: int, folder: Path, sync: Sync) -> list[str]:
    size = str(2 << 20)  # its default is less than the largest item
    return [
        "beanstalkd",
        "-l",
        "127.0.0.1",
        "-p",
        str(port),
        "-b",
        str(folder),
        "-z",
        size,
        "-F" if sync is Sync.NOTHING else "-f0",
    ]


REDIS: Final = Program("redis", "redis", _redis, "redis-server", ["redis-server", "--version"])
PEERS: Final = (
    memcached(),
    REDIS,
    Program("beanstalkd", "beanstalkd", _beanstalkd, "beanstalkd", ["beanstalkd", "-v"]),
)


def is_installed(program: Program) -> bool:
    return program.is_ours or shutil.which(program.version[0]) is not None


def version_of(program: Program) -> str:
    said = subprocess.run(program.version, capture_output=True, text=True, cwd=ROOT).stdout.split()
    # "memcached 1.6.18", "beanstalkd 1.12", "kestreld 1.0.0", "Redis server v=7.0.15 sha=…"
    return next((word.removeprefix("v=") for word in said if word.removeprefix("v=")[:1].isdigit()), "unknown")


class Server:
    """A program that runs on a port and in a folder of its own."""

    def __init__(self, program: Program, folder: Path, *, sync: Sync = Sync.NOTHING) -> None:
        self.name = program.name
        self.protocol = program.protocol
        self.program = program
        self.port = free_port()
        self._folder = folder
        self._sync = sync
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        folder.mkdir(parents=True)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def resident_bytes(self) -> int:
        return sum(resident_bytes(pid) for pid in family(self.pid))

    def start(self) -> None:
        """Start it; does not wait until it is ready."""
        command = self.program.command(self.port, self._folder, self._sync)
        with (self._folder / "log").open("ab") as log:
            self._started_s = time.monotonic()
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT)

    def wait_until_ready(self) -> None:
        self._connect().close()

    def wait_until_loaded(self) -> None:
        """Until it serves jobs. Before, it answers every command with an error."""
        with self._connect() as connection:
            for _ in range(int(LOADED_S_MAX / LOADING_S)):
                connection.sendall(b"PING\r\n")
                if connection.recv(4096) == b"+PONG\r\n":
                    return
                time.sleep(LOADING_S)
        raise Unusable(f"{self.name} has not loaded its jobs in {LOADED_S_MAX:.0f} s")

    def _connect(self) -> socket.socket:
        """As soon as it listens. Raises Unusable if it does not."""
        assert self._process is not None
        while time.monotonic() < self._started_s + READY_S_MAX and self._process.poll() is None:
            with suppress(ConnectionRefusedError):
                return socket.create_connection(("127.0.0.1", self.port), READY_S_MAX)
            time.sleep(0.0005)
        words = (self._folder / "log").read_text(errors="replace").splitlines()[-3:]
        raise Unusable(f"{self.name} does not start: {' / '.join(words)}")

    def first_get(self, queue: str, number: int) -> float:
        """Milliseconds from the start of the process to the answer that has item `number`, which is taken."""
        request = _take_request(self.protocol, queue)
        with self._connect() as connection:
            connection.sendall(request)
            wanted = b"\n%016x" % number
            heard = connection.recv(65536)
            while wanted not in heard:
                if heard.startswith(b"-LOADING"):
                    heard = b""
                    time.sleep(0.001)
                    connection.sendall(request)
                elif heard.endswith((b"END\r\n", b"-1\r\n", b"TIMED_OUT\r\n")):
                    raise Unusable(
                        f"{self.name} did not give item {number}, the first of its queue, but {heard[:80]!r}"
                    )
                more = connection.recv(65536)
                if not more:
                    raise Unusable(f"{self.name} closed the connection instead of giving item {number}")
                heard += more
            took_ms = (time.monotonic() - self._started_s) * 1000
            if self.protocol == "beanstalkd":
                connection.sendall(b"delete %b\r\n" % heard.rpartition(b"RESERVED ")[2].split()[0])
                connection.recv(65536)
        return took_ms

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _take_request(protocol: str, queue: str) -> bytes:
    name = queue.encode()
    match protocol:
        case "redis":
            return b"*2\r\n$4\r\nRPOP\r\n$%d\r\n%b\r\n" % (len(name), name)
        case "beanstalkd":
            return b"watch %b\r\nignore default\r\nreserve-with-timeout 0\r\n" % name
        case _:
            return b"get %b\r\n" % name


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(programs: Sequence[Program], folder: Path, *, sync: Sync = Sync.NOTHING) -> Iterator[list[Server]]:
    """All of them, each in a folder of its own under `folder`, which is deleted afterwards."""
    servers: list[Server] = []
    try:
        for program in programs:
            servers.append(Server(program, folder / program.name, sync=sync))
            servers[-1].start()
        for server in servers:
            server.wait_until_ready()
            if server.protocol == "disque":
                server.wait_until_loaded()
        yield servers
    finally:
        for server in servers:
            server.stop(signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
