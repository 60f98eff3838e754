"""kill -9 under load: what was acknowledged arrives, what was confirmed does not come again, and the order is kept.

Writers and reliable readers note what they see; the notes are judged when all is over. The daemon gets other settings
at each start.
"""

import os
import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import accumulate, product
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.support.daemon import Daemon
from tests.support.queue_client import QueueClient
from tests.support.shell import Kestrelctl
from tests.support.waiting import PATIENCE_S
from tests.support.wire import HungUp

WRITERS: Final = 4
READERS: Final = 2

SYNCS: Final = ("sync_journal=true", "sync_journal=20ms", "sync_journal=false")
SIZES: Final = (
    ("max_journal_size=20KiB", "max_memory_size=10KiB"),
    ("max_journal_size=100KiB", "max_memory_size=1KiB"),
)
LIVES: Final = [(sync, *sizes) for sizes, sync in product(SIZES, SYNCS)]
KILLS: Final = int(os.environ.get("KILL_CYCLES", "20"))  # of the long test, a hundred to a daemon
BACKLOGS: Final = (5000, 20)  # items that may wait: readers behind their memory, or on the heels of the writers


class Item(NamedTuple):
    writer: int
    number: int

    @property
    def data(self) -> bytes:
        size_bytes = 12_000 if self.number % 97 == 0 else 20 + (self.number * 7919 + self.writer * 31) % 200
        return (b"%d %d\r\n" % self).ljust(size_bytes, b"%d" % self.writer)


class What(Enum):
    STORED = auto()
    CAME = auto()
    GIVEN_BACK = auto()  # before the server is told
    CLOSING = auto()  # likewise
    CLOSED = auto()


class Note(NamedTuple):
    """What a client saw of an item; `life` is the one of the daemon it was connected to."""

    what: What
    life: int
    client: str
    item: Item


@dataclass(slots=True)
class Verdict:
    stored: int = 0
    unanswered: int = 0  # put, and killed before the answer: they may arrive or not
    unanswered_came: int = 0
    came: int = 0
    came_again: int = 0
    lost: list[Item] = field(default_factory=list)
    repeated: list[Item] = field(default_factory=list)  # came although confirmed
    unordered: list[Note] = field(default_factory=list)
    skipped_max: int = 0  # of a life: items that a later life is the first to see, after items behind them


