"""Schedule of the dictionary's cleanup. Compiled, because the class that it extends is."""

from kestreld.cache.dictionary import Dictionary
from kestreld.cache.entries import NEVER_MS
from kestreld.queues.agenda import Scheduled
from kestreld.queues.slices import Work
from kestreld.server.state import ServerState


class Tidying(Scheduled):
    """The next cleanup of the dictionary, on the agenda at most once. It is scheduled, in progress, or not needed."""

    __slots__ = ("_dictionary", "_is_at_work", "_state")

    def __init__(self, state: ServerState, dictionary: Dictionary) -> None:
        super().__init__(NEVER_MS)
        self._state = state
        self._dictionary = dictionary
        self._is_at_work = False

    def plan(self) -> None:
        """Schedule the cleanup, if it is due earlier than scheduled."""
        at_ms = self._dictionary.tidy_at_ms
        if at_ms < self.due_at_ms and not self._is_at_work:
            self.due_at_ms = at_ms
            self._state.collection.agenda.add(self)

    def fall_due(self, now_ms: int) -> None:
        self.due_at_ms = NEVER_MS
        self._is_at_work = True
        self._state.control.take_on(self._work())

    def _work(self) -> Work:
        yield from self._dictionary.tidy()
        self._is_at_work = False
        self.plan()
