"""A peer that plays a script: it expects each request byte for byte and answers with recorded bytes.

It stands in for servers that cannot be run here: old Kestrels, and things that are no queue server at all.
"""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support.waiting import PATIENCE_S


@dataclass(slots=True)
class Exchange:
    request: bytes
    answer: bytes
    closes: bool = False  # the peer closes the connection after the answer


# What kestrelctl asks before it sends anything that may change something, and what a Kestrel without queues answers.
WHO_IS_THERE = Exchange(b"version\r\ndump_stats -\r\n", b"VERSION 2.4.1\r\n\r\nEND\r\n")


@dataclass(slots=True)
class ScriptedPeer:
    address: str
    received: list[bytes] = field(default_factory=list)
    news: threading.Condition = field(default_factory=threading.Condition)

    def hear(self, request: bytes) -> None:
        with self.news:
            self.received.append(request)
            self.news.notify_all()

    def wait_until_heard(self, requests: int) -> bool:
        """Whether that many requests came in time."""
        with self.news:
            return self.news.wait_for(lambda: len(self.received) >= requests, PATIENCE_S)


@contextmanager
def scripted_peer(script: Sequence[Exchange]) -> Iterator[ScriptedPeer]:
    """Serves one connection. `received` must equal the requests of the script when the client is done."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        peer = ScriptedPeer(f"127.0.0.1:{listener.getsockname()[1]}")
        thread = threading.Thread(target=_play, args=(listener, list(script), peer), daemon=True)
        thread.start()
        yield peer
        thread.join(PATIENCE_S)
    assert peer.received == [exchange.request for exchange in script]


def _play(listener: socket.socket, script: list[Exchange], peer: ScriptedPeer) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(PATIENCE_S)
        for exchange in script:
            heard = b""
            while len(heard) < len(exchange.request) and (more := connection.recv(len(exchange.request) - len(heard))):
                heard += more
            peer.hear(heard)
            if heard != exchange.request:
                return
            connection.sendall(exchange.answer)
            if exchange.closes:
                return
        while connection.recv(1):  # until the client leaves
            pass
