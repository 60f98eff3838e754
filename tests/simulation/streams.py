"""Programs that follow a journal as a stream, through the engine's own calls: they read ranges of ids and say how far
they have come. What they have said they are done with must not come again, and nothing may be missing before that.
"""

from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

from kestreld.errors import JournalCorrupt
from kestreld.journal.records import item_data, item_flags, item_id, item_optional_fields
from kestreld.queues.commit import PendingCommit
from kestreld.queues.queue import Queue
from tests.simulation.client import INSIDE_OTHERS, NUMBER
from tests.simulation.history import Connection, Delivery, History, Life, Put
from tests.simulation.plan import Plan
from tests.simulation.schedule import Schedule
from tests.simulation.server import Server
from tests.support.engine import read_range

PACE_US: Final = 40_000
READ_MAX: Final = 20


class Surroundings(Protocol):
    """What a follower sees of the world."""

    schedule: Schedule
    history: History
    plan: Plan
    server: Server | None
    is_open: bool

    def complain(self, words: str) -> None: ...
    def say(self, line: str) -> None: ...
    def add(self, what: str, times: int = 1) -> None: ...


@dataclass(slots=True)
class InProcess:
    """A connection that lasts as long as the server, or until a call has failed: a call, not a socket."""

    life: Life
    failed_us: int = -1  # -1 = it has not

    @property
    def over_us(self) -> int | None:
        ends = [at_us for at_us in (self.failed_us, self.life.ended_us) if at_us >= 0]
        return min(ends, default=None)


@dataclass(slots=True)
class Advance:
    """Items a stream is told to be done with; `pending_commit` None: its commit is not made yet."""

    deliveries: list[Delivery]
    life: Life
    pending_commit: PendingCommit | None = None


