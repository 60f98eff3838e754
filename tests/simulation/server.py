"""One server process: the daemon's own parts, on a simulated loop, disk and network, put together as daemon.py does."""

from collections.abc import Callable
from random import Random
from typing import Final

from kestreld.clock import Clock
from kestreld.config.config import Config
from kestreld.queues.collection import QueueCollection
from kestreld.queues.commit import GroupCommit
from kestreld.server.memcache.protocol import Memcache
from kestreld.server.service import Service
from kestreld.spool_lock import take_lock
from tests.simulation.client import Talk
from tests.simulation.disk import Disk
from tests.simulation.fabric import Fabric
from tests.simulation.history import History, Life
from tests.simulation.network import SimulatedNetwork
from tests.simulation.process_files import Faults, Finished, ProcessFiles
from tests.simulation.schedule import ProcessLoop, Schedule

LONG_LEDGER_BYTES: Final = 1000  # it is written anew as often as a long one


class SimulatedClock(Clock):
    """Virtual time; the wall clock as the history says, steps and all."""

    def __init__(self, schedule: Schedule, history: History, chance: Random) -> None:
        self._schedule = schedule
        self._history = history
        self._chance = chance
        self._worked_us = 0
        super().__init__()

    def read(self) -> None:
        now_us = self._schedule.now_us
        self.wall_ms = self._history.wall_ms(now_us)
        self.monotonic_ms = now_us // 1000

    def monotonic_up_ms(self) -> int:
        return -(-self._schedule.now_us // 1000)

    def stopwatch_us(self) -> int:
        """Work takes time although no virtual time passes."""
        self._worked_us += self._chance.randint(0, 700)
        return self._schedule.now_us + self._worked_us


class Server:
    """A process from its start to its end. `died` is called when it is killed from within."""

    def __init__(
        self,
        schedule: Schedule,
        history: History,
        life: Life,
        disk: Disk,
        faults: Faults,
        config: Config,
        reload: Callable[[], Config],
        chance: Random,
        died: Callable[[], None],
        trace: Callable[[str], None] | None = None,
        fabric: Fabric | None = None,
        host: str = "simulated",
    ) -> None:
        """`fabric` connects it, as `host`, to other processes; None = there are none."""
        self.schedule = schedule
        self.history = history
        self.life = life
        self.config = config
        self.log: list[str] = []
        self.disk_delay_us = 1000  # of what is done in the background, up to so much at each end
        self._chance = chance
        self._reload = reload
        self._trace = trace
        self._under_way: list[Callable[[], None]] = []  # slow calls that no thread has begun,
        self._untold: list[Callable[[], None]] = []  # and those that are over, with nobody told
        self._lock = -1
        self.loop = ProcessLoop(schedule, chance, died)
        self.files = ProcessFiles(disk, faults, self._in_background)
        self.network = SimulatedNetwork(schedule, self.loop, chance, fabric, host)
        self.clock = SimulatedClock(schedule, history, chance)
        self.collection: QueueCollection | None = None
        self.service: Service | None = None

    @property
    def is_up(self) -> bool:
        return self.service is not None and self.loop.alive

    @property
    def has_stopped(self) -> bool:
        return self.service is not None and self.service.stopped.done()

    def report(self, message: str) -> None:
        self.log.append(message)
        if self._trace is not None:
            self._trace(f"server: {message}")

    def trace_of(self, who: str) -> Callable[[str], None] | None:
        """What tells the trace of somebody."""
        trace = self._trace
        return None if trace is None else lambda line: trace(f"{who}: {line}")

    def start(self) -> None:
        """As `daemon.serve`. Raises Killed, SpoolUnusable, or OSError where the spool cannot be read."""
        self._lock = take_lock(self.files, self.config.queue_path)
        commit = GroupCommit(self.clock, self.files)
        collection = QueueCollection(self.files, self.clock, self.config, commit, self.report)
        collection.bindings.ledger.long_bytes = LONG_LEDGER_BYTES
        collection.recover()
        self.collection = collection
        service = Service(self.loop, self.network, self.clock, collection, self._reload, self.report)  # type: ignore[arg-type]
        service.listen(self.network.listen_tcp("", 0), Memcache(service.state))  # type: ignore[arg-type]
        self.service = service
        collection.serve()

    def _in_background(self, work: Callable[[], None], finished: Finished) -> None:
        """A disk thread: begins some time later, and the loop learns of the end some time after it."""

        def do() -> None:
            self._under_way.remove(do)
            error: OSError | None = None
            try:
                work()
            except OSError as problem:
                error = problem

            def tell() -> None:
                if tell in self._untold:
                    self._untold.remove(tell)
                    finished(error)

            self._untold.append(tell)
            self.schedule.after(self._disk_delay_us(), self.loop.run, tell)

        self._under_way.append(do)
        self.schedule.after(self._disk_delay_us(), self.loop.run, self._if_still_to_do, do)

    def _if_still_to_do(self, do: Callable[[], None]) -> None:
        if do in self._under_way:
            do()

    def _disk_delay_us(self) -> int:
        return int(self.disk_delay_us * self._chance.random())

    def talk(self, number: int, moved_on: Callable[[], None], over: Callable[[], None]) -> Talk:
        """A client's connection."""
        return Talk(self.schedule, self.history, self.network, self.life, number, moved_on, over, self._trace)

    # The end

    def shutdown(self) -> None:
        """SIGTERM."""
        if self.service is not None:
            self.service.shutdown()

    def close(self, time_us: int) -> bool:
        """What the daemon does once its loop has stopped; whether so much time was enough for it. May raise Killed."""
        assert self.collection is not None
        self.files.takes_calls = False
        for do in list(self._under_way):
            if self._chance.random() < 0.5:
                do()
        self._under_way.clear()
        for tell in list(self._untold):
            tell()
        until_us = self.clock.stopwatch_us() + time_us
        if self.service is not None:
            self.service.close_parts(until_us)
        left = self.collection.close(self._lock, until_us)
        self.end(power_cut=False)
        return not left

    def end(self, *, power_cut: bool) -> None:
        """The process is gone."""
        self.loop.alive = False
        self.files.die()
        self.network.process_died(power_cut=power_cut)
