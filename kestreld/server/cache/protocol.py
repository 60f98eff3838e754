"""Memcached's protocol, as listeners have it."""

from kestreld.cache.dictionary import Dictionary
from kestreld.cache.entries import NEVER_MS
from kestreld.queues.agenda import Scheduled
from kestreld.queues.slices import Work
from kestreld.server.accounts import Account
from kestreld.server.cache.handler import CacheHandler
from kestreld.server.cache.parser import CacheParser
from kestreld.server.cache.rights import CacheRights
from kestreld.server.memcache.login import MemcacheLogin
from kestreld.server.state import ServerState
from kestreld.server.wire_protocol import WireProtocol


class Tidying(Scheduled):
    """When the dictionary has something to tidy. It is on the agenda once, or being done, or there is nothing."""

    __slots__ = ("_dictionary", "_is_at_work", "_state")

    def __init__(self, state: ServerState, dictionary: Dictionary) -> None:
        super().__init__(NEVER_MS)
        self._state = state
        self._dictionary = dictionary
        self._is_at_work = False

    def plan(self) -> None:
        """See to it that it is done when it is due."""
        at_ms = self._dictionary.tidy_at_ms
        if at_ms < self.due_at_ms and not self._is_at_work:
            self.due_at_ms = at_ms
            self._state.collection.agenda.add(self)

    def fall_due(self, now_ms: int) -> None:
        self.due_at_ms = NEVER_MS
        self._is_at_work = True
        self._state.control.take_on(self._work())

    def _work(self) -> Work:
        yield from self._dictionary.tidy()
        self._is_at_work = False
        self.plan()


class Cache(WireProtocol):
    """All sessions share one dictionary."""

    name = "cache"

    def __init__(self, state: ServerState, dictionary: Dictionary) -> None:
        self._state = state
        self._dictionary = dictionary
        self._tidying = Tidying(state, dictionary)

    def open(self, account: Account | None) -> tuple[CacheParser, CacheHandler]:
        rights = CacheRights(account) if account is not None else None
        line_bytes_max = self._state.collection.config.max_line_bytes
        parser = CacheParser(self._dictionary, line_bytes_max, has_all_rights=rights is None)
        return parser, CacheHandler(self._state, self._dictionary, rights, self._tidying.plan)

    def login(self) -> MemcacheLogin:
        return MemcacheLogin(self._state.collection.config.max_line_bytes)

    def refusal(self, reason: str) -> bytes:
        return b"SERVER_ERROR " + reason.encode("latin-1", "replace") + b"\r\n"
