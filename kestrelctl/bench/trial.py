"""One run of a load test: its clients' shared loop, ledger and counters, and the decision when it is over."""

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from kestrelctl.bench.items import ItemMaker
from kestrelctl.bench.latencies import Latencies
from kestrelctl.bench.ledger import Ledger
from kestrelctl.bench.loop import LoadConnection, Loop
from kestrelctl.bench.process import cpu_us
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.client.access import Login
from kestreld.client.replies import EMPTY, Reply

# A missing item is lost once every taker has found its queue empty and nothing has arrived for this long.
QUIET_NS: Final = 1_000_000_000
DRAIN_IN_FLIGHT: Final = 64


class Client(Protocol):
    """Interface that a trial needs of the clients in `clients`."""

    is_stopped: bool

    def start(self) -> None: ...

    def stop(self) -> None: ...


class Producer(Client, Protocol):
    is_done: bool


class Consumer(Client, Protocol):
    found_empty_ns: int


class Trial:
    """State shared by the clients of one run. Times and operations count only while `measuring`."""

    def __init__(
        self,
        address: str,
        timeout_ms: int,
        login: Login,
        *,
        seed: int,
        item_bytes: int,
        server_pid: int | None,
        fanout: Sequence[bytes] = (),
    ) -> None:
        """`fanout`: the queues in each of which every item must arrive. Empty = each item goes to one queue."""
        self.address = address
        self._login = login
        self.random = random.Random(seed)
        self.loop = Loop(timeout_ms)
        self.destinations = {queue: number for number, queue in enumerate(fanout)}
        self.ledger = Ledger(ItemMaker(seed, item_bytes), max(1, len(fanout)))
        self.server_pid = server_pid  # None = its processor time is not known
        self.on_progress: Callable[[float, int], None] = lambda fraction, operations: None
        # Progress is measured by time if this is not 0, else by the number of items.
        self.planned_ns = 0
        self.planned_items = 0
        self.measuring = False
        self.measured_ns = 0
        self.server_cpu_us = 0
        self.client_cpu_ns = 0
        self.puts = 0
        self.takes = 0
        self.misses = 0
        self.kills = 0
        self.last_arrival_ns = 0
        # Put: from the due time to the reply. Get: of gets without a wait that got an item. Delivery: from the put's
        # due time to the arrival. Late: time that an empty get waited beyond its limit.
        self.latencies = {name: Latencies() for name in ("put", "get", "delivery", "late")}
        self._readers = 0
        self._started_ns = self.loop.read_clock()
        self.loop.on_look = self._look

    def connect(self) -> LoadConnection:
        return LoadConnection(self.loop, self.address, self._login)

    def new_reader(self) -> int:
        self._readers += 1
        return self._readers - 1

    # Running clients

    def run(
        self, putters: Sequence[Producer], takers: Sequence[Consumer], *, leave: int = 0, measured: bool = True
    ) -> None:
        """Run until all putters are done and all stored items but `leave` have arrived.

        It ends early if no more items arrive. Then the takers give back or confirm the items that they hold.
        """
        self.ledger.readers_have_left()
        self.last_arrival_ns = begun_ns = self.loop.read_clock()
        begun_cpu_us, begun_client_ns = self._server_cpu_us(), time.process_time_ns()
        self.measuring = measured
        clients: list[Client] = [*takers, *putters]
        for client in clients:
            client.start()

        def finished() -> bool:
            return all(putter.is_done for putter in putters) and (
                not takers or self.ledger.missing <= leave or self._is_quiet(takers)
            )

        self.loop.run(finished)
        if measured:
            self.measuring = False
            self.measured_ns += self.loop.read_clock() - begun_ns
            self.server_cpu_us += self._server_cpu_us() - begun_cpu_us
            self.client_cpu_ns += time.process_time_ns() - begun_client_ns
        for client in clients:
            client.stop()
        self.loop.run(lambda: all(client.is_stopped for client in clients))

    def _is_quiet(self, takers: Sequence[Consumer]) -> bool:
        now_ns = self.loop.now_ns
        return now_ns - self.last_arrival_ns > QUIET_NS and all(
            taker.found_empty_ns > self.last_arrival_ns for taker in takers
        )

    def pause(self, pause_ms: int) -> None:
        over: list[bool] = []
        self.loop.call_at(self.loop.read_clock() + pause_ms * 1_000_000, lambda: over.append(True))
        self.loop.run(lambda: bool(over))

    def _server_cpu_us(self) -> int:
        if self.server_pid is None:
            return 0
        try:
            return cpu_us(self.server_pid)
        except ProcessLookupError as error:
            raise Failure(ExitCode.USAGE, f"{error}: --pid is not the server's") from error

    def _look(self) -> None:
        now_ns = self.loop.now_ns
        if self.planned_ns:
            fraction = (now_ns - self._started_ns) / self.planned_ns
        else:
            operations = self.planned_items * (1 + max(1, len(self.destinations)))
            fraction = (self.ledger.stored + self.ledger.arrived) / max(1, operations)
        self.on_progress(min(1.0, fraction), self.puts + self.takes)

    # Queues before and after

    def flush(self, queues: Sequence[bytes]) -> None:
        """Empty the queues, by gets if the server does not know FLUSH."""
        for queue in queues:
            if self._ask_once(b"flush " + queue) not in (EMPTY, b"OK"):
                self._empty(queue, lambda item: None)

    def create(self, queues: Sequence[bytes]) -> None:
        """Create the queues that do not exist, by a get."""
        for queue in queues:
            if self._ask_once(b"get " + queue) != EMPTY:
                raise Failure(ExitCode.REFUSED, f"{self.address}: {queue.decode(errors='replace')} cannot be emptied")

    def drain(self, queues: Sequence[bytes], *, to_the_end: bool) -> None:
        """Take the items that the test has left. `to_the_end`: even if all have arrived, to find surplus ones."""
        self.ledger.readers_have_left()
        for queue in queues:
            if to_the_end or self.ledger.missing:
                reader = self.new_reader()
                destination = self.destinations.get(queue, 0)
                self._empty(queue, partial(self.ledger.arrival, reader=reader, destination=destination))

    def _ask_once(self, command: bytes) -> Reply:
        replies: list[Reply] = []
        connection = self.connect()
        connection.ask(command + b"\r\n", replies.append)
        self.loop.run(lambda: bool(replies))
        connection.close()
        return replies[0]

    def _empty(self, queue: bytes, arrived: Callable[[bytes], object]) -> None:
        connection = self.connect()
        request = b"get %b\r\n" % queue * DRAIN_IN_FLIGHT
        answers = 0
        empty = False

        def answered(reply: Reply) -> None:
            nonlocal answers, empty
            answers += 1
            if isinstance(reply, bytes):
                raise Failure(ExitCode.REFUSED, f"{self.address} refused a get: {reply!r}")
            empty = not reply
            for item in reply:
                arrived(item)
            if answers % DRAIN_IN_FLIGHT == 0 and not empty:
                connection.ask(request, answered, replies=DRAIN_IN_FLIGHT)

        connection.ask(request, answered, replies=DRAIN_IN_FLIGHT)
        self.loop.run(lambda: empty and answers % DRAIN_IN_FLIGHT == 0)
        connection.close()
