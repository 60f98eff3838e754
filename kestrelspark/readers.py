"""The queues of several servers, seen by one reader: where they are, and what has been done with them."""

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from kestrelctl.remote.reader_api import Gone, ReaderApi, open_reader_api
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.client.access import Login
from kestreld.errors import KestrelError
from kestrelspark.servers import Servers, ServerTrouble

T = TypeVar("T")
AWAY: Final = frozenset({ExitCode.UNREACHABLE, ExitCode.TRY_AGAIN})


class ItemsLost(KestrelError):
    """Items of a range are not there any more."""


class Place(NamedTuple):
    server: str
    queue: str

    def __str__(self) -> str:
        return f"{self.queue} of {self.server}"


class Position(NamedTuple):
    """The item to go on with."""

    journal_id: int
    next_id: int


Offsets = dict[Place, Position]


@dataclass(slots=True, frozen=True)
class Family:
    """A queue as its server describes it. `head` is the reader's, None = it has no such reader."""

    journal_id: int
    first_id: int
    next_id: int
    head: int | None


def complain(words: str) -> None:
    print(f"kestrelspark: {words}", file=sys.stderr, flush=True)


@dataclass(slots=True)
class Fleet:
    """Queues by name, which are made where they are not there, or those a pattern fits."""

    servers: Servers
    reader: str
    queues: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    _apis: dict[str, ReaderApi] = field(default_factory=dict)
    _away: set[str] = field(default_factory=set)
    _login: Login = field(init=False)

    def __post_init__(self) -> None:
        self._login = self.servers.login()

    def look(self) -> dict[Place, Family]:
        """All queues of the servers that answer; one that does not is named once. Raises ServerTrouble."""
        found: dict[Place, Family] = {}
        for server in self.servers.addresses():
            try:
                for queue in self._names(server):
                    family = self._family(server, queue)
                    if family is not None:
                        found[Place(server, queue)] = family
            except Failure as failure:
                self._note(server, failure)
            else:
                self._away.discard(server)
        return found

    def _note(self, server: str, failure: Failure) -> None:
        """Raises ServerTrouble where it is not that the server is away for now."""
        if failure.code not in AWAY:
            raise ServerTrouble(failure.words) from failure
        if server not in self._away:
            complain(f"{failure.words}; going on without {server}")
            self._away.add(server)

    def _names(self, server: str) -> list[str]:
        if self.pattern is None:
            return list(self.queues)
        names = {name.partition("+")[0] for name in self._ask(server, lambda api: api.queues())}
        return sorted(name for name in names if self.pattern.fullmatch(name))

    def _family(self, server: str, queue: str) -> Family | None:
        """None = it is kept in memory only, or has just been deleted, and a pattern has found it."""
        try:
            said = self._ask(server, lambda api: api.describe(queue))
        except Failure as failure:
            if failure.code != ExitCode.NEGATIVE:
                raise
            if self.pattern is not None:
                return None
            self._ask(server, lambda api: api.create(queue, self.reader, "earliest"))
            said = self._ask(server, lambda api: api.describe(queue))
        if not said["journal_id"]:
            if self.pattern is not None:
                return None
            raise ServerTrouble(f"{queue} of {server} is kept in memory only: nothing can be read back")
        return Family(said["journal_id"], said["first_id"], said["next_id"], self._head(said))

    def _head(self, said: Mapping[str, Any]) -> int | None:
        heads = [one["head"] for one in said["readers"] if one["reader"] == self.reader and one["kind"] == "stream"]
        return heads[0] if heads else None

    def hold(self, place: Place, family: Family, at: Position) -> None:
        """Make the reader, so that what is from here on stays. It may be there already."""
        if family.head is not None:
            return
        first_id = min(max(at.next_id, family.first_id), family.next_id)
        try:
            self._ask(place.server, lambda api: api.create(place.queue, self.reader, str(first_id)))
        except Gone:
            # What was there has gone since it was looked at.
            self._ask(place.server, lambda api: api.create(place.queue, self.reader, "earliest"))

    def acknowledge(self, offsets: Offsets) -> Offsets:
        """The reader is done with all before these; returns those where it is. A server that is away hears it later."""
        found: Offsets = {}
        for place, at in offsets.items():
            try:
                said = self._ask(place.server, lambda api, queue=place.queue: api.describe(queue))  # type: ignore[misc]
                head = self._head(said)
                if said["journal_id"] != at.journal_id or head is None:
                    continue
                if at.next_id > head:
                    through = at.next_id - 1
                    self._ask(place.server, lambda api, to=through, queue=place.queue: api.done(queue, self.reader, to))  # type: ignore[misc]
                found[place] = at
            except Failure as failure:
                if failure.code != ExitCode.NEGATIVE:  # the queue has been deleted
                    self._note(place.server, failure)
        return found

    def _ask(self, server: str, do: Callable[[ReaderApi], T]) -> T:
        """A second time over a new connection: the server may have been started anew. Raises Failure, Gone."""
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
