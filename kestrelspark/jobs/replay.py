"""The job replay: puts items of journals on queues again, in order and with their original intervals."""

import dataclasses
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from kestrelctl.items.putting import expiry_at_s, expiry_s
from kestrelctl.journals.replaying import Pace, due
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.client.items import PutItem
from kestreld.journal.discovery import discover
from kestrelspark.in_order import CODE, COLUMNS, Source, merged, source_batches, sources_of
from kestrelspark.jobs.convert import Choice
from kestrelspark.options import BadOption, instant_ms
from kestrelspark.progress import ItemPosition, ReplayProgress
from kestrelspark.rows import CORRUPT, INSTANT, VALUE, Mode, RowSelection
from kestrelspark.servers import Servers, ServerTrouble
from kestrelspark.sink import Outlet, server_for
from kestrelspark.storage import ENVIRONMENT
from kestrelspark.tables import columns_schema, table

OUTCOME_SCHEMA: Final = (
    "server string, queue string, items long, bytes long, expired long, last_id long, problem string, code long"
)
_OUTCOME_ARROW: Final = pa.schema(
    [
        (name, pa.string() if name in ("server", "queue", "problem") else pa.int64())
        for name in ("server", "queue", "items", "bytes", "expired", "last_id", "problem", "code")
    ]
)


@dataclass(slots=True, frozen=True)
class Replay:
    """Options of a replay. `queue` "" = queues of the same names; `where` "" = all items.

    `mode` is the handling of damage: FAILFAST stops the replay of that queue.
    """

    servers: Servers
    queue: str = ""
    where: str = ""
    pace: Pace = field(default_factory=Pace)
    state: str = ""
    with_expired: bool = False
    has_dedup_key: bool = False
    mode: Mode = Mode.FAILFAST


@dataclass(slots=True)
class Outcome:
    """The result for one queue. `problem` "" = complete; `code` is the exit code."""

    server: str
    queue: str
    items: int = 0
    bytes: int = 0
    expired: int = 0
    last_id: int = 0
    problem: str = ""
    code: int = 0


@dataclass(slots=True)
class _Row:
    source: tuple[str, str]
    target: str
    position: ItemPosition
    at_ms: int
    expire_at_ms: int
    item: PutItem
    problem: str
    code: int


def replay(spark: Any, paths: Sequence[str], choice: Choice, what: Replay) -> list[Outcome]:
    """Put the items again; return the outcome for each queue with items.

    Raises BadOption, and FileNotFoundError for a missing path.
    """
    selection = RowSelection(
        COLUMNS, what.mode, instant_ms(choice.since, "since"), instant_ms(choice.until, "until"), puts_only=True
    )
    found = discover(paths, choice.queues, selection.since_ms, ENVIRONMENT.files)
    sources = sources_of([*found.files, *found.missing])
    if not sources:
        return []
    if what.state:
        what = dataclasses.replace(
            what, state=os.path.abspath(what.state)
        )  # tasks on other nodes have other working directories
        os.makedirs(what.state, exist_ok=True)
    is_paced = what.pace.speed is not None or what.pace.rate is not None
    shares = _shares(sources, spark.sparkContext.defaultParallelism) if is_paced else [[one] for one in sources]
    frame = _chosen(_frame(spark, shares, selection, what.state), what.where)
    first_ms = None
    if what.pace.speed is not None:
        without_values = dataclasses.replace(selection, columns=tuple(name for name in COLUMNS if name != VALUE))
        asks_for_values = VALUE in what.where
        times = frame if asks_for_values else _chosen(_frame(spark, shares, without_values, what.state), what.where)
        first_ms = times.selectExpr("min(unix_millis(add_time))").first()[0]
    total_bytes = sum(one.size_bytes for one in sources) or 1
    weights = {
        (one.server, one.queue): sum(each.size_bytes for each in share) / total_bytes
        for share in shares
        for one in share
    }
    begun_at_s = time.time()

    def put(batches: Iterable[Any]) -> Iterator[Any]:
        yield from _Putting(what, weights, first_ms, begun_at_s).all(batches)

    outcomes = frame.mapInArrow(put, OUTCOME_SCHEMA).collect()
    return sorted((Outcome(**row.asDict()) for row in outcomes), key=lambda one: (one.server, one.queue))


def _shares(sources: Sequence[Source], count: int) -> list[list[Source]]:
    """Distribute queues among `count` concurrent tasks by size."""
    shares: list[list[Source]] = [[] for _ in range(min(count, len(sources)))]
    sizes_bytes = [0] * len(shares)
    for source in sorted(sources, key=lambda one: -one.size_bytes):
        at = sizes_bytes.index(min(sizes_bytes))
        shares[at].append(source)
        sizes_bytes[at] += source.size_bytes
    return shares


def _frame(spark: Any, shares: Sequence[list[Source]], selection: RowSelection, state: str) -> Any:
    from pyspark.sql.types import LongType

    schema = columns_schema(selection.columns).add(CODE, LongType())
    return table(spark, shares, lambda share: merged([source_batches(one, selection, state) for one in share]), schema)


def _chosen(frame: Any, where: str) -> Any:
    """The rows that match the expression. Raises BadOption if it is invalid."""
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql.functions import expr

    if not where:
        return frame
    try:
        return frame.where(expr(where) | frame[CORRUPT].isNotNull())
    except (AnalysisException, ParseException) as problem:
        reason = (problem.getMessage() or str(problem)).strip().splitlines()[0]
        raise BadOption(f"--where {where!r}: {reason}") from problem


