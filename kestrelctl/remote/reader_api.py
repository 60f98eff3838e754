"""Client for the reader API of the admin port, which reads queues by item id and takes nothing (docs/admin.md)."""

import base64
import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from kestrelctl.remote.access import parse_address
from kestrelctl.remote.admin import AdminConnection, admin_connection, leaves_tls, path_of
from kestrelctl.remote.client import NOBODY, KestrelClient
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.client.access import Login

PAGE_ITEMS: Final = 1000
PAGE_BYTES: Final = 4 * 1024**2
STATE_PAGE_ITEMS: Final = 2000
KNOWN: Final = (
    "state",
    "due_at_ms",
    "attempts",
    "client",
    "holder",
    "since_at_ms",
    "until_at_ms",
    "extended",
    "seen",
    "failure_reason",
)
_CODES: Final = {
    400: ExitCode.USAGE,
    401: ExitCode.AUTHENTICATION,
    403: ExitCode.NO_RIGHTS,
    404: ExitCode.NEGATIVE,
    503: ExitCode.TRY_AGAIN,
}


@dataclass(frozen=True, slots=True)
class Item:
    """An item and its attributes."""

    id: int
    add_ms: int
    expire_ms: int  # since 1970; 0 = never
    flags: int
    is_open: bool  # in an open read
    data: bytes
    known: Mapping[str, int | str] = field(default_factory=dict)  # other attributes, by column name


@dataclass(frozen=True, slots=True)
class Page:
    items: list[Item]
    next_id: int


class Gone(Exception):
    """The requested items no longer exist."""

    def __init__(self, journal_id: int, first_id: int) -> None:
        super().__init__(first_id)
        self.journal_id = journal_id
        self.first_id = first_id  # the first that still exists


class NotReadable(Failure):
    """Items cannot be read by id: no admin port can be reached from here, or there is no journal."""

    def __init__(self, words: str) -> None:
        super().__init__(ExitCode.REFUSED, words)


