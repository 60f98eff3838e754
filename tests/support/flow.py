"""A queue that flows past an item somebody holds open, and books of what was acknowledged."""

from itertools import count
from pathlib import Path
from typing import Final

from kestreld.journal.records import Type, item_id, whole_records
from kestreld.journal.segment import decode_header
from tests.support.engine import Engine

WORK, SLOW = "work", "work+slow"
SEGMENT_BYTES: Final = 400
OVERFLOW: Final = 4
# A journal begins to be compacted at some 800 bytes.
SETTINGS: Final[dict[str, object]] = {"max_journal_size_bytes": SEGMENT_BYTES, "max_journal_overflow": OVERFLOW}
ON_DISK: Final[dict[str, object]] = {**SETTINGS, "max_memory_size_bytes": 60}
TURN_BYTES: Final = 3 * (45 + 20) + 200  # what a turn of Flow writes at most
MOST_BYTES: Final = SEGMENT_BYTES * OVERFLOW + SEGMENT_BYTES + TURN_BYTES


class Flow:
    """Items that pass through `work` three a turn, past one that is held open.

    `before` and `after` are what each queue holds before and after the turn under way, by all that was acknowledged.
    With a slow child, that holds the first item open and keeps the latest three.
    """

    def __init__(self, engine: Engine, *, child: bool = False, backlog: int = 0) -> None:
        self.engine = engine
        self.child = child
        self.backlog = backlog  # items that always wait
        self.numbers = count(1)
        self.before: dict[str, list[bytes]] = {WORK: []} | ({SLOW: []} if child else {})
        self.after = self.before
        self.new: list[bytes] = []
        self.held: dict[str, int] = {}

    def begin(self) -> None:
        """The first item, held open on the child if there is one, else by a client of the queue itself."""
        engine = self.engine
        if self.child:
            engine.configure({SLOW: {"max_items": 3, "discard_old_when_full": True}}, **SETTINGS)
        for name in self.before:
            engine.reader(name)
        self.new = [b"00000", *[b"00000-%d" % number for number in range(self.backlog)]]
        self.after = {name: list(self.new) for name in self.before}
        engine.put(WORK, *self.new)
        self._end_turn()
        name = SLOW if self.child else WORK
        opened = engine.reader(name).open_read(engine.clock.wall_ms)
        assert opened is not None
        self.held[name] = opened[0]

    def turns(self, turns: int, *, slices: int = 3) -> None:
        for _ in range(turns):
            new = self.new = [b"%05d" % next(self.numbers) + b"." * 15 for _ in range(3)]
            waiting = self.before[WORK][1:] if WORK in self.held else self.before[WORK]
            self.after = {WORK: [*self.before[WORK], *new]}
            if self.child:
                first = self.before[SLOW][:1] if SLOW in self.held else []
                kept = ([*self.before[SLOW], *new][len(first) :])[-3:]
                self.after[SLOW] = first + kept
            assert all(self.engine.put(WORK, *new))
            for data in [*waiting, *new][:3]:
                assert self.engine.take(WORK) == data
                self.after[WORK].remove(data)
            self._end_turn()
            self.engine.work(slices)

    def _end_turn(self) -> None:
        assert not self.engine.end_turn()
        self.before = self.after

    def found_in(self, engine: Engine) -> None:
        """After a crash: what was acknowledged is there, once and in order; of the last turn anything may be true."""
        for name in self.before:
            got = engine.drain(name)
            before, after = self.before.get(name, []), self.after.get(name, [])
            assert got == sorted(set(got)), "once, in order"
            assert set(before) & set(after) - set(got) == set()
            assert set(got) - set(before) - set(after) - set(self.new) == set()


def used_bytes(engine: Engine) -> int:
    """What the journal of `work` takes on the disk, unfinished files included."""
    return sum(path.stat().st_size for path in (engine.spool / "work.journal").iterdir())


def put_ids(*folders: Path) -> list[int]:
    """Ids of the PUTs in the segments of these folders, in order, each once."""
    found: set[int] = set()
    for folder in folders:
        for path in folder.glob("*.seg"):
            content = path.read_bytes()
            header, start = decode_header(content, str(path))
            if not header.replaced:
                records = whole_records(content, start, str(path))
                found |= {item_id(content[at:end]) for kind, at, end in records if kind == Type.PUT}
    return sorted(found)
