"""A network in memory: bytes take their time, come in other pieces than they were sent in, and connections break.

It stands where `kestreld.net` has the machine's own: connections like non-blocking sockets, a poller like an epoll
object (level-triggered).
"""

import errno
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final

from kestreld import net
from kestreld.server.bus.host_names import numeric
from tests.simulation.fabric import Fabric, WireEnd
from tests.simulation.schedule import ProcessLoop, Schedule

DESCRIPTORS: Final = 2000
POLLER_FD: Final = 9_999
Heard = Callable[[bytes, int], None]  # bytes, and when the other side sent them


class Pipe:
    """One direction of a connection: what was sent arrives in order, late, and in other pieces."""

    def __init__(self, schedule: Schedule, chance: Random, latency_us: int, arrive: Heard, end: Callable[[], None]):
        self._schedule = schedule
        self._chance = chance
        self._latency_us = latency_us
        self._arrive = arrive
        self._end = end
        self._last_at_us = 0
        self._cut = False

    def send(self, data: bytes) -> None:
        sent_at_us = self._schedule.now_us
        if len(data) > 1 and self._chance.random() < 0.3:
            at = self._chance.randint(1, len(data) - 1)
            pieces = [data[:at], data[at:]]
        else:
            pieces = [data]
        for piece in pieces:
            self._later(self._arrive, piece, sent_at_us)

    def end(self) -> None:
        self._later(self._end)

    def run_into(self, callback: Callable[[], None]) -> None:
        """Have it called when all that was sent has arrived."""
        self._later(callback)

    def _later(self, callback: Callable[..., None], *arguments: object) -> None:
        delay_us = int(self._latency_us * self._chance.uniform(0.5, 1.5))
        if self._chance.random() < 0.02:
            delay_us *= 20
        self._last_at_us = max(self._last_at_us, self._schedule.now_us + delay_us)
        self._schedule.after(self._last_at_us - self._schedule.now_us, self._deliver, callback, arguments)

    def _deliver(self, callback: Callable[..., None], arguments: tuple[object, ...]) -> None:
        if not self._cut:
            callback(*arguments)

    def cut(self) -> None:
        """Nothing more arrives, not even the end."""
        self._cut = True


class ServerEnd:
    """The server's end of a connection, which is like a non-blocking socket to it."""

    def __init__(self, link: "Link", fd: int, buffer_bytes: int, chance: Random) -> None:
        self._link = link
        self._fd = fd
        self._chance = chance
        self.inbox = bytearray()
        self.ended = False  # the client sends no more
        self.broken = False
        self.closed = False
        self.room_bytes = buffer_bytes  # until the client reads

    def fileno(self) -> int:
        return self._fd

    def recv(self, size_bytes: int, /) -> bytes:
        if self.broken:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        if not self.inbox:
            if self.ended:
                return b""
            raise BlockingIOError
        size_bytes = min(size_bytes, len(self.inbox))
        if size_bytes > 1 and self._chance.random() < 0.1:
            size_bytes = self._chance.randint(1, size_bytes)
        data = bytes(self.inbox[:size_bytes])
        del self.inbox[:size_bytes]
        return data

    def send(self, data: bytes | memoryview, /) -> int:
        if self.broken:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        if not self.room_bytes:
            raise BlockingIOError
        sent = min(len(data), self.room_bytes)
        self.room_bytes -= sent
        self._link.to_client.send(bytes(data[:sent]))
        return sent

    def mask(self) -> int:
        """What an epoll object would say of it."""
        if self.broken:
            return net.READABLE | net.HANG_UP
        mask = net.WRITABLE if self.room_bytes else 0
        if self.inbox or self.ended:
            mask |= net.READABLE
        return mask | net.HANG_UP_ONLY if self.ended else mask

    def shutdown(self, how: int, /) -> None:
        assert how == net.END_OUTPUT
        self._link.server_said_all()

    def close(self) -> None:
        self.closed = True
        self._link.server_closed(abruptly=bool(self.inbox))


