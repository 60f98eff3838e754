"""The sink: puts rows as items on queues over the memcache port, at least once, in batches and in streams."""

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, IntegralType, StringType, StructType, TimestampType
from xxhash import xxh3_64_intdigest

from kestrelctl.items.putting import PutReport, expiry_at_s, expiry_s
from kestrelctl.remote.client import KestrelClient
from kestrelctl.shell.exit_codes import Failure
from kestreld.client.items import PutItem
from kestrelspark.options import BadOption, check_names, flag, number, option
from kestrelspark.servers import OPTIONS as SERVER_OPTIONS
from kestrelspark.servers import PASSING, Patience, Servers, servers_in

OPTIONS: Final = (*SERVER_OPTIONS, "queue", "expiryseconds", "dedupkey", "path", "checkpointlocation")
COLUMNS: Final = ("value", "queue", "key", "expire_time", "flags", "dedup_key")
TEXT: Final = (StringType, BinaryType)
TYPES: Final = {"expire_time": TimestampType, "flags": IntegralType}
FLAGS_MAX: Final = (1 << 32) - 1
STRETCH_ITEMS: Final = 1000  # items sent to one server at a time


@dataclass(frozen=True)
class Stored(WriterCommitMessage):
    """Number of items that one task has put."""

    items: int


@dataclass(slots=True, frozen=True)
class Plan:
    """Options of a write. `queue` "" = from the column; `run` identifies the write in keys, "" = the batch id does."""

    servers: Servers
    queue: str
    expire_ms: int  # from the put on; 0 = never
    columns: tuple[str, ...]
    has_dedup_key: bool
    run: str

    def put(self, batches: Iterable[Any]) -> Stored:
        """Put all rows. Raises ServerTrouble if some of them cannot be put."""
        outlet, rows = Outlet(self.servers), 0
        keys = self._run_name() if self.has_dedup_key else ""
        try:
            for batch in batches:
                for first in range(0, batch.num_rows, STRETCH_ITEMS):
                    stretch = batch.slice(first, STRETCH_ITEMS)
                    for (queue, server), items in self._sorted_out(stretch, keys, rows, outlet.addresses):
                        outlet.put(queue.encode(), items, server)
                    rows += stretch.num_rows
        finally:
            outlet.close()
        return Stored(rows)

    def _run_name(self) -> str:
        """The prefix of this task's keys: the same if the task or its batch is retried."""
        task = TaskContext.get()
        run = self.run
        if not run:
            run = f"{task.getLocalProperty('sql.streaming.queryId')}-{task.getLocalProperty('streaming.sql.batchId')}"
        return f"{run}-{task.partitionId()}"

    def _sorted_out(
        self, batch: Any, keys: str, rows: int, addresses: list[str]
    ) -> Iterable[tuple[tuple[str, str], list[PutItem]]]:
        """Items of rows by queue and server ("" = any). Raises BadOption for a row that cannot be an item."""
        columns = {name: batch.column(index).to_pylist() for index, name in enumerate(self.columns)}
        nothing = [None] * batch.num_rows
        expire_s_otherwise = expiry_s(self.expire_ms)
        found: dict[tuple[str, str], list[PutItem]] = {}
        rows_of = zip(
            *(columns.get(name, nothing) for name in COLUMNS), range(rows, rows + batch.num_rows), strict=True
        )
        for value, named, key, expire_time, flags, dedup_key, row in rows_of:
            queue = self.queue if named is None else named
            if value is None or not queue:
                raise BadOption(f"a row has no {'value' if value is None else 'queue'}")
            if flags is not None and not 0 <= flags <= FLAGS_MAX:
                raise BadOption(f"a row for {queue} has the flags {flags}: they must be from 0 to {FLAGS_MAX}")
            data = _data(value)
            if keys:
                data = (_data(dedup_key) if dedup_key is not None else f"{keys}-{row}".encode()) + b"\n" + data
            expire_s = expire_s_otherwise if expire_time is None else expiry_at_s(int(expire_time.timestamp() * 1000))
            server = "" if key is None else server_for(_data(key), addresses)
            found.setdefault((queue, server), []).append(PutItem(data, expire_s, flags or 0))
        return found.items()


