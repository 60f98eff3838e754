"""Ledger of a load test: which items were put, which arrived, and the verdict on lost, doubled and damaged ones."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kestrelctl.bench.items import ItemMaker

SENT: Final = 0  # its answer is outstanding, or was lost with the connection
STORED: Final = 1
REFUSED: Final = 2
ARRIVALS_MAX: Final = 255


class Written:
    """The items of one writer: answers by number, arrivals by number and destination."""

    def __init__(self, destinations: int) -> None:
        self.answers = bytearray()  # SENT, STORED or REFUSED, by number
        self.arrivals = bytearray()  # number of arrivals; item 0 at each destination, then item 1
        self.due_ns = array("q")  # time at which the put was due
        # For each destination: the highest number that has arrived at any reader there.
        self.last = [-1] * destinations
        self.last_of_old_readers = [-1] * destinations


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """Items by outcome. In a good run only `refused`, `unknown`, `forgiven`, `dropped` and `strangers` may exceed 0."""

    stored: int
    arrived: int  # different ones, at each destination
    lost: int
    doubled: int  # surplus arrivals
    damaged: int
    unordered: int  # arrived after a later item of the same writer
    ghosts: int  # arrived although the server refused them
    refused: int
    unknown: int  # put, never answered: they may arrive or not
    forgiven: int  # absent, possibly delivered to a client that was killed
    dropped: int  # absent, and older than all items of their writer that arrived: dropped by the server's limit
    strangers: int  # arrived, and not from this run
    destinations: int
    first_bad: str  # "" = none

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.doubled or self.damaged or self.unordered or self.ghosts)

    def words(self) -> str:
        """The verdict in one line."""
        besides = [
            f"{count:,} {what}"
            for count, what in (
                (self.refused, "refused"),
                (self.unknown, "put without an answer"),
                (self.forgiven, "gone with killed clients"),
                (self.dropped, "dropped by the server's limit"),
                (self.strangers, "not from this run"),
            )
            if count
        ]
        tail = f" ({', '.join(besides)})" if besides else ""
        if self.is_good:
            where = f" in {self.destinations} queues" if self.destinations > 1 else ""
            return f"all good: {self.stored:,} items put, {self.arrived:,} arrived{where}, each once and intact{tail}"
        faults = [
            f"{count:,} {what}"
            for count, what in (
                (self.lost, "lost"),
                (self.doubled, "too many"),
                (self.damaged, "damaged"),
                (self.unordered, "out of order"),
                (self.ghosts, "delivered though refused"),
            )
            if count
        ]
        return f"BAD: {self.stored:,} items put: {', '.join(faults)}; first {self.first_bad}{tail}"


class Ledger:
    """The account of one run. Writers, readers and destinations are numbers from 0.

    Each item must arrive exactly once at each destination; with a fanout queue there are several destinations.
    """

    def __init__(self, maker: ItemMaker, destinations: int = 1) -> None:
        self._maker = maker
        self._destinations = destinations
        self._not_come = bytes(destinations)
        self._writers: list[Written] = []
        self._last: dict[tuple[int, int], int] = {}  # (reader, writer) -> the number that arrived last
        self.stored = 0
        self.refused = 0
        self.arrived = 0  # different ones, at each destination
        self._stored_and_arrived = 0
        self._doubled = 0
        self._damaged = 0
        self._unordered = 0
        self._strangers = 0
        self._first_bad = ""

    def readers_have_left(self) -> None:
        """Start a new generation of readers: items that arrive from now on must be later than all earlier ones."""
        self._last.clear()
        for written in self._writers:
            written.last_of_old_readers = written.last.copy()

    def new_writer(self) -> int:
        self._writers.append(Written(self._destinations))
        return len(self._writers) - 1

    def next_item(self, writer: int, due_ns: int) -> bytes:
        """Make the writer's next item, to be put at `due_ns`."""
        written = self._writers[writer]
        number = len(written.answers)
        written.answers.append(SENT)
        written.arrivals += self._not_come
        written.due_ns.append(due_ns)
        return self._maker.make(writer, number)

    def answered(self, writer: int, number: int, *, stored: bool) -> int:
        """Note the reply to a put; return the time at which the put was due."""
        written = self._writers[writer]
        written.answers[number] = STORED if stored else REFUSED
        if stored:
            self.stored += 1
            # The item may arrive at a reader before the writer gets the reply to its put.
            self._stored_and_arrived += self._destinations - self._absent(written, number)
        else:
            self.refused += 1
        return written.due_ns[number]

    def _absent(self, written: Written, number: int) -> int:
        """Number of destinations at which the item has not arrived."""
        first = number * self._destinations
        return written.arrivals.count(0, first, first + self._destinations)

    def arrival(self, item: bytes, reader: int, destination: int = 0) -> int | None:
        """Note an item that arrived; return the time at which its put was due, None for no intact item of this run."""
        identity = self._maker.read(item)
        if identity is None or identity[0] >= len(self._writers):
            self._not_readable(item)
            return None
        writer, number = identity
        written = self._writers[writer]
        if number >= len(written.answers):
            self._not_readable(item)
            return None
        place = number * self._destinations + destination
        if written.arrivals[place]:
            self._doubled += 1
            self._note_bad(f"writer {writer} item {number} was delivered again")
            written.arrivals[place] = min(written.arrivals[place] + 1, ARRIVALS_MAX)
            return written.due_ns[number]
        written.arrivals[place] = 1
        self.arrived += 1
        if written.answers[number] == STORED:
            self._stored_and_arrived += 1
        written.last[destination] = max(written.last[destination], number)
        if self._last.get((reader, writer), written.last_of_old_readers[destination]) > number:
            self._unordered += 1
            self._note_bad(f"writer {writer} item {number} was delivered out of order")
        else:
            self._last[reader, writer] = number
        return written.due_ns[number]

    @property
    def missing(self) -> int:
        """Number of stored items that have not arrived yet, added up over all destinations."""
        return self.stored * self._destinations - self._stored_and_arrived

    def verdict(self, *, may_lose: int = 0, reorders: bool = False, drops_oldest: bool = False) -> DeliveryResult:
        """Settle the account at the end of a run.

        `may_lose`: number of items that may be gone without being counted as lost. `reorders`: items were given back
        during the run, so that their order is not judged. `drops_oldest`: the server keeps a limited number of items
        and drops the oldest; for one destination only.
        """
        assert self._destinations == 1 or not drops_oldest
        dropped = sum(map(_dropped, self._writers)) if drops_oldest else 0
        forgiven = min(max(self.missing - dropped, 0), may_lose)
        lost = self.missing - dropped - forgiven
        if lost and not self._first_bad:
            self._note_bad(next(self._lost(drops_oldest)))
        ghosts = sum(
            self._destinations - self._absent(written, number)
            for written in self._writers
            for number, answer in enumerate(written.answers)
            if answer == REFUSED
        )
        if ghosts:
            self._note_bad("a delivered item whose put was refused")
        return DeliveryResult(
            stored=self.stored,
            arrived=self.arrived,
            lost=lost,
            doubled=self._doubled,
            damaged=self._damaged,
            unordered=0 if reorders else self._unordered,
            ghosts=ghosts,
            refused=self.refused,
            unknown=sum(written.answers.count(SENT) for written in self._writers),
            forgiven=forgiven,
            dropped=dropped,
            strangers=self._strangers,
            destinations=self._destinations,
            first_bad=self._first_bad,
        )

    def _lost(self, drops_oldest: bool) -> Iterator[str]:
        for writer, written in enumerate(self._writers):
            first = _dropped(written) if drops_oldest else 0
            for number in range(first, len(written.answers)):
                if written.answers[number] == STORED and self._absent(written, number):
                    yield f"writer {writer} item {number} is missing"

    def _not_readable(self, item: bytes) -> None:
        if self._maker.is_ours(item):
            self._damaged += 1
            self._note_bad(f"an item starting with {item[:24]!r}")
        else:
            self._strangers += 1

    def _note_bad(self, words: str) -> None:
        self._first_bad = self._first_bad or words


def _dropped(written: Written) -> int:
    """Number of stored items missing before the first that arrived; all stored items if none arrived."""
    first = next((number for number, arrivals in enumerate(written.arrivals) if arrivals), len(written.arrivals))
    return written.answers.count(STORED, 0, first)
