"""Requests to a server beyond its figures: items, consumers, settings, changes. Each uses its own connection."""

import base64
import json
import os
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from kestrelctl.remote.admin import path_of
from kestrelctl.remote.client import NOBODY, KestrelClient
from kestrelctl.shell.exit_codes import Failure
from kestreld.client.access import Login
from kestreld.client.blocks import QueueBlock, parse_blocks
from tui.admin_port import AdminLost, AdminPort, admin_port_of
from tui.board import ServerState

WAITING_ITEMS_MAX: Final = 50
WAITING_BYTES_MAX: Final = 256 * 1024
CONSUMERS_MAX: Final = 100  # of each kind


class Action(StrEnum):
    FLUSH = "flush"
    DELETE = "delete"
    MOVE = "move"
    PUT = "put"
    RELOAD = "reload"
    REDRIVE = "redrive"


class Shown(StrEnum):
    """Selection of the items shown."""

    FIRST = ""  # the first items not done, in any state
    DELAYED = "delayed"
    RETRYING = "retrying"
    LEASED = "leased"


@dataclass(slots=True)
class WaitingItem:
    """An item and its attributes. An original Kestrel reports only its data."""

    data: bytes
    item_id: int | None = None
    add_at_ms: int | None = None
    expire_at_ms: int | None = None
    flags: int = 0
    is_open: bool = False
    state: str = ""  # delayed, retrying, leased, or waiting for one that was due
    due_at_ms: int | None = None
    attempts: int = 0  # number of failures
    since_at_ms: int | None = None  # of a lease
    until_at_ms: int | None = None
    client: str = ""  # address of the client that has leased it
    origin: str = ""  # of a dead letter: the queue it comes from, and why
    failure: str = ""  # reason of the last failure, as given by its consumer
    holder: str = ""  # name that the client gave with the lease, or its address; "" = not shown to this user
    extended: int = 0  # how often the lease was
    is_seen: bool = True  # False: nobody has presented the lease's token since the server restarted


@dataclass(slots=True)
class Consumer:
    """A client that waits for items or holds some. `age_ms`: for how long, when the server was asked."""

    client: str  # its address, or the name by which it leases; "" = not shown to this user
    user: str
    age_ms: int
    open_reads: int = 0  # or leases; 0 = it waits
    first_id: int = 0
    extended: int = 0  # how often its leases were
    is_seen: bool = True  # False: it has presented none of their tokens since the server restarted


@dataclass(slots=True)
class Consumers:
    """Clients that wait, that hold items and that lease some, the longest first, at most CONSUMERS_MAX of each, and
    their totals.
    """

    waiting: list[Consumer]
    holding: list[Consumer]
    waiters: int
    open_reads: int
    leasing: list[Consumer] = field(default_factory=list)


@dataclass(slots=True)
class QueueDetails:
    """Everything that one server reports about a queue; fields not reported stay empty."""

    server: str
    figures: dict[str, QueueBlock] = field(default_factory=dict)  # of the queue and its children, by name
    settings: QueueBlock = field(default_factory=dict)
    items: list[WaitingItem] = field(default_factory=list)  # the first waiting items
    consumers: Consumers | None = None
    only_head: str = ""  # reason that only the head is shown; "" = all requested items are
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """A server, and how to reach it."""

    address: str
    admin: str  # its admin port, "" when it has none
    timeout_ms: int
    login: Login = NOBODY

    @classmethod
    def of(cls, server: ServerState, timeout_ms: int, login: Login) -> "Asked":
        counters = server.snapshot.counters if server.snapshot is not None else {}
        return cls(server.address, str(counters.get("admin", "")), timeout_ms, login)

    def admin_port(self) -> AdminPort:
        """The server's admin port. Raises AdminLost with a message for the user."""
        if not self.admin:
            raise AdminLost("no admin port")
        port = admin_port_of(self.address, self.admin, self.timeout_ms, self.login)
        if port is None:
            raise AdminLost(f"admin port {self.admin} cannot be reached from here")
        return port