class ReaderApi:
    """The reader API of one server. Every error is raised as a Failure."""

    def __init__(self, connection: AdminConnection, address: str) -> None:
        self.address = address
        self._connection = connection

    def describe(self, queue: str) -> dict[str, Any]:
        """The family of a queue: its ids and its readers."""
        described: dict[str, Any] = json.loads(self._ask("GET", path_of(queue))[1])
        self.must_be_running(described)
        return described

    def must_be_running(self, found: Mapping[str, Any]) -> None:
        """Raise Failure if the description says that the queue is stopped."""
        if "stopped" in found:
            raise _corrupt(f"corrupt: {found['stopped']}", found, f"the admin port of {self.address}")

    def consumers(self, queue: str, limit: int) -> dict[str, Any]:
        """A queue's waiting clients, the holders of its open reads, and its readers: see docs/admin.md."""
        found: dict[str, Any] = json.loads(self._ask("GET", f"{path_of(queue, 'consumers')}?limit={limit}")[1])
        return found

    def queues(self) -> list[str]:
        """The names of all queues, children included."""
        return [one["queue"] for one in json.loads(self._ask("GET", "/queues")[1])["queues"]]

    def run(self) -> str:
        """Identifier of the server's current run: it changes with each start and differs between servers."""
        snapshot: dict[str, Any] = json.loads(self._ask("GET", "/stats.json")[1])
        return str(snapshot["at"]).partition(".")[0]

    def position(self, queue: str, query: Mapping[str, int]) -> dict[str, Any]:
        """An id by time or size: see docs/admin.md. Raises Gone."""
        found: dict[str, Any] = json.loads(self._ask("GET", f"{path_of(queue, 'position')}?{urlencode(query)}")[1])
        return found

    def records(self, queue: str, query: Mapping[str, int | str]) -> tuple[bytes, int]:
        """A page of items as PUT records (docs/journal.md), and the id to continue with. Raises Gone."""
        answer, content = self._ask("GET", f"{path_of(queue, 'items')}?{urlencode(query)}")
        return content, int(answer.headers["X-Kestrel-Next"])

    def page(self, queue: str, query: Mapping[str, int | str], wait_ms: int = 0) -> Page:
        """Items of a range; docs/admin.md has the parameters. Raises Gone."""
        asked = {"format": "ndjson", "limit": PAGE_ITEMS, "bytes": PAGE_BYTES, "wait_ms": wait_ms} | dict(query)
        answer, content = self._ask("GET", f"{path_of(queue, 'items')}?{urlencode(asked)}", wait_ms)
        lines = content.split(b"\n")
        return Page([_item(json.loads(line)) for line in lines if line], int(answer.headers["X-Kestrel-Next"]))

    def waiting(self, queue: str, family: Mapping[str, Any] | None = None, after: int = 0) -> Iterator[Item]:
        """Undelivered items of a queue, open reads included, from its head or after an id to its end.

        `family` says where the end is; None = the current one.
        """
        family = family or self.describe(queue)
        journal_id, end_id = family["journal_id"], family["next_id"]
        asked: dict[str, int | str] = {"waiting": 1, "journal_id": journal_id}
        if after:
            asked["first"] = after + 1
        while True:
            try:
                page = self.page(queue, asked)
            except Gone as gone:
                if gone.journal_id != journal_id:
                    raise Failure(ExitCode.NEGATIVE, f"{queue} was deleted meanwhile") from gone
                asked["first"] = gone.first_id  # earlier items have been taken meanwhile
                continue
            yield from (item for item in page.items if item.id < end_id)
            if not page.items or page.next_id >= end_id:
                return
            asked["first"] = page.next_id

    def in_state(self, queue: str, state: str, limit: int | None) -> Iterator[Item]:
        """At most `limit` items that are waiting, delayed, leased or retrying, those due first at the beginning."""
        asked: dict[str, int | str] = {"state": state, "bytes": PAGE_BYTES}
        left = limit
        while left is None or left > 0:
            asked["limit"] = STATE_PAGE_ITEMS if left is None else min(left, STATE_PAGE_ITEMS)
            answer, content = self._ask("GET", f"{path_of(queue, 'items')}?{urlencode(asked)}")
            items = [_item(json.loads(line)) for line in content.split(b"\n") if line]
            yield from items
            if (after := answer.headers.get("X-Kestrel-Next")) is None or "X-Kestrel-Journal" in answer.headers:
                return
            asked["after"] = after
            left = None if left is None else left - len(items)

    def act(self, queue: str, item: int, action: str) -> str:
        """Cancel an item, run it now, or extend or end its lease, as `action` says with its parameters.

        Return its former state.
        """
        action, _, query = action.partition("?")
        path = path_of(queue, "items", str(item), action)
        return str(json.loads(self._ask("POST", f"{path}?{query}" if query else path)[1])["was"])

    def redrive(self, queue: str, query: Mapping[str, int | str]) -> dict[str, Any]:
        """Send items of a dead-letter queue back to their queues: see docs/admin.md."""
        sent: dict[str, Any] = json.loads(self._ask("POST", f"{path_of(queue, 'redrive')}?{urlencode(query)}")[1])
        return sent

    def create(self, queue: str, reader: str, at: str) -> tuple[dict[str, Any], bool]:
        """The reader, and True if it is new. `at` is earliest, latest or an id. Raises Gone."""
        path = f"{path_of(queue, 'readers', reader)}?{urlencode({'from': at})}"
        answer, content = self._ask("POST", path)
        return json.loads(content), answer.status == http.HTTPStatus.CREATED

    def done(self, queue: str, reader: str, through: int) -> dict[str, Any]:
        """Move a reader past an item."""
        path = f"{path_of(queue, 'readers', reader, 'done')}?through={through}"
        moved: dict[str, Any] = json.loads(self._ask("POST", path)[1])
        return moved

    def drop(self, queue: str, reader: str) -> None:
        self._ask("DELETE", path_of(queue, "readers", reader))

    def close(self) -> None:
        self._connection.close()

    def _ask(self, method: str, path: str, wait_ms: int = 0) -> tuple[http.client.HTTPResponse, bytes]:
        where = f"the admin port of {self.address}"
        try:
            answer, content = self._connection.ask(method, path, wait_ms)
        except TimeoutError as error:
            self._connection.close()
            raise Failure(ExitCode.TRY_AGAIN, f"no answer from {where}; try again or raise --timeout") from error
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            reason = (getattr(error, "strerror", None) or str(error)).lower()
            raise Failure(ExitCode.UNREACHABLE, f"cannot reach {where}: {reason}") from error
        if answer.status < 400:
            return answer, content
        raise _refusal(answer.status, content, where)


