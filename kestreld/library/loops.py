"""Open reads of `for` loops and `with` blocks: an item is done when the next is requested or the block succeeds.

Leaving a loop gives its open read back. Python shows that only by dropping the loop, perhaps as garbage, in the middle
of anything: of the engine's own work, with its lock held, where the exception of a signal handler would reach nobody.
So all that is done then is two calls in C: one leaves a note for the next operation on the reader, the other has a
thread look at the note soon.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from types import TracebackType
from typing import Any, Final, Generic, TypeVar
from weakref import ref

from kestreld.library.cleanup import cleanup
from kestreld.library.handover import hand_over
from kestreld.library.item import QItem
from kestreld.library.reading import LEASED, Reading
from kestreld.queues.waiters import OPEN

T = TypeVar("T")
_holders: Final = count(1 - LEASED)


class _LookSoon(ref[Any]):
    """Reference to a loop, called by the cleanup thread once the loop is gone."""

    reading: Reading

    def __call__(self) -> None:
        self.reading.look_for_left()


class _Held(ref[Any]):
    """The open read of a loop or a block, which outlives the loop."""

    xid = 0  # 0 = none
    holder = 0  # in place of a thread, in `Reading.opened`
    look_soon: _LookSoon


class _Holder:
    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        look_soon = _LookSoon(self, cleanup.ready())
        look_soon.reading = reading
        self._held = held = _Held(self, reading.left.append)  # of two callbacks the one registered last is called first
        held.holder, held.look_soon = -next(_holders), look_soon
        reading.held_by_loops[held.holder] = held

    def _open(self, fetch: Callable[[], QItem | None]) -> QItem | None:
        def hold() -> QItem | None:
            item = fetch()
            self._held.xid = item.xid if item is not None else 0
            return item

        return hand_over(self._reading, hold, self._held.holder)

    def _is_open(self) -> bool:
        return bool(self._held.xid) and self._reading.opened.get(self._held.xid) == self._held.holder

    def _end(self, *, is_done: bool) -> None:
        """End the open read. Does nothing if it was committed or given back already."""
        if self._held.xid:
            self._reading.end_read(self._held.xid, is_done=is_done, holder=self._held.holder)
            self._held.xid = 0


class OpenReadLoop(_Holder, Generic[T]):
    """Iterator over open reads, converted by `made`, until the queue is closed."""

    def __init__(self, reading: Reading, made: Callable[[QItem], T]) -> None:
        super().__init__(reading)
        self._made = made

    def __iter__(self) -> Iterator[T]:
        return self

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    def __next__(self) -> T:
        self._end(is_done=True)
        is_there = False
        try:
            item = self._open(lambda: self._reading.receive(None, OPEN))
            if item is None:
                raise StopIteration
            made = self._made(item)
            is_there = True
        finally:
            if not is_there:
                self._end(is_done=False)
        return made

    async def __anext__(self) -> T:
        if self._held.xid:
            await self._reading.end_read_async(self._held.xid, self._held.holder)
            self._held.xid = 0
        item = await self._reading.receive_async(None, OPEN)
        if item is None:
            raise StopAsyncIteration
        if item.xid in self._reading.opened:
            self._reading.opened[item.xid] = self._held.holder
            self._held.xid = item.xid
        return self._made(item)


class OpenReadBlock(_Holder):
    """An item for a `with` block, None if there is none: done if the block succeeds, given back if it raises."""

    def __init__(
        self, reading: Reading, fetch: Callable[[], QItem | None], give_back: Callable[[QItem], object]
    ) -> None:
        super().__init__(reading)
        self._fetch = fetch
        self._give_back = give_back
        self._item: QItem | None = None

    def __enter__(self) -> QItem | None:
        is_there = False
        try:
            self._item = self._open(self._fetch)
            is_there = True
        finally:
            if not is_there:
                self._end(is_done=False)
        return self._item

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._end(is_done=True)
        elif self._item is not None and self._is_open():
            self._give_back(self._item)
            self._held.xid = 0


def item_itself(item: QItem) -> QItem:
    return item
