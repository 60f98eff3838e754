"""A session of a Disque client, as a node knows it."""

from kestreld.server.command_handler import CommandHandler
from kestreld.server.disque.parser import RespParser
from kestreld.server.state import ServerState


class DisqueClient(CommandHandler):
    """A session. `number` is its id in CLIENT LIST."""

    def __init__(self, state: ServerState, parser: RespParser, number: int) -> None:
        super().__init__(state)
        self.parser = parser
        self.number = number
        self.label = b""
        self.is_monitor = False
        self.since_ms = self.active_at_ms = state.clock.monotonic_ms
        self.last_command = b"NULL"

    def take_label(self, label: bytes) -> None:
        """CLIENT SETNAME; b"" = none."""
        self.label = label

    @property
    def address(self) -> str:
        """Where the client is: host and port."""
        return self.holder or "unix"

    @property
    def is_known(self) -> bool:
        """Whether it may send commands: it has logged in, or nobody has to."""
        raise NotImplementedError

    def tell(self, line: bytes) -> None:
        """Send a line of what is monitored."""
        raise NotImplementedError

    def send_away(self, reply: bytes) -> None:
        """End a wait that nothing will come of; b"" = the answer is what the command has for that."""
        raise NotImplementedError

    def hang_up(self) -> None:
        """Somebody has asked for the end of this session."""
        raise NotImplementedError
