"""Connections between server processes in memory: they take their time, break, are cut one way, and stand still.

A host has one process at a time. What it sends arrives in order. Where the way is cut it arrives once that is healed,
as TCP sends it again; where a link is broken, what is on its way is lost. A process that is dead or does not read is
seen by others as the kernel shows it: its side of a connection ends, or its buffers fill up.
"""

import errno
from collections import deque
from random import Random
from typing import TYPE_CHECKING, Final

from kestreld import net
from tests.simulation.schedule import Schedule

if TYPE_CHECKING:
    from tests.simulation.network import Port, SimulatedNetwork

BUFFER_BYTES: Final = 1 << 18  # that are sent and not read
AGAIN_US: Final = 20_000  # until what was held up by a cut is sent again, at most

Way = tuple[str, str]  # from one host to another


class Fabric:
    """What connects hosts, and what is wrong with it."""

    def __init__(self, schedule: Schedule, chance: Random, latency_us: int = 100) -> None:
        self.schedule = schedule
        self.chance = chance
        self.latency_us = latency_us
        self.delays_us: dict[Way, int] = {}  # ways that take longer, and by how much
        self.cut: set[Way] = set()
        self.hosts: dict[str, None] = {}  # all that there have been
        self.networks: dict[str, SimulatedNetwork] = {}  # of the process that runs on each host
        self.ports: dict[tuple[str, int], Port] = {}
        self.wires: list[Wire] = []

    # What goes wrong

    def cut_way(self, source: str, target: str) -> None:
        """Nothing gets from one to the other any more; the other way is another matter."""
        self.cut.add((source, target))

    def partition(self, *inside: str) -> None:
        """Cut these off from all others, both ways."""
        for one in self.hosts:
            for other in self.hosts:
                if (one in inside) != (other in inside):
                    self.cut.add((one, other))

    def heal(self) -> None:
        """All ways are open and as fast as ever; what was held up goes on."""
        self.cut.clear()
        self.delays_us.clear()
        for wire in self.wires:
            wire.go_on()

    def break_links(self, one: str, other: str) -> None:
        """Every connection between them is reset; what was on its way is lost."""
        for wire in list(self.wires):
            if {one, other} == set(wire.hosts):
                wire.reset()

    # What processes do

    def joined(self, network: "SimulatedNetwork") -> None:
        """A process begins on its host."""
        self.hosts[network.host] = None
        self.networks[network.host] = network

    def left(self, network: "SimulatedNetwork", *, power_cut: bool) -> None:
        """It is gone: the kernel ends what it has left, or resets it, unless it is gone, too."""
        if self.networks.get(network.host) is network:
            del self.networks[network.host]
        for address in [address for address in self.ports if address[0] == network.host]:
            del self.ports[address]
        for wire in list(self.wires):
            for end in wire.ends:
                if end.network is network:
                    end.is_dead = True
                    if not power_cut:
                        wire.left(end)

    def connect(self, network: "SimulatedNetwork", host: str, port: int) -> "WireEnd":
        """Begin to connect."""
        wire = Wire(self, network, host, port)
        self.wires.append(wire)
        return wire.ends[0]

    def delay_us(self, way: Way) -> int:
        span_us = self.latency_us + self.delays_us.get(way, 0)
        return int(span_us * self.chance.uniform(0.5, 1.5))

    def drop(self, wire: "Wire") -> None:
        if wire in self.wires:
            self.wires.remove(wire)


class WireEnd:
    """One side of a connection between processes, like a non-blocking socket to its own."""

    def __init__(self, wire: "Wire", network: "SimulatedNetwork", number: int) -> None:
        self.wire = wire
        self.network = network
        self.number = number  # 0 = the one that has connected
        self.fd = network.add_end(self)
        self.inbox = bytearray()
        self.is_connected = number == 1
        self.is_refused = False
        self.ended = False  # the other side sends no more
        self.broken = False
        self.is_dead = False  # its process is
        self.closed = False
        self.room_bytes = BUFFER_BYTES  # of what the other side has not read

    def fileno(self) -> int:
        return self.fd

    def recv(self, size_bytes: int, /) -> bytes:
        if self.broken:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        if not self.inbox:
            if self.ended:
                return b""
            raise BlockingIOError
        data = bytes(self.inbox[:size_bytes])
        del self.inbox[:size_bytes]
        self.wire.was_read(self.number, len(data))
        return data

    def send(self, data: bytes | memoryview, /) -> int:
        if self.broken:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        if not self.room_bytes or not self.is_connected:
            raise BlockingIOError
        sent = min(len(data), self.room_bytes)
        self.room_bytes -= sent
        self.wire.flows[self.number].send(bytes(data[:sent]))
        return sent

    def mask(self) -> int:
        """What an epoll object would say of it."""
        if self.broken or self.is_refused:
            return net.READABLE | net.WRITABLE | net.HANG_UP
        if not self.is_connected:
            return 0
        mask = net.WRITABLE if self.room_bytes else 0
        if self.inbox or self.ended:
            mask |= net.READABLE
        return mask | net.HANG_UP_ONLY if self.ended else mask

    def shutdown(self, how: int, /) -> None:
        assert how == net.END_OUTPUT
        self.wire.flows[self.number].send(b"")

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.network.remove_end(self.fd)
            self.wire.was_closed(self)

    def changed(self) -> None:
        if not (self.is_dead or self.closed):
            self.network.changed()


