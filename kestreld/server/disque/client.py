"""Base class of a Disque client's session, with the parts that the node uses."""

from kestreld.server.command_handler import CommandHandler
from kestreld.server.disque.parser import RespParser
from kestreld.server.state import ServerState


class DisqueClient(CommandHandler):
    """A client's session. `number` is its id in CLIENT LIST."""

    def __init__(self, state: ServerState, parser: RespParser, number: int) -> None:
        super().__init__(state)
        self.parser = parser
        self.number = number
        self.label = b""
        self.since_ms = self.active_at_ms = state.clock.monotonic_ms
        self.last_command = b"NULL"

    def take_label(self, label: bytes) -> None:
        """Set the name of CLIENT SETNAME; b"" = none."""
        self.label = label

    @property
    def address(self) -> str:
        """Address of the client, host and port."""
        return self.holder or "unix"

    @property
    def is_known(self) -> bool:
        """True if the client may send commands: it has logged in, or no login is required."""
        raise NotImplementedError

    def tell(self, line: bytes) -> None:
        """Send a line of MONITOR."""
        raise NotImplementedError

    def send_away(self, reply: bytes) -> None:
        """End a wait without a result; b"" = with the reply that the command has for that."""
        raise NotImplementedError

    def hang_up(self) -> None:
        """Close this session on request of another client or of the node."""
        raise NotImplementedError
