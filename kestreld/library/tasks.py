"""Counter of unfinished tasks for `task_done` and `join`, as in queue.Queue."""

from itertools import count
from threading import Lock

from kestreld import checks
from kestreld.errors import TaskUnknown
from kestreld.library.answer import Answer


class Tasks:
    """Tasks of one queue. A put costs one call of `count_put`, which is atomic and waits for no lock."""

    def __init__(self) -> None:
        self._puts = count()
        self.count_put = self._puts.__next__
        self.dropped_items = 0
        self._finished = 0
        self._lock = Lock()
        self._joining: list[Answer[None]] = []

    @property
    def put_items(self) -> int:
        """Number of items put so far."""
        return int(repr(self._puts)[len("count(") : -1])  # to call it would count one more

    @property
    def unfinished(self) -> int:
        return self.put_items - self._finished

    def finish(self) -> None:
        """Count a finished task. Raises TaskUnknown if all are finished."""
        with self._lock:
            if not self.unfinished:
                raise TaskUnknown
            self._finished += 1
        self._tell()

    def drop(self, items: int) -> None:
        """Count items that nobody will get as finished."""
        with self._lock:
            self.dropped_items += items
            self._finished += min(items, self.unfinished)
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            joining = self._joining.copy() if not self.unfinished else []
        for answer in joining:
            if not answer.done():
                answer.set_result(None)

    def join(self, timeout: float | None) -> bool:
        timeout_s = None if timeout is None else checks.span_s(timeout, "timeout")
        answer: Answer[None] = Answer()
        self._joining.append(answer)  # first: the last task may be done meanwhile
        try:
            if self.unfinished:
                answer.result(timeout_s)
        except TimeoutError:
            return False
        finally:
            self._joining.remove(answer)
        return True