class Poller:
    """Like an epoll object; tells its process when there is something to poll."""

    def __init__(self, network: "SimulatedNetwork") -> None:
        self._network = network
        self._interest: dict[int, int] = {}
        self._told = False

    def fileno(self) -> int:
        return POLLER_FD

    def register(self, fd: int, eventmask: int) -> None:
        assert fd not in self._interest
        self._interest[fd] = eventmask
        self.changed()

    def modify(self, fd: int, eventmask: int) -> None:
        assert fd in self._interest
        self._interest[fd] = eventmask
        self.changed()

    def unregister(self, fd: int) -> None:
        del self._interest[fd]

    def poll(self, timeout: float = -1, maxevents: int = -1) -> list[tuple[int, int]]:
        ready = self._ready()
        self._network.chance.shuffle(ready)
        return ready[:maxevents]

    def _ready(self) -> list[tuple[int, int]]:
        ready = []
        for fd, interest in self._interest.items():
            mask = self._network.mask(fd) & (interest | net.BROKEN)
            if mask:
                ready.append((fd, mask))
        return ready

    def changed(self) -> None:
        """Something may have become ready: have the process look, if it is not going to anyway."""
        if not self._told and self._ready():
            self._told = True
            self._network.loop.call_later(self._network.chance.uniform(0.000005, 0.0002), self._tell)

    def _tell(self) -> None:
        self._told = False
        callback = self._network.loop.readers.get(POLLER_FD)
        if callback is not None:
            callback()
            self.changed()

    def close(self) -> None:
        self._interest.clear()


class Port:
    """A listening socket: the first one is for clients, others for processes of the fabric."""

    def __init__(self, network: "SimulatedNetwork", fd: int, address: str) -> None:
        self._network = network
        self._fd = fd
        self.address = address
        self.peer = ""
        self.arrived: deque[Link] = deque()
        self._called: deque[tuple[WireEnd, str]] = deque()

    def fileno(self) -> int:
        return self._fd

    @property
    def has_arrivals(self) -> bool:
        return bool(self.arrived or self._called)

    def arrive_from(self, end: WireEnd, host: str) -> None:
        """A process on that host has connected."""
        self._called.append((end, host))
        self._network.changed()

    def local_of(self, connection: WireEnd) -> str:
        return self._network.host

    def accept(self) -> "ServerEnd | WireEnd":
        if self._called:
            end, self.peer = self._called.popleft()
            return end
        if not self.arrived:
            raise BlockingIOError
        if self._network.chance.random() < self._network.descriptors_run_out:
            raise OSError(errno.EMFILE, "Too many open files")
        return self.arrived.popleft().accepted()

    def close(self) -> None:
        self._network.closed_port(self._fd)
        for link in self.arrived:
            link.refused()


class SimulatedNetwork:
    """The network of one server process, whose host is one of a fabric if there are several."""

    def __init__(
        self,
        schedule: Schedule,
        loop: ProcessLoop,
        chance: Random,
        fabric: Fabric | None = None,
        host: str = "simulated",
    ) -> None:
        self.fabric = fabric
        self.host = host
        self.schedule = schedule
        self.loop = loop
        self.chance = chance
        self.port: Port | None = None  # where clients connect
        self._ports: dict[int, Port] = {}
        self.links: list[Link] = []
        self.descriptors_run_out = 0.0  # so often
        self._ends: dict[int, ServerEnd | WireEnd] = {}
        self._next_fd = 10_000
        self._poller = Poller(self)
        if fabric is not None:
            fabric.joined(self)

    def poller(self) -> Poller:
        return self._poller

    def listen_tcp(self, host: str, port: int) -> Port:
        self._next_fd += 1
        if self.fabric is None:
            self.port = self._ports[self._next_fd] = Port(self, self._next_fd, "simulated:22133")
            return self.port
        made = self._ports[self._next_fd] = Port(self, self._next_fd, f"{self.host}:{port}")
        self.fabric.ports[self.host, port] = made
        self.port = self.port or made
        return made

    def closed_port(self, fd: int) -> None:
        port = self._ports.pop(fd, None)
        if port is None:
            return  # it was closed before
        if port is self.port:
            self.port = None
        if self.fabric is not None:
            for address in [address for address, one in self.fabric.ports.items() if one is port]:
                del self.fabric.ports[address]

    # Other processes

    def connect(self, host: str, port: int) -> WireEnd:
        """As `Network.connect`."""
        assert self.fabric is not None
        return self.fabric.connect(self, host, port)

    def is_connected(self, connection: WireEnd) -> bool:
        """As `Network.is_connected`."""
        if connection.is_refused:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        if connection.broken:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        return connection.is_connected

    def resolve(self, host: str) -> str:
        return numeric(host)

    def add_end(self, end: WireEnd) -> int:
        self._next_fd += 1
        self._ends[self._next_fd] = end
        return self._next_fd

    def remove_end(self, fd: int) -> None:
        self._ends.pop(fd, None)

    def descriptor_limit(self) -> int:
        return DESCRIPTORS

    def mask(self, fd: int) -> int:
        end = self._ends.get(fd)
        if end is not None:
            return end.mask()
        port = self._ports.get(fd)
        return net.READABLE if port is not None and port.has_arrivals else 0

    def changed(self) -> None:
        self._poller.changed()

    def connect_client(self, heard: Heard, ended: Callable[[], None]) -> "Link | None":
        """A client's connection to the server; None when nobody listens."""
        if self.port is None or not self.loop.alive:
            return None
        link = Link(self, heard, ended)
        self.links.append(link)
        return link

    def new_end(self, link: "Link") -> ServerEnd:
        self._next_fd += 1
        buffer_bytes = self.chance.choice([100, 3000, 100_000])
        end = self._ends[self._next_fd] = ServerEnd(link, self._next_fd, buffer_bytes, self.chance)
        return end

    def arrive(self, link: "Link") -> None:
        if self.port is None:
            link.refused()
        else:
            self.port.arrived.append(link)
            self.changed()

    def process_died(self, *, power_cut: bool) -> None:
        """The kernel hangs up for a process that was killed; after a power cut clients find out by themselves."""
        for link in self.links:
            link.server_died(silently=power_cut)
        if self.fabric is not None:
            self.fabric.left(self, power_cut=power_cut)


