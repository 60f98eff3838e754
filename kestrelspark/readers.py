"""Queues of several servers as seen by one reader: their first and next ids, and the reader's position."""

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from kestrelctl.remote.reader_api import Gone, ReaderApi, open_reader_api
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.client.access import Login
from kestreld.errors import KestrelError
from kestrelspark.servers import Patience, Servers, ServerTrouble

T = TypeVar("T")
ATTEMPTS: Final = 5  # attempts to find a time in a journal whose segments are being removed
AWAY: Final = frozenset({ExitCode.UNREACHABLE, ExitCode.TRY_AGAIN})


class ItemsLost(KestrelError):
    """Items of a range no longer exist."""


class RemoteQueue(NamedTuple):
    server: str
    queue: str

    def __str__(self) -> str:
        return f"{self.queue} of {self.server}"


class Position(NamedTuple):
    """The next item to read."""

    journal_id: int
    next_id: int


Offsets = dict[RemoteQueue, Position]


@dataclass(slots=True, frozen=True)
class Family:
    """A queue as its server describes it. `head` is the reader's, None = no such reader."""

    journal_id: int
    first_id: int
    next_id: int
    head: int | None


def complain(words: str) -> None:
    print(f"kestrelspark: {words}", file=sys.stderr, flush=True)


@dataclass(slots=True)
class Fleet:
    """Queues on all servers: those with given names, those matching a pattern, or those assigned to each server.

    `reader` "" = none, and nothing is changed on the servers; with one, named queues are created if missing. A server
    with several addresses is known by the one in `preferred`, or else by the first. `answered`: addresses of the
    servers that answered the last `look`.
    """

    servers: Servers
    reader: str
    queues: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    assigned: Mapping[str, tuple[str, ...]] | None = None
    preferred: frozenset[str] = frozenset()
    answered: set[str] = field(default_factory=set)
    _same: dict[tuple[str, str], bool] = field(default_factory=dict)
    _apis: dict[str, ReaderApi] = field(default_factory=dict)
    _away: set[str] = field(default_factory=set)
    _login: Login = field(init=False)

    def __post_init__(self) -> None:
        self._login = self.servers.login()

    def look(self, *, needs_all: bool = False) -> dict[RemoteQueue, Family]:
        """All queues of the servers that answer; a server that does not is reported once. Raises ServerTrouble.

        With `needs_all`, the Failure of a server that does not answer is raised instead.
        """
        found: dict[RemoteQueue, Family] = {}
        self.answered = set()
        for server in self.servers.addresses():
            try:
                for queue in self._names(server):
                    family = self._family(server, queue)
                    if family is not None:
                        found[RemoteQueue(server, queue)] = family
            except Failure as failure:
                if needs_all:
                    raise
                self.note(server, failure)
            else:
                self._away.discard(server)
                self.answered.add(server)
        self._drop_doubles(found)
        return found

    def _drop_doubles(self, found: dict[RemoteQueue, Family]) -> None:
        """Keep each queue only once if its server has several addresses. Raises ServerTrouble."""
        journals: dict[tuple[str, int], RemoteQueue] = {}
        for remote in sorted(found, key=lambda one: (one.server not in self.preferred, one)):
            other = journals.setdefault((remote.queue, found[remote].journal_id), remote)
            if other is not remote and self._is_same(other.server, remote.server):
                del found[remote]

    def _is_same(self, server: str, other: str) -> bool:
        """True if the addresses, under which a queue has the same journal, are of the same server."""
        if (server, other) not in self._same:
            try:
                runs = [self._ask(one, lambda api: api.run()) for one in (server, other)]
            except Failure as failure:
                self.note(other, failure)
                return False
            self._same[server, other] = runs[0] == runs[1]
            if runs[0] == runs[1]:
                complain(f"{other} is the same server as {server}; reading it as {server}")
        return self._same[server, other]

    def subscribes(self, remote: RemoteQueue) -> bool:
        """True if the queue is assigned, named or matches the pattern."""
        if self.assigned is not None:
            return remote.queue in self.assigned.get(remote.server, ())
        return remote.queue in self.queues if self.pattern is None else bool(self.pattern.fullmatch(remote.queue))

    def is_gone(self, remote: RemoteQueue) -> bool:
        """True if its server reports that the queue does not exist. Raises ServerTrouble."""
        try:
            self._describe(remote)
        except Failure as failure:
            if failure.code == ExitCode.NEGATIVE:
                return True
            self.note(remote.server, failure)
        return False

    def elsewhere(self, remote: RemoteQueue, families: Mapping[RemoteQueue, Family]) -> RemoteQueue | None:
        """The same queue among `families`, under another address of its server; None = none. Raises ServerTrouble."""
        try:
            journal_id = self._describe(remote)["journal_id"]
        except Failure:
            return None
        for other, family in families.items():
            is_alike = (other.queue, family.journal_id) == (remote.queue, journal_id)
            if is_alike and self._is_same(other.server, remote.server):
                return other
        return None

    def look_at_all(self) -> dict[RemoteQueue, Family]:
        """All queues; every server has to answer. Raises ServerTrouble."""
        patience = Patience(self.servers.retries)
        while True:
            try:
                return self.look(needs_all=True)
            except Failure as failure:
                patience.spend(failure)

    def note(self, server: str, failure: Failure) -> None:
        """Report an unreachable server once. Raises ServerTrouble for any other failure."""
        if failure.code not in AWAY:
            raise ServerTrouble(failure.words) from failure
        if server not in self._away:
            complain(f"{failure.words}; continuing without {server}")
            self._away.add(server)

    def _names(self, server: str) -> list[str]:
        if self.assigned is not None:
            return list(self.assigned.get(server, ()))
        if self.pattern is None:
            return list(self.queues)
        names = {name.partition("+")[0] for name in self._ask(server, lambda api: api.queues())}
        return sorted(name for name in names if self.pattern.fullmatch(name))

    def _family(self, server: str, queue: str) -> Family | None:
        """None = not journaled or just deleted, if found by a pattern."""
        try:
            description = self._describe(RemoteQueue(server, queue))
        except Failure as failure:
            if failure.code != ExitCode.NEGATIVE:
                raise
            if self.pattern is not None or not self.reader:
                return None
            self._ask(server, lambda api: api.create(queue, self.reader, "earliest"))
            description = self._describe(RemoteQueue(server, queue))
        if not description["journal_id"]:
            if self.pattern is not None:
                return None
            raise ServerTrouble(f"{queue} of {server} is not journaled, so its items cannot be read")
        return Family(
            description["journal_id"], description["first_id"], description["next_id"], self._head(description)
        )

    def _describe(self, remote: RemoteQueue) -> dict[str, Any]:
        return self._ask(remote.server, lambda api: api.describe(remote.queue))

    def _head(self, description: Mapping[str, Any]) -> int | None:
        heads = [
            one["head"] for one in description["readers"] if one["reader"] == self.reader and one["kind"] == "stream"
        ]
        return heads[0] if heads else None

    def ensure_reader(self, remote: RemoteQueue, family: Family, at: Position) -> None:
        """Create the reader if missing, so that the items from `at` on are kept."""
        if family.head is not None:
            return
        first_id = min(max(at.next_id, family.first_id), family.next_id)
        try:
            self._ask(remote.server, lambda api: api.create(remote.queue, self.reader, str(first_id)))
        except Gone:
            # These items have been removed since.
            self._ask(remote.server, lambda api: api.create(remote.queue, self.reader, "earliest"))

    def position_at(self, remote: RemoteQueue, at_ms: int) -> tuple[Position, bool]:
        """Position of the first item put at that time or later, and True if there is none yet. Raises Failure."""
        found = self._position(remote, {"at_ms": max(at_ms, 0)})
        return Position(found["journal_id"], found["id"]), bool(found["is_end"])

    def end_of_bytes(self, remote: RemoteQueue, at: Position, bytes_max: int) -> tuple[int, int]:
        """End of the items from `at` on that have at most `bytes_max` bytes, but at least one item; and their bytes.

        Raises Failure, Gone.
        """
        next_id, size_bytes, is_partial = at.next_id, 0, True
        while is_partial and (size_bytes < bytes_max):
            query = {"first": next_id, "bytes": bytes_max - size_bytes, "journal_id": at.journal_id}
            found = self._position(remote, query)
            next_id, size_bytes = found["id"], size_bytes + found["bytes"]
            is_partial = found["is_partial"]
        return next_id, size_bytes

    def _position(self, remote: RemoteQueue, query: Mapping[str, int]) -> dict[str, Any]:
        """Ask for a position. Raises Failure; Gone for a journal or an item that no longer exists."""
        left = ATTEMPTS
        while True:
            try:
                return self._ask(remote.server, lambda api: api.position(remote.queue, query))
            except Gone:
                left -= 1
                if "journal_id" in query or not left:
                    raise
            except Failure as failure:
                if failure.words != "not found":
                    raise
                words = f"{remote.server} has no positions by time or size: it runs an older kestreld"
                raise ServerTrouble(words) from failure

    def acknowledge(self, offsets: Offsets) -> Offsets:
        """Move the reader to these offsets; return those reached. Unreachable servers are left out."""
        found: Offsets = {}
        for remote, at in offsets.items():
            try:
                description = self._describe(remote)
                head = self._head(description)
                if description["journal_id"] != at.journal_id or head is None:
                    continue
                if at.next_id > head:
                    self._done(remote, at.next_id - 1)
                found[remote] = at
            except Failure as failure:
                if failure.code != ExitCode.NEGATIVE:  # the queue has been deleted
                    self.note(remote.server, failure)
        return found

    def _done(self, remote: RemoteQueue, through: int) -> None:
        self._ask(remote.server, lambda api: api.done(remote.queue, self.reader, through))

    def _ask(self, server: str, do: Callable[[ReaderApi], T]) -> T:
        """Ask, if necessary again over a new connection: the server may have restarted. Raises Failure, Gone."""
        api = self._apis.pop(server, None)
        if api is not None:
            try:
                answer = do(api)
            except Failure as failure:
                if failure.code not in AWAY:
                    self._apis[server] = api
                    raise
            else:
                self._apis[server] = api
                return answer
        api = open_reader_api(server, self.servers.timeout_ms, login=self._login)
        answer = do(api)
        self._apis[server] = api
        return answer
