"""Somebody who looks after queues by the engine's own calls.

What is not due yet is to be delivered now, or dropped, and a dead letter to go back to where it comes from.
"""

from random import Random
from typing import Final, Protocol

from kestreld.errors import JournalCorrupt
from kestreld.journal.records import Reason, item_data, item_id
from kestreld.queues.reader import Reader
from tests.simulation.client import NUMBER
from tests.simulation.history import History, Put
from tests.simulation.plan import Plan
from tests.simulation.schedule import Schedule
from tests.simulation.server import Server
from tests.support.engine import read_range

PACE_US: Final = 300_000


class Surroundings(Protocol):
    """What an operator sees of the world."""

    schedule: Schedule
    history: History
    plan: Plan
    server: Server | None
    is_open: bool

    def say(self, line: str) -> None: ...


class Operator:
    """Picks an item that is held back, or a dead letter, now and then."""

    def __init__(self, world: Surroundings, chance: Random) -> None:
        self._world = world
        self._chance = chance
        self._later()

    def _later(self) -> None:
        self._world.schedule.after(int(self._chance.expovariate(1 / PACE_US)), self._act)

    def _act(self) -> None:
        self._later()
        server = self._world.server
        if self._world.is_open and server is not None and server.is_up:
            server.loop.run(self._step, server)

    def _step(self, server: Server) -> None:
        assert server.collection is not None
        assert server.service is not None
        reader = server.collection.readers.get(self._chance.choice(self._world.plan.readers))
        drops, at = self._chance.random() < 0.3, self._chance.random()
        letters = [one for one in server.collection.readers.values() if one.queue.origins and one.window]
        if letters and at < 0.7 and letters[0].queue.stopped is None:
            self._send_back(server, letters[0], list(letters[0].window)[int(at / 0.7 * len(letters[0].window))])
            return
        if reader is None or reader.held is None or not reader.held.later or reader.queue.stopped is not None:
            return
        waiting = list(reader.held.later)
        one = waiting[int(at * len(waiting))]
        try:
            put = self._put_of(reader, one)
            if put is None:
                return
            self._world.say(f"{reader.name}: item {put.number} is {'dropped' if drops else 'to run now'}")
            if drops:
                reader.withdraw(one, Reason.DISCARDED)
                self._world.history.withdrawn.add((reader.name, put))
            else:
                reader.run_now(one, server.clock.wall_ms)
                self._world.history.hurried.setdefault((reader.name, put), self._world.schedule.now_us)
        except JournalCorrupt as problem:
            reader.queue.stop(problem)
        server.service.turn.finish()

    def _send_back(self, server: Server, reader: Reader, record: bytes) -> None:
        """As the redrive of the admin port does."""
        assert server.collection is not None
        assert server.service is not None
        history, now_us = self._world.history, self._world.schedule.now_us
        origin, put = reader.queue.origins.get(item_id(record)), self._put_in(record)
        to = server.collection.readers.get(origin.queue) if origin is not None else None
        if to is None or put is None or to.queue.stopped is not None:
            return
        history.sent_back.setdefault(put, []).append(now_us)
        try:
            is_sent = reader.send_on(item_id(record), to.name)
        except JournalCorrupt as problem:
            reader.queue.stop(problem)
        else:
            self._world.say(f"{reader.name}: item {put.number} is {'' if is_sent else 'not '}sent back to {to.name}")
        server.service.turn.finish()

    def _put_of(self, reader: Reader, one: int) -> Put | None:
        held = reader.held
        assert held is not None
        value = held.later[one]
        if held.is_in_memory(value):
            record = held.record_of(value)
        else:
            found = [record for record in read_range(reader.queue, one, 1, reader.number) if item_id(record) == one]
            if not found:
                return None  # it is not settled yet
            record = found[0]
        return self._put_in(record)

    def _put_in(self, record: bytes) -> Put | None:
        mark = NUMBER.match(item_data(record))
        return self._world.history.puts.get(int(mark[1])) if mark else None
