"""Readers that come and go on a family that always has one, as a JournaledQueue's do.

The default reader, which has no name, is there until the first named reader takes over its position, and with it all
that was put before. When the last one goes, there is a default reader again, at the journal's end.
"""

from kestreld.config.queue_names import queue_name_problem
from kestreld.errors import BadQueueName, JournalFailed, ReaderUnknown
from kestreld.files import must_be_the_systems
from kestreld.queues.collection import QueueCollection
from kestreld.queues.maintenance import Maintenance
from kestreld.queues.queue import Queue
from kestreld.queues.reader import Reader
from kestreld.queues.trash_note import DELETE


class ReaderLifecycle:
    """Adds and drops readers of the families of a collection."""

    def __init__(self, collection: QueueCollection, maintenance: Maintenance) -> None:
        self._collection = collection
        self._maintenance = maintenance

    def family(self, name: str) -> Queue:
        """The family of that name, created with its default reader if there is none.

        Raises BadQueueName, TooManyQueues, JournalCorrupt or JournalFailed.
        """
        if "+" in name:
            raise BadQueueName(f"{name!r} names a reader; the queue is {name.partition('+')[0]!r}")
        found = self._collection.family(name)
        return found if found is not None else self._collection.reader(name).queue

    def reader(self, queue: Queue, label: str) -> Reader:
        """The reader of that name, created if there is none. The queue must be idle.

        Raises BadQueueName, ReaderUnknown, TooManyQueues, JournalCorrupt, or JournalFailed with the readers unchanged.
        """
        found = queue.readers.get(label)
        if found is not None:
            return found
        if not label:
            names = ", ".join(sorted(queue.readers))
            raise ReaderUnknown(f"{queue.name} no longer has a default reader; its readers are {names}")
        name = f"{queue.name}+{label}"
        if (problem := queue_name_problem(name)) is not None:
            raise BadQueueName(f"{problem}: {label!r}")
        if queue.stopped is not None:
            raise queue.stopped
        if list(queue.readers) == [""]:
            return self._take_over(queue, queue.readers[""], label)
        return self._collection.reader(name)

    def _take_over(self, queue: Queue, reader: Reader, label: str) -> Reader:
        """Give the default reader a name. One CHECKPOINT says so: after a crash that is done or was never asked for."""
        queue.rename_reader(reader, label)
        try:
            if queue.journal is not None:
                self._maintenance.begin_segment(queue, queue.journal)
                queue.mark_dirty()  # a queue that is synced before every reply puts it on disk first
        except (JournalFailed, OSError) as problem:
            queue.rename_reader(reader, "")
            queue.review_next_put()
            if isinstance(problem, OSError):
                must_be_the_systems(problem)
                raise JournalFailed(queue.name, f"cannot create a segment: {problem.strerror}") from problem
            raise
        self._collection.readers[reader.name] = self._collection.readers.pop(queue.name)
        reader.configure(self._collection.config.for_queue(reader.name))
        queue.review_next_put()
        return reader

    def drop(self, queue: Queue, label: str) -> bool:
        """Drop a reader and all it has yet to read. False if there is none of that name. Raises JournalFailed."""
        reader = queue.readers.get(label)
        if reader is None:
            return False
        if len(queue.readers) > 1:
            return self._collection.delete(reader.name)
        # In one commit. If a crash tears it, no reader is left and so no queue: it is created again.
        collection = self._collection
        collection.trash.keep(reader, DELETE)
        del collection.readers[reader.name]
        queue.drop_reader(label)
        collection.deleted += 1
        collection.past += reader.totals()
        collection.reader(queue.name)
        return True

    def erase(self, queue: Queue) -> None:
        """Drop every reader, and the journal with the last one. Raises JournalFailed."""
        for reader in list(queue.readers.values()):
            self._collection.delete(reader.name)
