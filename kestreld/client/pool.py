"""A pool of independent servers for threads: carries out what pool_calls.py says is to be done with them."""

from contextlib import nullcontext
from random import Random
from threading import Event
from typing import Any, TypeVar

from kestreld.client.calls import Pause, carry_out
from kestreld.client.connection import ClientConnection
from kestreld.client.pool_calls import Open, PoolCall, PoolCalls, Step, Take
from kestreld.client.server import Server, event_in_child
from kestreld.forks import restart_in_child

T = TypeVar("T")


class ServerPool:
    """Servers that are used as one. Threads may share it, and so may forked processes."""

    def __init__(self, calls: PoolCalls[Server], chance: Random, *, is_chance_ours: bool) -> None:
        self.calls = calls
        self._chance = chance
        self._is_chance_ours = is_chance_ours
        self._closed = Event()
        restart_in_child(self)

    def after_fork(self) -> None:
        """Prepare a forked child. A random generator of our own gets a new seed: siblings would choose alike."""
        self._closed = event_in_child(self._closed)
        if self._is_chance_ours:
            self._chance.seed()

    def close(self) -> None:
        """Close all connections. Reads that wait return None; open reads can still be confirmed."""
        self.calls.close()
        self._closed.set()
        for server in self.calls.servers:
            server.end_waits()
        self.carry_out(self.calls.settle())
        for server in self.calls.servers:
            server.close()

    def carry_out(self, call: PoolCall[Server, T]) -> T:
        """Carry a call out in this thread."""
        return carry_out(call, self._take)

    def _take(self, step: Step[Server]) -> object:
        if isinstance(step, Pause):
            return self._closed.wait(step.seconds)

        def do(connection: ClientConnection) -> Any:
            with step.server.waited_on(connection, step.wait_ms) if step.wait_ms else nullcontext():
                if step.leases_from:
                    return step.server.leased(connection, step.leases_from, step.do)
                return step.do(connection)

        if not isinstance(step, Open):
            return step.server.asked(do, is_urgent=step.is_urgent)
        opened = step.server.opened(step.key, do)
        if opened is None or not isinstance(step, Take):
            return opened
        opened.close_in_hand()
        return opened.item
