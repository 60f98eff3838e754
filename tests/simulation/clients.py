"""Clients of a run: each does what its kind does, breaks off now and then, and comes back."""

from itertools import count
from random import Random
from typing import Any, Final, Protocol

from kestreld.journal.records import Done, Reason, done_record, put_record
from tests.simulation.client import INSIDE_OTHERS, Talk
from tests.simulation.history import Delivery, History, Request
from tests.simulation.plan import Plan
from tests.simulation.requests import (
    Change,
    be_present,
    cancel,
    change,
    enlist,
    forge,
    lease,
    lease_listed,
    order,
    peek,
    put,
    read,
    repair,
    undo,
    wipe,
)
from tests.simulation.schedule import Schedule
from tests.simulation.server import Server

TOKEN_ID_SHIFT: Final = 29
DELAYS_MS: Final = (1, 30, 200, 900, 3000)
LEASES_MS: Final = (1, 40, 200, 1000, 3000)
ABSENCES_MS: Final = (100, 300, 1000)
# An item may hold records, as a copy of a journal does.
RECORDS: Final = put_record(13, 1, 0, 0, 0, INSIDE_OTHERS) + done_record(Done(1, Reason.GOT, 1, 20, 20, [(1, 20)]))


class Surroundings(Protocol):
    """What clients see of the world."""

    schedule: Schedule
    history: History
    plan: Plan
    server: Server | None
    is_open: bool  # clients may begin something
    connections: "count[int]"  # numbers of the next ones
    puts: "count[int]"

    def flushed_in_use(self) -> None: ...


