"""Ports for servers of tests."""

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FIRST: Final = 10_000
PORTS: Final = 10_000
BUS_OFFSET: Final = 10_000  # of a node's bus, above the port of its clients


def _ports() -> Iterator[int]:
    """Ports below those that the kernel gives to clients and to sockets bound to port 0: nobody takes one while its
    server is down. Each is reserved with a file, so no two processes of a run have the same.
    """
    folder, first = Path(tempfile.gettempdir()), os.getpid() * 100
    for number in range(first, first + PORTS):
        port = FIRST + number % PORTS
        try:
            (folder / f"port-{port}").touch(exist_ok=False)
        except FileExistsError:
            continue
        if _is_free(port) and _is_free(port + BUS_OFFSET):
            yield port


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return False
    return True


_free: Final = _ports()


def free_port() -> int:
    """One that nobody listens on now, nor on that of its bus."""
    return next(_free)


def with_port(address: str) -> str:
    """An address on this machine, or a setting that ends with one, with a free port in the place of 0."""
    return f"{address[:-1]}{free_port()}" if address.endswith("127.0.0.1:0") else address
