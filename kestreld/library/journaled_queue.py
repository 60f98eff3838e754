"""JournaledQueue: a durable queue in which each reader gets every item, as libkestrel's."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

from kestreld import checks
from kestreld.config.config import QueueConfig
from kestreld.errors import ReaderUnknown
from kestreld.library import spool as spools
from kestreld.library.arguments import NO_DELAY, checked_config, checked_name
from kestreld.library.forked import refuse_in_child
from kestreld.library.futures import CommitFuture
from kestreld.library.journal_reader import ErrorHandler, ExpiredHandler, JournalReader
from kestreld.library.journaled_blocking_queue import JournaledBlockingQueue, TransactionalJournaledBlockingQueue
from kestreld.library.lifecycle import unwatch, watch
from kestreld.library.managed import Closing
from kestreld.library.persistent_queue import log
from kestreld.library.spool import put_timed
from kestreld.queues.reader import Reader

T = TypeVar("T")


class JournaledQueue(Closing):
    """A queue of a spool, open from the start. Items are put once and read by each of its readers, on one journal.

    There is always a reader: the default one, without a name, until another is created, which takes over its position.
    Later readers start at the tail. Any number of threads and event loops may use the queue at once. Every operation
    may raise JournalFailed if the journal cannot be written, and JournalCorrupt if it is damaged.
    """

    def __init__(
        self, path: str, name: str, config: QueueConfig | None = None, *, archive_path: str | None = None
    ) -> None:
        """`archive_path` is the folder for dead segments of the spool; None = they are deleted.

        Raises SpoolLocked with the pid of the process that has the spool, SpoolUnusable or BadQueueName.
        """
        self.name = checked_name(name)
        own, archive_path = checked_config(config), checks.path_or_none(archive_path, "archive_path")
        path = checks.path(path, "spool path")
        self._readers: dict[Reader, JournalReader] = {}
        self._closed = False
        self._path = path
        self._user = object()  # stands for this object, which may become garbage
        self._spool, self._queue = spools.use(
            self._user,
            path,
            name,
            own,
            log.warning,
            lambda spool: spool.adopt_family(name, own, archive_path),
            archive_path,
        )
        self._watch = watch(self, f"JournaledQueue {name!r} in {path!r}")
        refuse_in_child(self)

    # Items

    def put(self, data: bytes, expiry: int = 0, *, delay: float = NO_DELAY, key: str | bytes | None = None) -> bool:
        """Add an item for every reader. It expires at `expiry` (ms since the epoch; 0 = never).

        False if it is too large, a reader is full and does not discard, or the queue is closed. The item is not
        delivered before `delay` seconds from now. With a key it is added only once, however often it is put: if there
        was an item with that key within `key_time_ms`, the result is True and nothing is added.
        """
        if delay is not NO_DELAY or key is not None:
            return not self._closed and put_timed(self._spool, self._first(), data, expiry, None, delay, key)
        return not self._closed and self._spool.put(self._queue, data, expiry, None)

    def put_nowait(
        self, data: bytes, expiry: int = 0, *, delay: float = NO_DELAY, key: str | bytes | None = None
    ) -> None:
        """Add an item as `put` does; raises queue.Full if it is refused, or QueueClosed."""
        self._must_be_stored(self.put(data, expiry, delay=delay, key=key))

    def cancel(self, key: str | bytes) -> bool:
        """Drop the item that was put with a key, if it is not due yet; the key is free again. False if there is none.

        Keys are known to the oldest reader, and forgotten with it.
        """
        known = checks.key(key, "key")
        return not self._closed and self._spool.cancel(self._first(), known)

    def _first(self) -> Reader:
        """Return the reader that knows the keys."""
        with self._spool.lock, self._spool.turn(self._queue):
            return self._queue.first_reader()

    def put_all(self, values: Iterable[bytes], expiry: int = 0) -> int:
        """Put items in one write, up to the first that is refused. Return how many were added."""
        return 0 if self._closed else self._spool.put_all(self._queue, values, expiry, None)

    def discard_expired(self) -> int:
        """Drop the expired items at every reader's head. Return how many."""
        return sum(self.reader(name).discard_expired() for name in self.readers)

    # Readers

    @property
    def readers(self) -> tuple[str, ...]:
        """Names of the readers; "" is the default one."""
        with self._spool.lock, self._spool.turn(self._queue):
            return tuple(self._queue.readers)

    def reader(
        self,
        name: str = "",
        config: QueueConfig | None = None,
        *,
        error_handler: ErrorHandler | None = None,
        on_expired: ExpiredHandler | None = None,
    ) -> JournalReader:
        """Return the reader of that name, created if there is none. None leaves a setting of an existing one as it is.

        `config` sets limits and expiry of the reader, over those of the queue. `error_handler` is called for each item
        that is given back, `on_expired` for each that expires: see JournalReader. Raises BadQueueName, or ReaderUnknown
        for the default reader if there are others, and for a closed queue.
        """
        checks.text(name, "reader name", may_be_empty=True)
        if config is not None:
            checks.instance(config, QueueConfig, "config")
        for handler, what in ((error_handler, "error_handler"), (on_expired, "on_expired")):
            if handler is not None:
                checks.function(handler, what)
        while True:
            with self._spool.lock, self._spool.turn(self._queue):
                if self._closed:
                    raise ReaderUnknown(f"{self.name} is closed")
                self._spool.end_turn(self._queue)
                if name in self._queue.readers or self._queue.is_idle:
                    found, hold = self._reader(name, config)
                    break
                landing = CommitFuture(self._queue.pending_commit)
            landing.exception()  # its failure is raised in the threads that made the commit
        if hold is not None:
            hold.result()
        found.handle(error_handler, on_expired)
        return found

    def _reader(self, name: str, config: QueueConfig | None) -> tuple[JournalReader, CommitFuture | None]:
        if config is not None and name:
            self._spool.configure(f"{self.name}+{name}", config)
        elif config is not None:
            self._spool.configure(self.name, config)
        reader = self._spool.lifecycle.reader(self._queue, name)
        hold = self._spool.end_turn(self._queue)
        if reader not in self._readers:
            self._readers[reader] = JournalReader(self._spool, reader, self)
        return self._readers[reader], hold

    def drop_reader(self, name: str) -> bool:
        """Drop a reader and its unread items. False if there is none of that name.

        Waits on it end with None. After the last reader was dropped, the default reader exists again, at the tail.
        """
        checks.text(name, "reader name", may_be_empty=True)
        return self._change(lambda: self._spool.lifecycle.drop(self._queue, name))

    def erase(self) -> None:
        """Drop all readers and the journal, and close the queue."""
        self._change(lambda: self._spool.lifecycle.erase(self._queue))
        self.close()

    def _change(self, change: Callable[[], bool | None]) -> bool:
        with self._spool.lock, self._spool.turn(self._queue):
            if self._closed:
                return False
            self._spool.end_turn(self._queue)
            changed = bool(change())
            for reader, used in list(self._readers.items()):
                if reader.deleted:
                    used.end()
                    del self._readers[reader]
            hold = self._spool.end_turn(self._queue)
        if hold is not None:
            hold.result()
        return changed

    # With one reader

    @overload
    def to_blocking_queue(self) -> JournaledBlockingQueue[bytes]: ...

    @overload
    def to_blocking_queue(
        self, encode: Callable[[T], bytes], decode: Callable[[bytes], T]
    ) -> JournaledBlockingQueue[T]: ...

    def to_blocking_queue(
        self, encode: Callable[[Any], bytes] = bytes, decode: Callable[[bytes], Any] = bytes
    ) -> JournaledBlockingQueue[Any]:
        """Return this queue as a BlockingQueue, whose consumers share the default reader.

        Raises ReaderUnknown if the readers have names.
        """
        return JournaledBlockingQueue(self, encode, decode)

    @overload
    def to_transactional_blocking_queue(self) -> TransactionalJournaledBlockingQueue[bytes]: ...

    @overload
    def to_transactional_blocking_queue(
        self, encode: Callable[[T], bytes], decode: Callable[[bytes], T]
    ) -> TransactionalJournaledBlockingQueue[T]: ...

    def to_transactional_blocking_queue(
        self, encode: Callable[[Any], bytes] = bytes, decode: Callable[[bytes], Any] = bytes
    ) -> TransactionalJournaledBlockingQueue[Any]:
        """Return this queue like `to_blocking_queue`, but consumers commit or roll back each item."""
        return TransactionalJournaledBlockingQueue(self, encode, decode)

    # Figures

    @property
    def journal_bytes(self) -> int:
        """Size of the journal on disk, bytes."""
        with self._spool.lock:
            return self._queue.journal.disk_bytes if self._queue.journal is not None else 0

    # The end

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Close the queue. Waits end with None, open reads return, and the spool is unlocked after its last queue."""
        if not self._spool.is_closed:  # else another thread, or an interrupted call, has closed it
            with self._spool.closing_lock, self._spool.turn(self._queue):
                self._closed = True
                for reader in self._readers.values():
                    reader.end()
                self._spool.end_turn()
        spools.let_go(self._user, self._spool)
        unwatch(self._watch)

    def __repr__(self) -> str:
        names = ", ".join(f"{name!r}" for name in list(self._queue.readers))
        state = ", closed" if self._closed else f": readers {names}"
        return f"<JournaledQueue {self.name!r} in {self._path!r}{state}>"
