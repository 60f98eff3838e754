"""How long kestreld takes to start and to stop with many small queues: `python -m benchmarks.start_stop`."""

import argparse
import os
import signal
import socket
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.load import SCRATCH
from benchmarks.servers import Server, Sync, kestreld

QUEUES: Final = (1, 2000, 5000, 25_000)
ITEM: Final = b"x" * 64
PIPELINED: Final = 500
ANSWER_S_MAX: Final = 120
NEW, IDLE, WRITTEN, STARTED, KILLED = "new", "idle", "written to", "started", "started after a kill"


def measure(queues: int, folder: Path, sync: Sync, command: str = "") -> dict[str, float]:
    """Seconds of stops with all queues new, none and all written to, and of starts after a stop and after a kill."""
    took_s = {}
    server = Server(kestreld("kestreld", command), folder, sync=sync)
    try:
        server.start()
        _wait_until_it_serves(server)
        _put_on_each(server.port, queues)
        took_s[NEW] = stopped_s(server)
        took_s[STARTED] = started_s(server)
        took_s[IDLE] = stopped_s(server)
        started_s(server)
        _put_on_each(server.port, queues)
        took_s[WRITTEN] = stopped_s(server)
        started_s(server)
        server.stop(signal.SIGKILL)
        took_s[KILLED] = started_s(server)
    finally:
        server.stop(signal.SIGKILL)
    return took_s


def _put_on_each(port: int, queues: int) -> None:
    with socket.create_connection(("127.0.0.1", port), ANSWER_S_MAX) as connection:
        for first in range(0, queues, PIPELINED):
            numbers = range(first, min(first + PIPELINED, queues))
            connection.sendall(b"".join([b"set q%d 0 0 %d\r\n%b\r\n" % (one, len(ITEM), ITEM) for one in numbers]))
            wanted = len(numbers) * len(b"STORED\r\n")
            while wanted > 0:
                wanted -= len(connection.recv(65536))


def stopped_s(server: Server, number: signal.Signals = signal.SIGTERM) -> float:
    began = time.monotonic()
    server.stop(number)
    return time.monotonic() - began


def started_s(server: Server) -> float:
    began = time.monotonic()
    server.start()
    _wait_until_it_serves(server)
    return time.monotonic() - began


def _wait_until_it_serves(server: Server) -> None:
    server.wait_until_ready()
    with socket.create_connection(("127.0.0.1", server.port), ANSWER_S_MAX) as connection:
        connection.sendall(b"version\r\n")  # it listens before it can be told to stop
        connection.recv(100)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start_stop", description=__doc__)
    parser.add_argument("--queues", metavar="N", type=int, nargs="+", default=QUEUES)
    parser.add_argument("--sync", type=Sync, choices=list(Sync), default=Sync.NOTHING)
    parser.add_argument("--command", default="", help="what starts kestreld, instead of this source tree's")
    options = parser.parse_args(arguments)
    table = Table("queues", *[f"{what}, s" for what in (f"stop: {NEW}", f"{IDLE}", WRITTEN, STARTED, KILLED)])
    for queues in options.queues:
        SCRATCH.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch:
            took_s = measure(queues, Path(scratch) / "server", options.sync, options.command)
        table.add_row(f"{queues:,}", *[f"{took_s[what]:.2f}" for what in (NEW, IDLE, WRITTEN, STARTED, KILLED)])
    Console(highlight=False).print(table)
    Console(stderr=True).print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {options.sync}")


if __name__ == "__main__":
    main()
