"""A lock on a memcached server: one key that a holder adds, with a token of its own, and that expires."""

from contextlib import suppress
from types import TracebackType
from typing import Final

from kestreld import checks
from kestreld.clock import Clock
from kestreld.errors import InvalidValue, KestrelError, LockLost
from kestreld.recipes.servers import EXPIRED_S, SPAN_S_MAX, CacheServer, Servers, new_token
from kestreld.recipes.waiting import Retries

EXPIRY_S_MIN: Final = 2
# memcached counts whole seconds: a key of 10 s may go after 9.
EARLY_S: Final = 1


class Lock:
    """Held by one process or thread at a time, and by a dead one for no longer than `expiry` whole seconds.

    A holder that was stopped for longer has lost it to whoever came next, and cannot know that before it looks. So what
    it then writes must be refused where it arrives: by `add` of a key that nobody else writes, or by cas. Those who
    wait are not counted, so there is no counter to overflow; nor is there an order among them.
    """

    def __init__(self, servers: Servers | CacheServer, key: bytes, expiry: int = 10) -> None:
        if not EXPIRY_S_MIN <= checks.whole(expiry, "expiry") <= SPAN_S_MAX:
            raise InvalidValue("expiry", f"whole seconds from {EXPIRY_S_MIN} to {SPAN_S_MAX}", expiry)
        self.key = key
        self.expiry_s = expiry
        self._server = servers.of(key) if isinstance(servers, Servers) else servers
        self._clock = Clock()
        self._token = b""
        self._asked_for = b""  # the token of the latest `acquire`
        self._until_ms = 0

    def acquire(self, timeout: float | None = None) -> bool:
        """Wait until nobody else has it. False = somebody had it for `timeout` seconds."""
        retries = Retries(timeout)
        token = self._asked_for = new_token()
        is_known = False
        try:
            is_held = self._added(token, retries)
            is_known = True
        finally:
            if not is_known:
                self._let_go(token)
        return is_held

    def _added(self, token: bytes, retries: Retries) -> bool:
        while True:
            self._clock.read()
            asked_at_ms = self._clock.monotonic_ms
            if self._server.add(self.key, token, self.expiry_s):
                self._token = token
                self._until_ms = asked_at_ms + (self.expiry_s - EARLY_S) * 1000
                return True
            if not retries.wait():
                return False

    def _let_go(self, token: bytes) -> None:
        """The server may have this token although `acquire` has not returned."""
        held, self._token = self._token, token
        with suppress(KestrelError):
            self.release()
        self._token = held if held != token else b""

    def check(self) -> None:
        """Raises LockLost if it may have expired, by this process's clock: asks nobody."""
        self._clock.read()
        if not self._token or self._clock.monotonic_ms >= self._until_ms:
            raise LockLost(self.key.decode())

    def holder(self) -> bytes | None:
        """The token of whoever holds it. None = nobody does."""
        found = self._server.get_many([self.key]).get(self.key)
        return found[0] if found is not None and found[0] else None

    def release(self) -> bool:
        """Let others have it. False = it had expired, and is left alone if somebody else has it now."""
        token, self._token = self._token, b""
        found = self._server.gets_many([self.key]).get(self.key)
        if not token or found is None or found[0][0] != token:
            return False
        # Not by delete: between the look and the delete it may expire, and be another's.
        return self._server.cas(self.key, b"", found[1], EXPIRED_S)

    def __enter__(self) -> "Lock":
        is_held = False
        try:
            is_held = self.acquire()
        finally:
            if not is_held:
                self._let_go(self._asked_for)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Raises LockLost if the block had it no more at its end."""
        if not self.release() and kind is None:
            raise LockLost(self.key.decode())