class Flow:
    """One direction: what was sent arrives in order. b"" is the end."""

    def __init__(self, wire: "Wire", way: Way, target: WireEnd) -> None:
        self._wire = wire
        self._fabric = wire.fabric
        self._way = way
        self._target = target
        self._queue: deque[bytes] = deque()
        self._held_up = 0
        self._last_at_us = 0
        self._is_lost = False

    def send(self, data: bytes) -> None:
        if self._is_lost:
            return
        schedule = self._fabric.schedule
        self._queue.append(data)
        self._last_at_us = max(self._last_at_us, schedule.now_us + self._fabric.delay_us(self._way))
        schedule.after(self._last_at_us - schedule.now_us, self._deliver)

    def _deliver(self) -> None:
        if not self._queue:
            return  # it was lost
        if self._way in self._fabric.cut:
            self._held_up += 1
        else:
            self._wire.arrive(self._target, self._queue.popleft())

    def go_on(self) -> None:
        """The way is open again."""
        held_up, self._held_up = self._held_up, 0
        for _ in range(held_up):
            self._fabric.schedule.after(self._fabric.chance.randint(0, AGAIN_US), self._deliver)

    def lose(self) -> None:
        """What is on its way does not arrive, nor what is sent before the break shows."""
        self._is_lost = True
        self._queue.clear()
        self._held_up = 0


class Wire:
    """A connection between two processes, from when it is begun."""

    def __init__(self, fabric: Fabric, caller: "SimulatedNetwork", host: str, port: int) -> None:
        self.fabric = fabric
        self.hosts = (caller.host, host)
        self._port = port
        self.ends = [WireEnd(self, caller, 0)]
        self.flows: list[Flow] = []
        self._waits_for: Way | None = None  # a connection that a cut keeps from being made
        fabric.schedule.after(fabric.delay_us(self.hosts), self._arrive_there)

    def _arrive_there(self) -> None:
        """The SYN."""
        back = (self.hosts[1], self.hosts[0])
        if self._is_over():
            return
        for way in (self.hosts, back):
            if way in self.fabric.cut:
                self._waits_for = way
                return
        caller, host = self.ends[0], self.hosts[1]
        if host not in self.fabric.networks:
            return  # nobody answers
        port = self.fabric.ports.get((host, self._port))
        if port is None:
            self.fabric.schedule.after(self.fabric.delay_us(back), self._refuse)
            return
        called = WireEnd(self, self.fabric.networks[host], 1)
        self.ends.append(called)
        self.flows = [Flow(self, self.hosts, called), Flow(self, back, caller)]
        port.arrive_from(called, self.hosts[0])
        self.fabric.schedule.after(self.fabric.delay_us(back), self._connect)

    def _is_over(self) -> bool:
        return any(end.closed or end.is_dead or end.broken for end in self.ends)

    def _connect(self) -> None:
        if not self._is_over():
            self.ends[0].is_connected = True
            self.ends[0].changed()

    def _refuse(self) -> None:
        self.ends[0].is_refused = True
        self.ends[0].changed()

    def go_on(self) -> None:
        """No way is cut any more."""
        if self._waits_for is not None:
            self._waits_for = None
            self.fabric.schedule.after(self.fabric.chance.randint(0, 1_000_000), self._arrive_there)
        for flow in self.flows:
            flow.go_on()

    def arrive(self, end: WireEnd, data: bytes) -> None:
        """Some of what the other side has sent is there."""
        if end.is_dead or end.closed:
            if end.network.host in self.fabric.networks:
                self._break(self.ends[1 - end.number])  # the kernel there knows of no such connection
            return
        if data:
            end.inbox += data
        else:
            end.ended = True
        end.changed()

    def was_read(self, number: int, size_bytes: int) -> None:
        other = self.ends[1 - number]
        other.room_bytes += size_bytes
        other.changed()

    def was_closed(self, end: WireEnd) -> None:
        if len(self.ends) == 1 or self.ends[1 - end.number].is_dead or self.ends[1 - end.number].closed:
            self.fabric.drop(self)
        elif end.inbox:
            self.reset()
        else:
            self.flows[end.number].send(b"")

    def left(self, end: WireEnd) -> None:
        """A process was killed: what it had sent may arrive, and then the end of it."""
        if len(self.ends) == 2 and not (end.inbox or end.closed) and self.fabric.chance.random() < 0.7:
            self.flows[end.number].send(b"")
        else:
            self.reset()

    def reset(self) -> None:
        """The connection is broken for both."""
        self.fabric.drop(self)
        for flow in self.flows:
            flow.lose()
        for end in self.ends:
            self._break(end)

    def _break(self, end: WireEnd) -> None:
        if not (end.is_dead or end.closed or end.broken):
            self.fabric.schedule.after(self.fabric.chance.randint(0, 2000), self._show_broken, end)

    def _show_broken(self, end: WireEnd) -> None:
        end.broken = True
        end.inbox.clear()
        end.changed()
