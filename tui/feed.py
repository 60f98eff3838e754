"""Looking at a server by its admin port, where it has one: of its queues it says those that have changed."""

import http.client
import json
from operator import itemgetter
from typing import Any

from kestrelctl.admin import AdminConnection, admin_connection
from tui.snapshots import KEYS, Figures


class FeedLost(Exception):
    """The admin port does not answer, or not to us. The memcache port may."""


class Feed:
    """The queues of one server, kept up to date by what it says has changed."""

    def __init__(self, connection: AdminConnection) -> None:
        self.queues: dict[str, Figures] = {}
        self.counters: dict[str, int | str] = {}
        self._connection = connection
        self._token = ""

    def look(self) -> None:
        """Bring `queues` up to date, in a dict of their own. Raises FeedLost."""
        try:
            answer, content = self._connection.ask("GET", f"/stats.json?changed_since={self._token}")
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise FeedLost(str(error)) from error
        if answer.status != 200:
            self.close()
            raise FeedLost(f"{answer.status} {answer.reason}")
        try:
            self.take(json.loads(content))
        except (ValueError, KeyError, TypeError) as error:
            self.close()
            raise FeedLost(f"not what a kestreld answers: {error}") from error

    def take(self, said: dict[str, Any]) -> None:
        """What `/stats.json` says. Raises KeyError, ValueError or TypeError for anything else."""
        queues: dict[str, Figures] = {} if said["is_full"] else dict(self.queues)
        for name in said["gone"]:
            queues.pop(name, None)
        if said["rows"]:
            columns = said["columns"]
            figures_of = itemgetter(*[columns.index(key) for key in KEYS])
            name_at = columns.index("queue")
            for row in said["rows"]:
                queues[row[name_at]] = figures_of(row)
        self.queues, self._token = queues, said["at"]
        self.counters = {
            name: int(value) if value.isdecimal() else value
            for name, value in said["server"].items()
            if not name.startswith("queue_")  # as of the memcache port, where queues' own begin so
        }

    def close(self) -> None:
        self._connection.close()


def feed_of(address: str, admin: str, timeout_ms: int) -> Feed | None:
    """The feed of the server at `address` whose admin port is at `admin`. None = it cannot be reached from here."""
    connection = admin_connection(address, admin, timeout_ms)
    return Feed(connection) if connection is not None else None
