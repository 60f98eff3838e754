"""State of all servers from the samples received so far. Pure: the caller provides the time."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from kestrelctl.shell.exit_codes import ExitCode, Failure
from tui.history import History
from tui.job_rows import JobRow, job_rows_of, summed_jobs
from tui.node_rows import NodeRow, node_rows_of
from tui.queue_rows import QueueRow, rows_of, summed
from tui.snapshots import Outage, Snapshot
from tui.states import STALE

ALL_SERVERS: Final = ""  # the view that sums them


@dataclass(slots=True)
class ServerState:
    address: str
    snapshot: Snapshot | None = None  # the last good one
    previous: Snapshot | None = None
    outage: Outage | None = None  # None = it answered last time
    silent_since_ms: int = 0  # valid during an outage
    rows: list[QueueRow] = field(default_factory=list)
    job_rows: list[JobRow] = field(default_factory=list)

    @property
    def login_refusal(self) -> Failure | None:
        """The failure if the server has refused the login from the first sample on: retries are useless."""
        if self.outage is None or self.snapshot is not None or self.outage.code != ExitCode.AUTHENTICATION:
            return None
        return Failure(ExitCode.AUTHENTICATION, self.outage.reason)

    def counter_per_s(self, name: str) -> float | None:
        """The rate of one of the server's own counters."""
        if self.snapshot is None or self.previous is None or self.outage is not None:
            return None
        before, now = self.previous.counters.get(name), self.snapshot.counters.get(name)
        elapsed_ms = self.snapshot.clock_ms - self.previous.clock_ms
        if not isinstance(before, int) or not isinstance(now, int) or now < before or elapsed_ms <= 0:
            return None
        return (now - before) * 1000 / elapsed_ms


class Board:
    """The servers, the rows of each view, and their history. A view is the sum of all servers or a server's address.

    Rows and servers are those of the current view, `view`, unless another is asked for.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self.servers = {address: ServerState(address) for address in addresses}
        self.views = [ALL_SERVERS, *addresses] if len(addresses) > 1 else [ALL_SERVERS]
        self.view = self.views[0]
        self.histories = {view: History() for view in self.views}
        self._rows: dict[str, list[QueueRow]] = {view: [] for view in self.views}
        self._has_news = False

    def receive(self, news: Snapshot | Outage) -> None:
        server = self.servers[news.server]
        self._has_news = True
        if isinstance(news, Outage):
            if server.outage is None:
                server.silent_since_ms = news.at_ms
            server.outage = news
            for row in server.rows:
                row.in_per_s = row.out_per_s = None
                row.state = STALE
            for job_row in server.job_rows:
                job_row.in_per_s = job_row.out_per_s = None
            return
        # Rates across an outage would be means over all of it.
        server.previous = server.snapshot if server.outage is None else None
        server.snapshot, server.outage = news, None
        server.rows = rows_of(server.previous, news, server.rows)
        server.job_rows = job_rows_of(server.previous, news)

    def advance(self, at_ms: int) -> bool:
        """Update rows and history with the received samples. Return False if there were none since the last call."""
        if not self._has_news:
            return False
        self._has_news = False
        states = list(self.servers.values())
        self._rows[ALL_SERVERS] = summed([state.rows for state in states])
        if len(states) > 1:
            self._rows.update((state.address, state.rows) for state in states)
        for view in self.views:
            self.histories[view].append(at_ms, self._rows[view])
            self.histories[view].mark_growing(self._rows[view])
        return True

    def rewind(self) -> None:
        """Forget everything, as before the first sample."""
        for server in self.servers.values():
            server.snapshot = server.previous = server.outage = None
            server.rows = []
            server.job_rows = []
        for view in self.views:
            self.histories[view].clear()
            self._rows[view] = []

    def look_at(self, view: str) -> None:
        """Change the current view; a server that is the only one has none of its own. Raises ValueError."""
        if view not in self.views and view not in self.servers:
            raise ValueError(f"no server {view}: there are {', '.join(self.servers)}")
        self.view = view if view in self.views else self.views[0]

    def look_at_next(self) -> None:
        self.view = self.views[(self.views.index(self.view) + 1) % len(self.views)]

    @property
    def history(self) -> History:
        """The history of the current view."""
        return self.histories[self.view]

    def rows(self, view: str | None = None) -> list[QueueRow]:
        return self._rows[self.view if view is None else view]

    def job_rows(self, view: str | None = None) -> list[JobRow]:
        """Rows of the job queues."""
        return summed_jobs([server.job_rows for server in self.servers_in(view)])

    def node_rows(self, view: str | None = None) -> list[NodeRow]:
        """Rows of the nodes of the servers' clusters, from the servers that answer."""
        answering = [server for server in self.servers_in(view) if server.outage is None]
        return node_rows_of([(server.previous, server.snapshot) for server in answering if server.snapshot is not None])

    def servers_in(self, view: str | None = None) -> list[ServerState]:
        shown = self.view if view is None else view
        return [state for state in self.servers.values() if shown in (ALL_SERVERS, state.address)]

    @property
    def has_cluster(self) -> bool:
        """True if any server is in a cluster with other nodes."""
        known = [server.snapshot.counters for server in self.servers.values() if server.snapshot is not None]
        return any(int(counters.get("jobs_cluster_size", 1)) > 1 for counters in known)

    def outages(self) -> list[ServerState]:
        return [state for state in self.servers.values() if state.outage is not None]