def _refusal(status: int, content: bytes, where: str) -> Failure | Gone:
    try:
        record: dict[str, Any] = json.loads(content)
        reason = str(record["error"])
    except (ValueError, KeyError, TypeError):
        return Failure(ExitCode.PROTOCOL, f"{where} is not a kestreld: it replied {status}")
    if status == http.HTTPStatus.GONE and "first_id" in record:
        return Gone(record["journal_id"], record["first_id"])
    code = _CODES.get(status, ExitCode.REFUSED)
    if status == http.HTTPStatus.SERVICE_UNAVAILABLE and reason.startswith(("corrupt", "journal")):
        code = ExitCode.QUEUE_STOPPED if reason.startswith("corrupt") else ExitCode.IO
    if code == ExitCode.QUEUE_STOPPED:
        return _corrupt(reason, record, where)
    return Failure(code, reason if code == ExitCode.NEGATIVE else f"{where} refused: {reason}")


def _corrupt(reason: str, record: Mapping[str, Any], where: str) -> Failure:
    remedy = f"; run: {record['remedy']}" if record.get("remedy") else ""
    return Failure(ExitCode.QUEUE_STOPPED, f"{where} refused: {reason}{remedy}")


def _item(record: Mapping[str, Any]) -> Item:
    data = base64.b64decode(record["base64"]) if "base64" in record else record["data"].encode()
    return Item(
        record["id"],
        record["add_ms"],
        record.get("expire_ms", 0),
        record.get("flags", 0),
        record.get("is_open", False),
        data,
        _known(record),
    )


def _known(record: Mapping[str, Any]) -> dict[str, int | str]:
    known = {key: record[key] for key in KNOWN if key in record}
    if (origin := record.get("origin")) is not None:
        known |= {"origin": origin["queue"], "reason": origin["reason"]}
        known |= {"origin_attempts": origin["attempts"], "put_at_ms": origin["put_at_ms"]}
    return known


def open_reader_api(address: str, timeout_ms: int, admin_port: int | None = None, login: Login = NOBODY) -> ReaderApi:
    """The API of the server at `address`. `admin_port` None = as reported by it. Raises Failure if it has none."""
    with closing(KestrelClient(address, timeout_ms, login)) as client:
        client.must_be_known()
        counters = client.server_stats()
    admin = str(counters.get("admin", ""))
    if admin_port is not None:
        return ReaderApi(_connect(address, admin_port, admin, timeout_ms, login), address)
    if not admin:
        version = counters.get("version", "")
        words = f"{address} (version {version}) has no admin port, which this command requires"
        hint = "set listen.admin to a free address, as the default may have been in use when the server started"
        old = "Old Kestrels have none; with compat: kestrel-1, set the admin_port of a context"
        raise NotReadable(f"{words}: {hint}. {old}")
    connection = admin_connection(address, admin, timeout_ms, login)
    if connection is None:
        words = f"the admin port of {address} is {admin} and cannot be reached from here with this login"
        raise NotReadable(f"{words}; a context's admin_port may help")
    return ReaderApi(connection, address)


def _connect(address: str, port: int, admin: str, timeout_ms: int, login: Login) -> AdminConnection:
    """Connect to that port of the server's host, with TLS if the server reports it."""
    own = parse_address(address)
    is_tls = admin.startswith("tls:")
    if leaves_tls(login, address, is_tls=is_tls):
        raise NotReadable(f"the admin port of {address} does not use TLS: the password is not sent to it")
    host = own.host or "127.0.0.1"
    connection = admin_connection(f"{host}:1", f"{'tls:' if is_tls else ''}{host}:{port}", timeout_ms, login)
    assert connection is not None
    if admin and not admin.startswith("unix:"):
        connection.call_it(admin.removeprefix("tls:"))
    return connection
