"""Who goes where there is no room on the admin port, one step of the server's loop after the other."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kestreld.server.admin.listener import AdminListener
from kestreld.server.descriptors import Descriptors
from tests.support.server_here import ServerHere

ROOM = 10
REQUESTS = 8  # at a time
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
WAIT = b"GET /queues/work/items?first=2&wait_ms=100000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
STEPS = 8  # more than a connection takes from its coming to its request being worked at

Connect = Callable[[bytes], socket.socket]


class SmallRoom:
    """An admin port with room for ten connections, and its clients."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.server = ServerHere(folder, "")
        stack.callback(self.server.close)
        stack.callback(self.settle)  # its clients are gone by then
        self.server.service.descriptors = Descriptors(10 * ROOM)
        bound = self.server.network.listen_tcp("127.0.0.1", 0)
        self.listener = AdminListener(self.server.service, bound, is_tls=False, is_trusted=True)
        self.server.collection.reader("work").queue.put(b"x")
        self._stack = stack

    def connect(self, said: bytes) -> socket.socket:
        host, port = self.listener.address.split(":")
        one = self._stack.enter_context(socket.create_connection((host, int(port))))
        one.sendall(said)
        one.setblocking(False)
        return one

    def step(self) -> None:
        loop = self.server.loop
        loop.call_soon(loop.stop)
        loop.run_forever()

    def settle(self) -> None:
        """Do all that can be done."""
        for _ in range(3 * STEPS):
            self.step()


@pytest.fixture
def room(tmp_path: Path) -> Iterator[SmallRoom]:
    with ExitStack() as stack:
        yield SmallRoom(tmp_path, stack)


def told(one: socket.socket) -> bytes:
    """All it has been sent; b"closed" where it has been pushed out."""
    try:
        return one.recv(10_000) or b"closed"
    except BlockingIOError:
        return b""
    except ConnectionError:
        return b"closed"


@pytest.mark.parametrize("steps", range(STEPS))
def test_a_request_of_one_that_is_pushed_out_takes_the_place_of_none_that_stays(room: SmallRoom, steps: int) -> None:
    waiting = [room.connect(WAIT) for _ in range(REQUESTS - 1)]
    room.settle()
    waiting += [room.connect(WAIT) for _ in range(ROOM - len(waiting))]
    for _ in range(steps):
        room.step()
    asking = room.connect(HEALTH)
    room.settle()
    assert told(asking).startswith(b"HTTP/1.1 200")
    answers = [told(one) for one in waiting]
    assert answers.count(b"") == REQUESTS, answers


def test_who_has_asked_for_something_stays_before_who_says_nothing_or_has_been_answered(room: SmallRoom) -> None:
    answered = [room.connect(HEALTH) for _ in range(2)]
    room.settle()
    assert all(told(one).startswith(b"HTTP/1.1 200") for one in answered)
    asking = [room.connect(HEALTH) for _ in range(ROOM - 4)]  # they have come, and nothing of theirs has been read
    silent = [room.connect(b"") for _ in range(2)]
    asking += [room.connect(HEALTH) for _ in range(4)]
    room.settle()
    assert [told(one) for one in answered + silent] == [b"closed"] * 4
    assert all(told(one).startswith(b"HTTP/1.1 200") for one in asking)


@pytest.mark.parametrize("asked", [b"at_ms=1", b"bytes=1&first=earliest"])
def test_a_position_asked_of_a_queue_that_is_deleted_before_its_turn_is_told_so(room: SmallRoom, asked: bytes) -> None:
    reads, taken = room.listener.ranges.reads, 0
    while not reads.locked():
        taken += 1
        room.server.loop.run_until_complete(reads.acquire())
    one = room.connect(b"GET /queues/work/position?%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % asked)
    room.settle()
    room.server.collection.delete("work")
    for _ in range(taken):
        reads.release()
    room.settle()
    assert told(one).startswith(b"HTTP/1.1 404 ")