def ask_details(asked: Asked, queue: str, children: Sequence[str], shown: Shown = Shown.FIRST) -> QueueDetails:
    """Ask a server for details of a queue. Never raises: errors are in `failure`."""
    details = QueueDetails(asked.address)
    names = [queue, *children]

    def ask_head(client: KestrelClient) -> None:
        try:
            details.items = _items(asked, queue, shown)
        except AdminLost as lost:
            details.only_head = str(lost)
            if shown != Shown.FIRST:
                return
            head = client.peek(os.fsencode(queue))
            details.items = [WaitingItem(head)] if head is not None else []

    def ask_figures(client: KestrelClient) -> None:
        blocks = parse_blocks(client.dump_stats([os.fsencode(name) for name in names]))
        # An old Kestrel describes all of its queues.
        details.figures = {str(block["queue"]): block for block in blocks if block["queue"] in names}

    def ask_settings(client: KestrelClient) -> None:
        blocks = parse_blocks(client.dump_config())
        details.settings = next((block for block in blocks if block["queue"] == queue), {})

    with suppress(AdminLost):
        details.consumers = _consumers(asked, queue)
    for ask in (ask_head, ask_figures, ask_settings):
        # An old Kestrel closes the connection on a command it does not know.
        client = KestrelClient(asked.address, asked.timeout_ms, asked.login)
        try:
            ask(client)
        except Failure as failure:
            details.failure = failure.words
        finally:
            client.close()
    return details


def _consumers(asked: Asked, queue: str) -> Consumers:
    """The consumers of a queue. Raises AdminLost."""
    port = asked.admin_port()
    try:
        found = json.loads(port.get(f"{path_of(queue, 'consumers')}?limit={CONSUMERS_MAX}"))
        waiting, holding, leasing = (
            [_consumer(each, found["now_ms"]) for each in found.get(kind, ())]
            for kind in ("waiting", "holding", "leasing")
        )
        return Consumers(waiting, holding, found["waiters"], found["open"], leasing)
    except (ValueError, KeyError, TypeError) as error:
        raise AdminLost(f"unexpected reply: {error}") from error
    finally:
        port.close()


def _consumer(row: dict[str, Any], now_ms: int) -> Consumer:
    age_ms = max(0, now_ms - row["since_at_ms"])
    return Consumer(
        row.get("holder", row.get("client", "")),
        row.get("user", ""),
        age_ms,
        row.get("open", row.get("leases", 0)),
        row.get("first_id", 0),
        row.get("extended", 0),
        row.get("seen", True),
    )


def _items(asked: Asked, queue: str, shown: Shown) -> list[WaitingItem]:
    """Items read from the journal, so that nothing is taken. Raises AdminLost."""
    port = asked.admin_port()
    which = f"state={shown}" if shown else "waiting=1"
    query = f"{which}&format=ndjson&limit={WAITING_ITEMS_MAX}&bytes={WAITING_BYTES_MAX}"
    try:
        return [_item(json.loads(line)) for line in port.get(f"{path_of(queue, 'items')}?{query}").splitlines()]
    except (ValueError, KeyError, TypeError) as error:
        raise AdminLost(f"unexpected reply: {error}") from error
    finally:
        port.close()


def _item(row: dict[str, Any]) -> WaitingItem:
    data = base64.b64decode(row["base64"]) if "base64" in row else row["data"].encode()
    origin = row.get("origin")
    return WaitingItem(
        data,
        row["id"],
        row.get("add_ms"),
        row.get("expire_ms"),
        row.get("flags", 0),
        row.get("is_open", False),
        row.get("state", ""),
        row.get("due_at_ms"),
        row.get("attempts", 0),
        row.get("since_at_ms"),
        row.get("until_at_ms"),
        row.get("client", ""),
        f"{origin['reason']} on {origin['queue']}" if origin is not None else "",
        row.get("failure_reason", ""),
        row.get("holder", row.get("client", "")),
        row.get("extended", 0),
        row.get("seen", True),
    )


def flush_queue(asked: Asked, queue: str) -> str:
    """Flush a queue. Like the functions below, returns a message for the user and raises Failure."""
    with closing(KestrelClient(asked.address, asked.timeout_ms, asked.login)) as client:
        client.flush(os.fsencode(queue))
    return f"{asked.address}: flushed"


def delete_queue(asked: Asked, queue: str) -> str:
    with closing(KestrelClient(asked.address, asked.timeout_ms, asked.login)) as client:
        return f"{asked.address}: " + ("deleted" if client.delete_queue(os.fsencode(queue)) else "no such queue")


def reload(asked: Asked) -> str:
    with closing(KestrelClient(asked.address, asked.timeout_ms, asked.login)) as client:
        return f"{asked.address}: reloaded {client.reload()}".rstrip()
