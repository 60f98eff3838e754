"""One machine of a cluster: a disk, clocks, and one server process after the other."""

from collections.abc import Callable
from random import Random
from typing import Final

from tests.simulation.disk import Disk, random_power_cut
from tests.simulation.fabric import Fabric
from tests.simulation.history import POWER_CUT, START_WALL_MS, History, Life, Mode
from tests.simulation.jobs.server import JobServer
from tests.simulation.plan import SPOOL
from tests.simulation.process_files import Faults, ProcessFiles
from tests.simulation.schedule import Schedule
from tests.simulation.server import SimulatedClock

FAMILY: Final = "jobs"
UPTIME_MS_MAX: Final = 5_000_000


class MachineClock(SimulatedClock):
    """The clocks of one machine: the monotonic one counts from when it was booted, and may be a bit fast or slow."""

    def __init__(
        self, schedule: Schedule, history: History, chance: Random, uptime_ms: int, booted_us: int, drift_ppm: int
    ) -> None:
        self._uptime_ms = uptime_ms
        self._booted_us = booted_us
        self._drift_ppm = drift_ppm
        super().__init__(schedule, history, chance)

    def read(self) -> None:
        now_us = self._schedule.now_us
        since_us = now_us - self._booted_us
        self.wall_ms = self._history.wall_ms(now_us)
        self.monotonic_ms = self._uptime_ms + (since_us + since_us * self._drift_ppm // 1_000_000) // 1000


class Machine:
    """`server` None: no process runs. `is_stopped`: it does, and was sent SIGSTOP. `clocks` has what its clocks say."""

    def __init__(
        self, schedule: Schedule, fabric: Fabric, number: int, chance: Random, wall_skew_ms: int, drift_ppm: int
    ) -> None:
        self.number = number
        self.host = f"10.0.0.{number + 1}"
        self.schedule = schedule
        self.disk = Disk()
        self.faults = Faults(Random(chance.random()))
        self.clocks = History(steps=[(0, START_WALL_MS + wall_skew_ms)])
        self.server: JobServer | None = None
        self.lives: list[Life] = []
        self.disk_delay_us = 200
        self.is_stopped = False
        self.stops: list[tuple[int, int]] = []  # from when to when it was, -1 = it still is
        self.was_disk_bad = False
        self.how_it_dies = ""
        self.dies_at_message = False
        self.ids: list[bytes] = []  # that its node has had
        self.repairs = 0
        self.faulty_since_us = -1  # the disk has failed, and the power was not cut nor the log written anew since
        self._fabric = fabric
        self._chance = chance
        self._drift_ppm = drift_ppm
        self._boot()
        self._make_spool()

    def _make_spool(self) -> None:
        files = ProcessFiles(self.disk)
        files.make_dir(SPOOL)
        for path in ("/", SPOOL):
            files.sync_dir(path)

    def _boot(self) -> None:
        self._uptime_ms = self._chance.randint(1, UPTIME_MS_MAX)
        self._booted_us = self.schedule.now_us

    @property
    def life(self) -> Life:
        return self.lives[-1]

    @property
    def is_up(self) -> bool:
        """Whether clients can connect, and are answered sooner or later."""
        return self.server is not None and self.server.is_up and not self.is_stopped

    @property
    def serves(self) -> bool:
        """Whether it is up and has its jobs."""
        return self.is_up and self.server is not None and not self.server.node.persistence.obstacle

    @property
    def name(self) -> str:
        """As a trace has it."""
        return f"node{self.number + 1}"

    @property
    def node_id(self) -> bytes:
        """That of its node, or of the last one."""
        return self.server.node.jobs.node_id if self.server is not None else self.ids[-1]

    def new_server(
        self, config: object, died: Callable[[], None], trace: Callable[[str], None] | None, mode: Mode
    ) -> JobServer:
        """A process that has yet to be started."""
        life = Life(len(self.lives) + 1, self.schedule.now_us, {FAMILY: mode})
        self.lives.append(life)
        server = self.server = JobServer(
            self.schedule, self.clocks, life, self.disk, self.faults, config, lambda: config,  # type: ignore[arg-type, return-value]
            Random(self._chance.random()), died, trace, self._fabric, self.host,
        )  # fmt: skip
        server.clock = MachineClock(
            self.schedule, self.clocks, Random(self._chance.random()), self._uptime_ms, self._booted_us, self._drift_ppm
        )
        server.disk_delay_us = self.disk_delay_us
        return server

    def over(self, how: str) -> None:
        """The process is gone, and with a power cut the machine is booted anew."""
        server = self.server
        assert server is not None
        if server.is_up:
            self.ids.append(server.node.jobs.node_id)
        if self._fabric.networks.get(self.host) is server.network:
            server.end(power_cut=how == POWER_CUT)
        self.life.ended_us, self.life.how = self.schedule.now_us, how
        if self.is_stopped:
            self.stops[-1] = (self.stops[-1][0], self.schedule.now_us)
        self.server, self.is_stopped, self.dies_at_message = None, False, False
        if how == POWER_CUT:
            self.disk = random_power_cut(self.disk, self._chance)
            self._boot()
        self.disk.locked.clear()

    def stop(self) -> None:
        """SIGSTOP."""
        if self.server is not None:
            self.server.loop.stop()
            self.is_stopped = True
            self.stops.append((self.schedule.now_us, -1))

    def go_on(self) -> None:
        """SIGCONT."""
        if self.server is not None and self.is_stopped:
            self.is_stopped = False
            self.stops[-1] = (self.stops[-1][0], self.schedule.now_us)
            self.server.loop.go_on()

    def step_clock(self, step_ms: int) -> None:
        """The system clock is set."""
        self.clocks.steps.append((self.schedule.now_us, self.clocks.steps[-1][1] + step_ms))

    # Its disk

    def set_disk_delay(self, delay_us: int) -> None:
        """What is done in the background takes up to so long at each end."""
        self.disk_delay_us = delay_us
        self.was_disk_bad = self.was_disk_bad or delay_us > 10_000
        if self.server is not None:
            self.server.disk_delay_us = delay_us

    def heal_disk(self) -> None:
        """It takes what it is given again."""
        self.faults.heal()
        self.disk.capacity_bytes = None

    def stopped_us(self, from_us: int, until_us: int) -> int:
        """For how long it was stopped in that time."""
        return sum(
            max(0, min(until_us, end_us if end_us >= 0 else until_us) - max(from_us, since_us))
            for since_us, end_us in self.stops
        )

    def life_at(self, at_us: int) -> int:
        """The number of the process that ran then."""
        return next((life.number for life in reversed(self.lives) if life.ready_us <= at_us), 0)

    @property
    def is_disk_well(self) -> bool:
        return not self.faults.kinds and self.disk.capacity_bytes is None

    def replace_disk(self) -> None:
        """What was on it is gone."""
        self.disk = Disk()
        self._make_spool()
