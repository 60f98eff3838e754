"""`kestrelctl bindings, bind, unbind`: bindings of exchanges to queues, which the server keeps for its clients."""

import os
from typing import Annotated, Final

from kestrelctl.commands.declared import argument
from kestrelctl.commands.options import Output, QueueArgument, Remote
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.client.blocks import text

COLUMNS: Final = ["exchange", "queue", "routing_key", "pattern"]
ExchangeArgument = Annotated[str, argument(metavar="EXCHANGE", help="The exchange.", show_default=False)]
PatternArgument = Annotated[
    str, argument(metavar="[PATTERN]", help="The pattern, as the client matches it.", show_default=False)
]


def bindings(
    output: Output,
    remote: Remote,
    exchange: Annotated[
        str | None, argument(metavar="[EXCHANGE]", help="Only those of this exchange.", show_default=False)
    ] = None,
) -> None:
    """Print the bindings of an exchange, or of all, a row for each. Of several servers, those that any of them has.

    Clients such as Kombu make them; the server only keeps them. Exit 1 when there is none.
    """
    fleet = remote.fleet()
    name = None if exchange is None else os.fsencode(exchange)
    found = {one for _, of_server in fleet.each(lambda client: client.bindings(name)) for one in of_server}
    output.write_rows([dict(zip(COLUMNS, map(text, one), strict=True)) for one in sorted(found)], COLUMNS)
    fleet.end()
    if not found:
        raise Failure(ExitCode.NEGATIVE, "there are no bindings" + (f" of {exchange}" if exchange is not None else ""))


def bind(
    exchange: ExchangeArgument,
    queue: QueueArgument,
    remote: Remote,
    routing_key: Annotated[str, argument(metavar="[ROUTING_KEY]", help="The routing key.", show_default=False)] = "",
    pattern: PatternArgument = "",
) -> None:
    """Bind a queue to an exchange. Nothing changes if it is bound so already; the queue need not be there.

    Exit 74 when the server cannot write its bindings, 77 when it has as many as max_bindings.
    """
    fleet = remote.fleet()
    words = (os.fsencode(exchange), os.fsencode(queue), os.fsencode(routing_key), os.fsencode(pattern))
    fleet.each(lambda client: client.bind(*words))
    fleet.end()


def unbind(
    exchange: ExchangeArgument,
    queue: QueueArgument,
    remote: Remote,
    routing_key: Annotated[
        str | None,
        argument(metavar="[ROUTING_KEY]", help="Only the binding with this routing key.", show_default=False),
    ] = None,
    pattern: PatternArgument = "",
) -> None:
    """Remove a binding, or all of the queue to the exchange if no routing key is given. There need be none.

    Exit 74 when the server cannot write its bindings.
    """
    fleet = remote.fleet()
    key = None if routing_key is None else os.fsencode(routing_key)
    fleet.each(lambda client: client.unbind(os.fsencode(exchange), os.fsencode(queue), key, os.fsencode(pattern)))
    fleet.end()
