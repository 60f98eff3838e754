"""A way to a server that breaks: connections through it are reset, or fall silent, or are slow."""

import socket
import struct
import threading
import time
from contextlib import suppress

RESET = struct.pack("ii", 1, 0)  # SO_LINGER that ends a connection with a reset
BUFFER_BYTES = 65536  # of what is under way on a slow one


class Way:
    """Forwards a port of its own to that of a server.

    `is_silent`: what is sent, on any connection, is dropped. `delay_s` is how long it takes there, and back.
    `bytes_per_s` of 0 = as fast as it goes.
    """

    def __init__(self, to_port: int, bytes_per_s: int = 0) -> None:
        self.is_silent = False
        self.delay_s = 0.0
        self.to_port = to_port
        self._bytes_per_s = bytes_per_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        if bytes_per_s:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self.port = self._listener.getsockname()[1]
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def reset(self) -> None:
        """End all connections at once."""
        ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                end.shutdown(socket.SHUT_RD)
                end.close()

    def close(self) -> None:
        self._listener.close()
        self.reset()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    there = socket.create_connection(("127.0.0.1", self.to_port))
                except OSError:
                    client.close()
                    continue
                self._ends += [client, there]
                born_silent = self.is_silent
                for source, to in ((client, there), (there, client)):
                    threading.Thread(target=self._forward, args=(source, to, born_silent), daemon=True).start()

    def _forward(self, source: socket.socket, to: socket.socket, is_lost: bool) -> None:
        """Once a connection was silent, it stays so."""
        with suppress(OSError):
            while data := source.recv(65536):
                time.sleep(self.delay_s)
                is_lost = is_lost or self.is_silent
                if not is_lost:
                    to.sendall(data)
                if self._bytes_per_s:
                    time.sleep(len(data) / self._bytes_per_s)
        with suppress(OSError):
            to.shutdown(socket.SHUT_RDWR)
