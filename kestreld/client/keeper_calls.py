"""KeeperCalls: how a client keeps its leases at one server, and notices that the server has fallen silent.

Its calls do no I/O: see calls.py.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol
from weakref import ref

from kestreld.client.absence import now_ms
from kestreld.client.calls import Call, Pause
from kestreld.client.queue_talks import Answer, QueueTalks, Talk
from kestreld.errors import ConnectionLost, HolderSilent, KestrelError, ServersAway

PING_MS: Final = 2000  # of silence, before the server is asked for a sign of life
PING_ANSWER_MS: Final = 3000  # within which it has to answer that
BEATS_ANSWER_MS_MIN: Final = 1000
PING: Final = b"version\r\n"
IDLE_MS: Final = 10_000  # nobody needs a keeper for so long before it ends
BATCH_MAX: Final = 500  # replies have to fit into the socket's buffers: otherwise both sides would wait for the other
STOP_MS: Final = 1000  # for which an end of a lease waits for an extension that is not answered
_STOP_PAUSE_S: Final = 0.001
_STOP_PAUSE_S_MAX: Final = 0.016
_FAR_MS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Rest:
    """A step: wait for some ms, or until the bell rings."""

    ms: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """A step: send requests at once, over a new connection if there is none. The outcome is an Answer to each.

    Without any requests, connect only.
    """

    requests: Sequence[bytes] = ()
    answer_ms: int = 0


KeeperStep = Rest | Exchange
Alive = Callable[[], bool]


class Beating(Protocol):
    """A lease, as its keeper needs to know it."""

    @property
    def beat_ms(self) -> int:
        """Time between two beats, ms."""

    def next_beat_ms(self) -> int:
        """Return the time until the next beat is due, ms."""

    def beat(self, talks: QueueTalks) -> Talk[int | None]:
        """Extend the lease with one request. Return the ms until the next beat is due; None = the lease is over."""


class Kept:
    """A lease that is kept until it is over, or until nobody has it any longer."""

    def __init__(self, lease: Beating) -> None:
        self.is_over = False
        self.lease = ref(lease)
        self.plan(lease.next_beat_ms())

    def plan(self, after_ms: int) -> None:
        self.due_at_ms = now_ms() + after_ms
        self.joins_at_ms = self.due_at_ms - after_ms // 4  # goes along if others are due from then on


class KeeperCalls:
    """The leases at one server. Any thread may add and end them, while one carries out `run`."""

    def __init__(
        self,
        address: str,
        timeout_ms: int,
        alive: Alive | None,
        *,
        is_waited_on: Callable[[], bool],
        ring: Callable[[], None],
        note: Callable[[KestrelError, int], None],
    ) -> None:
        """`alive`: asked before leases are extended. `is_waited_on`: True if somebody waits for the server.

        `ring` ends a Rest. `note` is told of each failure to get an answer, and of the ms that were allowed.
        """
        self.address = address
        self.is_closed = False  # True = `run` returns as soon as nobody needs it
        self._timeout_ms = timeout_ms
        self._alive = alive
        self._is_waited_on = is_waited_on
        self._ring = ring
        self._note = note
        self._talks = QueueTalks(address)
        self._spoke_at_ms = 0  # when the server was last asked for something, or nobody needed that
        self.forget()

    def forget(self) -> None:
        """Keep none of the leases: they are those of the parent process."""
        self._kept: set[Kept] = set()
        self._under_way: Collection[Kept] = ()
        self._rests_until_ms = _FAR_MS

    @property
    def is_needed(self) -> bool:
        return bool(self._kept) or (not self.is_closed and self._is_waited_on())

    def keep(self, kept: Kept) -> None:
        self._kept.add(kept)
        if kept.due_at_ms < self._rests_until_ms:
            self._ring()

    def close(self) -> None:
        """Have `run` return as soon as nobody needs it: leases outlive their cluster."""
        self.is_closed = True
        self._ring()

    def stop(self, kept: Kept) -> Call[Pause, None]:
        """Keep the lease no longer, and wait until no extension is under way: it would take back what is given back.

        A server that does not answer is not waited for.
        """
        kept.is_over = True  # before it is looked at what is under way, as `_beat` does it the other way round
        self._kept.discard(kept)
        end_ms, pause_s = now_ms() + STOP_MS, _STOP_PAUSE_S
        while kept in self._under_way and now_ms() < end_ms:
            yield Pause(pause_s)
            pause_s = min(2 * pause_s, _STOP_PAUSE_S_MAX)

    def run(self) -> Call[KeeperStep, None]:
        """Extend leases and ping the server until that has not been needed for a while."""
        needed_at_ms = now_ms()
        self._spoke_at_ms = needed_at_ms - PING_MS  # only a connection that is there tells of a silence
        while True:
            self._rests_until_ms = _FAR_MS  # a lease that is added from now on rings
            now, kept = now_ms(), self._living()
            if self.is_needed:
                needed_at_ms = now
            elif self.is_closed or now - needed_at_ms >= IDLE_MS:
                return
            else:
                self._spoke_at_ms = now
            due_at_ms = min((one.due_at_ms for one in kept), default=_FAR_MS)
            next_at_ms = min(due_at_ms, self._spoke_at_ms + PING_MS)
            if next_at_ms > now:
                self._rests_until_ms = next_at_ms
                yield Rest(next_at_ms - now)
            elif due_at_ms > now:
                yield from self._ping()
            else:
                due = [one for one in kept if one.joins_at_ms <= now]
                for first in range(0, len(due), BATCH_MAX):
                    yield from self._beat(due[first : first + BATCH_MAX])

    def _living(self) -> set[Kept]:
        """Return the leases that somebody has, and forget the others."""
        kept = self._kept.copy()  # at once: other threads add to it
        for one in [one for one in kept if one.lease() is None]:
            kept.discard(one)
            self._kept.discard(one)
        return kept

    def _ping(self) -> Call[KeeperStep, None]:
        with suppress(KestrelError):  # it has been noted
            yield from self._exchange([PING], min(self._timeout_ms, PING_ANSWER_MS))

    def _exchange(self, requests: list[bytes], answer_ms: int) -> Call[KeeperStep, list[Answer]]:
        try:
            return (yield Exchange(requests, answer_ms))  # type: ignore[no-any-return]
        except KestrelError as problem:
            self._note(problem, answer_ms or self._timeout_ms)
            raise
        finally:
            self._spoke_at_ms = now_ms()

    def _beat(self, due: list[Kept]) -> Call[KeeperStep, None]:
        """Extend leases, each with one request."""
        problem: KestrelError | None = None
        try:
            self._must_be_alive()
            yield from self._exchange([], 0)
        except KestrelError as failure:
            problem = failure
        self._under_way = frozenset(due)  # before it is looked at which are over: see `stop`
        leases = [(one, lease) for one in due if not one.is_over and (lease := one.lease()) is not None]
        talks = [lease.beat(self._talks) for _, lease in leases]
        requests = [talk.send(None).data for talk in talks]
        answers: list[Answer] = []
        if requests and problem is None:
            shortest_ms = min(lease.beat_ms for _, lease in leases)
            try:
                answers = yield from self._exchange(
                    requests, min(self._timeout_ms, max(shortest_ms, BEATS_ANSWER_MS_MIN))
                )
            except KestrelError as failure:
                problem = failure
        for number, (one, _) in enumerate(leases):
            after_ms = _outcome(talks[number], problem or answers[number])
            if after_ms is None:
                self._kept.discard(one)
            else:
                one.plan(after_ms)
        self._under_way = ()

    def _must_be_alive(self) -> None:
        """Raise HolderSilent if the leases are not to be extended."""
        if self._alive is None:
            return
        try:
            is_alive = self._alive()
        except Exception as error:
            raise HolderSilent(f"raised {error!r}") from error
        if not is_alive:
            raise HolderSilent("returned False")


def is_silence(problem: KestrelError) -> bool:
    """Return True if a server has not answered in time: its other connections may lead nowhere, too."""
    return isinstance(problem, (ServersAway, ConnectionLost)) and isinstance(problem.__cause__, TimeoutError)


def _outcome(talk: Talk[int | None], answer: Answer | KestrelError) -> int | None:
    try:
        if isinstance(answer, KestrelError):
            talk.throw(answer)
        else:
            talk.send(answer)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    raise AssertionError("an extension is one request")
