"""Ports for servers of tests."""

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

FIRST: Final = 10_000
PORTS: Final = 10_000
BUS_OFFSET: Final = 10_000  # of a node's bus, above the port of its clients


def _ports() -> Iterator[int]:
    """Below those that the kernel gives to clients, and to who asks for any: nobody else has one while a server that
    listened there is down. No two processes of a run have the same: each takes a file of that name.
    """
    folder = Path(tempfile.gettempdir())
    for number in count(os.getpid() * 100):
        port = FIRST + number % PORTS
        with suppress(FileExistsError, OSError):
            os.close(os.open(folder / f"port-{port}", os.O_CREAT | os.O_EXCL))
            for one in (port, port + BUS_OFFSET):
                socket.create_server(("", one)).close()
            yield port


_free: Final = _ports()


def free_port() -> int:
    """One that nobody listens on now, nor on that of its bus."""
    return next(_free)


def with_port(address: str) -> str:
    """An address on this machine, or a setting that ends with one, with a free port in the place of 0."""
    return f"{address[:-1]}{free_port()}" if address.endswith("127.0.0.1:0") else address