class Ordeal:
    """A daemon that is killed again and again, and the clients that put up with it."""

    def __init__(self, daemon: Daemon, seed: int) -> None:
        self.daemon = daemon
        self.seed = seed
        self.life = 0
        self.up = threading.Lock()  # held by whoever connects, so that each connection knows its life
        self.over = threading.Event()
        self.news = threading.Condition()
        self.notes: list[Note] = []
        self.sent = [0] * WRITERS
        self.stored = self.closed = 0
        self.dies_at_stored = 0  # killed by the client that reads this STORED, before it does anything else
        self.segments_max = self.behind_max = 0

    def note(self, what: What, life: int, client: str, item: Item) -> None:
        with self.news:
            self.notes.append(Note(what, life, client, item))
            self.closed += what is What.CLOSED
            if what is What.STORED:
                self.stored += 1
                if self.stored == self.dies_at_stored:
                    self.daemon.signal(signal.SIGKILL)
                self.news.notify()

    @contextmanager
    def connection(self) -> Iterator[tuple[QueueClient, int]]:
        """A client, until the daemon is killed, and the life it is connected to."""
        while True:
            with self.up, suppress(ConnectionError):
                client, life = QueueClient(self.daemon.port), self.life
                break
            if self.over.wait(0.002):  # it is dead, and not yet started again
                raise HungUp("dead when nobody had killed it:\n" + "\n".join(self.daemon.log))
        with client, suppress(ConnectionError, HungUp):
            yield client, life

    # Clients

    def write(self, writer: int) -> None:
        rng = random.Random(f"{self.seed}, writer {writer}")
        while not self.over.is_set():
            with self.connection() as (client, life):
                while not self.over.is_set():
                    if self.stored - self.closed > BACKLOGS[life % 2]:
                        self.over.wait(0.002)
                        continue
                    first = self.sent[writer]
                    self.sent[writer] += rng.randrange(1, 9)
                    items = [Item(writer, number) for number in range(first, self.sent[writer])]
                    client.send(b"".join([b"set q 0 0 %d\r\n%b\r\n" % (len(item.data), item.data) for item in items]))
                    for item in items:
                        client.expect(b"STORED\r\n")
                        self.note(What.STORED, life, f"writer {writer}", item)

    def read(self, reader: int) -> None:
        rng = random.Random(f"{self.seed}, reader {reader}")
        name = f"reader {reader}"
        while not self.over.is_set():
            with self.connection() as (client, life):
                item: Item | None = None
                while not self.over.is_set():
                    fate = rng.random()
                    if item is not None and fate < 0.1:
                        self.give_back(client, life, name, item)
                        item = None
                    elif item is not None and fate < 0.3:
                        self.note(What.CLOSING, life, name, item)
                        client.do(b"get q/close", b"END\r\n")
                        self.note(What.CLOSED, life, name, item)
                        item = None
                    else:
                        item = self.next_item(client, life, name, item)
                if item is not None:
                    self.give_back(client, life, name, item)

    def give_back(self, client: QueueClient, life: int, name: str, item: Item) -> None:
        self.note(What.GIVEN_BACK, life, name, item)
        client.do(b"get q/abort", b"END\r\n")

    def next_item(self, client: QueueClient, life: int, name: str, item: Item | None) -> Item | None:
        """Confirm `item`, if there is one, and open the next."""
        if item is not None:
            self.note(What.CLOSING, life, name, item)
        data = client.get("q/close/open/t=10")
        if item is not None:
            self.note(What.CLOSED, life, name, item)
        if data is None:
            return None
        writer, number = map(int, data.split(b"\r\n")[0].split())
        came = Item(writer, number)
        assert data == came.data
        assert number < self.sent[writer]
        self.note(What.CAME, life, name, came)
        return came

    # The daemon

    def start(self) -> None:
        self.life += 1
        self.daemon.settings = list(LIVES[self.life % len(LIVES)])
        self.daemon.start()

    def kill(self) -> None:
        with self.up:
            self.daemon.signal(signal.SIGKILL)
            assert self.daemon.wait() == -signal.SIGKILL, "ended by itself"
            self.start()

    def look(self) -> None:
        with self.connection() as (client, _):
            figures = client.queue_stats("q")
            self.segments_max = max(self.segments_max, int(figures["segments"]))
            self.behind_max = max(self.behind_max, int(figures["items"]) - int(figures["mem_items"]))

    def wait_for_stored(self, count: int, clients: list[Future[None]]) -> None:
        with self.news:
            in_time = self.news.wait_for(
                lambda: self.stored >= count or any(client.done() for client in clients), PATIENCE_S
            )
        assert in_time, f"{self.stored} stored, waited for {count}:\n" + "\n".join(self.daemon.log)

    def run(self, kills: int) -> None:
        """All clients at work while the daemon is killed so often; then the rest is read."""
        rng = random.Random(self.seed)
        self.start()
        with ThreadPoolExecutor(WRITERS + READERS) as pool:
            clients = [pool.submit(self.write, writer) for writer in range(WRITERS)]
            clients += [pool.submit(self.read, reader) for reader in range(READERS)]
            try:
                for number in range(kills):
                    self.wait_for_stored(self.stored + rng.randrange(200, 1000), clients)
                    self.look()
                    if number % 2:
                        time.sleep(rng.uniform(0, 0.03))  # anywhere between two answers
                    else:
                        self.dies_at_stored = self.stored + rng.randrange(20, 60)
                        self.wait_for_stored(self.dies_at_stored, clients)
                    self.kill()
                self.wait_for_stored(self.stored + 200, clients)
            finally:
                self.over.set()
        for client in clients:
            client.result()
        with self.connection() as (last, life):
            item = self.next_item(last, life, "the last reader", None)
            while item is not None:
                item = self.next_item(last, life, "the last reader", item)

    # The verdict

    def verdict(self) -> Verdict:
        verdict = Verdict()
        moments: dict[Item, list[Note]] = defaultdict(list)
        for note in sorted(
            self.notes, key=lambda note: note.life
        ):  # what was seen late belongs to its life all the same
            moments[note.item].append(note)
        for item, notes in moments.items():
            whats = [note.what for note in notes if note.what is not What.STORED]
            came, is_stored = whats.count(What.CAME), len(whats) < len(notes)
            verdict.stored += is_stored
            verdict.unanswered_came += not is_stored
            verdict.came += came
            verdict.came_again += max(came - 1, 0)
            if What.CLOSED in whats[:-1]:
                verdict.repeated.append(item)
            if not whats or whats[-1] in (What.CAME, What.GIVEN_BACK):
                verdict.lost.append(item)
        verdict.unanswered = sum(self.sent) - verdict.stored
        verdict.unordered = self._unordered()
        verdict.skipped_max = self._skipped()
        return verdict

    def _unordered(self) -> list[Note]:
        """What came to a client after a later item of the same writer, unless somebody had given it back."""
        latest: dict[tuple[int, str, int], int] = defaultdict(lambda: -1)
        given_back: set[tuple[int, Item]] = set()
        unordered = []
        for note in self.notes:
            if note.what is What.GIVEN_BACK:
                given_back.add((note.life, note.item))
            elif note.what is What.CAME and (note.life, note.item) not in given_back:
                line = (note.life, note.client, note.item.writer)
                if note.item.number <= latest[line]:
                    unordered.append(note)
                latest[line] = note.item.number
        return unordered

    def _skipped(self) -> int:
        """The most items open at the end of a life: they came after it only, though later ones came before."""
        first: dict[Item, int] = {}  # the life in which it first came
        for note in self.notes:
            if note.what is What.CAME:
                first[note.item] = min(first.get(note.item, note.life), note.life)
        latest = [[-1] * (self.life + 1) for _ in range(WRITERS)]  # number that had come by the end of each life
        for item, life in first.items():
            latest[item.writer][life] = max(latest[item.writer][life], item.number)
        for numbers in latest:
            numbers[:] = accumulate(numbers, max)
        skipped = [0] * (self.life + 1)
        for item, came in first.items():
            for life in range(came - 1, 0, -1):
                if latest[item.writer][life] < item.number:
                    break
                skipped[life] += 1
        return max(skipped)


