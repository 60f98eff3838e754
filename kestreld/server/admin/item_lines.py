"""Items as lines of JSON: fields of the journal's record, and state, lease and failures as the queue has them."""

import base64
import json
from collections.abc import Iterable, Iterator
from typing import Any

from kestreld.journal.records import Reason, item_add_at_ms, item_data, item_expire_at_ms, item_flags, item_id
from kestreld.queues.held import Held
from kestreld.queues.queue import Queue
from kestreld.queues.reader import Reader
from kestreld.queues.states import State, lease_of, state_of
from kestreld.server.admin.rows import shown_name


def item_lines(records: Iterable[bytes], queue: Queue, reader: Reader | None, *, with_clients: bool) -> Iterator[bytes]:
    """Yield a line for each record. `with_clients`: with the holders of leases. Data that is not UTF-8 is base64."""
    for record in records:
        one, data = item_id(record), item_data(record)
        line: dict[str, Any] = {"id": one, "add_ms": item_add_at_ms(record)}
        if expire_at_ms := item_expire_at_ms(record):
            line["expire_ms"] = expire_at_ms
        if flags := item_flags(record):
            line["flags"] = flags
        if reader is not None:
            line |= _known_of(one, reader, with_clients=with_clients)
        if failure := queue.failure_of(reader.number if reader is not None else 0, one):
            line["failure_reason"] = failure
        if (origin := queue.origins.get(one)) is not None:
            line["origin"] = {
                "queue": shown_name(origin.queue),
                "reason": "expired" if origin.reason is Reason.EXPIRED else "failed",
                "attempts": origin.attempts,
                "put_at_ms": origin.put_at_ms,
            }
        try:
            line["data"] = data.decode("utf-8")
        except UnicodeDecodeError:
            line["base64"] = base64.b64encode(data).decode("ascii")
        yield json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogateescape") + b"\n"


def _known_of(one: int, reader: Reader, *, with_clients: bool) -> dict[str, Any]:
    """Return the fields of an item that its reader holds or a client has: state, times, holder, attempts."""
    known: dict[str, Any] = {"is_open": True} if one in reader.open else {}
    clock, state = reader.queue.clock, state_of(reader, one)
    behind_ms = clock.wall_ms - clock.monotonic_ms
    if state is not None:
        known["state"] = state.value
    if state in (State.DELAYED, State.RETRYING):
        assert reader.held is not None
        known["due_at_ms"] = behind_ms + Held.due_of(reader.held.later[one])
    if (lease := lease_of(reader, one)) is not None:
        known |= {"since_at_ms": behind_ms + lease.since_ms, "until_at_ms": behind_ms + lease.ends_at_ms}
        known |= {"extended": lease.extended, "seen": lease.is_seen}
        if with_clients:
            known |= {"client": lease.client, "holder": lease.name}
    if attempts := reader.retries.get(one):
        known["attempts"] = attempts
    return known
