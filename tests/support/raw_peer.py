"""A peer on the bus of a simulated server that a test speaks for: any bytes, or well-formed frames of any content."""

from contextlib import suppress
from random import Random
from typing import Final

from kestreld.cluster.codec import pack, read
from kestreld.cluster.frames import Frame, Hello, LinkProtocol, LinkRefused, RefusedByPeer, record
from kestreld.cluster.messages import Meet, Ping, Pong
from kestreld.cluster.nodes import Flag, NodeAddress
from tests.simulation.fabric import WireEnd
from tests.simulation.machines import Machines
from tests.simulation.network import SimulatedNetwork
from tests.simulation.schedule import ProcessLoop

HOST: Final = "10.9.9.9"
BUS_PORT: Final = 17_711


class RawPeer:
    """It has connected to the first server of `machines`, and listens itself."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._loop = ProcessLoop(machines.schedule, Random(1), lambda: None)
        self._network = SimulatedNetwork(machines.schedule, self._loop, Random(1), machines.fabric, HOST)
        self._port = self._network.listen_tcp(HOST, BUS_PORT)
        self.hello = Hello(b"e" * 40, b"f" * 40, NodeAddress(HOST, 7711, BUS_PORT))
        self.connection = self._network.connect(machines.hosts[0], BUS_PORT)
        self.link = self._protocol(is_caller=True)
        self._back: tuple[WireEnd, LinkProtocol] | None = None  # the server's link to this peer
        machines.until(lambda: self.connection.is_connected, 100)

    def _protocol(self, *, is_caller: bool) -> LinkProtocol:
        return LinkProtocol(self.hello, bytes(32), lambda: 0, is_caller=is_caller, secret=b"")

    def send(self, data: bytes) -> None:
        """As many of these bytes as go."""
        with suppress(OSError):
            self.connection.send(data)
        self._machines.run(5)

    def shake_hands(self) -> None:
        while not self.link.is_ready:
            self.send(self.link.take_output())
            self.link.feed(self.connection.recv(1 << 16))
        self.send(self.link.take_output())

    def say(self, message_type: int, body: bytes) -> None:
        """A message in a frame of its own."""
        self.send(self.link.pack([record(message_type, body)]))

    def become_a_member(self) -> None:
        """Have the server link back, and take its PINGs for a while."""
        self.shake_hands()
        self.say(*pack(Meet(Flag(0))))
        for _ in range(10):
            self.answer()
            self._machines.run(20)

    def answer(self, flags: Flag = Flag(0)) -> list[Frame]:  # noqa: B008
        """Take what the server has sent on its own link, and answer its PINGs."""
        if self._back is None:
            if not self._port.has_arrivals:
                return []
            end = self._port.accept()
            assert isinstance(end, WireEnd)
            self._back = (end, self._protocol(is_caller=False))
        end, link = self._back
        try:
            frames = link.feed(end.recv(1 << 20))
            pings = [read(*one) for frame in frames for one in frame.messages]
            answers = [record(*pack(Pong(flags))) for one in pings if isinstance(one, (Ping, Meet))]
            end.send(link.take_output() + (link.pack(answers) if answers else b""))
        except (BlockingIOError, ConnectionResetError, BrokenPipeError, LinkRefused, RefusedByPeer):
            return []
        return frames