def server_for(key: bytes, addresses: list[str]) -> str:
    """The server for a key: the same for the same key and addresses."""
    return addresses[xxh3_64_intdigest(key) % len(addresses)]


def _data(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


class Outlet:
    """Puts items over the connections of one task."""

    def __init__(self, servers: Servers) -> None:
        self.addresses = servers.addresses()
        self._servers = servers
        self._login = servers.login()
        self._clients: dict[str, KestrelClient] = {}
        self._random = random.Random()

    def put(self, queue: bytes, items: list[PutItem], server: str = "") -> None:
        """Put all items on `server`, or on any. Raises ServerTrouble.

        Items that are refused or not answered are put again, so duplicates are possible.
        """
        patience = Patience(self._servers.retries)
        candidates = self._candidates(server)
        while items:
            address = candidates.pop()
            items, failure = self._try(address, queue, items)
            if failure is not None and (not candidates or failure.code not in PASSING):
                patience.spend(Failure(failure.code, f"{address}: {failure.words}"))
                candidates = self._candidates(server)

    def _candidates(self, server: str) -> list[str]:
        """Servers to try, the last first."""
        return [server] if server else self._random.sample(self.addresses, len(self.addresses))

    def _try(self, address: str, queue: bytes, items: list[PutItem]) -> tuple[list[PutItem], Failure | None]:
        """The items not known to be stored, and the failure."""
        client = self._clients.get(address)
        if client is None:
            client = self._clients[address] = KestrelClient(address, self._servers.timeout_ms, self._login)
        report: PutReport = client.put_items(queue, [items])
        if report.failure is not None and report.answered < report.sent:
            client.close()
            del self._clients[address]  # a client connects once only
        elif not client.is_connected:
            del self._clients[address]
        left = [items[number - 1] for number in report.refused] + items[report.answered :]
        return left, report.failure

    def keep_alive(self) -> None:
        """Keep connections from being closed as idle. A closed one is opened again when needed."""
        for address, client in list(self._clients.items()):
            try:
                client.keep_alive()
            except Failure:
                client.close()
                del self._clients[address]

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


class BatchSink(DataSourceArrowWriter):
    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self._plan.put(iterator)


class StreamSink(DataSourceStreamArrowWriter):
    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self._plan.put(iterator)


def batch_sink(schema: StructType, options: Mapping[str, str], *, overwrite: bool) -> BatchSink:
    _must_be_no_table(schema)
    if overwrite:
        raise BadOption('queues cannot be overwritten: use mode("append")')
    return BatchSink(_plan(schema, options, uuid4().hex))


def stream_sink(schema: StructType, options: Mapping[str, str]) -> StreamSink:
    return StreamSink(_plan(schema, options, ""))


def _must_be_no_table(schema: StructType) -> None:
    """Raise BadOption for the columns of a table of journals or live queues, all of which INSERT INTO passes."""
    if {"server", "queue", "id", "add_time"} <= set(schema.names):
        words = "a table of journals or of live queues is for reading only; to put rows on queues"
        how = 'use frame.write.format("kestrel").mode("append") with the options servers and queue'
        raise BadOption(f"{words}, {how}: it takes the columns {', '.join(COLUMNS)}")


def _plan(schema: StructType, options: Mapping[str, str], run: str) -> Plan:
    """The plan for these columns and options. Raises BadOption."""
    check_names(options, OPTIONS, "the kestrel sink")
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise BadOption(f"the kestrel sink has no column {field.name}; columns are {', '.join(COLUMNS)}")
        wanted = TYPES.get(field.name, TEXT)
        if not isinstance(field.dataType, wanted):
            raise BadOption(f"the column {field.name} has an unsupported type: {field.dataType.simpleString()}")
    names = tuple(field.name for field in schema.fields)
    queue = option(options, "queue") or option(options, "path")
    if "value" not in names:
        raise BadOption("the kestrel sink requires a column value with the items' data")
    if not queue and "queue" not in names:
        raise BadOption("the kestrel sink requires the option queue or a column queue")
    return Plan(
        servers_in(options),
        queue,
        number(options, "expiryseconds", 0) * 1000,
        names,
        flag(options, "dedupkey"),
        run,
    )
