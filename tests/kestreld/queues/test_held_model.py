"""Delayed and leased items of a family through whatever can happen to it, against sets of what is not done."""

from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from kestreld.journal.records import Reason, item_id
from kestreld.queues.reader import Reader
from tests.support.engine import Engine, LateFiles, QuickFiles

NAMES = ("work", "work+a")
DELAYS_MS = (1, 5, 40, 1000)
GRACE_MS = 3000  # what a lease lasts at least after a start


@dataclass
class Known:
    """Of one reader: the items that are not done, and when each may be delivered."""

    undone: dict[int, bytes] = field(default_factory=dict)
    due_at_ms: dict[int, int] = field(default_factory=dict)

    def copy(self) -> "Known":
        return Known(dict(self.undone), dict(self.due_at_ms))


class Life:
    """A family, what is known of it now, and what was so at the last commit."""

    def __init__(self, folder: Path, seed: int, *, is_late: bool) -> None:
        self.random = random = Random(seed)
        self.files = LateFiles() if is_late else QuickFiles()
        self.engine = Engine(
            folder,
            self.files,
            max_journal_size_bytes=random.choice([1, 300, 2000, 1 << 24]),
            max_memory_size_bytes=random.choice([1, 100, 1 << 20]),
            sync_journal_ms=random.choice([None, None, 0, 20]),
            retry_delays_ms=random.choice([None, (3,), (2, 50)]),
            lease_grace_ms=GRACE_MS,
        )
        self.now = {name: Known() for name in NAMES}
        self.written = {name: Known() for name in NAMES}
        self.had: dict[str, dict[int, int]] = {name: {} for name in NAMES}  # id -> when its lease ends, or 0
        self.leases_written: dict[str, dict[int, int]] = {name: {} for name in NAMES}  # id -> end, at the last commit
        self.leases_since: dict[str, set[tuple[int, int]]] = {name: set() for name in NAMES}
        for name in NAMES:
            self.engine.reader(name)
        self.end_turn()

    @property
    def now_ms(self) -> int:
        return self.engine.clock.monotonic_ms

    def reader(self, name: str) -> Reader:
        return self.engine.reader(name)

    # What clients do

    def put(self) -> None:
        queue = self.engine.queue("work")
        data = b"%d" % queue.next_id * self.random.choice([1, 10])
        delay_ms = self.random.choice([0, 0, *DELAYS_MS])
        name = self.random.choice(["work", "work", "work+a"])
        only = self.reader(name) if name != "work" else None
        one = queue.next_id
        if delay_ms:
            commits = queue.commits
            assert queue.put_later(data, 0, 0, only, delay_ms)
            if queue.commits > commits:  # what the turn has done so far is written before the first of them
                self.note_written()
        else:
            assert queue.put_with(data, 0, 0, only)
        for of in NAMES if only is None else (name,):
            self.now[of].undone[one] = data
            if delay_ms:
                self.now[of].due_at_ms[one] = self.now_ms + delay_ms

    def fetch(self) -> None:
        name = self.random.choice(NAMES)
        reader, known = self.reader(name), self.now[name]
        how = self.random.randint(0, 2)
        if how == 0:
            record = reader.take(self.engine.clock.wall_ms)
        elif how == 1:
            opened = reader.open_read(self.engine.clock.wall_ms)
            record = opened[1] if opened is not None else None
        else:
            record = reader.lease(self.engine.clock.wall_ms, self.random.choice([2, 30]), "somebody")
        due = [one for one in known.undone if one not in self.had[name] and known.due_at_ms.get(one, 0) <= self.now_ms]
        if record is None:
            assert due == [], f"{name}: {due} could have been had"
            return
        one = item_id(record)
        assert one in due, f"{name}: {one} of {due}, due at {known.due_at_ms.get(one)} and not {self.now_ms}"
        assert record.endswith(known.undone[one])
        if how == 0:
            del known.undone[one]
        else:
            lease = reader.held.leases.get(one) if reader.held is not None else None
            self.had[name][one] = 0
            if how == 2 and lease is not None:
                self.is_leased(name, one, lease.ends_at_ms)

    def is_leased(self, name: str, one: int, ends_at_ms: int) -> None:
        self.had[name][one] = ends_at_ms
        self.leases_since[name].add((one, ends_at_ms))

    def end_read(self) -> None:
        name = self.random.choice(NAMES)
        reader, known, had = self.reader(name), self.now[name], self.had[name]
        if not had:
            return
        one = self.random.choice(list(had))
        is_lease = had[one] > 0
        match self.random.randint(0, 3):
            case 0 | 1:
                reader.close(one)
                del known.undone[one]
            case 2 if is_lease:
                delay_ms = self.random.choice([0, 10])
                reader.give_back(one, self.engine.clock.wall_ms, delay_ms)
                known.due_at_ms[one] = self.now_ms + delay_ms
            case 3 if is_lease:
                reader.fail(one, self.engine.clock.wall_ms)
                self.has_failed(name, one)
            case _ if not is_lease:
                reader.abort(one, self.engine.clock.wall_ms)
                self.has_failed(name, one)
            case _:
                reader.extend_lease(one, 50)
                self.is_leased(name, one, self.now_ms + 50)
                return
        del had[one]

    def has_failed(self, name: str, one: int) -> None:
        reader = self.reader(name)
        if delays_ms := reader.config.retry_delays_ms:
            times = reader.retries[one]
            self.now[name].due_at_ms[one] = self.now_ms + delays_ms[min(times, len(delays_ms)) - 1]
        else:
            self.now[name].due_at_ms.pop(one, None)

    def withdraw(self) -> None:
        name = self.random.choice(NAMES)
        held = self.reader(name).held
        if held is not None and held.later:
            one = self.random.choice(list(held.later))
            if self.random.random() < 0.5:
                self.reader(name).withdraw(one, Reason.DISCARDED)
                del self.now[name].undone[one]
            else:
                self.reader(name).run_now(one, self.engine.clock.wall_ms)
                self.now[name].due_at_ms.pop(one)

    def flush(self) -> None:
        if self.random.random() < 0.1:
            name = self.random.choice(NAMES)
            known, had = self.now[name], self.had[name]
            dropped = [one for one in known.undone if one not in had]
            assert self.engine.collection.flush(name) == len(dropped)
            for one in dropped:
                del known.undone[one]

    # What else happens

    def pass_time(self) -> None:
        self.engine.clock.advance(self.random.choice([1, 1, 3, 20, 200]))
        self.engine.collection.agenda.fall_due(self.now_ms)
        for name in NAMES:
            for one in [one for one, ends_at_ms in self.had[name].items() if 0 < ends_at_ms <= self.now_ms]:
                del self.had[name][one]
                self.has_failed(name, one)

    def end_turn(self) -> None:
        queue = self.engine.queue("work")
        commits = queue.commits
        assert not self.engine.end_turn()
        if queue.commits > commits or not queue.dirty:
            self.note_written()
        self.engine.work(self.random.randint(1, 3))
        if isinstance(self.files, LateFiles) and self.random.random() < 0.7:
            self.files.finish_background()
        self.count()

    def note_written(self) -> None:
        """All is written, but for due times that wait for a segment which can hold them."""
        self.written = {name: known.copy() for name, known in self.now.items()}
        for note in self.engine.queue("work").notes.due:
            for reader in note.readers:
                self.written[reader.name].due_at_ms.pop(note.item_id, None)
        for name, had in self.had.items():
            held = self.reader(name).held
            waiting = held.unwritten_leases if held is not None else ()
            self.leases_written[name] = {one: ends for one, ends in had.items() if ends and one not in waiting}
            self.leases_since[name] = {(one, had[one]) for one in waiting if had.get(one)}

    def count(self) -> None:
        assert self.engine.log == []
        queue = self.engine.queue("work")
        queue.flush_counters()
        for name, known in self.now.items():
            reader, had = self.reader(name), self.had[name]
            held = reader.held
            assert set(reader.open) == set(had)
            later = len(held.later) if held is not None else 0
            assert reader.items + later + len(had) == len(known.undone), name
            assert reader.head() <= min(known.undone, default=queue.next_id)
            held_bytes = held.data_bytes - held.ready_bytes if held is not None else 0
            assert reader.data_bytes + held_bytes + reader.open_bytes == sum(map(len, known.undone.values()))

    def start_again(self, *, is_clean: bool) -> None:
        if is_clean:
            self.engine.restart()
            self.had = {
                name: {one: max(ends, self.now_ms + GRACE_MS) for one, ends in had.items() if ends}
                for name, had in self.had.items()
            }
        else:
            self.engine.abandon()
            self.engine.clock.advance(self.random.choice([0, 0, 20]))  # some leases end meanwhile
            self.engine.start()
            self.had = {name: self.leases_after_kill(name) for name in NAMES}
            self.now = {name: known.copy() for name, known in self.written.items()}
        for known in self.now.values():
            known.due_at_ms = {one: at_ms for one, at_ms in known.due_at_ms.items() if one in known.undone}
        self.note_written()
        self.count()

    def leases_after_kill(self, name: str) -> dict[int, int]:
        """Those go on of which no end was written; so may others that have been granted since the last commit."""
        held = self.reader(name).held
        found = {one: lease.ends_at_ms for one, lease in held.leases.items()} if held is not None else {}
        written = set(self.leases_written[name].items())
        assert {one for one, _ in written} <= found.keys()
        may_be = {(one, max(ends, self.now_ms + GRACE_MS)) for one, ends in written | self.leases_since[name]}
        assert found.items() <= may_be
        return found

    def drain(self) -> None:
        """In the end everything that is not done is there, once, and nothing else."""
        self.engine.clock.advance(10_000)
        self.engine.collection.agenda.fall_due(self.now_ms)
        for name, known in self.now.items():
            reader = self.reader(name)
            for one in list(self.had[name]):
                reader.give_back(one, self.engine.clock.wall_ms)
            self.engine.clock.advance(10_000)
            self.engine.collection.agenda.fall_due(self.now_ms)
            left = {}
            while (record := reader.take(self.engine.clock.wall_ms)) is not None:
                assert item_id(record) not in left
                left[item_id(record)] = record
            assert set(left) == set(known.undone), name

    def step(self) -> None:
        actions = [self.put] * 4 + [self.fetch] * 5 + [self.end_read] * 4 + [self.withdraw, self.flush]
        actions += [self.pass_time] * 3 + [self.end_turn] * 4
        self.random.choice(actions)()
        if self.random.random() < 0.02:
            self.start_again(is_clean=self.random.random() < 0.5)


def live(folder: Path, seed: int, steps: int) -> None:
    life = Life(folder, seed, is_late=seed % 3 == 0)
    for _ in range(steps):
        life.step()
    life.end_turn()
    life.drain()


@pytest.mark.parametrize("seed", range(24))
def test_every_item_comes_once_and_none_before_its_time(tmp_path: Path, seed: int) -> None:
    live(tmp_path / "spool", seed, 300)


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 1100, 100))
def test_every_item_comes_once_and_none_before_its_time_in_long_lives(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + 100):
        live(tmp_path / f"{seed}", seed, 600)
