"""Interface of the server to the log that keeps jobs on disk; without a log, jobs are in memory only."""

from collections.abc import Callable
from typing import Final

from kestreld.clock import Clock
from kestreld.jobs.storage import JobStorage
from kestreld.queues.commit import Committed
from kestreld.stats import Figures

Done = Callable[[str], None]  # gets the reason of a failure, "" = success
NO_LOG: Final = "jobs are in memory only"
LOADING: Final = b"-LOADING Disque is loading the dataset in memory\r\n"
SYNC_MS: Final[dict[bytes, int | None]] = {b"always": 0, b"everysec": 1000, b"no": None}  # appendfsync, as sync_journal


def fsync_word(sync_ms: int | None) -> bytes:
    """Return the word of appendfsync for a sync interval."""
    return b"no" if sync_ms is None else b"everysec" if sync_ms else b"always"


class Persistence:
    """Jobs in memory only, and the interface of `LoggedJobs`.

    Replies wait for `committed`, None without a log. `failure` is the reason why the log takes no changes; `obstacle`
    is the reply to commands while no job is served.
    """

    def __init__(self) -> None:
        self.committed: Committed | None = None
        self.failure = b""
        self.obstacle = b""

    @property
    def refusal(self) -> bytes:
        """Reply to changes while the log takes none; b"" while it does."""
        return b"-MISCONF Errors writing to the AOF file: %b\r\n" % self.failure if self.failure else b""

    @property
    def is_on(self) -> bool:
        """True if changes are written."""
        return self.committed is not None

    @property
    def is_loading(self) -> bool:
        """True while the log is being read."""
        return False

    def switch(self, done: Done, *, on: bool) -> None:
        """Start a new log of the jobs in memory, or stop writing."""
        done(NO_LOG if on else "")

    def set_parameter(self, name: bytes, value: bytes) -> None:
        """Apply CONFIG SET of a parameter that may concern the log, other than appendonly."""

    def rewrite(self, done: Done) -> None:
        """Compact the log."""
        done(NO_LOG)

    @property
    def is_rewriting(self) -> bool:
        """True while the log is being compacted."""
        return False

    def save_for_restart(self, done: Done) -> None:
        """Write all jobs, and with aof-enqueue-jobs-once their queues, which the next start restores once."""
        done(NO_LOG)

    @property
    def is_stopped(self) -> bool:
        """True if the log cannot be read, so that no job is served."""
        return False

    @property
    def disk_bytes(self) -> int:
        """Bytes of the log."""
        return 0

    def load(self, done: Done) -> None:
        """Discard the jobs in memory and read the log."""
        done(NO_LOG)

    def figures(self) -> Figures:
        """Return the lines of INFO about the log."""
        return [
            ("loading", 0),
            ("aof_enabled", 0),
            ("aof_state", "off"),
            ("aof_rewrite_in_progress", 0),
            ("aof_rewrite_scheduled", 0),
            ("aof_last_rewrite_time_sec", -1),
            ("aof_current_rewrite_time_sec", -1),
            ("aof_last_bgrewrite_status", "ok"),
            ("aof_last_write_status", "ok"),
        ]


