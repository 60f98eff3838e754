"""Changes of items from the console: puts, moves, and actions on chosen items. Failures are for the user."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Final

from kestrelctl.items.moving import Expiries, ItemMover, Pace
from kestrelctl.items.putting import expiry_at_s, explain
from kestrelctl.remote.admin import path_of
from kestrelctl.remote.client import KestrelClient
from kestrelctl.remote.reader_api import NotReadable, open_reader_api
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.client.items import OpenItem, PutItem
from tui.admin_port import AdminLost, AdminPort, AdminRefused
from tui.admin_queries import Asked, WaitingItem
from tui.formats import printable

# An item that is not chosen is held open, on its own connection, until the chosen ones behind it are done.
PASSED_OVER_MAX: Final = 100


class ItemAction(StrEnum):
    REQUEUE = "requeue"
    MOVE = "move"
    DELETE = "delete"
    CANCEL = "cancel"
    RUN_NOW = "run-now"
    EXTEND = "extend"
    GIVE_BACK = "give-back"


@dataclass(frozen=True, slots=True)
class Errand:
    """An action on chosen items of a queue."""

    action: ItemAction
    queue: str
    target: str = ""  # the queue they are put on; "" = none
    lease_ms: int = 0  # of EXTEND


def put_item(asked: Asked, queue: str, data: bytes) -> str:
    """Put an item; return a message. Raises Failure."""
    with closing(_connect(asked)) as client:
        _put(client, queue, PutItem(data))
    return f"{asked.address}: put {len(data):,} byte{'' if len(data) == 1 else 's'}"


def move_queue(asked: Asked, queue: str, target: str) -> str:
    """Move all items, as `kestrelctl move` does. Raises Failure."""
    check_target(queue, target)
    with ExitStack() as stack:

        def connect() -> KestrelClient:
            return stack.enter_context(closing(_connect(asked)))

        expiries, lost = None, ", without their expiry times: there is no admin port"
        with suppress(NotReadable):
            reader_api = open_reader_api(asked.address, asked.timeout_ms, None, asked.login)
            stack.callback(reader_api.close)
            expiries, lost = Expiries(reader_api, queue), ""
        mover = ItemMover(connect, queue, connect(), target, expiries)
        try:
            mover.run(None, None, Pace(0))
        except Failure as failure:
            raise Failure(failure.code, f"{failure.words}; moved items: {mover.moved}") from failure
        return f"{asked.address}: moved items: {mover.moved}{lost if mover.moved else ''}"


def check_target(queue: str, target: str) -> None:
    """Raise Failure if moved items would come back to the queue."""
    if target == queue:
        raise Failure(ExitCode.USAGE, f"source and destination are the same: {queue}")
    if queue.startswith(f"{target}+"):
        raise Failure(ExitCode.USAGE, f"would loop: items put on {target} are also delivered to {queue}")


def run_errand(asked: Asked, errand: Errand, items: Sequence[WaitingItem]) -> str:
    """Take these items out of the queue, and put them on the target if there is one. The others keep their places.

    Items are taken from the head, as by a consumer; one that another consumer holds meanwhile is skipped. Raises
    Failure, after which items not done are back in their places.
    """
    if errand.action in _BY_ID:
        return _act_by_id(asked, errand, items)
    chosen = {item.item_id: item for item in items if item.item_id is not None}
    done, held = 0, list[KestrelClient]()
    source = os.fsencode(errand.queue)
    with ExitStack() as stack:
        target = stack.enter_context(closing(_connect(asked)))
        client = stack.enter_context(closing(_connect(asked)))
        try:
            while done < len(chosen):
                item = client.open_item(source, with_id=True)
                if item is None or item.id > max(number for number in chosen if number is not None):
                    break
                if item.id not in chosen:
                    held.append(client)
                    if len(held) > PASSED_OVER_MAX:
                        words = f"{PASSED_OVER_MAX} items ahead are not chosen, and no more can be held open"
                        raise Failure(ExitCode.REFUSED, words)
                    client = stack.enter_context(closing(_connect(asked)))
                    continue
                if errand.target:
                    _put(target, errand.target, _copy(item, chosen[item.id]))
                client.close_read(source)
                done += 1
        finally:
            # In reverse order, because each becomes the head.
            for connection in [client, *reversed(held)]:
                with suppress(Failure):
                    connection.abort_read(source)
    left = len(chosen) - done
    rest = f"; {left} taken by a consumer or gone" if left else ""
    return f"{asked.address}: {_DONE[errand.action]} items: {done}{rest}"


def _act_by_id(asked: Asked, errand: Errand, items: Sequence[WaitingItem]) -> str:
    """Have the server act on held items by id; items no longer in the required state are skipped."""
    done = 0
    more = f"?lease_ms={errand.lease_ms}" if errand.action is ItemAction.EXTEND else ""
    with _admin_port(asked) as port:
        for item in items:
            try:
                port.post(path_of(errand.queue, "items", str(item.item_id), errand.action) + more)
                done += 1
            except AdminRefused as refused:
                if refused.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                    raise
    left = len(items) - done
    rest = f"; {left} {'is' if left == 1 else 'are'} not {_BY_ID[errand.action]}" if left else ""
    return f"{asked.address}: {_DONE[errand.action]} items: {done}{rest}"


def redrive_queue(asked: Asked, queue: str) -> str:
    """Send dead letters back to the queues they come from. Raises Failure."""
    moved, without_origin, refused = 0, 0, dict[str, str]()
    with _admin_port(asked) as port:
        through = json.loads(port.get(path_of(queue)))["next_id"] - 1  # excludes letters that come back meanwhile
        after: int | None = 0
        while after is not None:
            answer = json.loads(port.post(f"{path_of(queue, 'redrive')}?after={after}&through={through}"))
            moved, without_origin = moved + answer["moved"], without_origin + answer["without_origin"]
            refused |= answer["refused"]
            after = answer["next"]
    rest = f"; of {without_origin} it is not known where they come from" if without_origin else ""
    rest += "".join(f"; {printable(name)}: {reason}" for name, reason in refused.items())
    return f"{asked.address}: redriven items: {moved}{rest}"


@contextmanager
def _admin_port(asked: Asked) -> Iterator[AdminPort]:
    """The admin port, with AdminLost turned into Failure."""
    try:
        with closing(asked.admin_port()) as port:
            yield port
    except AdminRefused as refused:
        raise Failure(ExitCode.REFUSED, f"{asked.address}: {refused}") from refused
    except AdminLost as lost:
        raise Failure(ExitCode.UNREACHABLE, f"{asked.address}: {lost}") from lost


# Actions on items by their ids, and the state that they are in.
_BY_ID: Final = {
    ItemAction.CANCEL: "delayed or retrying",
    ItemAction.RUN_NOW: "delayed or retrying",
    ItemAction.EXTEND: "leased",
    ItemAction.GIVE_BACK: "leased",
}
_DONE: Final = {
    ItemAction.REQUEUE: "requeued",
    ItemAction.MOVE: "moved",
    ItemAction.DELETE: "deleted",
    ItemAction.CANCEL: "cancelled",
    ItemAction.RUN_NOW: "due now",
    ItemAction.EXTEND: "extended",
    ItemAction.GIVE_BACK: "given back",
}


def _copy(item: OpenItem, known: WaitingItem) -> PutItem:
    return PutItem(item.data, expiry_at_s(known.expire_at_ms or 0), item.flags)


def _put(client: KestrelClient, queue: str, item: PutItem) -> None:
    report = client.put_items(os.fsencode(queue), [[item]])
    if report.failure is not None:
        raise explain(report, report.failure)


def _connect(asked: Asked) -> KestrelClient:
    return KestrelClient(asked.address, asked.timeout_ms, asked.login)
