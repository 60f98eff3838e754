"""Looking at a server by its admin port, where it has one: of its queues it says those that have changed."""

import json
from operator import itemgetter
from typing import Any

from tui.admin_port import AdminLost, AdminPort
from tui.snapshots import KEYS, Figures


class Feed:
    """The queues of one server, kept up to date by what it says has changed."""

    def __init__(self, port: AdminPort) -> None:
        self.queues: dict[str, Figures] = {}
        self.counters: dict[str, int | str] = {}
        self.now_ms = 0  # by the server's clock
        self._port = port
        self._token = ""

    def look(self) -> None:
        """Bring `queues` up to date, in a dict of their own. Raises AdminLost."""
        content = self._port.get(f"/stats.json?changed_since={self._token}")
        try:
            self.take(json.loads(content))
        except (ValueError, KeyError, TypeError) as error:
            self.close()
            raise AdminLost(f"not what a kestreld answers: {error}") from error

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
        self.queues, self._token, self.now_ms = queues, said["at"], said["now_ms"]
        self.counters = {
            name: int(value) if value.isdecimal() else value
            for name, value in said["server"].items()
            if not name.startswith("queue_")  # as of the memcache port, where queues' own begin so
        }

    def close(self) -> None:
        self._port.close()
