"""What all sessions share, and what they may ask of the server itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kestreld.queues.collection import QueueCollection
from kestreld.queues.repairing import RepairDone, UndoDone
from kestreld.queues.slices import Work
from kestreld.stats import ServerStats


@dataclass(frozen=True)
class Reloaded:
    """What a reload came to: why it was refused, or the settings that wait for a restart."""

    problems: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()


class ServerControl(Protocol):
    """What a session can ask of the server itself."""

    def shutdown(self) -> None: ...

    def reload(self, done: Callable[[Reloaded], None]) -> None: ...

    def repair(self, name: str, done: RepairDone) -> None: ...

    def undo(self, name: str, done: UndoDone) -> None: ...

    def take_on(self, work: Work) -> None: ...

    def finish_turn(self) -> None: ...


class ServerState:
    """The queues, the counters and the server's own switches."""

    def __init__(self, collection: QueueCollection, stats: ServerStats, control: ServerControl) -> None:
        self.collection = collection
        self.stats = stats
        self.control = control
        self.clock = collection.clock
        self.max_open_reads = collection.config.max_open_reads