class Link:
    """One connection, as its client has it. `over_us` is when the server had let go of it, None = not yet."""

    def __init__(self, network: SimulatedNetwork, heard: Heard, ended: Callable[[], None]) -> None:
        self._network = network
        self._schedule = network.schedule
        chance = network.chance
        latency_us = self._latency_us = chance.choice([20, 200, 2000])
        self._received = heard
        self._ended = ended
        self._server = network.new_end(self)
        self._to_server = Pipe(self._schedule, chance, latency_us, self._arrives, self._client_ended)
        self.to_client = Pipe(self._schedule, chance, latency_us, self._is_heard, self._server_ended)
        self._waiting: list[tuple[bytes, int]] = []  # for a client that does not read
        self._has_ended = False
        self._has_ended_input = False
        self.reading = True
        self.closed = False  # by the client
        self.over_us: int | None = None
        self._schedule.after(latency_us, network.arrive, self)

    def accepted(self) -> ServerEnd:
        return self._server

    def refused(self) -> None:
        self.over_us = self._schedule.now_us
        self.to_client.end()

    # The client

    def send(self, data: bytes) -> None:
        if self._has_ended_input:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        if not self.closed:
            self._to_server.send(data)

    def end_input(self) -> None:
        self._has_ended_input = True
        self._to_server.end()

    def close(self) -> None:
        """The client hangs up; what it had sent arrives first."""
        self.closed = True
        self._to_server.end()
        if self._waiting:
            self._to_server.run_into(self._break)  # it leaves answers unread

    def reset(self) -> None:
        """The connection breaks: what is under way is lost, the server learns of it later."""
        self.closed = True
        self._to_server.cut()
        self.to_client.cut()
        self._schedule.after(self._network.chance.randint(0, 20_000), self._break)

    def read_on(self) -> None:
        """The client reads again."""
        self.reading = True
        waiting, self._waiting = self._waiting, []
        for data, sent_us in waiting:
            self._is_heard(data, sent_us)
        if self._has_ended:
            self._server_ended()

    # What happens

    def _arrives(self, data: bytes, sent_us: int) -> None:
        if not self._server.closed:
            self._server.inbox += data
            self._network.changed()

    def _client_ended(self) -> None:
        self._server.ended = True
        self._network.changed()

    def _break(self) -> None:
        self._server.broken = True
        self._server.inbox.clear()
        self._network.changed()

    def _is_heard(self, data: bytes, sent_us: int) -> None:
        if self.closed:
            self._schedule.after(self._latency_us, self._break)  # nobody is there to take it
            return
        if not self.reading:
            self._waiting.append((data, sent_us))
            return
        self._server.room_bytes += len(data)
        self._network.changed()
        self._received(data, sent_us)

    def _server_ended(self) -> None:
        self._has_ended = True
        if self.reading and not self.closed:
            self.closed = True
            self._to_server.end()
            self._ended()

    def server_said_all(self) -> None:
        """The server sends no more; it has let go of what this client had."""
        if self.over_us is None:
            self.over_us = self._schedule.now_us
            self.to_client.end()

    def server_closed(self, *, abruptly: bool) -> None:
        """The server has hung up. With commands unread the kernel breaks the connection: answers may not arrive."""
        if self.over_us is None:
            self.over_us = self._schedule.now_us
        if abruptly and self._network.chance.random() < 0.5:
            self.to_client.cut()
            self._schedule.after(1000, self._server_ended)
        else:
            self.to_client.end()

    def server_died(self, *, silently: bool) -> None:
        if self.over_us is None:
            self.over_us = self._schedule.now_us
            if silently:
                self.to_client.cut()
                self._schedule.after(self._network.chance.randint(1000, 400_000), self._server_ended)
            else:
                self.to_client.end()
