"""One connection to a node of jobs: sends commands, reads results, and raises KestrelErrors for failures."""

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar, cast

from kestreld import errors
from kestreld.client.access import RECEIVE_BYTES, Login, Socket
from kestreld.client.job_commands import JobCommand
from kestreld.client.replies import UnparsableReply
from kestreld.client.resp import ErrorReply, RespReader, RespValue, Word, request
from kestreld.client.transport import Transport

T = TypeVar("T")
JOBS_PORT_DEFAULT: Final = 7711
# Refusals after which another node may be asked, or this one a little later.
_UNFIT: Final = ("LOADING", "ERR max number of clients reached")
_UNKNOWN: Final = "ERR unknown command '"


@dataclass(frozen=True, slots=True)
class KnownNode:
    """A node in a reply to HELLO. `address` is HOST:PORT, "" = not known; a lower `priority` is better."""

    id: str
    address: str
    priority: int


@dataclass(frozen=True, slots=True)
class NodeHello:
    """A node's reply to HELLO: its id, and all nodes that it knows, including itself."""

    node_id: str
    nodes: tuple[KnownNode, ...] = ()


class NodeLeaves(errors.ServerUnfit):
    """The node is leaving its cluster: it hands out no jobs any longer, but still knows those that it has."""


class JobConnection(Transport):
    """Connection to a node of jobs. `hello` is known once it is connected."""

    port_default = JOBS_PORT_DEFAULT

    def __init__(self, address: str, login: Login, timeout_ms: int) -> None:
        """Does not connect: `connect` does, or the first command."""
        super().__init__(address, login, timeout_ms)
        self.hello = NodeHello("")
        self._reader = RespReader()
        self._values: deque[RespValue] = deque()

    def ask(self, command: JobCommand[T]) -> T:
        """Send a command and return its result. Raises JobRefused if the node refuses it."""
        return self.ask_each([command])[0]

    def ask_each(self, commands: Sequence[JobCommand[T]]) -> list[T]:
        """Send several commands at once and return their results. The replies have to fit into the socket's buffers."""
        with self._talking(sum(command.wait_ms for command in commands)):
            self._send(b"".join([request(command.words) for command in commands]))
            return [result_of(self.address, command, self._value()) for command in commands]

    def until_closed(self, command: JobCommand[None]) -> None:
        """Send a command that stops the node, and return once the node has closed the connection."""
        with self._talking(command.wait_ms):
            self._send(request(command.words))
            try:
                result_of(self.address, command, self._value())
            except (errors.ConnectionLost, ConnectionResetError):
                self.close()

    def _value(self) -> RespValue:
        while not self._values:
            self._values += read_values(self.address, self._reader, self._received(RECEIVE_BYTES))
        return self._values.popleft()

    def _ask_who_is_there(self) -> None:
        """Do nothing: HELLO has identified the node."""

    def _enter(self, connected: Socket, server: str, login: Login) -> None:
        introduction = introduce(server, login)
        words = next(introduction)
        try:
            while True:
                words = introduction.send(self._exchange(connected, words))
        except StopIteration as ended:
            self.hello = ended.value

    def _exchange(self, connected: Socket, words: Sequence[Word]) -> RespValue:
        connected.sendall(request(words))
        while data := connected.recv(RECEIVE_BYTES):
            if values := read_values(self.address, self._reader, data):
                return values[0]
        raise ConnectionResetError(0, "closed before it answered")


def introduce(address: str, login: Login) -> Generator[Sequence[Word], RespValue, NodeHello]:
    """Introduce this client: yields commands to send, is sent their replies, and returns the node's HELLO.

    Raises LoginRefused, UnexpectedReply if the server is no node of jobs, and ServerUnfit if it is leaving.
    """
    reply = yield [b"HELLO"]
    if isinstance(reply, ErrorReply) and reply.code == "NOAUTH" and login.password != "":
        user = [login.user] if login.user else []
        reply = yield [b"AUTH", *user, login.secret]
        if isinstance(reply, ErrorReply):
            raise errors.LoginRefused(address, f"{login.user or 'the password'}: {reply.reason}")
        reply = yield [b"HELLO"]
    return result_of(address, JobCommand([b"HELLO"], _hello), reply)


def _hello(hello: RespValue) -> NodeHello:
    """Parse a reply to HELLO. Raises ValueError if it is another server's."""
    if not isinstance(hello, list) or len(hello) < 3 or hello[0] != 1 or not isinstance(hello[1], bytes):
        raise ValueError
    return NodeHello(hello[1].decode("ascii"), tuple(map(_known_node, hello[2:])))


def _known_node(entry: RespValue) -> KnownNode:
    if not isinstance(entry, list) or len(entry) < 4:
        raise ValueError
    node_id, host, port, priority = (part.decode("ascii") if isinstance(part, bytes) else "" for part in entry[:4])
    host = f"[{host}]" if ":" in host else host
    return KnownNode(node_id, f"{host}:{int(port)}" if host else "", int(priority))


def read_values(address: str, reader: RespReader, data: bytes) -> list[RespValue]:
    """Return the complete replies. Raises UnexpectedReply."""
    try:
        return reader.feed(data)
    except UnparsableReply as error:
        raise errors.UnexpectedReply(address, str(error)) from error


def result_of(address: str, command: JobCommand[T], reply: RespValue) -> T:
    """Return the result in a reply. Raises JobRefused, or ServerUnfit if another node may carry out the command."""
    if isinstance(reply, ErrorReply):
        raise _refusal(address, reply)
    try:
        result = command.read(reply)
    except ValueError as error:
        raise errors.UnexpectedReply(address, repr(reply)[:80]) from error
    if command.hands_out:
        return cast("T", [replace(job, node=address) for job in cast("list[Any]", result)])
    return result


def _refusal(address: str, reply: ErrorReply) -> errors.ServerRefused:
    if reply.code == "NOAUTH":
        return errors.ServerRefused(address, "unauthenticated")
    if reply.code == "LEAVING":
        return NodeLeaves(address, reply.reason)
    if reply.words.startswith(_UNFIT):
        return errors.ServerUnfit(address, reply.reason)
    if reply.words.startswith(_UNKNOWN):
        return errors.UnknownCommand(address, reply.words.removeprefix(_UNKNOWN).rstrip("'"))
    return errors.JobRefused(address, reply.code, reply.reason)
