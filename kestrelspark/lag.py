"""Lag of streams behind their queues, computed from Spark's progress reports."""

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.streaming import StreamingQueryListener

from kestrelspark.readers import Offsets, RemoteQueue
from kestrelspark.streaming import from_json

Lags = dict[RemoteQueue, int]


def lags(progress: Any) -> Lags:
    """Number of unread items of each queue at the time the batch was planned.

    `progress` is a query's `lastProgress`, or the progress in a listener's event. Other sources are left out, and so
    are queues of servers that have not answered since the query began.
    """
    found: Lags = {}
    for source in _of(progress, "sources"):
        latest, end = _offsets(_of(source, "latestOffset")), _offsets(_of(source, "endOffset"))
        for remote, at in end.items():
            if remote in latest:
                there = latest[remote]
                read_to = at.next_id if at.journal_id == there.journal_id else 1
                found[remote] = max(there.next_id - read_to, found.get(remote, 0), 0)
    return found


class LagListener(StreamingQueryListener):
    """Keeps the latest lags of each query: `spark.streams.addListener(LagListener())`.

    `tell` is called with the progress and the lags of every batch, on Spark's thread.
    """

    def __init__(self, tell: Callable[[Any, Lags], object] | None = None) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._lags: dict[str, Lags] = {}

    def lags(self, query: Any) -> Lags:
        """Lags of a query, running or not; empty if it has made no progress yet."""
        with self._lock:
            return dict(self._lags.get(str(query.id), {}))

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        found = lags(event.progress)
        with self._lock:
            self._lags[str(event.progress.id)] = found
        if self._tell is not None:
            self._tell(event.progress, found)

    def onQueryTerminated(self, event: Any) -> None:
        pass


def _of(record: Any, name: str) -> Any:
    """A field of an object or, as in older PySpark, of a dictionary."""
    return record[name] if isinstance(record, Mapping) else getattr(record, name)


def _offsets(said: Any) -> Offsets:
    """Offsets of a "kestrel" stream, which Spark keeps as text; empty for another source."""
    try:
        return from_json(json.loads(said) if isinstance(said, str) else said)
    except (ValueError, AttributeError, TypeError):
        return {}
