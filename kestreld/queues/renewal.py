"""A queue whose turn was cut short, by what a signal handler raised say, is made again what its journal says.

As after a crash, but that the open reads which somebody holds stay open. A queue without a journal is counted anew.
All of it may be cut short itself, and is done from the start then.
"""

from collections.abc import Callable, Collection

from kestreld.errors import JournalCorrupt
from kestreld.files import must_be_the_systems
from kestreld.journal.journal import Journal
from kestreld.journal.records import Checkpoint, Kind, item_id
from kestreld.journal.recovery import reread
from kestreld.queues.collection import QueueCollection
from kestreld.queues.queue import Queue, as_queues
from kestreld.queues.ranges import waiting_in
from kestreld.queues.reader import Reader

Held = Callable[[Reader], Collection[int]]  # the open reads that somebody holds
IsWaiting = Callable[[Reader, int], bool]  # whether an item is neither done nor open


def cut_short(collection: QueueCollection, queue: Queue | None) -> list[Queue]:
    """The queues that a turn of `queue`, or one of all, may have left half done."""
    if queue is None:
        return list(collection.families.values())
    commit = collection.commit
    dirty = [one for one in collection.families.values() if one.dirty and one.sync.syncing_commit is None]
    return list(dict.fromkeys([queue, *as_queues([*commit.dirty, *commit.moving, *commit.rolling]), *dirty]))


def renew(collection: QueueCollection, queue: Queue, held: Held) -> IsWaiting:
    """Make a queue what its journal says."""
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
    """Have the readers that the journal knows, by the names it knows them by."""
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
    for reader in queue.readers.values():
        reader.forget_done(waiting[reader.number])
        reader.start_over()
    collection.restore(queue, state)
    queue.configure(collection.config.for_queue(queue.name))
    for reader in queue.readers.values():
        reader.configure(collection.config.for_queue(reader.name))
    if queue.sync_ms:  # when it was due is not known
        collection.commit.sync_within(queue)
