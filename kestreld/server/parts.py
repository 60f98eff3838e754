"""Parts of a server (queues, cache, jobs, cluster): their common methods, and the part of the queues."""

from collections.abc import Callable

from kestreld.config.config import Config
from kestreld.queues.collection import QueueCollection
from kestreld.queues.maintenance import Maintenance
from kestreld.queues.slices import Work


class Part:
    """A part of the server. Its methods do nothing unless it overrides them; none is called in a turn."""

    is_ready = True  # False while what it serves is being read; `Service.part_is_ready` then

    def tick(self) -> None:
        """Do what is due. Called once a second."""

    def check(self, config: Config) -> Callable[[], Work | None]:
        """Check a new configuration and return the function that applies it, which may return long work.

        Raises ConfigError, with nothing changed.
        """
        return lambda: None

    def stop(self) -> None:
        """End all waits of clients, as the server shuts down."""

    def close(self, until_us: int | None) -> None:
        """Write to disk what is left to write, until a time of the stopwatch; None = however long it takes."""


class QueuesPart(Part):
    """The queues of a collection. The collection itself is closed last, by whoever has the spool's lock."""

    def __init__(self, collection: QueueCollection, maintenance: Maintenance) -> None:
        self._collection = collection
        self._maintenance = maintenance

    def tick(self) -> None:
        self._maintenance.start_round()

    def check(self, config: Config) -> Callable[[], Work | None]:
        return lambda: self._collection.configure(config)

    def stop(self) -> None:
        for reader in list(self._collection.readers.values()):
            reader.wait_queue.send_away(None)
        for absence in list(self._collection.absences.values()):
            absence.send_away()
