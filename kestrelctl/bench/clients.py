"""The putter and the taker, the two kinds of clients that every load test runs."""

from collections.abc import Callable, Sequence
from typing import Final

from kestrelctl.bench.loop import LoadConnection
from kestrelctl.bench.trial import Trial
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.client.replies import EMPTY, Reply

# Unanswered puts that a putter with a rate may have. Its latencies count from the time a put was due.
UNANSWERED_MAX: Final = 1000
SLOW_DOWN_NS: Final = 5_000_000


class Putter:
    """A client that puts the items of one writer on one queue, in order.

    Without an interval, it sends `in_flight` puts at once and the next ones when all of them are answered. With an
    interval, puts fall due at fixed times, answered or not, and latency counts from the due time: a stall of the server
    counts against every put that it delays.
    """

    def __init__(
        self,
        trial: Trial,
        queue: bytes,
        *,
        items: int | None,
        in_flight: int = 1,
        interval_ns: int = 0,
        first_due_ns: int = 0,
        for_ms: int | None = None,
        waiting_max: int | None = None,
    ) -> None:
        """`first_due_ns` and `for_ms` count from the start; `items` None means put for `for_ms`.

        `waiting_max`: slow down while more items than this wait.
        """
        self._trial = trial
        self._queue = queue
        self._left = items
        self._in_flight = in_flight
        self._interval_ns = interval_ns
        self._due_ns = first_due_ns
        self._for_ms = for_ms
        self._until_ns: int | None = None  # None = until all are put
        self._waiting_max = waiting_max
        self._writer = trial.ledger.new_writer()
        self._next = 0  # number of the next item
        self._answered = 0
        self._unanswered = 0
        self._connection = trial.connect()
        self.is_done = items == 0
        self.is_stopped = False

    def start(self) -> None:
        if self.is_done:
            return
        if self._for_ms is not None:
            self._until_ns = self._trial.loop.now_ns + self._for_ms * 1_000_000
        if self._interval_ns:
            self._due_ns += self._trial.loop.now_ns
            self._trial.loop.call_at(self._due_ns, self._put_due)
        else:
            self._put_round()

    def stop(self) -> None:
        self._connection.close()
        self.is_stopped = True

    def _put_due(self) -> None:
        """Put all items that are due by now."""
        now_ns = self._trial.loop.now_ns
        allowed = UNANSWERED_MAX - self._unanswered
        allowed = allowed if self._left is None else min(allowed, self._left)
        due: list[int] = []
        while len(due) < allowed and self._due_ns <= now_ns and self._goes_on(self._due_ns):
            due.append(self._due_ns)
            self._due_ns += self._interval_ns
        self._send(due)
        if self._goes_on(self._due_ns):
            # With too many unanswered, look again soon: due times do not move.
            self._trial.loop.call_at(max(self._due_ns, now_ns + 1_000_000), self._put_due)
        elif not self._unanswered:
            self.is_done = True

    def _put_round(self) -> None:
        trial = self._trial
        if not self._goes_on(trial.loop.now_ns):
            self.is_done = True
            return
        if self._waiting_max is not None and trial.ledger.missing > self._waiting_max:
            trial.loop.call_at(trial.loop.now_ns + SLOW_DOWN_NS, self._put_round)
            return
        count = self._in_flight if self._left is None else min(self._in_flight, self._left)
        self._send([trial.loop.read_clock()] * count)

    def _goes_on(self, due_ns: int) -> bool:
        return self._left != 0 and (self._until_ns is None or due_ns < self._until_ns)

    def _send(self, due_ns: list[int]) -> None:
        if not due_ns:
            return
        if self._left is not None:
            self._left -= len(due_ns)
        items = [self._trial.ledger.next_item(self._writer, due) for due in due_ns]
        self._unanswered += len(items)
        request = b"".join([b"set %b 0 0 %d\r\n%b\r\n" % (self._queue, len(item), item) for item in items])
        self._connection.ask(request, self._answer, replies=len(items))

    def _answer(self, reply: Reply) -> None:
        trial = self._trial
        if reply not in (b"STORED", b"NOT_STORED"):
            raise Failure(ExitCode.REFUSED, f"{trial.address} refused a set: {reply!r}")
        due_ns = trial.ledger.answered(self._writer, self._answered, stored=reply == b"STORED")
        self._answered += 1
        self._unanswered -= 1
        if trial.measuring:
            trial.puts += 1
            trial.latencies["put"].add(trial.loop.now_ns - due_ns)
        if self._unanswered == 0:
            if self._interval_ns == 0:
                self._put_round()
            elif not self._goes_on(self._due_ns):
                self.is_done = True


