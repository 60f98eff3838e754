"""Many idle connections, held by a process of its own so that their descriptors are not the caller's."""

import resource
import socket
import subprocess
import sys
from types import TracebackType

from tests.support.daemon import ROOT


class Crowd:
    """So many connections to `port`, open and answered once, while a `with` block lasts. What they send first is
    `greeting`; whoever is turned away is counted in `refused`.
    """

    def __init__(self, port: int, connections: int, handshake: str = "version\\r\\n") -> None:
        command = [sys.executable, "-m", "tests.support.crowd", str(port), str(connections), handshake]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.refused = 0

    def __enter__(self) -> "Crowd":
        assert self._process.stdout is not None
        self.refused = int(self._process.stdout.readline())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def still_open(self) -> int:
        """How many the server has not hung up on."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        return int(self._process.stdout.readline())


def main() -> None:
    port, connections, handshake = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode().decode("unicode_escape")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    crowd, refused = [], 0
    for _ in range(connections):
        client = socket.create_connection(("127.0.0.1", port), 60)
        crowd.append(client)
        client.sendall(handshake.encode("latin-1"))
    if handshake.endswith("\r\n"):
        for client in crowd:
            refused += not client.recv(100).startswith(b"VERSION")
    print(refused, flush=True)
    while sys.stdin.readline():
        print(sum(map(is_open, crowd)), flush=True)


def is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1000) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


if __name__ == "__main__":
    main()