class _Putting:
    """The puts of one task. `weights`: for each queue, its task's share of the rate."""

    def __init__(
        self, what: Replay, weights: Mapping[tuple[str, str], float], first_ms: int | None, begun_at_s: float
    ) -> None:
        self._what = what
        self._weights = weights
        self._first_ms = first_ms
        self._begun_s = time.monotonic() + begun_at_s - time.time()
        self._progress = ReplayProgress(what.state)
        self._outcomes: dict[tuple[str, str], Outcome] = {}

    def all(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Put all rows; yield the outcomes."""
        rows = self._rows(batches)
        first = next(rows, None)
        if first is None:
            return
        self._outlet = Outlet(self._what.servers)
        pace = self._what.pace
        if pace.rate is not None:
            pace = dataclasses.replace(pace, rate=pace.rate * self._weights[first.source])
        source = first.source
        try:
            for group in due(chain([first], rows), pace, self._outlet.keep_alive, self._first_ms, self._begun_s):
                for source, some in _by_source(group):
                    self._put(source, some)
        except ServerTrouble as trouble:
            outcome = self._outcome(source)
            cause = trouble.__cause__
            outcome.problem, outcome.code = str(trouble), cause.code if isinstance(cause, Failure) else ExitCode.IO
        finally:
            self._outlet.close()
        yield pa.RecordBatch.from_pylist([dataclasses.asdict(one) for one in self._outcomes.values()], _OUTCOME_ARROW)

    def _outcome(self, source: tuple[str, str]) -> Outcome:
        return self._outcomes.setdefault(source, Outcome(*source))

    def _rows(self, batches: Iterable[Any]) -> Iterator[_Row]:
        for batch in batches:
            columns = {name: batch.column(name) for name in batch.schema.names}
            add_ms = _milliseconds(columns["add_time"])
            expire_ms = _milliseconds(columns["expire_time"])
            names = ("server", "queue", "reader", "id", "journal_id", "flags", VALUE, CORRUPT, CODE)
            due_ms = _milliseconds(columns["due_time"])
            lists = [columns[name].to_pylist() for name in names]
            for at_ms, expire_at_ms, due_at_ms, *row in zip(add_ms, expire_ms, due_ms, *lists, strict=True):
                yield self._row(at_ms, expire_at_ms, due_at_ms, *row)

    def _row(
        self,
        at_ms: int,
        expire_at_ms: int,
        due_at_ms: int,
        server: str,
        queue: str,
        reader: str | None,
        item_id: int | None,
        journal_id: int | None,
        flags: int | None,
        value: bytes | None,
        corrupt: str | None,
        code: int | None,
    ) -> _Row:
        target = self._what.queue or queue
        data = value or b""
        if self._what.has_dedup_key:
            data = f"{server}/{queue}/{journal_id}/{item_id}\n".encode() + data
        return _Row(
            (server, queue),
            f"{target}+{reader}" if reader else target,
            ItemPosition(journal_id or 0, item_id or 0),
            at_ms,
            expire_at_ms,
            PutItem(data, 0, flags or 0, max(due_at_ms - at_ms, 0) if due_at_ms else 0),
            corrupt or "",
            code or 0,
        )

    def _put(self, source: tuple[str, str], rows: list[_Row]) -> None:
        """Put rows of a queue. Raises ServerTrouble, after which it is unknown which rows were put."""
        outcome = self._outcome(source)
        items: list[tuple[str, list[PutItem]]] = []  # by target, in order
        position, expired = None, 0
        now_ms = int(time.time() * 1000)
        for row in rows:
            if row.problem:
                outcome.problem, outcome.code = row.problem, row.code
                continue
            position = row.position
            if row.expire_at_ms and row.expire_at_ms <= now_ms and not self._what.with_expired:
                expired += 1
            else:
                if not items or items[-1][0] != row.target:
                    items.append((row.target, []))
                items[-1][1].append(row.item._replace(expire_s=self._expire_s(row)))
        server = server_for("/".join(source).encode(), self._outlet.addresses)
        for target, some in items:
            self._outlet.put(target.encode(), some, server)
            outcome.items += len(some)
            outcome.bytes += sum(len(item.data) for item in some)
        outcome.expired += expired
        if position is not None:
            outcome.last_id = position.item_id
            self._progress.save(*source, position)

    def _expire_s(self, row: _Row) -> int:
        """The expiry as the protocol has it, in seconds. With expired items, each gets its original lifetime again."""
        if not row.expire_at_ms:
            return 0
        if self._what.with_expired:
            return expiry_s(max(row.expire_at_ms - row.at_ms, 1))
        return expiry_at_s(row.expire_at_ms)


def _by_source(rows: Iterable[_Row]) -> Iterable[tuple[tuple[str, str], list[_Row]]]:
    found: dict[tuple[str, str], list[_Row]] = {}
    for row in rows:
        found.setdefault(row.source, []).append(row)
    return found.items()


def _milliseconds(times: Any) -> list[int]:
    """Milliseconds since 1970; 0 = none."""
    in_us = times.cast(INSTANT).cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    found: list[int] = (in_us // 1000).tolist()
    return found
