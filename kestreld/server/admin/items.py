"""Items by state, and an operator's actions on them: cancel, run now, extend, give back, redrive.

GET    /queues/Q/items?state=&limit=&bytes=&after=
POST   /queues/Q/items/ID/cancel                drop an item that is delayed or retrying
POST   /queues/Q/items/ID/run-now               make it due now
POST   /queues/Q/items/ID/extend?lease_ms=      let its lease last so long from now
POST   /queues/Q/items/ID/give-back?delay_ms=   end its lease, and its token: it waits again
POST   /queues/Q/cancel?key=                    as `delete Q/key=`
POST   /queues/Q/redrive?to=&limit=&after=&dry_run=
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from aiohttp import web

from kestreld.config.queue_names import queue_name_problem
from kestreld.config.users import Right
from kestreld.journal.records import Reason, item_id
from kestreld.queues.held import Held
from kestreld.queues.queue import Queue
from kestreld.queues.ranges import RangeRead
from kestreld.queues.reader import Reader
from kestreld.queues.states import Place, State, deliverable_in, first_deliverable, held_places, state_of
from kestreld.server.accounts import Account
from kestreld.server.admin.answers import HEADERS, ID_DIGITS_MAX, Refused, Share, as_json, in_slices, number_in, refusal
from kestreld.server.admin.item_lines import item_lines
from kestreld.server.admin.ranges import BYTES_DEFAULT, BYTES_MAX, NDJSON, Ranges, check_readable, find_family, place_in
from kestreld.server.admin.rows import shown_name

if TYPE_CHECKING:
    from kestreld.server.service import Service

PAGE_ITEMS_MAX: Final = 2000
PAGE_ITEMS_DEFAULT: Final = 100
REDRIVE_ITEMS_MAX: Final = 1000
REDRIVE_BYTES_MAX: Final = 1024**2
PLACE_DIGITS_MAX: Final = 20

Written = Callable[[Queue], Awaitable[None]]


class Items:
    """Pages and actions. An action is answered once its changes are written, as a session's commands are."""

    def __init__(self, service: "Service", share: Share, ranges: Ranges, written: Written) -> None:
        self._service = service
        self._collection = service.collection
        self._clock = service.clock
        self._share = share
        self._ranges = ranges
        self._written = written

    def _find(self, name: str) -> Reader:
        """Return the reader of a queue. Raises Refused."""
        queue = find_family(self._collection, name)
        reader = queue.readers.get(name.partition("+")[2])
        if reader is None:
            raise Refused(404, "no such queue")
        return reader

    # A page

    async def page(self, request: web.BaseRequest, name: str, account: Account | None) -> web.StreamResponse:
        """Answer with items of a queue that are in one state. Raises Refused."""
        query = request.rel_url.query
        if query["state"] not in list(State):
            raise Refused(400, f"state must be one of {', '.join(State)}")
        state, after = State(query["state"]), _place(query.get("after", "0.0"))
        limit = number_in(request, "limit", 1, PAGE_ITEMS_MAX, PAGE_ITEMS_DEFAULT)
        bytes_max = number_in(request, "bytes", 1, BYTES_MAX, BYTES_DEFAULT)
        reader = self._find(name)
        if state is State.WAITING:
            records, following = await self._waiting(reader, after, limit, bytes_max)
        else:
            records, following = await self._held(reader, state, after, limit, bytes_max)
        is_admin = account is None or account.may(Right.ADMIN, name)
        lines = await in_slices(item_lines(records, reader.queue, reader, with_clients=is_admin), self._share)
        headers = {**HEADERS, "X-Kestrel-Items": str(len(records))}
        if following is not None:
            headers["X-Kestrel-Next"] = f"{following[0]}.{following[1]}"
        if account is not None and account.meter is not None:
            account.meter.spend(sum(map(len, records)))
        return web.Response(body=b"".join(lines), content_type=NDJSON, headers=headers)

    async def _waiting(
        self, reader: Reader, after: Place, limit: int, bytes_max: int
    ) -> tuple[list[bytes], Place | None]:
        """Read items by id, from the journal."""
        queue = reader.queue
        check_readable(queue)
        first = max(after[1] + 1, first_deliverable(reader), place_in(queue, "earliest"))
        found = RangeRead(queue, first, limit, bytes_max, reader.number, deliverable_in(reader))
        await self._ranges.read_some(queue, found)
        is_over = found.next_id >= queue.settled_id()
        return found.records, None if is_over else (0, found.next_id - 1)

    async def _held(
        self, reader: Reader, state: State, after: Place, limit: int, bytes_max: int
    ) -> tuple[list[bytes], Place | None]:
        """Read held items by due time, or leased ones by the start of the lease."""
        _running(reader)
        places: list[Place] = []

        def find() -> Iterator[None]:
            places.extend((yield from held_places(reader, state, after, limit + 1)))

        await in_slices(find(), self._share)
        records: list[bytes] = []
        size_bytes, at = 0, after
        for place in places[:limit]:
            if size_bytes >= bytes_max:
                return records, at
            at = place
            record = await self._record(reader, place[1], state)
            if record is not None:
                records.append(record)
                size_bytes += len(record)
        return records, at if len(places) > limit else None

    async def _record(self, reader: Reader, one: int, state: State) -> bytes | None:
        """Return the record of an item; None if the item is no longer in that state."""
        if state_of(reader, one) is not state:
            return None
        if state is State.LEASED:
            return reader.open[one]
        assert reader.held is not None
        value = reader.held.later[one]
        if Held.is_in_memory(value):
            return Held.record_of(value)
        found = RangeRead(reader.queue, one, 1, BYTES_MAX, reader.number, lambda found: found == one)
        await self._share.slice()
        await self._ranges.read_some(reader.queue, found)
        return found.records[0] if found.records and item_id(found.records[0]) == one else None

    # Actions on one item

    async def act(self, request: web.BaseRequest, name: str, number: str, action: str) -> web.Response:
        """Apply an action to the item of an id. Raises Refused."""
        if not (number.isascii() and number.isdecimal() and len(number) <= ID_DIGITS_MAX):
            raise Refused(400, "expected an item id")
        reader, one = self._find(name), int(number)
        queue = _running(reader)
        asked_id = number_in(request, "journal_id", 0, 10**ID_DIGITS_MAX, 0)
        if asked_id and (queue.journal is None or queue.journal.journal_id != asked_id):
            raise Refused(409, "the queue was deleted, and its ids belong to other items")
        wanted = (State.LEASED,) if action in ("extend", "give-back") else (State.DELAYED, State.RETRYING)
        state = state_of(reader, one)
        if state not in wanted:
            is_known = f"is {state}" if state is not None else "does not exist, or is waiting"
            raise Refused(409 if state else 404, f"item {one} {is_known}; it must be {' or '.join(wanted)}")
        config, now_ms = reader.config, self._clock.wall_ms
        if action == "cancel":
            reader.withdraw(one, Reason.DISCARDED)
        elif action == "run-now":
            reader.run_now(one, now_ms)
        elif action == "extend":
            lease_ms = number_in(request, "lease_ms", 1, config.max_lease_ms, 0)
            if not lease_ms:
                raise Refused(400, "missing parameter: lease_ms, the duration of the lease from now")
            reader.extend_lease(one, lease_ms)
        else:
            delay_ms = number_in(request, "delay_ms", 0, config.max_delay_ms, 0)
            reader.take_away(one, now_ms, delay_ms)
        await self._written(queue)
        return as_json({"queue": shown_name(name), "id": one, "was": state})

    async def cancel(self, request: web.BaseRequest, name: str) -> web.Response:
        """Cancel the item that was put with a key, if it is not due yet. Raises Refused."""
        key = request.rel_url.query.get("key", "").encode("utf-8", "surrogateescape")
        if not key:
            raise Refused(400, "missing parameter: key, the key of the item")
        reader = self._find(name)
        queue = _running(reader)
        if not reader.cancel(key):
            raise Refused(404, "no item with this key is delayed")
        await self._written(queue)
        return as_json({"queue": shown_name(name), "cancelled": True})

    # Dead letters

    async def redrive(self, request: web.BaseRequest, name: str, account: Account | None) -> web.Response:
        """Send some items back to the queues they came from, or to one queue. Raises Refused."""
        query, reader = request.rel_url.query, self._find(name)
        queue = _running(reader)
        to = query.get("to", "").encode("utf-8", "surrogateescape").decode("latin-1")
        if to and (problem := queue_name_problem(to)) is not None:
            raise Refused(400, problem)
        if to == name:
            raise Refused(400, "source and destination are the same")
        limit = number_in(request, "limit", 1, REDRIVE_ITEMS_MAX, REDRIVE_ITEMS_MAX)
        after = number_in(request, "after", 0, 10**ID_DIGITS_MAX, 0)
        through = number_in(request, "through", 0, 10**ID_DIGITS_MAX, 10**ID_DIGITS_MAX)
        is_dry = number_in(request, "dry_run", 0, 1, 0) == 1
        records, following = await self._deliverable(reader, after, limit)
        if records and item_id(records[-1]) >= through:
            following = None
        redrive = _Redrive(self._service, reader, to, account, is_dry=is_dry)
        await in_slices(redrive.steps([record for record in records if item_id(record) <= through]), self._share)
        for taker in [*redrive.takers, queue]:
            await self._written(taker)
        if redrive.moved and not is_dry:
            shown = " ".join(f"{shown_name(one)}={count}" for one, count in redrive.moved.items())
            self._service.note(f"{shown_name(name)}: redrove {shown}")
        return as_json(
            {
                "queue": shown_name(name),
                "moved": redrive.moved.total(),
                "to": {shown_name(one): count for one, count in redrive.moved.items()},
                "without_origin": redrive.without_origin,
                "refused": {shown_name(one): reason for one, reason in redrive.refused.items()},
                "next": following,
            }
        )

    async def _deliverable(self, reader: Reader, after: int, limit: int) -> tuple[list[bytes], int | None]:
        """Return items that wait, behind an id, and the id to continue behind."""
        if reader.queue.journal is None:
            records = list(islice((one for one in reader.window if item_id(one) > after), limit))
            return records, item_id(records[-1]) if len(records) == limit else None
        found, following = await self._waiting(reader, (0, after), limit, REDRIVE_BYTES_MAX)
        return found, None if following is None else following[1]


