"""Sampling of a server through its admin port, which reports only the queues that have changed."""

import json
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from tui.admin_port import AdminLost, AdminPort
from tui.snapshots import JOB_KEYS, KEYS, NO_HELD, NODE_KEYS, Figures, JobFigures, NodeFigures


class Feed:
    """The queues of one server, kept up to date with the changes it reports."""

    def __init__(self, port: AdminPort) -> None:
        self.queues: dict[str, Figures] = {}
        self.jobs: dict[str, JobFigures] = {}
        self.nodes: dict[str, NodeFigures] = {}
        self.counters: dict[str, int | str] = {}
        self.now_ms = 0  # by the server's clock
        self._port = port
        self._token = ""

    def update(self) -> None:
        """Fetch changes and replace `queues`. Raises AdminLost."""
        content = self._port.get(f"/stats.json?changed_since={self._token}")
        try:
            self.apply(json.loads(content))
        except (ValueError, KeyError, TypeError) as error:
            self.close()
            raise AdminLost(f"unexpected reply: {error}") from error

    def apply(self, stats: dict[str, Any]) -> None:
        """Apply a document of `/stats.json`. Raises KeyError, ValueError or TypeError for anything else."""
        queues: dict[str, Figures] = {} if stats["is_full"] else dict(self.queues)
        for name in stats["gone"]:
            queues.pop(name, None)
        if stats["rows"]:
            columns = stats["columns"]
            missing = () if KEYS[-1] in columns else NO_HELD
            figures_of = itemgetter(*[columns.index(key) for key in KEYS[: len(KEYS) - len(missing)]])
            name_at = columns.index("queue")
            for row in stats["rows"]:
                queues[row[name_at]] = figures_of(row) + missing
        self.jobs = _chosen(stats.get("job_columns", ()), stats.get("job_rows", ()), JOB_KEYS)
        self.nodes = _chosen(stats.get("job_node_columns", ()), stats.get("job_nodes", ()), NODE_KEYS)
        self.queues, self._token, self.now_ms = queues, stats["at"], stats["now_ms"]
        self.counters = {
            name: int(value) if isinstance(value, str) and value.isdecimal() else value
            for name, value in stats["server"].items()
            if not name.startswith("queue_")  # these are figures of queues, as on the memcache port
        }

    def close(self) -> None:
        self._port.close()


def _chosen(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], keys: Sequence[str]
) -> dict[str, tuple[int | str | None, ...]]:
    """Values of these columns by the first cell of each row; None for a column that the server does not have."""
    places = [columns.index(key) if key in columns else None for key in keys]
    return {row[0]: tuple([None if place is None else row[place] for place in places]) for row in rows}