LONG: Final = [
    pytest.param(min(KILLS - before, 100), before, marks=[pytest.mark.long, pytest.mark.timeout(900)])
    for before in range(0, KILLS, 100)
]


@pytest.mark.parametrize(("kills", "before"), [(3, 0), *LONG])
def test_what_is_acknowledged_arrives_and_what_is_confirmed_is_gone_however_often_it_is_killed(
    tmp_path: Path, kills: int, before: int
) -> None:
    ordeal = Ordeal(Daemon(tmp_path), seed=before + kills)
    try:
        ordeal.run(kills)
        verdict = ordeal.verdict()
        print(
            f"\n{kills} kills: {verdict.stored} items stored and {verdict.unanswered} put without an answer,"
            f" {verdict.unanswered_came} of which are there; {verdict.came} deliveries, {verdict.came_again} of them"
            f" of an item that had been out before; lost {len(verdict.lost)}, confirmed and delivered again"
            f" {len(verdict.repeated)}, out of order {len(verdict.unordered)}; up to {ordeal.segments_max} segments,"
            f" {ordeal.behind_max} items behind memory"
        )
        assert (verdict.lost, verdict.repeated, verdict.unordered) == ([], [], [])
        assert verdict.skipped_max <= READERS, "no more than the readers held open"
        assert ordeal.segments_max > 2
        assert ordeal.behind_max > 100
        ordeal.kill()
        with QueueClient(ordeal.daemon.port) as client:
            assert client.items("q") == 0
            assert client.get("q") is None
        assert ordeal.daemon.stop() == 0
    finally:
        if ordeal.daemon.process is not None:
            ordeal.daemon.kill()
    checked = Kestrelctl("", tmp_path)("journal-verify", "-q", str(ordeal.daemon.spool))
    assert (checked.code, checked.out, checked.err) == (0, b"", "")