class Taker:
    """A client that takes items off one queue again and again.

    `wait_ms` returns how long the next get waits, 0 = not at all. `confirms`: reliable reads, each confirmed by the
    next get. `monitors`: Kestrel 2's MONITOR and CONFIRM. `in_flight`: gets sent at once, or items of one MONITOR.
    """

    def __init__(
        self,
        trial: Trial,
        queue: bytes,
        *,
        wait_ms: Callable[[], int] = lambda: 0,
        in_flight: int = 1,
        confirms: bool = False,
        monitors: bool = False,
        kill_percent: int = 0,
    ) -> None:
        self._trial = trial
        self._queue = queue
        self._wait_ms = wait_ms
        self._in_flight = in_flight
        self._confirms = confirms
        self._monitors = monitors
        self._kill_percent = kill_percent
        self._destination = trial.destinations.get(queue, 0)
        self._reader = trial.new_reader()
        self._requests: dict[int, bytes] = {}  # by wait, ms
        self._unanswered = 0
        self._sent_ns = 0
        self._waits_ms = 0
        self._stopping = False
        self._connection: LoadConnection = trial.connect()
        self.found_empty_ns = 0  # when the last get was sent that found nothing
        self.is_stopped = False

    def start(self) -> None:
        self._take()

    def stop(self) -> None:
        """Leave once outstanding replies have arrived and open items are confirmed."""
        self._stopping = True
        waits_in_vain = self._waits_ms and not (self._confirms or self._monitors or self._trial.ledger.missing)
        if waits_in_vain:
            self._leave()
        elif not self._unanswered:
            self._confirm_last()

    def _take(self) -> None:
        trial = self._trial
        self._waits_ms = self._wait_ms()
        self._sent_ns = trial.loop.read_clock()
        request = self._requests.get(self._waits_ms)
        if request is None:
            request = self._requests[self._waits_ms] = self._request(self._waits_ms)
        self._unanswered = 1 if self._monitors else self._in_flight
        self._connection.ask(request, self._answer, replies=self._unanswered, wait_ms=self._waits_ms)
        if self._kill_percent and trial.random.randrange(100) < self._kill_percent:
            self._die()

    def _request(self, wait_ms: int) -> bytes:
        if self._monitors:
            return b"monitor %b %d %d\r\n" % (self._queue, max(1, wait_ms // 1000), self._in_flight)
        wait = b"/t=%d" % wait_ms if wait_ms else b""
        return b"get %b%b%b\r\n" % (self._queue, wait, b"/close/open" if self._confirms else b"") * self._in_flight

    def _die(self) -> None:
        """Disconnect before the reply and reconnect as a new client."""
        self._trial.kills += 1
        self._connection.close()
        self._connection = self._trial.connect()
        self._reader = self._trial.new_reader()
        # Not called directly, which could recurse without end: the new client may be killed at once, too.
        self._trial.loop.call_at(self._trial.loop.now_ns, self._take_again)

    def _take_again(self) -> None:
        if self._stopping:
            self._leave()
        else:
            self._take()

    def _answer(self, reply: Reply) -> None:
        trial = self._trial
        if isinstance(reply, bytes):
            raise Failure(ExitCode.REFUSED, f"{trial.address} refused a {self._verb}: {reply!r}")
        now_ns = trial.loop.now_ns
        if reply:
            self._arrived(reply, now_ns)
        else:
            self.found_empty_ns = self._sent_ns
            if trial.measuring:
                trial.misses += 1
                if self._waits_ms and self._in_flight == 1:
                    trial.latencies["late"].add(now_ns - self._sent_ns - self._waits_ms * 1_000_000)
        self._unanswered -= 1
        if self._unanswered:
            return
        if self._monitors and reply:
            confirm = b"confirm %b %d\r\n" % (self._queue, len(reply))
            self._unanswered = 1
            self._connection.ask(confirm, self._confirmed)
        else:
            self._next()

    def _arrived(self, items: tuple[bytes, ...], now_ns: int) -> None:
        trial = self._trial
        trial.last_arrival_ns = now_ns
        for item in items:
            due_ns = trial.ledger.arrival(item, self._reader, self._destination)
            if trial.measuring:
                trial.takes += 1
                if due_ns is not None:
                    trial.latencies["delivery"].add(now_ns - due_ns)
        if trial.measuring and not self._waits_ms and not self._monitors:
            trial.latencies["get"].add(now_ns - self._sent_ns)

    @property
    def _verb(self) -> str:
        return "monitor" if self._monitors else "get"

    def _confirmed(self, reply: Reply) -> None:
        self._unanswered = 0
        if reply != EMPTY:
            raise Failure(ExitCode.REFUSED, f"{self._trial.address} refused a confirm: {reply!r}")
        self._next()

    def _next(self) -> None:
        if not self._stopping:
            self._take()
        else:
            self._confirm_last()

    def _confirm_last(self) -> None:
        if not self._confirms:
            self._leave()
            return
        self._unanswered = 1
        self._connection.ask(b"get %b/close\r\n" % self._queue, lambda reply: self._leave())

    def _leave(self) -> None:
        if not self.is_stopped:
            self._connection.close()
            self.is_stopped = True


def spread(total: int, parts: int) -> list[int]:
    """Divide `total` into `parts` shares that differ by at most 1."""
    return [total // parts + (part < total % parts) for part in range(parts)]


def putters(
    trial: Trial,
    queues: Sequence[bytes],
    *,
    items: int | None,
    rate: float = 0,
    in_flight: int = 1,
    for_ms: int | None = None,
    waiting_max: int | None = None,
) -> list[Putter]:
    """A putter for each of `queues`. Together they put `items`, `rate` of them a second; 0 = as fast as they can."""
    interval_ns = round(1e9 * len(queues) / rate) if rate else 0
    shares: Sequence[int | None] = [None] * len(queues) if items is None else spread(items, len(queues))
    return [
        Putter(
            trial,
            queue,
            items=share,
            in_flight=in_flight,
            interval_ns=interval_ns,
            first_due_ns=number * interval_ns // len(queues),
            for_ms=for_ms,
            waiting_max=waiting_max,
        )
        for number, (queue, share) in enumerate(zip(queues, shares, strict=True))
    ]
