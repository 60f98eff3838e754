"""LockingQueue: a queue with a lock for writers and one for readers. Each message goes to one reader, in order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import Final

from kestreld import checks
from kestreld.errors import CacheAway, CacheRefused, ConnectionLost, LockLost, LockTimeout, TooManyWaiting
from kestreld.forks import restart_in_child
from kestreld.recipes.batches import Batch
from kestreld.recipes.locks import Lock
from kestreld.recipes.numbered import checked_expiry
from kestreld.recipes.packing import CLOSED, MISSED, checked_messages, checked_name, pack, unpack
from kestreld.recipes.positions import (
    ATTEMPTS,
    NUMBERS,
    Counter,
    MessagesMissed,
    Reason,
    is_ahead,
    is_same_run,
    position_of,
)
from kestreld.recipes.servers import Servers, Value
from kestreld.recipes.slots import Slots
from kestreld.recipes.waiting import Retries

WAITING_MAX: Final = 1_000_000
ABSENT_AT_ONCE: Final = 100
SEARCH_WINDOW: Final = 1000


class _LockedSlots(Slots):
    """One key for each number: `lock:NAME:EPOCH:NUMBER`, with the message as its plain value."""

    kind = b"lock"


class LockingQueue:
    """A queue in which each message goes to one reader, at most once. Threads and processes may share it."""

    def __init__(
        self,
        servers: Servers,
        name: str,
        *,
        lock_expiry: int = 10,
        waiting_max: int = WAITING_MAX,
        message_expiry: int = 0,
        delete_after_reading: bool = True,
        compress_from_bytes: int | None = None,
        on_missed: Callable[[MessagesMissed], None] | None = None,
    ) -> None:
        """`lock_expiry`: whole seconds for which a dead holder blocks others, at least 2.

        `waiting_max`: number of waiting messages from which a put raises TooManyWaiting. `message_expiry`: lifetime of
        a message in whole seconds, read or not; 0 = until memory is needed. `delete_after_reading` False: messages that
        were read stay until then, too. `compress_from_bytes`: size from which values are compressed; None = never.
        `on_missed` is called instead of raising MessagesMissed in a get.
        """
        self.name = name
        self.missed = 0
        """Messages so far that this object was told of as missed."""
        self.holes = 0
        """Numbers so far that a dead or stopped writer left without a message, as far as that is certain."""
        self._slots = _LockedSlots(servers, checked_name(name), checked_expiry(message_expiry))
        self._head = self._slots.counter
        self._server = self._head.server
        self._tail = Counter(self._server, self._slots.prefix + b"tail")
        self._write_key = self._slots.prefix + b"write_lock"
        self._read_key = self._slots.prefix + b"read_lock"
        self._lock_expiry_s = Lock(self._server, self._write_key, lock_expiry).expiry_s
        self._waiting_max = checks.whole(waiting_max, "waiting_max", 1)
        self._deletes = checks.switch(delete_after_reading, "delete_after_reading")
        self._compress_from_bytes = checks.whole_or_none(compress_from_bytes, "compress_from_bytes")
        self._on_missed = on_missed
        self._taken: deque[bytes] = deque()  # messages taken but not returned yet
        self._awaited: tuple[int, bytes | None] | None = None  # number without a message, and the writer then
        # Numbers of the epochs that this object has written in and read from last, and been told of as new ones.
        self._written: int | None = None
        self._read: int | None = None
        self._told: int | None = None
        restart_in_child(self)

    def after_fork(self) -> None:
        self._taken = deque()  # they are the parent's

    @property
    def address(self) -> str:
        """Address of the server that has the queue's counters and locks."""
        return self._server.address

    # Writing

    def put(self, message: bytes, timeout: float | None = None) -> None:
        """Add a message, waiting `timeout` seconds for other writers; None = as long as it takes.

        Raises TooManyWaiting, LockTimeout, CacheAway or CacheRefused, with nothing added, or ConnectionLost: then the
        message may or may not be there.
        """
        checks.data(message, "message")
        self._put([[message]], timeout)

    def put_many(self, messages: Iterable[bytes], timeout: float | None = None) -> None:
        """Add messages under one lock, next to each other. After an error, some of the first may have been added."""
        self._put([[message] for message in checked_messages(messages)], timeout)

    def put_batch(self, messages: Iterable[bytes], timeout: float | None = None) -> None:
        """Add messages as one value, all of which one reader takes at once."""
        self._put([checked_messages(messages)], timeout)

    def batch(self, messages_max: int = 100, bytes_max: int = 65536) -> Batch:
        """Collect small messages in a `with` block; put up to `messages_max`, or `bytes_max` bytes, as one value."""
        return Batch(self.put_batch, messages_max, bytes_max)

    def _put(self, values: Sequence[Sequence[bytes]], timeout: float | None) -> None:
        left = deque(values)
        while left:
            try:
                with self.writing(timeout) as writer:
                    while left:
                        writer.put_batch(left[0])
                        left.popleft()
            except LockLost:  # this process was stopped, or slow: nothing that is left was added
                continue

    @contextmanager
    def writing(self, timeout: float | None = None) -> Iterator["LockedWriter"]:
        """Hold the writers' lock during a `with` block. Each message can be read as soon as its put returns."""
        lock = Lock(self._server, self._write_key, self._lock_expiry_s)
        writer = LockedWriter(self, lock)
        try:
            if not lock.acquire(timeout):
                raise LockTimeout(lock.key.decode())
            yield writer
        finally:
            release(writer.lock)

    def spare(self) -> int:
        """Return how many more messages may wait, at least one. Raises TooManyWaiting."""
        waiting = self.waiting()
        if waiting >= self._waiting_max:
            raise TooManyWaiting(self.name, waiting, self._waiting_max)
        return self._waiting_max - waiting

    def write(self, messages: Sequence[bytes], lock: Lock) -> bool:
        """Add a value under a lock. False = this process was stopped for so long that its number was closed."""
        lock.check()
        count = self._head.reserve(1, self._begin)
        if self._read is None:
            self._read = count
        before, self._written = self._written, count
        if before is not None and not is_same_run(before, count):  # readers may know nothing of the epoch before
            self._slots.close(count, "epoch")
            count = self._head.reserve(1, self._begin)
        value, flags = pack(messages, self._compress_from_bytes)
        try:
            return self._slots.write(count, value, flags)
        except (CacheAway, CacheRefused):
            self._close([count])
            raise

    def _begin(self, first: bytes) -> None:
        """Let the tail begin where the head does, so that a missing tail means that it has vanished."""
        self._server.add(self._tail.key, first)

    def _close(self, counts: Sequence[int], missed: Reason | None = None) -> bool:
        """Close numbers, so that late writers are refused. False = one of the messages was written before."""
        for count in counts:
            try:
                if not self._slots.close(count, missed):
                    return False
            except (CacheAway, CacheRefused, ConnectionLost):
                continue
        return True

    # Reading

    def waiting(self) -> int:
        """Return how many reserved numbers no reader has taken."""
        found = self._server.get_many([self._tail.key, self._head.key])
        if self._head.key not in found or self._tail.key not in found:
            return 0
        head, tail = self._head.parsed(found[self._head.key]), self._tail.parsed(found[self._tail.key])
        return max(head - tail, 0) if is_ahead(head, tail) else position_of(head).number

    def get(self, timeout: float | None = 0.0) -> bytes | None:
        """Take the oldest message, waiting `timeout` seconds for it; None = forever. None if there is none.

        The message is taken before this returns: if the process dies then, it is lost. Raises MessagesMissed; the next
        call continues after the missed messages.
        """
        messages = self.get_many(1, timeout)
        return messages[0] if messages else None

    def get_many(self, count: int = 100, timeout: float | None = 0.0) -> list[bytes]:
        """Take up to `count` of the oldest messages under one lock, waiting until there is one. Otherwise like `get`.

        `timeout` is for messages: if there are some, another reader's lock is waited for, up to `lock_expiry`.
        """
        checks.whole(count, "count", 1)
        retries = Retries(timeout)
        lock = Lock(self._server, self._read_key, self._lock_expiry_s)
        while True:
            if messages := self._from_taken(count):
                return messages
            # Without messages take no lock, so that waiting readers do not delay each other.
            if self._has_something() and lock.acquire(self._lock_expiry_s):
                try:
                    is_moved = self._take_locked(count)
                finally:
                    release(lock)
                if is_moved:
                    continue
            if not retries.wait():
                return []

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over messages forever."""
        return self

    def __next__(self) -> bytes:
        (message,) = self.get_many(1, None)
        return message

    def _from_taken(self, count: int) -> list[bytes]:
        messages: list[bytes] = []
        with suppress(IndexError):  # threads take from it at the same time
            while len(messages) < count:
                messages.append(self._taken.popleft())
        return messages

    def _has_something(self) -> bool:
        found = self._server.get_many([self._tail.key, self._head.key])
        head, tail = found.get(self._head.key), found.get(self._tail.key)
        if head is None or tail is None or tail[0] != head[0]:
            return True
        return self._read is None or not is_same_run(self._tail.parsed(tail), self._read)

    def _take_locked(self, count: int) -> bool:
        """Take messages and move the tail by cas: a reader that has lost its lock takes nothing that another has taken.

        True = look again: something was taken or changed. False = there is nothing to take now.
        """
        found = self._server.gets_many([self._tail.key, self._head.key])
        if self._head.key not in found:
            return self._begin_epoch()
        head = self._head.parsed(found[self._head.key][0])
        if self._tail.key not in found:
            return self._find_tail(head)
        value, unique = found[self._tail.key]
        tail = self._tail.parsed(value)
        before, self._read = self._read, tail
        if before is not None and not is_same_run(before, tail):
            self._tell("epoch", 0, tail)
            return True
        if not is_ahead(head, tail):
            return self._drain(tail, head, unique, count)
        numbers = range(tail, min(head, tail + count))
        present = self._slots.fetch(numbers)
        if tail in present:
            return self._take_present(numbers, present, unique)
        return tail < head and self._pass_absent(range(tail, min(head, tail + ABSENT_AT_ONCE)), unique)

    def _take_present(self, numbers: range, present: dict[int, Value], unique: bytes) -> bool:
        reason = _missed_at(present[numbers.start])
        taken = list(takewhile(lambda number: number in present and _missed_at(present[number]) == reason, numbers))
        if not self._move_tail(taken[-1] + 1, unique):
            return True
        if reason is not None:
            self._tell(reason, len(taken) if reason == "missing" else 0, taken[-1] + 1)
            return True
        for value, flags in map(present.__getitem__, taken):
            self.holes += bool(flags & CLOSED)
            self._taken.extend(unpack(value, flags))
        if self._deletes:  # not the mark of a closed number: its writer may still come
            self._slots.delete([number for number in taken if not present[number][1] & CLOSED])
        return True

    def _begin_epoch(self) -> bool:
        """Begin an epoch, so that its loss is noticed even if nothing is put. False = a writer has the lock."""
        lock = Lock(self._server, self._write_key, self._lock_expiry_s)
        if not lock.acquire(0.0):
            return False
        try:
            self._head.begin(self._begin)
        finally:
            release(lock)
        return True

    def _pass_absent(self, numbers: range, unique: bytes) -> bool:
        """Pass numbers whose messages were evicted or whose writer is gone. One that has the lock may still write."""
        tail = numbers.start
        writer = Lock(self._server, self._write_key, self._lock_expiry_s).holder()
        if self._awaited is None or self._awaited[0] != tail:
            self._awaited = tail, writer
        if writer is not None and writer == self._awaited[1]:
            return False
        present = self._slots.fetch(numbers)
        absent = list(takewhile(lambda number: number not in present, numbers))
        if absent and self._close(absent, "missing") and self._move_tail(absent[-1] + 1, unique):
            self._tell("missing", len(absent), absent[-1] + 1)
        return True

    def _drain(self, tail: int, head: int, unique: bytes, count: int) -> bool:
        """Take the rest of the old epoch, then go to the new one that the head has begun."""
        numbers = range(tail, tail + count)
        present = self._slots.fetch(range(tail, tail + max(count, ABSENT_AT_ONCE)))
        if tail in present:
            return self._take_present(numbers, present, unique)
        if present:
            left = min(present)
            if self._move_tail(left, unique):
                self._tell("missing", left - tail, left)
            return True
        first = position_of(head).epoch * NUMBERS
        if self._move_tail(first, unique):
            self._read = first
            self._tell("epoch", 0, first)
        return True

    def _find_tail(self, head: int) -> bool:
        """Restore a tail that has vanished: at the first of the messages that were not deleted, or else at the head."""
        first, tail = position_of(head).epoch * NUMBERS, head
        while self._deletes and tail > first:
            window = range(max(first, tail - SEARCH_WINDOW), tail)
            present = self._slots.fetch(window)
            while tail > window.start and tail - 1 in present:
                tail -= 1
            if tail > window.start:
                break
        if self._server.add(self._tail.key, b"%d" % tail):
            self._read = tail
            self._tell("epoch", 0, tail)
        return True

    def _move_tail(self, to: int, unique: bytes) -> bool:
        return self._server.cas(self._tail.key, b"%d" % to, unique)

    def _tell(self, reason: Reason, count: int, at: int) -> None:
        if reason == "epoch":
            if self._told is not None and is_same_run(self._told, at):
                return  # reported before: a writer that noticed it has left a mark, too
            self._told = self._written = at
        self.missed += count
        missed = MessagesMissed(self.name, count, reason, position_of(at))
        if self._on_missed is None:
            raise missed
        self._on_missed(missed)


class LockedWriter:
    """Adds messages while other writers of a LockingQueue wait."""

    def __init__(self, queue: LockingQueue, lock: Lock) -> None:
        self._queue = queue
        self.lock = lock
        self._spare = 0  # known room for messages: nobody else adds any meanwhile

    def put(self, message: bytes) -> None:
        """Add a message. Raises as LockingQueue.put, and LockLost, with nothing added, if the lock has expired."""
        checks.data(message, "message")
        self.put_batch([message])

    def put_batch(self, messages: Sequence[bytes]) -> None:
        """Add several messages as one value."""
        for left in reversed(range(ATTEMPTS)):
            try:
                self._spare = (self._spare or self._queue.spare()) - 1
                if self._queue.write(messages, self.lock):
                    return
            except CacheAway as error:
                if not left or error.address == self._queue.address:
                    raise  # else the next number may be on another server
        raise LockLost(self.lock.key.decode())


def _missed_at(value: Value) -> Reason | None:
    """Return the reason to tell readers of a closed number; None for a message, or if nothing was lost."""
    data, flags = value
    if not flags & MISSED:
        return None
    return "epoch" if data == b"epoch" else "missing"


def release(lock: Lock) -> None:
    """Release a lock; if that fails, it expires."""
    try:
        lock.release()
    except (CacheAway, CacheRefused, ConnectionLost):
        return
