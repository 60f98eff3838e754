"""Resolution of host names in threads, since the system's resolver may block."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv6Address, ip_address
from typing import Final

from kestreld.net import Network

THREADS: Final = 4
WAITING_MAX: Final = 64
WAIT_S: Final = 1.0


def numeric(host: str) -> str:
    """Return an IP address in its usual form; "" if `host` is none."""
    try:
        found = ip_address(host.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(found) + "".join(host.partition("%")[1:])


class HostNames:
    """Resolver of host names, without threads until its first use."""

    def __init__(self, loop: asyncio.AbstractEventLoop, network: Network) -> None:
        self._loop = loop
        self._network = network
        self._executor: ThreadPoolExecutor | None = None
        self._waiting = 0

    def resolve(self, host: str, done: Callable[[str], None]) -> None:
        """Call `done` with an address of the host: now if it is one, else within WAIT_S; "" = not found."""
        if address := numeric(host):
            done(address)
            return
        if not host or self._waiting >= WAITING_MAX:
            done("")
            return
        if self._executor is None:
            self._executor = ThreadPoolExecutor(THREADS, "host names")
        self._waiting += 1
        is_over = False

        def tell(address: str) -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                done(address)

        def resolved(future: "asyncio.Future[str]") -> None:
            self._waiting -= 1
            if not future.cancelled():
                tell(future.result())

        self._loop.call_later(WAIT_S, tell, "")
        self._loop.run_in_executor(self._executor, self._network.resolve, host).add_done_callback(resolved)

    def stop(self) -> None:
        """Drop all lookups that have not begun."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
