"""`kestrelctl consumers`: list the clients and readers of a queue."""

from collections.abc import Iterator
from typing import Annotated, Any, Final

from kestrelctl.commands.declared import option
from kestrelctl.commands.options import Output, QueueArgument, Remote
from kestrelctl.items.listing import NOT_SEEN
from kestrelctl.shell.output import OBJECTS, default_format
from kestreld.client.blocks import Cell

COLUMNS: Final = ["kind", "consumer", "user", "age_ms", "left_ms", "open", "id", "behind", "client", "extended", "seen"]


def consumers(
    queue: QueueArgument,
    output: Output,
    remote: Remote,
    limit: Annotated[int, option(min=1, max=1000, metavar="N", help="Maximum number of clients of each kind.")] = 100,
) -> None:
    """List a queue's consumers: clients with open reads, clients that wait, and the queue's readers with their lag.

    holding: a client with open reads, how many, the lowest item id, and for how long it has had the first of them.
    leasing: a name or an address that has leased items, how many, the lowest id, for how long it has had the first of
    them and from which address, when the first of these leases ends, how often they were extended, and whether the
    server has not seen any of their tokens since it restarted. `kestrelctl lease give-back QUEUE ID --id` ends such a
    lease.
    waiting: a client that waits for an item, for how long, and how long it will go on. Those at it for longest come
    first. queue and stream: a reader, the id it is at, how many ids it is behind the end, and how long its head has
    waited. Addresses and users are shown to those with the right admin on the queue, or if no users are set.

    Exit 1 when there is no such queue, 77 when the server has no admin port, 84 when the queue is stopped.
    """
    api = remote.reader_api()
    found = api.consumers(queue, limit)
    rows = list(_rows(found))
    if (output.form or default_format()) not in OBJECTS:
        rows = [row | {"seen": "" if row["seen"] else NOT_SEEN} if "seen" in row else row for row in rows]
    output.write_rows(rows, COLUMNS)
    api.must_be_running(found)


def _rows(found: dict[str, Any]) -> Iterator[dict[str, Cell]]:
    now_ms = found["now_ms"]
    for client in found["holding"]:
        held: dict[str, Cell] = {"open": client["open"], "id": client["first_id"]}
        yield _client("holding", client, now_ms) | held
    for client in found.get("leasing", ()):
        leases: dict[str, Cell] = {"open": client["leases"], "id": client["first_id"]}
        if "holder" in client:
            leases |= {"consumer": client["holder"], "client": client["client"]}
        leases |= {key: client[key] for key in ("extended", "seen") if key in client}
        yield _client("leasing", client, now_ms) | leases | {"left_ms": max(client["until_at_ms"] - now_ms, 0)}
    for client in found["waiting"]:
        yield _client("waiting", client, now_ms) | {"left_ms": max(client["until_at_ms"] - now_ms, 0)}
    for reader in found["readers"]:
        name = reader.get("queue", reader["reader"])
        row: dict[str, Cell] = {"kind": reader["kind"], "consumer": name}
        if reader.get("oldest_at_ms"):
            row["age_ms"] = max(now_ms - reader["oldest_at_ms"], 0)
        if "open" in reader:
            row["open"] = reader["open"]
        yield row | {"id": reader["head"], "behind": reader["behind"]}


def _client(kind: str, client: dict[str, Any], now_ms: int) -> dict[str, Cell]:
    row: dict[str, Cell] = {"kind": kind}
    if "client" in client:
        row |= {"consumer": client["client"], "user": client.get("user", "")}
    return row | {"age_ms": max(now_ms - client["since_at_ms"], 0)}
