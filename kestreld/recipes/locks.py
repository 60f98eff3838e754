"""Lock: a lock on a memcached server, made of a key that its holder adds, with a token, and that expires."""

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
    """A lock held by one process or thread at a time, and by a dead one for no longer than `expiry` whole seconds.

    A holder that was stopped for longer has lost it to the next one, and does not know that before it checks. So its
    later writes must be refused where they arrive: by `add` of a key that nobody else writes, or by cas. Waiting
    holders are not counted, so there is no counter to overflow; nor are they served in any order.
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
        """Wait until nobody else has the lock. False = somebody had it for `timeout` seconds."""
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
        """Release a token that the server may have although `acquire` has not returned."""
        held, self._token = self._token, token
        with suppress(KestrelError):
            self.release()
        self._token = held if held != token else b""

    def check(self) -> None:
        """Raise LockLost if the lock may have expired, by this process's clock: no server is asked."""
        self._clock.read()
        if not self._token or self._clock.monotonic_ms >= self._until_ms:
            raise LockLost(self.key.decode())

    def holder(self) -> bytes | None:
        """Return the token of the lock's holder. None = nobody holds it."""
        found = self._server.get_many([self.key]).get(self.key)
        return found[0] if found is not None and found[0] else None

    def release(self) -> bool:
        """Release the lock. False = it had expired; it is left alone if somebody else has it now."""
        token, self._token = self._token, b""
        found = self._server.gets_many([self.key]).get(self.key)
        if not token or found is None or found[0][0] != token:
            return False
        # Not by delete: meanwhile it may expire and be acquired by another holder.
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
        """Raises LockLost if the block no longer had the lock at its end."""
        if not self.release() and kind is None:
            raise LockLost(self.key.decode())
