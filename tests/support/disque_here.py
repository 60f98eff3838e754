"""Disque's commands without a network: what a client sends in, what it is answered out."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

from kestreld.jobs.replicated_jobs import ReplicatedJobs
from kestreld.queues.slices import Work
from kestreld.server.disque.handler import DisqueHandler
from kestreld.server.disque.node import DisqueNode, ProcessFacts
from kestreld.server.disque.parser import RespParser
from kestreld.server.disque.protocol import Disque
from kestreld.server.state import ServerState
from kestreld.stats import ServerStats
from tests.support.clock import FakeClock
from tests.support.engine import Engine
from tests.support.jobs import NODE_ID
from tests.support.memory_files import MemoryFiles

FACTS: Final = ProcessFacts(1, "kestreld", "Linux", lambda: 1 << 20, lambda: (0.0, 0.0))


class Control:
    """Carries long work out at once, and notes what else is asked for."""

    def __init__(self) -> None:
        self.shutdowns = 0

    def shutdown(self) -> None:
        self.shutdowns += 1

    def reload(self, done: Callable[[Any], None]) -> None:
        raise NotImplementedError

    def repair(self, name: str, done: Callable[[Any], None]) -> None:
        raise NotImplementedError

    def undo(self, name: str, done: Callable[[Any], None]) -> None:
        raise NotImplementedError

    def take_on(self, work: Work) -> None:
        for _ in work:
            pass

    def finish_turn(self) -> None:
        pass


class DisqueHere:
    """A node in memory, on a clock that stands still."""

    def __init__(self, password: bytes = b"") -> None:
        engine = Engine(Path("/spool"), MemoryFiles())
        clock = engine.clock
        assert isinstance(clock, FakeClock)
        self.clock, self.control = clock, Control()
        state = ServerState(engine.collection, ServerStats(), self.control)
        self.jobs = ReplicatedJobs(clock, engine.collection.agenda, Random(1).randbytes, NODE_ID)
        self.node = DisqueNode(state, self.jobs, Random(2).randbytes, 7711, FACTS)
        if password:
            self.node.set(b"requirepass", password)
        self._protocol = Disque(self.node)

    def session(self) -> "SessionHere":
        return SessionHere(*self._protocol.open(None))


class SessionHere:
    """One client. `waiting` are its commands behind one that has to wait."""

    def __init__(self, parser: RespParser, handler: DisqueHandler) -> None:
        self.parser = parser
        self.handler = handler
        self._waiting: list[Any] = []
        self._current: Any = None

    def send(self, data: bytes) -> bytes:
        """What is answered by the end of the turn."""
        self._waiting += self.parser.feed(data)
        self.go_on()
        return self.take_out()

    def go_on(self) -> None:
        """Carry out what waits, as far as that goes."""
        handler = self.handler
        while not handler.blocked and (self._current is not None or self._waiting or handler.put_off is not None):
            if self._current is None:
                self._current, self._waiting = iter(self._waiting), []
            if not handler.go_on(self._current):
                self._current = None
            if handler.telling is not None:
                handler.tell_on()

    def take_out(self) -> bytes:
        data = b"".join(self.handler.out)
        self.handler.out.clear()
        self.handler.sent()
        return data
