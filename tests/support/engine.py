"""The queues without a server: a collection on a spool of its own, taken through turns, crashes and restarts."""

from collections.abc import Callable, Mapping
from pathlib import Path

from kestreld.config.config import Config, QueueConfig
from kestreld.errors import JournalFailed
from kestreld.files import FileLayer
from kestreld.journal.records import item_data
from kestreld.queues.collection import QueueCollection
from kestreld.queues.commit import GroupCommit
from kestreld.queues.maintenance import Maintenance
from kestreld.queues.queue import Queue
from kestreld.queues.ranges import RangeRead, earliest_id
from kestreld.queues.reader import Reader
from kestreld.queues.slices import Slices
from tests.support.clock import FakeClock

Settings = Mapping[str, Mapping[str, object]]  # queue name -> QueueConfig field -> value


used: list["OpenFiles"] = []  # by the test that runs, with which they are closed


class OpenFiles(FileLayer):
    """The real disk, and what is open of it."""

    def __init__(self) -> None:
        self.open_now: set[int] = set()
        used.append(self)

    def create(self, path: str) -> int:
        fd = super().create(path)
        self.open_now.add(fd)
        return fd

    def open_append(self, path: str) -> int:
        fd = super().open_append(path)
        self.open_now.add(fd)
        return fd

    def open_read(self, path: str) -> int:
        fd = super().open_read(path)
        self.open_now.add(fd)
        return fd

    def close(self, fd: int) -> None:
        if fd in self.open_now:  # else it went with the process: a generator of its own ends late
            self.open_now.remove(fd)
            super().close(fd)

    def die(self) -> None:
        """The process that used this disk has gone: nothing of its is done any more, and nothing stays open."""
        for fd in list(self.open_now):
            self.close(fd)


class QuickFiles(OpenFiles):
    """The real disk without the wait for it: what is written survives a kill -9 all the same."""

    def sync(self, fd: int) -> None:
        """Nothing: no test here cuts the power."""

    def sync_dir(self, path: str) -> None:
        """Nothing, as `sync`."""

    def sync_file_system(self, fd: int) -> None:
        """Nothing, as `sync`."""


class LateFiles(QuickFiles):
    """As a server's disk thread: background work is done when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: list[tuple[Callable[[], None], Callable[[OSError | None], None]]] = []

    def in_background(self, work: Callable[[], None], finished: Callable[[OSError | None], None]) -> None:
        self.under_way.append((work, finished))

    def finish_background(self) -> None:
        under_way, self.under_way = self.under_way, []
        for work, finished in under_way:
            super().in_background(work, finished)

    def die(self) -> None:
        self.under_way.clear()
        super().die()


class Engine:
    """A QueueCollection on `spool`, which is made if need be. `log` is what it reported, over all its lives."""

    def __init__(
        self,
        spool: Path,
        files: FileLayer | None = None,
        clock: FakeClock | None = None,
        archive: Path | None = None,
        *,
        max_memory_bytes: int | None = None,
        **defaults: object,
    ) -> None:
        self.spool = spool
        self.max_memory_bytes = max_memory_bytes
        self.archive = None if archive is None else str(archive)
        self.files = files if files is not None else OpenFiles()
        self.clock = clock if clock is not None else FakeClock()
        self.log: list[str] = []
        self.config = self._config({}, defaults)
        self.files.make_dir(str(spool))
        self.start()

    def _config(self, queues: Settings, defaults: Mapping[str, object]) -> Config:
        own = QueueConfig(**defaults)  # type: ignore[arg-type]
        return Config(
            queue_path=str(self.spool),
            archive_path=self.archive,
            max_memory_bytes=self.max_memory_bytes,
            defaults=own,
            queues=queues,
        )

    def start(self) -> None:
        """A start on the spool as it is: the last process has gone."""
        self.commit = GroupCommit(self.clock, self.files)
        self.collection = QueueCollection(
            self.files, self.clock, self.config, self.commit, lambda line: self.log.append(line)
        )
        self.collection.recover()
        self.slices = Slices(self.clock, lambda: None)
        self.maintenance = Maintenance(self.collection, self.slices)

    # What a server does

    def configure(self, queues: Settings | None = None, **defaults: object) -> None:
        """A reload."""
        self.config = self._config(queues or {}, defaults)
        for _ in self.collection.configure(self.config):
            pass

    def end_turn(self) -> dict[Queue, JournalFailed]:
        """Commit, then what follows the replies; what failed."""
        self.commit.run()
        self.commit.tell()
        failed = self.commit.failed
        self.maintenance.after_turn()
        return failed

    def work(self, slices: int = 1) -> None:
        """The timer's round of upkeep, in so many slices, each as short as they come."""
        self.maintenance.sync_due()
        self.maintenance.start_round()
        for _ in range(slices):
            self.slices.run(self.clock.stopwatch_us())

    def restart(self) -> None:
        """A clean stop, and a new start on the same spool."""
        self.end_turn()
        while isinstance(self.files, LateFiles) and self.files.under_way:
            self.files.finish_background()
            self.end_turn()
        self.collection.close()
        self.start()

    def crash(self) -> None:
        """kill -9, and a new start: what was not written is gone."""
        self.abandon()
        self.start()

    def abandon(self) -> None:
        """Let go of the descriptors, as the kernel does for a process that died."""
        if isinstance(self.files, OpenFiles):
            self.files.die()
            return
        for queue in self.collection.families.values():
            if queue.journal is not None:
                queue.journal.close()

    # What clients do, in one line

    def reader(self, name: str) -> Reader:
        return self.collection.reader(name)

    def queue(self, name: str) -> Queue:
        """The family of that name."""
        return self.collection.families[name]

    def put(self, name: str, *items: bytes, expire_at_ms: int = 0, flags: int = 0) -> list[bool]:
        """A SET of each item, within the turn."""
        reader = self.reader(name)
        only = reader if reader.label else None
        return [reader.queue.put_with(data, expire_at_ms, flags, only) for data in items]

    def take(self, name: str) -> bytes | None:
        """A GET, within the turn: the item's data."""
        record = self.reader(name).take(self.clock.wall_ms)
        return None if record is None else item_data(record)

    def drain(self, name: str) -> list[bytes]:
        """GETs until the queue is empty, and the end of the turn."""
        taken = []
        while (data := self.take(name)) is not None:
            taken.append(data)
        self.end_turn()
        return taken

    def items(self, name: str) -> int:
        reader = self.reader(name)
        reader.queue.flush_counters()
        return reader.items

    def segments(self, family: str) -> list[Path]:
        """A family's segments on the real disk, in order."""
        return sorted((self.spool / f"{family}.journal").glob("*.seg"))


def read_range(queue: Queue, first: int, limit: int, only: int = 0) -> list[bytes]:
    """Up to `limit` settled PUT records from id `first` on, or the first that is left, as the reader API reads them."""
    read = RangeRead(queue, max(first, earliest_id(queue)), limit, 1 << 30, only)
    while read.read():
        pass
    return read.records
