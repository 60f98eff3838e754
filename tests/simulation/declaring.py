"""Somebody who declares reply queues, and reads them or leaves them behind, by the engine's own calls.

What was declared and answered is in force after every start that can read it, until the queue is deleted, and
`idle_delete` takes no queue that was read less than that long ago.
"""

from contextlib import suppress
from random import Random
from typing import Final, Protocol

from kestreld.errors import DeclarationRefused, JournalCorrupt, JournalFailed, KestrelError
from kestreld.queues.declared import Options
from tests.simulation.schedule import Schedule
from tests.simulation.server import Server

NAMES: Final = tuple(f"reply-{number}" for number in range(4))
PACE_US: Final = 60_000
IDLE_MS: Final = (400, 1200)


class Surroundings(Protocol):
    """What a declarer sees of the world."""

    schedule: Schedule
    server: Server | None
    is_open: bool

    def say(self, line: str) -> None: ...

    def complain(self, words: str) -> None: ...

    def add(self, what: str, times: int = 1) -> None: ...


class Declarer:
    """Declares, puts to and reads a few queues."""

    def __init__(self, world: Surroundings, chance: Random) -> None:
        self._world = world
        self._chance = chance
        self._kept: dict[str, Options] = {}  # answered for, of queues that nobody has deleted since
        self._read_us: dict[str, int] = {}  # when a queue was last read or declared, or a server last began
        self._seen: Server | None = None
        self._there: set[str] = set()
        self._later()

    def _later(self) -> None:
        self._world.schedule.after(int(self._chance.expovariate(1 / PACE_US)), self._act)

    def _act(self) -> None:
        self._later()
        server = self._world.server
        if self._world.is_open and server is not None and server.is_up:
            server.loop.run(self._step, server)

    def look(self, server: Server) -> None:
        """Compare with what a server knows that has just begun."""
        collection = server.collection
        assert collection is not None
        self._seen = server
        unreadable = collection.declared.ledger.problem
        if unreadable is not None and "cannot be read" not in str(unreadable):  # as the disk fails
            self._world.complain(f"declarations cannot be read: {unreadable}")
        for name, options in self._kept.items() if unreadable is None else ():
            known = collection.declared.of(name)
            if known is None or any(known.options.get(option) != value for option, value in options.items()):
                self._world.complain(f"{name} was declared {options}, and after a start it is {known}")
        self._read_us = dict.fromkeys(NAMES, self._world.schedule.now_us)
        self._there = {name for name in NAMES if name in collection.readers}
        collection.names_changed.append(lambda: self._look_who_is_gone(server))

    def _look_who_is_gone(self, server: Server) -> None:
        assert server.collection is not None
        there = {name for name in NAMES if name in server.collection.readers}
        for name in self._there - there:
            options, now_us = self._kept.pop(name, {}), self._world.schedule.now_us
            idle_ms = options.get("idle_delete")
            self._world.add("unread queues deleted")
            if isinstance(idle_ms, int) and now_us - self._read_us[name] < idle_ms * 1000:
                self._world.complain(
                    f"{name} was deleted, read at {self._read_us[name]}, with idle_delete {idle_ms} ms"
                )
        self._there = there

    def _step(self, server: Server) -> None:
        collection, chance, name = server.collection, self._chance, self._chance.choice(NAMES)
        assert collection is not None
        if self._seen is not server:
            return
        kind = chance.random()
        with suppress(JournalFailed, JournalCorrupt):
            if kind < 0.4:
                self._declare(server, name)
            elif (reader := collection.find(name)) is not None and kind < 0.7:
                self._read_us[name] = self._world.schedule.now_us
                reader.take(server.clock.wall_ms)
            elif reader is not None:
                reader.queue.put(b"x")
        collection.commit.wake()

    def _declare(self, server: Server, name: str) -> None:
        assert server.collection is not None
        options: dict[str, object] = {"idle_delete": self._chance.choice(IDLE_MS), "max_items": 5}
        if name == NAMES[0]:
            options["journal"] = False

        def done(failure: KestrelError | None) -> None:
            if failure is None and self._seen is server and name in self._there:
                self._kept[name] = options
                self._world.add("declarations answered")

        with suppress(DeclarationRefused):
            self._there.add(name)
            server.collection.declare(name, options, "somebody", done, may_delete=True)
            self._read_us[name] = self._world.schedule.now_us
        if server.collection.find(name) is None:
            self._there.discard(name)
