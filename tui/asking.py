"""What the console asks of a server, or has it do, beside looking at its stats: each on a connection of its own."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kestrelctl.blocks import QueueBlock, parse_blocks
from kestrelctl.client import KestrelClient
from kestrelctl.exit_codes import Failure
from tui.polling import StatsConnection


class Action(StrEnum):
    FLUSH = "flush"
    DELETE = "delete"
    RELOAD = "reload"


@dataclass(slots=True)
class QueueDetails:
    """All that one server says of a queue. What it does not know stays empty."""

    server: str
    figures: dict[str, QueueBlock] = field(default_factory=dict)  # of the queue and its children, by name
    settings: QueueBlock = field(default_factory=dict)
    head: bytes | None = None  # the item at the head of the queue; None = there is none
    failure: str = ""


def ask_details(address: str, timeout_ms: int, queue: str, children: Sequence[str]) -> QueueDetails:
    """Never raises: what went wrong is in `failure`."""
    details = QueueDetails(address)
    names = [queue, *children]

    def ask_head(client: StatsConnection) -> None:
        details.head = client.peek(os.fsencode(queue))

    def ask_figures(client: StatsConnection) -> None:
        blocks = parse_blocks(client.dump_stats_of([os.fsencode(name) for name in names]))
        # An old Kestrel describes all of its queues.
        details.figures = {str(block["queue"]): block for block in blocks if block["queue"] in names}

    def ask_settings(client: StatsConnection) -> None:
        blocks = parse_blocks(client.dump_config())
        details.settings = next((block for block in blocks if block["queue"] == queue), {})

    for ask in (ask_head, ask_figures, ask_settings):
        # An old Kestrel closes the connection on what it does not know.
        client = StatsConnection(address, timeout_ms)
        try:
            ask(client)
        except Failure as failure:
            details.failure = failure.words
        finally:
            client.close()
    return details


def act(address: str, timeout_ms: int, action: Action, queue: str) -> str:
    """Do it; what there is to say of it. Raises Failure."""
    client = KestrelClient(address, timeout_ms)
    try:
        match action:
            case Action.FLUSH:
                client.flush(os.fsencode(queue))
                return f"{address}: flushed"
            case Action.DELETE:
                return f"{address}: " + ("deleted" if client.delete_queue(os.fsencode(queue)) else "no such queue")
            case Action.RELOAD:
                return f"{address}: reloaded {client.reload()}".rstrip()
    finally:
        client.close()