class _Redrive:
    """Some items of a dead-letter queue, and the results of moving them."""

    def __init__(self, service: "Service", reader: Reader, to: str, account: Account | None, *, is_dry: bool) -> None:
        self._collection = service.collection
        self._reader = reader
        self._to = to
        self._account = account
        self._is_dry = is_dry
        self.moved: Counter[str] = Counter()
        self.without_origin = 0
        self.refused: dict[str, str] = {}  # destinations, and why
        self.takers: set[Queue] = set()

    def steps(self, records: list[bytes]) -> Iterator[None]:
        """Move the items, one a step."""
        for record in records:
            yield
            one = item_id(record)
            origin = self._reader.queue.origins.get(one)
            destination = self._to or (origin.queue if origin is not None else "")
            if not destination:
                self.without_origin += 1
            elif destination not in self.refused:
                self._send(one, destination)

    def _send(self, one: int, destination: str) -> None:
        account = self._account
        if destination == self._reader.name:
            self.refused[destination] = "source and destination are the same"
        elif account is not None and not account.may(Right.PUT, destination):
            self.refused[destination] = "not allowed: requires the right put on the queue"
        elif self._is_dry:
            self.moved[destination] += 1
        elif (is_moved := self._reader.send_on(one, destination)) is not None:
            if is_moved:
                self.moved[destination] += 1
                self.takers.add(self._collection.reader(destination).queue)
            else:
                self.refused[destination] = "the queue is full, or its journal cannot be written"


def _running(reader: Reader) -> Queue:
    """Return the reader's queue. Raises Refused if it is stopped."""
    if reader.queue.stopped is not None:
        raise refusal(reader.queue.stopped)
    return reader.queue


def _place(text: str) -> Place:
    """Parse the place at which a page ended. Raises Refused."""
    at_ms, _, one = text.partition(".")
    if any(not (word.isascii() and word.isdecimal() and len(word) <= PLACE_DIGITS_MAX) for word in (at_ms, one)):
        raise Refused(400, "after must be the X-Kestrel-Next header of an earlier page")
    return int(at_ms), int(one)