class LoggedJobs(Persistence):
    """The job log of a server. `told` is called after every change of an attribute."""

    def __init__(self, storage: JobStorage, clock: Clock, told: Callable[[], None]) -> None:
        super().__init__()
        self._storage = storage
        self._clock = clock
        self._told = told
        self._may_cut = True
        storage.watch(self._changed)

    def _changed(self) -> None:
        storage = self._storage
        self.committed = storage.writer
        self.failure = storage.refusal.rpartition("failed: ")[2].encode("utf-8", "replace")
        self.obstacle = b""
        if storage.is_loading:
            self.obstacle = LOADING
        elif storage.stopped is not None:
            self.obstacle = b"-MISCONF The job log cannot be read: %b\r\n" % str(storage.stopped).encode(
                "utf-8", "replace"
            ).replace(b"\n", b" ")
        self._told()

    @property
    def is_stopped(self) -> bool:
        return self._storage.stopped is not None

    def begin(
        self, done: Done, *, on: bool, aof: str = "", members: Callable[[], frozenset[bytes]] = frozenset
    ) -> None:
        """Read the log at the start, if it is on or a controlled restart is to restore its queues.

        Then the jobs of `aof`, a file of Disque's own, are imported; "" = there is none.
        """
        storage, may_cut = self._storage, self._may_cut

        def loaded(problem: str) -> None:
            if problem or not aof:
                done(problem)
            else:
                storage.import_aof(aof, done, may_cut=may_cut, members=members)

        if on or storage.restores_queues:
            storage.load(loaded, is_kept=on, may_cut=may_cut)
        else:
            loaded("")

    @property
    def is_loading(self) -> bool:
        return self._storage.is_loading

    @property
    def disk_bytes(self) -> int:
        return self._storage.disk_bytes

    def switch(self, done: Done, *, on: bool) -> None:
        if on:
            self._storage.turn_on(done)
        else:
            self._storage.turn_off()
            done("")

    def set_parameter(self, name: bytes, value: bytes) -> None:
        storage = self._storage
        if name == b"appendfsync":
            storage.sync_within(SYNC_MS[value])
        elif name == b"aof-enqueue-jobs-once":
            storage.restore_queues(wanted=value == b"yes")
        elif name == b"aof-load-truncated":
            self._may_cut = value == b"yes"
        elif name == b"auto-aof-rewrite-percentage":
            storage.rules.set(growth_percent=int(value))
        elif name == b"auto-aof-rewrite-min-size":
            storage.rules.set(bytes_min=int(value))

    def rewrite(self, done: Done) -> None:
        done("" if self._storage.rewrite() else NO_LOG)

    @property
    def is_rewriting(self) -> bool:
        maintenance = self._storage.maintenance
        return maintenance is not None and maintenance.is_rewriting

    def save_for_restart(self, done: Done) -> None:
        self._storage.save(done)

    def load(self, done: Done) -> None:
        self._storage.reload(done, may_cut=self._may_cut)

    def figures(self) -> Figures:
        storage, maintenance = self._storage, self._storage.maintenance
        lines: list[tuple[str, int | str]] = [("loading", int(storage.is_loading)), ("aof_enabled", int(storage.is_on))]
        if maintenance is None:
            lines += [line for line in super().figures() if line[0] not in ("loading", "aof_enabled")]
        else:
            began_at_ms, last_ms = maintenance.rewrite_began_at_ms, maintenance.last_rewrite_ms
            is_rewriting, is_refused = maintenance.is_rewriting, bool(self.failure)
            has_failed = maintenance.last_rewrite_failed and not is_rewriting
            running_s = (self._clock.monotonic_ms - began_at_ms) // 1000 if is_rewriting else -1
            unwritten_bytes = maintenance.writer.unwritten_bytes
            lines += [
                ("aof_state", "wait-rewrite" if maintenance.is_fresh else "on"),
                ("aof_rewrite_in_progress", int(is_rewriting)),
                ("aof_rewrite_scheduled", int(maintenance.is_rewrite_wanted)),
                ("aof_last_rewrite_time_sec", last_ms // 1000 if last_ms >= 0 else -1),
                ("aof_current_rewrite_time_sec", running_s),
                ("aof_last_bgrewrite_status", "err" if has_failed else "ok"),
                ("aof_last_write_status", "err" if is_refused else "ok"),
                ("aof_current_size", storage.disk_bytes),
                ("aof_base_size", maintenance.base_bytes),
                ("aof_pending_rewrite", int(maintenance.is_rewrite_wanted)),
                ("aof_buffer_length", unwritten_bytes),
                ("aof_rewrite_buffer_length", 0),
                ("aof_pending_bio_fsync", int(maintenance.journal.syncing)),
                ("aof_delayed_fsync", 0),
            ]
        if storage.is_loading:
            lines += self._loading()
        return lines

    def _loading(self) -> Figures:
        done_bytes, all_bytes = self._storage.loaded
        began_at_ms = self._storage.load_began_at_ms
        spent_ms = max(self._clock.wall_ms - began_at_ms, 1)
        left_ms = spent_ms * (all_bytes - done_bytes) // done_bytes if done_bytes else 0
        return [
            ("loading_start_time", began_at_ms // 1000),
            ("loading_total_bytes", all_bytes),
            ("loading_loaded_bytes", done_bytes),
            ("loading_loaded_perc", f"{100 * done_bytes / all_bytes if all_bytes else 0:.2f}"),
            ("loading_eta_seconds", left_ms // 1000),
        ]
