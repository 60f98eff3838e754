"""What leaves at the end of a turn, and in which order."""

from pathlib import Path
from typing import Any

from kestreld.server.command_handler import CommandHandler, Parser
from tests.kestreld.server.echo.echo_protocol import Echo, EchoHandler
from tests.support.compiled import interpreted_only
from tests.support.server_here import ServerHere

pytestmark = interpreted_only


class ToldHandler(EchoHandler):
    """Notes when its answers have left."""

    events: list[str]

    def sent(self) -> None:
        super().sent()
        self.events.append("answered")


class Told(Echo):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.events: list[str] = []

    def open(self, account: Any) -> tuple[Parser, CommandHandler]:
        parser, handler = super().open(account)
        told = ToldHandler(handler.state, is_closed=False)
        told.events = self.events
        return parser, told


def test_other_servers_are_sent_to_before_clients_and_again_for_what_that_has_led_to(tmp_path: Path) -> None:
    server = ServerHere(tmp_path, "")
    protocol = Told(server.service.state)
    host, _, port = server.listen(protocol).rpartition(":")
    turn = server.service.turn
    connection = server.network.connect(host, int(port))
    server.run_until(lambda: server.network.is_connected(connection))
    turn.senders.append(lambda: protocol.events.append("sent"))
    connection.send(b"line\n")
    server.run_until(lambda: "answered" in protocol.events)
    at = protocol.events.index("answered")
    assert protocol.events[at - 1 : at + 2] == ["sent", "answered", "sent"]
    turn.senders.clear()
    connection.close()
    server.close()
