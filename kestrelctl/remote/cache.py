"""Client for a cache that raises Failures with exit codes."""

from typing import Final

from kestrelctl.remote.access import parse_address, tls_context
from kestrelctl.remote.client import ServerWords, failure_of
from kestrelctl.shell.exit_codes import Failure
from kestreld import errors
from kestreld.client.access import Login
from kestreld.client.cache import CacheConnection

CACHE: Final = ServerWords("a memcached server", "is listen.cache set? (-s HOST:PORT or KESTRELCTL_CACHE)")


class CacheClient(CacheConnection):
    """A cache connection whose errors are Failures."""

    asks_kind = True

    def __init__(self, address: str, timeout_ms: int, login: Login) -> None:
        """Raises Failure for an invalid address."""
        self._uses_tls = login.uses_tls(parse_address(address))
        super().__init__(address, login, timeout_ms)

    def _connect(self) -> None:
        if self._uses_tls:
            tls_context(self._login)
        super()._connect()

    def failure_of(self, problem: errors.KestrelError) -> Failure:
        return failure_of(problem, self._timeout_ms, CACHE)
