"""A proxy in front of a memcache port that may change, withhold or delay whole replies, and refuse requests."""

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from tests.support.waiting import PATIENCE_S

VALUE: Final = re.compile(rb"VALUE [^\r]* (\d+)\r\n")

Tamper = Callable[[bytes], bytes]
Admit = Callable[[bytes], bool]


def untouched(reply: bytes) -> bytes:
    return reply


def always(request: bytes) -> bool:
    return True


@contextmanager
def tampering_proxy(port: int, tamper: Tamper = untouched, admit: Admit = always) -> Iterator[str]:
    """The address of a proxy to a port of this machine. `tamper` makes what the client gets of each reply. What `admit`
    does not let pass ends its connection.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, port, tamper, admit), daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def _accept(listener: socket.socket, port: int, tamper: Tamper, admit: Admit) -> None:
    with suppress(OSError):  # the listener is closed with the test
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_pass_on, args=(client, server, admit), daemon=True).start()
            threading.Thread(target=_pass_replies, args=(server, client, tamper), daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket, admit: Admit) -> None:
    with source, target, suppress(OSError):
        while data := source.recv(65536):
            if not admit(data):
                for end in (source, target):
                    end.shutdown(socket.SHUT_RDWR)  # a close alone waits for the other thread
                return
            target.sendall(data)


def _pass_replies(server: socket.socket, client: socket.socket, tamper: Tamper) -> None:
    heard = b""
    with suppress(OSError):
        while data := server.recv(65536):
            heard += data
            while (end := _reply_bytes(heard)) is not None:
                client.sendall(tamper(heard[:end]))
                heard = heard[end:]


def _reply_bytes(heard: bytes) -> int | None:
    """Length of the first whole reply: a line, or an item and its END. None = there is none yet."""
    at = 0
    if value := VALUE.match(heard):
        at = value.end() + int(value[1]) + 2
    end = heard.find(b"\r\n", at)
    return None if end < 0 else end + 2
