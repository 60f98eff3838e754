"""Kestrel's memcache protocol for listeners: parser, handler and login of its sessions."""

from kestreld.config.config import Compat, QueueConfig
from kestreld.server.accounts import Account
from kestreld.server.memcache.commands import CommandCache
from kestreld.server.memcache.handler import Handler
from kestreld.server.memcache.login import MemcacheLogin
from kestreld.server.memcache.parser import MemcacheParser
from kestreld.server.memcache.rights import checker
from kestreld.server.state import ServerState
from kestreld.server.wire_protocol import WireProtocol


class Memcache(WireProtocol):
    """Kestrel's memcache protocol. Anonymous sessions share a cache of parsed lines; each account has its own."""

    name = "memcache"

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._cache = CommandCache()
        self._config_of = self._queue_config  # bound once: 64 bytes for each session
        state.collection.names_changed.append(self._cache.clear)

    def open(self, account: Account | None) -> tuple[MemcacheParser, Handler]:
        config = self._state.collection.config
        cache, check = self._cache, None
        if account is not None:
            cache, check = account.commands(self.name, CommandCache), checker(account)
        parser = MemcacheParser(cache, config.compat, config.max_line_bytes, self._config_of, check)
        return parser, Handler(self._state, strict=config.compat is Compat.KESTREL_1)

    def login(self) -> MemcacheLogin:
        return MemcacheLogin(self._state.collection.config.max_line_bytes)

    def refusal(self, reason: str) -> bytes:
        return b"SERVER_ERROR " + reason.encode("latin-1", "replace") + b"\r\n"

    def _queue_config(self, name: str) -> QueueConfig:
        reader = self._state.collection.find(name)
        return reader.config if reader is not None else self._state.collection.config_for(name)
