"""A client that binds and unbinds, and knows which bindings there have to be: what was answered, or shown."""

from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

from tests.simulation.client import Talk
from tests.simulation.history import KILLED, Request
from tests.simulation.plan import Plan
from tests.simulation.schedule import Schedule
from tests.simulation.server import Server

PACE_US: Final = 40_000
LOOKS_MAX: Final = 30
EXCHANGES: Final = ("e0", "e1")
QUEUES: Final = ("bound0", "bound1", "bound2")
ROUTING_KEYS: Final = ("%", "a.#", "%C3%A4%20%25")
PATTERNS: Final = ("%", "p")
ALL: Final = tuple(
    f"{exchange} {queue} {routing_key} {pattern}"
    for exchange in EXCHANGES
    for queue in QUEUES
    for routing_key in ROUTING_KEYS
    for pattern in PATTERNS
)


class Surroundings(Protocol):
    """What a binder sees of the world."""

    schedule: Schedule
    plan: Plan
    server: Server | None
    is_open: bool

    def complain(self, words: str) -> None: ...
    def add(self, what: str, times: int = 1) -> None: ...
    def ask(self, requests: list[Request]) -> Talk | None: ...
    def start(self) -> None: ...
    def end_life(self, how: str) -> None: ...


@dataclass(slots=True)
class Asked:
    """A change of some bindings, unanswered so far. `is_bound` None: it only looks."""

    life: int
    keys: tuple[str, ...] = ()
    is_bound: bool | None = None


@dataclass(slots=True)
class Known:
    """What must be there. Of `unsure` ones nobody knows before the next life, by its number."""

    bound: set[str] = field(default_factory=set)
    unsure: dict[str, int] = field(default_factory=dict)


class Binder:
    """One client over a run, and the only one that binds."""

    def __init__(self, world: Surroundings, numbers: "Numbers", chance: Random) -> None:
        self._world = world
        self._numbers = numbers
        self._chance = chance
        self._known = Known()
        self._talk: Talk | None = None
        self._asked: list[Asked] = []
        self._later()

    @property
    def is_idle(self) -> bool:
        return self._talk is None or self._talk.over or not self._talk.pending

    def leave(self) -> None:
        if self._talk is not None and not self._talk.over:
            self._talk.close(abruptly=False)
        self._give_up()

    def _later(self) -> None:
        self._world.schedule.after(int(self._chance.expovariate(1 / PACE_US)), self._act)

    def _act(self) -> None:
        self._later()
        world = self._world
        if not self.is_idle:
            if world.plan.network_breaks and self._chance.random() < 0.1 and self._talk is not None:
                self._talk.close(abruptly=self._chance.random() < 0.5)
            return
        self._give_up()
        if not world.is_open or world.server is None or not world.server.is_up:
            return
        if self._talk is None or self._talk.over:
            self._talk = world.server.talk(next(self._numbers), lambda: None, lambda: None)
        if not self._talk.over:
            requests = [self._request() for _ in range(self._chance.choice([1, 1, 2, 5]))]
            self._talk.send([one for one in requests if one is not None])

    def _give_up(self) -> None:
        """What has not been answered by now never is."""
        for asked in self._asked:
            self._know_nothing(asked)
        self._asked = []

    def _know_nothing(self, asked: Asked) -> None:
        self._known.unsure.update(dict.fromkeys(asked.keys, asked.life))

    def _life(self) -> int:
        server = self._world.server
        assert server is not None
        return server.life.number

    # Asking

    def _request(self) -> Request | None:
        chance = self._chance
        kind, key = chance.random(), chance.choice(ALL)
        exchange, queue, routing_key, pattern = key.split(" ")
        if kind < 0.1:
            return self.look()
        if kind < 0.2:
            line, keys = f"unbind {exchange} {queue}", [one for one in ALL if one.startswith(f"{exchange} {queue} ")]
        elif kind < 0.25:
            line, keys = f"delete {queue}", [one for one in ALL if f" {queue} " in one]
        elif kind < 0.5:
            line, keys = f"unbind {key}", [key]
        else:
            line, keys = f"bind {key}" if pattern != "%" else f"bind {exchange} {queue} {routing_key}", [key]
        if any(one in self._known.unsure for one in keys):
            return None  # the connection that is gone may have it carried out later
        asked = Asked(self._life(), tuple(keys), is_bound=line.startswith("bind"))
        return self._of(line, asked)

    def look(self) -> Request:
        """A request that lists all bindings, and checks them."""
        return self._of("bindings", Asked(self._life()))

    def _of(self, line: str, asked: Asked) -> Request:
        self._asked.append(asked)
        return Request(
            line.partition(" ")[0] if asked.is_bound is None else "bind",
            "",
            f"{line}\r\n".encode(),
            told=lambda answer: self._told(line, asked, answer),
        )

    # What is answered

    def _told(self, line: str, asked: Asked, answer: bytes) -> None:
        if asked in self._asked:
            self._asked.remove(asked)
        if answer.startswith(b"SERVER_ERROR"):
            self._know_nothing(asked)
            words = answer.decode()
            is_of_disk = words.startswith("SERVER_ERROR bindings /spool/.bindings: ") and "restart" not in words
            if not is_of_disk and "cannot be read" not in words:
                self._world.complain(f"{line!r} was answered {words!r}")
            self._world.add("bindings refused")
        elif asked.is_bound is None:
            self._compare({one.removeprefix("BINDING ") for one in answer.decode().split("\r\n")[:-2]}, asked.life)
        elif answer not in (b"OK\r\n", b"NOT_FOUND\r\n", b"DELETED\r\n"):
            self._world.complain(f"{line!r} was answered {answer!r}")
        else:
            self._world.add("bindings changed")
            change = self._known.bound.update if asked.is_bound else self._known.bound.difference_update
            change(asked.keys)

    def _compare(self, listed: set[str], life: int) -> None:
        known = self._known
        self._world.add("bindings looked at", len(listed))
        sure = set(ALL) - known.unsure.keys()
        for key in sorted((listed ^ known.bound) & sure):
            self._world.complain(f"binding {key!r} is {'there again' if key in listed else 'gone'}")
        server = self._world.server
        assert server is not None
        assert server.collection is not None
        if life != self._life() or server.collection.bindings.ledger.doubt:
            return  # it is shown, or was by a server that was killed since, and the disk may not have it
        for key, since in list(known.unsure.items()):
            if since < life:
                del known.unsure[key]
                (known.bound.add if key in listed else known.bound.discard)(key)

    def look_at_the_end(self) -> None:
        """Look until bindings are shown; a start may have failed to read them."""
        for _ in range(LOOKS_MAX):
            if self._world.server is None:
                self._world.start()
            talk = self._world.ask([self.look()]) if self._world.server is not None else None
            self._give_up()
            if talk is not None and not talk.errors and not talk.pending:
                talk.close(abruptly=False)
                return
            self._world.end_life(KILLED)
        self._world.complain("the bindings are not shown")


class Numbers(Protocol):
    """Numbers of connections."""

    def __next__(self) -> int: ...