class Follower:
    """The stream `family+@name`. One that `stays` accounts for every item; another comes and goes, and only looks."""

    def __init__(self, world: Surroundings, reader: str, chance: Random) -> None:
        self.reader = reader
        self._family, _, self._name = reader.partition("+")
        self._stays = self._name.startswith("@stays")
        self._world = world
        self._chance = chance
        self._advance: Advance | None = None
        self._seen: dict[tuple[int, int], bytes] = {}  # in this life, by journal id and item id
        self._connection: Connection | None = None
        self._later()

    def _later(self) -> None:
        self._world.schedule.after(int(self._chance.expovariate(1 / PACE_US)), self._act)

    def _act(self) -> None:
        self._later()
        server = self._world.server
        if self._world.is_open and server is not None and server.is_up:
            server.loop.run(self._step, server, self._chance.randint(1, READ_MAX), self._chance.random() < 0.7)

    def drain(self) -> bool:
        """Everything that is there, to the end; False when the queue is stopped."""
        for _ in range(10_000):
            server = self._world.server
            if server is None or not server.is_up:
                return False
            was_read = [0]
            server.loop.run(lambda server=server, was_read=was_read: was_read.append(self._step(server, 100, True)))
            self._world.schedule.run(self._world.schedule.now_us + 200_000)
            self._settle()
            queue = self._queue()
            if queue is not None and queue.stopped is not None:
                return False
            if was_read[-1] == 0 and self._advance is None:
                return True
        self._world.complain(f"{self.reader} has no end")
        return True

    def _queue(self) -> Queue | None:
        server = self._world.server
        return server.collection.families.get(self._family) if server is not None and server.collection else None

    # One step in the server's process

    def _step(self, server: Server, limit: int, advances: bool) -> int:
        """Be there, read on from where it has come to, and maybe say so; how many items were read."""
        self._settle()
        queue = self._queue()
        if queue is None or queue.stopped is not None or self._advance is not None:
            return 0
        if self._connection is None or self._connection.life is not server.life:
            self._connection = Connection(0, server.life, InProcess(server.life))
            self._seen = {}
        stream = queue.streams.get(self._name)
        if stream is None:
            at_id = queue.first_id() if self._stays else self._chance.randint(1, queue.next_id)
            self._world.say(f"{self.reader} begins at {at_id}")
            queue.add_stream(self._name, at_id)
            self._world.history.begun.setdefault(self.reader, []).append(server.life)
            self._commit(server, queue, Advance([], server.life))
            return 1
        if not self._stays and self._chance.random() < 0.1:
            queue.drop_stream(self._name)
            self._commit(server, queue, Advance([], server.life))
            return 0
        try:
            records = read_range(queue, stream.head, limit)
        except JournalCorrupt as problem:
            queue.stop(problem)
            server.service.turn.finish()
            return 0
        puts = self._look_at(records, stream.head)
        self._must_stay_what_they_were(queue, records)
        if self._stays:
            self._note(puts, server.life)
        if advances and records:
            through = item_id(records[self._chance.randrange(len(records))])
            done = [self._delivery(put, "get") for put, number in puts if number <= through] if self._stays else []
            self._world.say(f"{self.reader} is done through {through}")
            queue.advance_stream(self._name, through)
            self._commit(server, queue, Advance(done, server.life))
        return len(records)

    def _look_at(self, records: list[bytes], first: int) -> list[tuple[Put, int]]:
        """The items among records of a range, each as somebody has put it; ids rise."""
        world = self._world
        puts = []
        last = first - 1
        for record in records:
            if item_id(record) <= last:
                world.complain(f"{self.reader}: id {item_id(record)} after {last}")
            last = item_id(record)
            data = item_data(record)
            mark = NUMBER.match(data)
            put = world.history.puts.get(int(mark[1])) if mark else None
            if data == INSIDE_OTHERS:
                world.history.from_inside.add(self._family)
            elif put is None or (put.data, put.flags) != (data, item_flags(record)):
                world.complain(f"{self.reader} read what nobody put: {data[:40]!r}")
            elif item_optional_fields(record)[2] == 0:  # else it is for one queue only
                puts.append((put, last))
        return puts

    def _must_stay_what_they_were(self, queue: Queue, records: list[bytes]) -> None:
        assert queue.journal is not None
        for record in records:
            if self._seen.setdefault((queue.journal.journal_id, item_id(record)), record) != record:
                self._world.complain(f"{self.reader}: id {item_id(record)} has become another item")

    def _note(self, puts: list[tuple[Put, int]], life: Life) -> None:
        now_us = self._world.schedule.now_us
        self._world.history.touched.setdefault(self.reader, []).append((life, now_us, now_us))
        self._world.add("items read from streams", len(puts))
        self._world.history.deliveries.extend([self._delivery(put, "peek") for put, _ in puts])

    def _delivery(self, put: Put, kind: str) -> Delivery:
        assert self._connection is not None
        now_us = self._world.schedule.now_us
        return Delivery(put, self.reader, self._connection, kind, now_us, now_us)  # type: ignore[arg-type]

    # The commit, and what becomes of it

    def _commit(self, server: Server, queue: Queue, advance: Advance) -> None:
        self._advance = advance
        server.service.turn.finish()
        if queue in server.collection.commit.failed:
            self._over(answered=False)
        elif queue.pending_commit is None:
            self._over(answered=True)
        else:
            advance.pending_commit = queue.pending_commit

    def _settle(self) -> None:
        """Learn what has become of the last advance, if anything has."""
        if self._advance is not None:
            pending_commit, life = self._advance.pending_commit, self._advance.life
            if pending_commit is not None and not pending_commit.pending:
                self._over(answered=pending_commit.failure is None)
            elif life.ended_us >= 0:
                self._over(answered=False)

    def _over(self, *, answered: bool) -> None:
        assert self._advance is not None
        now_us = self._world.schedule.now_us
        for delivery in self._advance.deliveries:
            if answered:
                delivery.served_us = now_us
            else:
                delivery.kind, delivery.ending, delivery.ending_sent_us = "open", "close", delivery.sent_us
                delivery.connection = Connection(0, self._advance.life, InProcess(self._advance.life, now_us))
            self._world.history.deliveries.append(delivery)
        self._advance = None