class Client:
    """One client over a run, with a connection at a time."""

    def __init__(self, world: Surroundings, kind: str, chance: Random) -> None:
        self._world = world
        self._chance = chance
        self._habit = {
            "producer": self._produce,
            "consumer": self._consume,
            "worker": self._work,
            "mixed": self._mix,
            "janitor": self._tidy,
            "sweeper": self._sweep,
            "leaser": self._lease,
            "scheduler": self._plan,
            "lister": self._take_turns,
            "holder": self._hold,
        }[kind]
        self._pace_us = chance.choice([8_000, 30_000, 80_000])
        plan = world.plan
        self._readers = chance.sample(plan.readers, min(len(plan.readers), chance.randint(1, 3)))
        self.talk: Talk | None = None
        self._away_until_us = 0
        self._later()

    @property
    def is_idle(self) -> bool:
        return self.talk is None or self.talk.over or not self.talk.pending

    def _later(self, delay_us: int = 0) -> None:
        self._world.schedule.after(delay_us or int(self._chance.expovariate(1 / self._pace_us)), self._act)

    def _act(self) -> None:
        world = self._world
        is_away = world.schedule.now_us < self._away_until_us
        if is_away or not world.is_open or world.server is None or not world.server.is_up:
            self._later(50_000)
            return
        if self.talk is None or self.talk.over:
            self.talk = world.server.talk(next(world.connections), self._moved_on, self._over)
            if self.talk.over:
                self.talk = None
                self._later(20_000)
                return
        if self.talk.pending or self.talk.has_ended_input:
            return  # the server hangs up once all is answered
        if self.talk.is_unsure:
            self.talk.close(abruptly=False)
        requests = [] if self.talk.over else self._habit(self.talk)
        if self.talk.over:
            self._later()
            return
        self.talk.send(requests)
        self._break_off(self.talk)

    def _moved_on(self) -> None:
        assert self.talk is not None
        if not self.talk.pending:
            self._later()

    def _over(self) -> None:
        self._later(int(self._chance.uniform(1000, 30_000)))

    def leave(self) -> None:
        if self.talk is not None and not self.talk.over:
            self.talk.close(abruptly=self._chance.random() < 0.3)

    def _break_off(self, talk: Talk) -> None:
        """Sometimes something happens to the connection while the answers are due."""
        breaks = self._world.plan.network_breaks
        if not breaks or self._chance.random() > breaks:
            return
        assert talk.link is not None
        delay_us = int(self._chance.choice([100, 1000, 10_000]) * self._chance.random())
        kind = self._chance.random()
        if kind < 0.6:
            self._world.schedule.after(delay_us, self._hang_up, talk, kind < 0.4)
        elif kind < 0.8:
            talk.end_input()
        else:
            talk.link.reading = False
            self._world.schedule.after(delay_us * 20, talk.link.read_on)

    def _hang_up(self, talk: Talk, abruptly: bool) -> None:
        if not talk.over:
            talk.close(abruptly=abruptly)
            self._over()

    # Kinds

    def _name(self) -> str:
        return self._chance.choice(self._readers)

    def _put(self, name: str) -> Request:
        chance, plan = self._chance, self._world.plan
        if len(self._world.history.puts) >= plan.puts_max:
            return peek(name)
        size_bytes = chance.choice([0, 20, 20, 60])
        if plan.big_items and chance.random() < 0.3:
            size_bytes = chance.choice([500, 700, 1500, 5000])
        timed = self._times(name) if plan.is_timed else {}
        expires = name.partition("+")[0] in plan.expiring and chance.random() < 0.3
        return put(
            name,
            self._world.puts,
            size_bytes,
            flags=chance.choice([0, 0, 0, 7]),
            expiry_s=chance.choice([1, 2, 10]) if expires else 0,
            more=RECORDS if chance.random() < 0.03 else b"",
            **timed,
        )

    def _times(self, name: str, share: float = 0.15) -> dict[str, Any]:
        """Sometimes an item is put for later, or with a key: one that was used before, every second time."""
        chance = self._chance
        timed: dict[str, Any] = {}
        if chance.random() < share:
            timed["delay_ms"] = chance.choice(DELAYS_MS)
        if chance.random() < share:
            # Some are put again and again, over restarts.
            timed["key"] = f"r{chance.randint(0, 2)}" if chance.random() < 0.2 else self._key()
            timed["adds"] = chance.random() < 0.5
        return timed

    def _key(self) -> str:
        return f"k{max(len(self._world.history.puts) // 8 - self._chance.choice([0, 0, 0, 1, 4]), 0)}"

    def _produce(self, talk: Talk) -> list[Request]:
        names = [name for name in self._readers if name in self._world.plan.writable()] or ["work"]
        name = self._chance.choice(names)
        if self._chance.random() < 0.7:
            name = name.partition("+")[0]
        return [self._put(name) for _ in range(self._chance.choice([1, 1, 2, 6]))]

    def _consume(self, talk: Talk) -> list[Request]:
        names = [name for name in self._readers if name not in self._world.plan.reliable]
        if not names:
            return self._work(talk)
        name = self._chance.choice(names)
        if self._chance.random() < 0.4:
            return [read(name, wait_ms=self._chance.choice([1, 20, 100]))]
        return [read(name) for _ in range(self._chance.choice([1, 2, 5]))]

    def _work(self, talk: Talk) -> list[Request]:
        """Reliable reads: open, then close or give back."""
        chance = self._chance
        wait_ms = chance.choice([0, 0, 20, 100])
        if not talk.open:
            return [read(self._name(), wait_ms=wait_ms, opens=True)]
        name = talk.open[0].reader
        if name.partition("+")[0] in self._world.plan.rules.max_retries and chance.random() < 0.5:
            return [read(name, aborts=True)]
        kind = chance.random()
        if kind < 0.35:
            return [read(name, closes=True)]
        if kind < 0.65:
            times = chance.choice([1, 1, 3]) if not wait_ms else 1
            return [read(name, wait_ms=wait_ms, closes=True, opens=True) for _ in range(times)]
        if kind < 0.8:
            return [read(name, aborts=True)]
        if kind < 0.9 and len(talk.open) < self._world.plan.max_open_reads:
            return [read(self._name(), opens=True)]
        if kind < 0.97:
            return [peek(self._name())]
        talk.close(abruptly=chance.random() < 0.5)
        return []

    def _mix(self, talk: Talk) -> list[Request]:
        plan = self._world.plan
        requests: list[Request] = []
        for _ in range(self._chance.randint(1, 5)):
            name = self._name()
            kind = self._chance.random()
            if kind < 0.5 and name in plan.writable():
                requests.append(self._put(name))
            elif kind < 0.8 and name not in plan.reliable:
                requests.append(read(name))
            else:
                requests.append(peek(name))
        return requests

    def _sweep(self, talk: Talk) -> list[Request]:
        """Flushes of a queue of which somebody holds an item that was put after one that waits."""
        name, chance = self._world.plan.wiped[0], self._chance
        opens = range(min(self._world.plan.max_open_reads, 2))
        if not talk.open:
            return [*[self._put(name) for _ in range(3)], *[read(name, opens=True) for _ in opens]]
        if len(talk.open) == len(opens):
            self._world.flushed_in_use()
            return [read(name, aborts=True), wipe("flush", name)]
        return [read(name, closes=True) if chance.random() < 0.5 else read(name, aborts=True)]

    def _lease(self, talk: Talk) -> list[Request]:
        """Take items for a time, and show their tokens: own ones, late ones, those of others, made-up ones."""
        chance, name = self._chance, self._name()
        known = self._world.history.leases
        aside = Random(f"{self._world.schedule.now_us} {talk.connection.number}")  # seeds stay what they have been
        if aside.random() < 0.04:
            return [self._forge(name, aside)]
        mine = [one for one in self._mine if not one.changes]
        kind = chance.random()
        if kind < 0.45 or not known:
            lease_ms, wait_ms = chance.choice(LEASES_MS), chance.choice([0, 0, 20, 100])
            asked = [lease(name, lease_ms, wait_ms)]
            return asked + [lease(name, lease_ms) for _ in range(chance.choice([0, 0, 0, 2]))]
        leased = chance.choice(mine) if mine and chance.random() < 0.7 else chance.choice(known[-12:])
        kind = chance.random()
        if kind < 0.45:
            return [change(leased, "confirm")]
        if kind < 0.6:
            return [change(leased, "extend", chance.choice(LEASES_MS))]
        if kind < 0.8:
            return [change(leased, "give back", chance.choice([0, 0, *DELAYS_MS]))]
        if kind < 0.97:
            return [change(leased, "fail", says_why=self._world.plan.says_why)]
        talk.close(abruptly=chance.random() < 0.5)
        return []

    def _take_turns(self, talk: Talk) -> list[Request]:
        """Lease from a list of queues, and show the tokens."""
        chance, kind = self._chance, self._chance.random()
        if not talk.list or kind < 0.05:
            return [self._enlist(talk)]
        mine = [one for one in self._mine if not one.changes]
        if mine and kind < 0.5:
            leased = chance.choice(mine)
            return [change(leased, "give back") if chance.random() < 0.4 else change(leased, "confirm")]
        lease_ms, wait_ms, takes_turns = chance.choice(LEASES_MS), chance.choice([0, 0, 20, 100]), chance.random() < 0.6
        asked = [lease_listed(lease_ms, wait_ms, takes_turns=takes_turns, by=chance.choice(["", "", "somebody"]))]
        times = chance.choice([0, 0, 2])
        return asked + [lease_listed(lease_ms, takes_turns=takes_turns) for _ in range(times)]

    def _hold(self, talk: Talk) -> list[Request]:
        """Lease in the name of a holder that is present, one of two, and be away from time to time."""
        chance, kind = self._chance, self._chance.random()
        name = "ab"[int(str(self._pace_us)[0]) % 2]
        if talk.presence is None:
            return [be_present(name, chance.choice(ABSENCES_MS))]
        if kind < 0.2:
            talk.close(abruptly=chance.random() < 0.5)
            self._away_until_us = self._world.schedule.now_us + chance.choice([0, 0, 50, 90, 250, 1200]) * 1000
            return []
        mine = [one for one in self._world.history.leases[-30:] if one.by.partition(".")[0] == name and not one.changes]
        if mine and kind < 0.6:
            leased = chance.choice(mine)
            return [change(leased, "extend", 3000) if chance.random() < 0.6 else change(leased, "confirm")]
        by = chance.choice([name, f"{name}.{talk.connection.number}"])
        return [lease(self._name(), chance.choice(LEASES_MS), chance.choice([0, 20]), by)]

    def _enlist(self, talk: Talk) -> Request:
        """Make the list, add to it, or drop it."""
        readers = self._world.plan.readers
        drops = bool(talk.list) and self._chance.random() < 0.3
        names = [] if drops else self._chance.sample(readers, min(len(readers), self._chance.choice([2, 3, 6])))

        def told(answer: bytes) -> None:
            if answer == b"OK\r\n":
                talk.list = list(dict.fromkeys([*talk.list, *names])) if names else []
                talk.list_first = talk.list_first if names else 0

        return enlist(names, told)

    def _forge(self, name: str, aside: Random) -> Request:
        """A token like those that are given, of an item that there may be."""
        given, known = {one.token for one in self._world.history.leases}, self._world.history.leases[-12:]
        token = aside.randint(1, 40) << TOKEN_ID_SHIFT | aside.getrandbits(TOKEN_ID_SHIFT)
        if known and aside.random() < 0.6:
            token = aside.choice(known).token ^ (1 << aside.randrange(TOKEN_ID_SHIFT))
        kind: Change = aside.choice(["confirm", "extend", "give back", "fail"])
        if token in given:
            return peek(name)
        return forge(name, token, kind, 1000 if kind == "extend" else aside.choice([0, 900]))

    @property
    def _mine(self) -> list[Delivery]:
        leases = self._world.history.leases
        return [one for one in leases[-30:] if self.talk is not None and one.connection is self.talk.connection]

    def _plan(self, talk: Talk) -> list[Request]:
        """Puts with delays and keys, sent again and again, and cancelled."""
        chance, plan = self._chance, self._world.plan
        names = [name for name in self._readers if name in plan.writable()] or ["work"]
        name = chance.choice(names)
        kind = chance.random()
        if kind < 0.15:
            return [cancel(name, self._key())]
        if kind < 0.2:
            return [peek(name)]
        if len(self._world.history.puts) >= plan.puts_max:
            return [peek(name)]
        timed = self._times(name, 0.7)
        return [
            put(name, self._world.puts, chance.choice([0, 20, 60]), **timed) for _ in range(chance.choice([1, 1, 3]))
        ]

    def _tidy(self, talk: Talk) -> list[Request]:
        plan, chance = self._world.plan, self._chance
        kind = chance.random()
        if plan.wiped and kind < 0.4:
            return [wipe(chance.choice(["flush", "flush", "delete"]), chance.choice(plan.wiped))]
        if plan.wiped and kind < 0.45:
            return [undo(chance.choice(plan.wiped))]
        if kind < 0.5:
            return [order("stats")]
        if kind < 0.6:
            return [order("reload")]
        if kind < 0.8:
            return [order(f"flush_expired {self._name()}")]
        if kind < 0.85:
            return [repair(self._name())]
        return [peek(self._name())]
