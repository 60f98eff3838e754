"""Rebuilding a queue from its journal after an interrupted turn, as when a signal handler raises.

The result is that of a crash and a restart, except that open reads in use and waiters are kept. A queue without a
journal is counted anew. The rebuild may be interrupted itself, and then starts again from the beginning.
"""

from collections.abc import Callable, Collection

from kestreld.errors import JournalCorrupt
from kestreld.files import must_be_the_systems
from kestreld.journal.journal import Journal
from kestreld.journal.records import Checkpoint, Kind, item_id
from kestreld.journal.recovery import reread
from kestreld.queues.collection import QueueCollection
from kestreld.queues.id_ranges import waiting_in
from kestreld.queues.queue import Queue, as_queues
from kestreld.queues.reader import Reader

Held = Callable[[Reader], Collection[int]]  # the open reads that are in use
IsWaiting = Callable[[Reader, int], bool]  # True if an item is neither done nor open


def cut_short(collection: QueueCollection, queue: Queue | None) -> list[Queue]:
    """Queues that an interrupted turn of `queue`, or of all queues (None), may have left half done."""
    if queue is None:
        return list(collection.families.values())
    commit = collection.commit
    dirty = [one for one in collection.families.values() if one.dirty and one.sync.syncing_commit is None]
    return list(dict.fromkeys([queue, *as_queues([*commit.dirty, *commit.moving, *commit.rolling]), *dirty]))


def renew(collection: QueueCollection, queue: Queue, held: Held) -> IsWaiting:
    """Rebuild a queue from its journal; returns a function that is True for items neither done nor open."""
    if queue.in_memory or queue.stopped is not None:
        queue.forget_turn(held)
        collection.commit.forget_turn(queue)
        return _waits_in_window
    journal = queue.journal
    is_there = journal is not None and collection.files.is_dir(journal.folder)
    try:
        state = reread(collection.files, journal) if journal is not None and is_there else None
    except (JournalCorrupt, OSError) as problem:
        queue.forget_turn(held)
        collection.commit.forget_turn(queue)
        queue.stop(_as_damage(problem, queue))
        return _waits_in_window
    queue.forget_turn(held)
    collection.commit.forget_turn(queue)
    known = [] if state is None else [one for one in state.readers if one.kind == Kind.QUEUE]
    waiting = {one.number: waiting_in(one) for one in known}
    _settle_readers(collection, queue, {one.number: one.name for one in known})
    if state is None:
        collection.forget_family(queue)
    else:
        _restore(collection, queue, state, waiting)
    return lambda reader, item: reader.number in waiting and waiting[reader.number](item)


def _as_damage(problem: JournalCorrupt | OSError, queue: Queue) -> JournalCorrupt:
    if isinstance(problem, JournalCorrupt):
        return problem
    must_be_the_systems(problem)
    journal: Journal | None = queue.journal
    return JournalCorrupt(journal.folder if journal is not None else queue.name, 0, f"cannot be read: {problem}")


def _waits_in_window(reader: Reader, item: int) -> bool:
    return any(item_id(record) == item for record in reader.window)


def _settle_readers(collection: QueueCollection, queue: Queue, labels: dict[int, str]) -> None:
    """Keep the readers that the journal knows, under the names that it knows."""
    for name in [name for name, reader in collection.readers.items() if reader.queue is queue]:
        del collection.readers[name]
    for reader in list(queue.readers.values()):
        label = labels.get(reader.number)
        if label is None:
            queue.forget_reader(reader)
        elif label != reader.label:
            queue.rename_reader(reader, label)


def _restore(
    collection: QueueCollection, queue: Queue, state: Checkpoint, waiting: dict[int, Callable[[int], bool]]
) -> None:
    held = {one.number: one.due for one in state.readers}
    for reader in queue.readers.values():
        is_waiting, due = waiting[reader.number], held[reader.number]
        reader.forget_done({one for one in reader.open if one in due or is_waiting(one)}.__contains__)
        reader.start_over()
    collection.restore(queue, state)
    queue.configure(collection.config_for(queue.name))
    for reader in queue.readers.values():
        reader.configure(collection.config_for(reader.name))
    if queue.sync_ms:  # its due time is not known
        collection.commit.sync_within(queue)
