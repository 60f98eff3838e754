"""State that all sessions share, and functions of the server that they may call."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kestreld.queues.collection import QueueCollection
from kestreld.queues.presence import Presence
from kestreld.queues.repairing import RepairDone, UndoDone
from kestreld.queues.slices import Work
from kestreld.stats import ServerStats


@dataclass(frozen=True)
class Reloaded:
    """Result of a reload: the problems for which it was refused, or the settings that need a restart."""

    problems: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()


class ServerControl(Protocol):
    """Functions of the server for sessions."""

    note: Callable[[str], None]  # logs what was done

    def shutdown(self) -> None: ...

    def reload(self, done: Callable[[Reloaded], None]) -> None: ...

    def repair(self, name: str, done: RepairDone) -> None: ...

    def undo(self, name: str, done: UndoDone) -> None: ...

    def take_on(self, work: Work) -> None: ...

    def finish_turn(self) -> None: ...


class ServerState:
    """The queues, the counters, and settings that sessions use."""

    def __init__(self, collection: QueueCollection, stats: ServerStats, control: ServerControl) -> None:
        self.collection = collection
        self.stats = stats
        self.control = control
        self.clock = collection.clock
        self.presence = Presence(collection, control)
        self.max_open_reads = collection.config.max_open_reads
