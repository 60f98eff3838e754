"""Figures of every queue as rows of numbers, made in slices, and the rows changed since an earlier look.

A queue at rest is recognised by a few counters: its row is not made again.
"""

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Final

from kestreld.figures import HELD, KESTREL, OF_QUEUES, OURS, TROUBLE, compiled, in_json
from kestreld.queues.collection import QueueCollection
from kestreld.queues.figures import OF_READER, Sees, Sums, reading
from kestreld.queues.reader import Reader
from kestreld.stats import Totals

COLUMNS: Final = ("queue", *in_json(OF_QUEUES))
AT: Final = {column: place for place, column in enumerate(COLUMNS)}
STEP_QUEUES: Final = 32
STEP_ROWS: Final = 500
GONE_MAX: Final = 10_000
# Of a queue whose journal could not be read.
_NOTHING: Final = tuple([int(column == "stopped") for column in COLUMNS[1:]])

Row = tuple[str | int, ...]
Changes = tuple[list[Row], list[str], bool]
Signature = tuple[int | bool, ...]


def shown_name(name: str) -> str:
    """Convert a queue name for JSON: its bytes read as UTF-8, invalid ones as lone surrogates."""
    return name.encode("latin-1").decode("utf-8", "surrogateescape")


def name_of(shown: str) -> str:
    """Reverse `shown_name`."""
    return shown.encode("utf-8", "surrogateescape").decode("latin-1")


_read = reading(in_json((*KESTREL, *OURS, *TROUBLE)).values())
_read_held = reading(HELD)
_NOTHING_HELD: Final = (0,) * (len(HELD) - 1)  # but for the last, dead letters


def _row(name: str, reader: Reader) -> Row:
    if reader.held is None and reader.keys is None:
        return (shown_name(name), *_read(reader), *_NOTHING_HELD, reader.dead_letters)
    return (shown_name(name), *_read(reader), *_read_held(reader))


_read_live: Final = compiled(OF_READER, (one.read for one in (*KESTREL, *OURS, *TROUBLE) if not one.by_commit))


def _signature(reader: Reader) -> Signature:
    """Return values of which one changes whenever the row does: changes of other figures come with a commit."""
    queue, journal = reader.queue, reader.queue.journal
    return (
        journal.journal_id if journal is not None else 0,
        reader.number,
        queue.commits,
        *_read_live(reader, queue, journal, reader.held, reader.keys, 0, 0, 0),
        *_held_signature(reader),
    )


def _held_signature(reader: Reader) -> Signature:
    held, keys = reader.held, reader.keys
    if held is None:
        return (len(keys), keys.refused) if keys is not None else ()
    found = (len(held.later), len(held.failed), len(held.leases), held.due_at_ms, held.expired_leases)
    return *found, held.late_confirms, len(keys) if keys is not None else 0, keys.refused if keys is not None else 0


class RowBook:
    """Rows as of the last look, and for each the number of the look that found it changed."""

    def __init__(self, collection: QueueCollection) -> None:
        self._collection = collection
        self.look_number = 0
        self.rows: dict[str, Row] = {}
        self.changed_at: dict[str, int] = {}
        self.gone: dict[str, int] = {}  # names of queues that no longer exist -> the look that missed them
        self.forgot_at = 0  # queues gone before this look are not in `gone`
        self.sums = Sums()
        self._signatures: dict[str, Signature] = {}

    def look(self) -> Iterator[None]:
        """Bring the rows up to date; yields every few queues. One look at a time."""
        collection, number = self._collection, self.look_number + 1
        sums = Sums(queues_stopped=len(collection.broken))
        for place, queue in enumerate(list(collection.families.values())):
            queue.flush_counters()
            sums.count(queue)
            if place % STEP_QUEUES == 0:
                yield
        for place, reader in enumerate(list(collection.readers.values())):
            if place % STEP_QUEUES == 0:
                yield
            if reader.deleted:
                continue
            name = reader.name
            signature = _signature(reader)
            if self._signatures.get(name) != signature:
                while reader.seek_head():
                    yield
                reader.queue.flush_counters()
                self._note(name, signature, _row(name, reader), number)
        for name in list(collection.broken):
            if name not in collection.readers:
                row: Row = (shown_name(name), *_NOTHING)
                self._note(name, (), row, number)
        yield from self._miss(number)
        yield from self._add_up(sums)
        self.sums, self.look_number = sums, number

    def _note(self, name: str, signature: Signature, row: Row, number: int) -> None:
        self._signatures[name] = signature
        if self.rows.get(name) != row:
            self.rows[name] = row
            self.changed_at[name] = number
            self.gone.pop(name, None)

    def _miss(self, number: int) -> Iterator[None]:
        """Remove the rows of queues that no longer exist."""
        collection = self._collection
        for place, name in enumerate(list(self.rows)):
            if place % (STEP_QUEUES * 8) == 0:
                yield
            if name not in collection.readers and name not in collection.broken:
                del self.rows[name], self.changed_at[name], self._signatures[name]
                self.gone[name] = number
        if len(self.gone) > GONE_MAX:
            self.gone, self.forgot_at = {}, number

    def _add_up(self, sums: Sums) -> Iterator[None]:
        columns = [
            AT[name] for name in ("items", "bytes", "total_items", "expired_items", "taken_items", "transactions")
        ]
        totals, parents, at = [0] * len(columns), 0, AT["total_items"]
        rows = list(self.rows.values())
        for start in range(0, len(rows), STEP_ROWS):
            yield
            some = rows[start : start + STEP_ROWS]
            for place, column in enumerate(columns):
                totals[place] += sum(map(itemgetter(column), some))
            parents += sum([int(row[at]) for row in some if "+" not in str(row[0])])
        sums.items, sums.data_bytes = totals[0], totals[1]
        sums.totals = Totals(totals[2], parents, totals[4] + totals[5], totals[3]) + self._collection.past

    def seen_rows(self, sees: Sees | None) -> Iterator[list[Row] | None]:
        """Yield None at intervals, and last the rows of the queues that `sees` allows, None = all."""
        return self._chosen(lambda name: sees is None or sees(name))

    def changed_since(self, number: int, sees: Sees | None = None) -> Iterator[Changes | None]:
        """Yield None at intervals, and last the rows changed since look `number`, names gone, and a flag.

        The flag is True if these are all rows, because the changes are not known. No look may be in progress.
        """
        is_full = not 0 < number <= self.look_number or number < self.forgot_at
        changed_at = self.changed_at
        gone = [] if is_full else [name for name, missed in self.gone.items() if missed > number]
        gone = [shown_name(name) for name in gone if sees is None or sees(name)]
        for rows in self._chosen(lambda name: (is_full or changed_at[name] > number) and (sees is None or sees(name))):
            yield None if rows is None else (rows, gone, is_full)

    def _chosen(self, wanted: Callable[[str], bool]) -> Iterator[list[Row] | None]:
        names, chosen = list(self.rows), list[Row]()
        for start in range(0, len(names), STEP_ROWS):
            yield None
            chosen += [
                self.rows[name] for name in names[start : start + STEP_ROWS] if name in self.rows and wanted(name)
            ]
        yield chosen
