"""The streaming source for servers without the reader API, such as Kestrel: takes items into a write-ahead log.

One process opens items, logs them with an fsync and only then confirms them, so that none is lost. Items logged but not
confirmed are delivered again: at least once. An offset holds, for each server and queue, "0:NUMBER" in its log.
"""

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import BooleanType, StructField, StructType

from kestrelctl.remote.client import KestrelClient
from kestrelctl.shell.exit_codes import Failure
from kestreld.client.access import Login
from kestrelspark.options import BadOption, check_names, flag, number, option, words
from kestrelspark.ranges import COLUMNS, IS_REPEAT, RangeOfIds, RangeOptions
from kestrelspark.readers import Offsets, Position, RemoteQueue, complain
from kestrelspark.servers import OPTIONS as SERVER_OPTIONS
from kestrelspark.servers import PASSING, Servers, ServerTrouble, servers_in
from kestrelspark.streaming import RangePartition, Rotation, as_json, divided, from_json, item_schema, ranges_of
from kestrelspark.wal import Log, Taken, lock, log_batches

OPTIONS: Final = (*SERVER_OPTIONS, "walpath", "subscribe", "maxoffsetspertrigger", "minpartitions", "failondataloss")
ITEMS_MAX: Final = 10_000  # default batch size, limited because one process takes all items
CONNECTIONS: Final = 16  # connections to a server: each holds one open read, and their items share an fsync
NUMBERED: Final = 0  # in place of a journal's id


def taken_schema() -> StructType:
    return StructType([*item_schema().fields, StructField(IS_REPEAT, BooleanType())])


@dataclass(slots=True)
class Hand:
    """A connection and its open read."""

    client: KestrelClient
    held: Taken | None = None
    number: int = 0  # of the held item, in the log


@dataclass(slots=True)
class Taker:
    """Takes items from the queues of several servers into logs below `root`."""

    servers: Servers
    queues: tuple[str, ...]
    root: Path
    _logs: dict[RemoteQueue, Log] = field(default_factory=dict)
    _away: set[str] = field(default_factory=set)
    _lock: int | None = None
    _login: Login = field(init=False)

    def __post_init__(self) -> None:
        self._login = self.servers.login()

    def logs(self) -> Mapping[RemoteQueue, Log]:
        """Logs of all servers and queues in the options, recovered when first needed."""
        if self._lock is None:
            self._lock = lock(self.root, self.servers.timeout_ms)
        for server in self.servers.addresses():
            for queue in self.queues:
                remote = RemoteQueue(server, queue)
                if remote not in self._logs:
                    self._logs[remote] = Log.recovered(self.root, remote)
        return self._logs

    def waiting(self) -> dict[RemoteQueue, int]:
        """Number of items to take from each queue. An unreachable server is reported once."""
        found = {}
        for server in self.servers.addresses():
            client = self._connect(server)
            try:
                blocks = client.all_queue_stats()
            except Failure as failure:
                self._note(server, failure)
                continue
            finally:
                client.close()
            self._away.discard(server)
            items = {block["queue"]: int(block.get("items", 0)) for block in blocks}
            found.update({RemoteQueue(server, queue): items.get(queue, 0) for queue in self.queues})
        return found

    def _connect(self, server: str) -> KestrelClient:
        return KestrelClient(server, self.servers.timeout_ms, self._login)

    def take(self, remote: RemoteQueue, items_max: int) -> None:
        """Take up to `items_max` items into the log."""
        log, left = self._logs[remote], items_max
        hands = [Hand(self._connect(remote.server)) for _ in range(min(items_max, CONNECTIONS))]
        with ThreadPoolExecutor(len(hands)) as pool:
            while hands:
                answers: list[Taken | Failure | None] = list(
                    pool.map(lambda hand: self._next(hand, remote.queue), hands[:left])
                )
                answers += list(pool.map(lambda hand: self._confirm(hand, remote.queue), hands[left:]))
                hands = self._logged(log, hands, answers)
                left -= len(hands)
        log.end_file()

    def _next(self, hand: Hand, queue: str) -> Taken | Failure | None:
        """Confirm the open read and open another item. None = there is none."""
        try:
            item = hand.client.open_item(queue.encode(), close=hand.held is not None)
        except Failure as failure:
            return failure
        return Taken(item.data, item.flags) if item is not None else None

    def _confirm(self, hand: Hand, queue: str) -> Failure | None:
        try:
            if hand.held is not None:
                hand.client.close_read(queue.encode())
        except Failure as failure:
            return failure
        return None

    def _logged(self, log: Log, hands: list[Hand], answers: list[Taken | Failure | None]) -> list[Hand]:
        """Log the items received and the confirmations sent; return the connections with an open read."""
        confirmed: list[int] = []
        for hand, answer in zip(hands, answers, strict=True):
            if isinstance(answer, Failure):
                self._note(log.remote.server, answer)
                if hand.held is not None:
                    log.doubt(hand.held)
            elif hand.held is not None:
                confirmed.append(hand.number)
            hand.held = answer if isinstance(answer, Taken) else None
            if hand.held is None:
                hand.client.close()
        at_ms = int(time.time() * 1000)
        log.record_confirmed(confirmed, at_ms)
        holding = [hand for hand in hands if hand.held is not None]
        numbers = log.append([hand.held for hand in holding if hand.held is not None], at_ms)
        for hand, item_number in zip(holding, numbers, strict=True):
            hand.number = item_number
        return holding

    def _note(self, server: str, failure: Failure) -> None:
        """Report an unreachable server once. Raises ServerTrouble for any other failure."""
        if failure.code not in PASSING:
            raise ServerTrouble(failure.words) from failure
        if server not in self._away:
            complain(f"{failure.words}; continuing without {server}")
            self._away.add(server)


class WalReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream's reader. All but `read` runs in one process that lives as long as the query."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        check_names(options, OPTIONS, "the kestrel stream with walPath")
        names = (*COLUMNS, IS_REPEAT)
        unknown = [column.name for column in schema.fields if column.name not in names]
        if unknown:
            raise BadOption(f"the kestrel stream has no column {', '.join(unknown)}; columns are {', '.join(names)}")
        queues = tuple(words(option(options, "subscribe")))
        if not queues:
            raise BadOption("the kestrel stream with walPath requires the option subscribe: names of queues")
        self._root = Path(option(options, "walpath"))
        if not self._root.is_absolute():
            raise BadOption(f"walPath must be an absolute path, not {self._root}")
        columns = tuple(column.name for column in schema.fields)
        self._range_options = RangeOptions(columns, servers_in(options), flag(options, "failondataloss", "true"))
        self._taker = Taker(self._range_options.servers, queues, self._root)
        self._rows_max = number(options, "maxoffsetspertrigger", ITEMS_MAX, least=1)
        self._partitions_min = number(options, "minpartitions", 0)
        self._rotation = Rotation()
        self._left: dict[RemoteQueue, int] | None = None  # items that a run of Trigger.AvailableNow has yet to take

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._rows_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._taker.logs()
        self._left = self._taker.waiting()

    def initialOffset(self) -> dict[str, Any]:
        return as_json({remote: Position(NUMBERED, log.first_id) for remote, log in self._taker.logs().items()})

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begun, logs = from_json(start), self._taker.logs()
        for remote, at in begun.items():
            if remote in logs:
                logs[remote].go_on_from(at.next_id)
        # Items that a killed run has taken are the next batch: take no more before it.
        if all(log.next_id == begun[remote].next_id for remote, log in logs.items() if remote in begun):
            self._take(begun, limit.max_rows if isinstance(limit, ReadMaxRows) else self._rows_max)
        reached: Offsets = dict(begun)
        for remote, log in logs.items():
            reached[remote] = Position(NUMBERED, log.next_id if remote in begun else log.first_id)
        return as_json(reached)

    def _take(self, known: Offsets, rows_max: int) -> None:
        waiting = self._taker.waiting()
        if self._left is not None:
            waiting = {remote: min(items, self._left.get(remote, 0)) for remote, items in waiting.items()}
        waiting = {remote: items for remote, items in waiting.items() if remote in known}
        for remote, items in self._rotation.shares(waiting, rows_max).items():
            if items:
                self._taker.take(remote, items)
            if items and self._left is not None:
                self._left[remote] -= items

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None

    def commit(self, end: dict[str, Any]) -> None:
        logs = self._taker.logs()
        for remote, at in from_json(end).items():
            if remote in logs:
                logs[remote].remove_before(at.next_id)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        ranges: list[RangeOfIds] = ranges_of(from_json(start), from_json(end))
        return [RangePartition(one) for one in divided(ranges, self._partitions_min)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, RangePartition):
            yield from log_batches(self._root, partition.what, self._range_options)
