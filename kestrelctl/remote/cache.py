"""The connection to a cache with the exit codes of a command line, and which cache a command line means."""

import os
from collections.abc import Mapping
from typing import Final

from kestrelctl.remote.access import parse_address, tls_context
from kestrelctl.remote.client import ServerWords, failure_of
from kestrelctl.remote.contexts import CACHE_DEFAULT, Way, settle
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld import errors
from kestreld.client.access import Login
from kestreld.client.cache import CacheConnection

CACHE: Final = ServerWords("a memcached server", "is listen.cache set? (-s HOST:PORT or KESTRELCTL_CACHE)")


class CacheClient(CacheConnection):
    """A connection whose problems are Failures."""

    def __init__(self, address: str, timeout_ms: int, login: Login) -> None:
        """Raises Failure for an address that is none."""
        self._uses_tls = login.uses_tls(parse_address(address))
        super().__init__(address, login, timeout_ms)

    def _connect(self) -> None:
        if self._uses_tls:
            tls_context(self._login)
        super()._connect()

    def failure_of(self, problem: errors.KestrelError) -> Failure:
        return failure_of(problem, self._timeout_ms, CACHE)


def way_to_cache(options: Mapping[str, str | bool]) -> Way:
    """The cache of a command line, of whose options these were given: -s, the context, $KESTRELCTL_CACHE, the default.

    Raises Failure for a context that names no cache.
    """
    from_environment = os.environ.get("KESTRELCTL_CACHE", "")
    named = options.get("server") or options.get("context") or os.environ.get("KESTRELCTL_CONTEXT")
    way = settle(options if named or not from_environment else {**options, "server": from_environment})
    if options.get("server") or not way.context:
        return way if named or from_environment else Way((CACHE_DEFAULT,), way.login)
    if not way.cache:
        words = f"context {way.context} has no cache: use -s HOST:PORT, or context add --cache HOST:PORT --replace"
        raise Failure(ExitCode.USAGE, words)
    return Way((way.cache,), way.login, way.context)
