"""The cache's protocol for listeners: parser, handler and login of its sessions."""

from kestreld.cache.dictionary import Dictionary
from kestreld.server.accounts import Account
from kestreld.server.cache.handler import CacheHandler
from kestreld.server.cache.parser import CacheParser
from kestreld.server.cache.rights import CacheRights
from kestreld.server.cache.tidying import Tidying
from kestreld.server.memcache.login import MemcacheLogin
from kestreld.server.state import ServerState
from kestreld.server.wire_protocol import WireProtocol


class Cache(WireProtocol):
    """memcached's protocol. All sessions share one dictionary."""

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
