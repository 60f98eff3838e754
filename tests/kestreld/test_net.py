"""Connections that are begun: when they are there, and when that is none."""

import socket
from select import select

import pytest

from kestreld.net import Network


def test_a_connection_with_itself_is_none() -> None:
    with socket.socket() as lonely:
        lonely.bind(("127.0.0.1", 0))
        lonely.connect(lonely.getsockname())  # as the kernel does now and then where nobody listens
        with pytest.raises(ConnectionRefusedError):
            Network().is_connected(lonely)


def test_a_connection_that_nobody_takes_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with Network().connect("127.0.0.1", port) as connection:
        select([], [connection], [], 10)
        with pytest.raises(ConnectionRefusedError):
            Network().is_connected(connection)
