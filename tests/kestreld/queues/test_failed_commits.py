"""A disk that refuses: the n-th call fails, for every n. What was acknowledged stays, what was not is undone."""

import errno
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kestreld.errors import JournalFailed
from kestreld.journal.records import item_data
from kestreld.queues.commit import PendingCommit
from kestreld.queues.maintenance import REFUSALS_MAX
from kestreld.queues.slices import WAITS
from tests.support.engine import Engine, LateFiles, QuickFiles, read_range
from tests.support.faulty_files import FULL, FaultyFiles

WORK, AUDIT = "work", "work+audit"
NAMES = (WORK, AUDIT)
SETTINGS: dict[str, object] = {
    "max_memory_size_bytes": 60,
    "max_journal_size_bytes": 400,
    "max_journal_overflow": 3,
}


@dataclass
class Turn:
    """What one turn's clients did and do not know the outcome of yet."""

    puts: list[tuple[str, bytes]] = field(default_factory=list)
    gets: list[tuple[str, bytes]] = field(default_factory=list)
    pending_commit: PendingCommit | None = None


class Clients:
    """They keep books: `there` is what was acknowledged and not taken since, by queue and in order."""

    def __init__(self, engine: Engine, files: FaultyFiles, disk_takes_turns: int) -> None:
        self.engine = engine
        self.files = files
        self.disk_takes_turns = disk_takes_turns  # so many turns go by until a sync is over
        self.turns = 0
        self.there: dict[str, list[bytes]] = {}
        self.unsure: set[bytes] = set()  # put by a commit that failed
        self.unsure_gets: set[tuple[str, bytes]] = set()  # taken by a commit that failed
        self.may_be_gone: set[tuple[str, bytes]] = set()  # taken by a commit whose outcome nobody has heard
        self.may_return: set[tuple[str, bytes]] = set()  # taken while there was no journal to say so in
        self.turn = Turn()
        self.unanswered: list[Turn] = []
        self.numbers = 0

    def make(self, name: str) -> bool:
        """The queue, unless the disk refuses its folder."""
        try:
            self.engine.reader(name)
        except JournalFailed:
            return False
        self.there.setdefault(name, [])
        return True

    def put(self, name: str = WORK, size: int = 20) -> bool:
        """A SET; False when it is refused."""
        self.numbers += 1
        data = (b"%d" % self.numbers).ljust(size, b".")
        try:
            if not self.make(name) or not all(self.engine.put(name, data)):
                return False
        except JournalFailed:
            return False
        self.turn.puts.extend([(one, data) for one in ([*self.there] if name == WORK else [name])])
        return True

    def take(self, name: str = WORK) -> None:
        data = self.engine.take(name) if self.make(name) else None
        if data is not None:
            self.turn.gets.append((name, data))

    def open_and_close(self, name: str = WORK) -> None:
        """Two open reads, the second of which is confirmed and the first given back."""
        if not self.make(name):
            return
        reader, now_ms = self.engine.reader(name), self.engine.clock.wall_ms
        opened = [one for one in (reader.open_read(now_ms), reader.open_read(now_ms)) if one is not None]
        if len(opened) == 2:
            reader.close(opened[1][0])
            self.turn.gets.append((name, item_data(opened[1][1])))
        if opened:
            reader.abort(opened[0][0], now_ms)

    def end_turn(self) -> None:
        """Commit; the answers come now or when the disk is done."""
        turn, self.turn = self.turn, Turn()
        failed = self.engine.end_turn()
        queue = self.engine.collection.families.get(WORK)
        if queue is not None:
            turn.pending_commit = queue.pending_commit
            if turn.pending_commit is None:
                self.answered(turn, failed=queue in failed)
            else:
                self.unanswered.append(turn)
        self.turns += 1
        if self.turns % self.disk_takes_turns == 0:
            self.files.finish_background()
        if queue is not None:
            self.hear()

    def wait_for_answers(self) -> None:
        while self.unanswered:
            self.end_turn()

    def hear(self) -> None:
        """Answers to turns whose commits are on disk by now, or never will be."""
        while self.unanswered and not (pending_commit := self.unanswered[0].pending_commit).pending:
            self.answered(self.unanswered.pop(0), failed=pending_commit.failure is not None)
        if not self.unanswered:
            self.must_agree()

    def answered(self, turn: Turn, *, failed: bool) -> None:
        journal = self.engine.queue(WORK).journal
        if failed:
            self.unsure.update(data for _, data in turn.puts)
            self.unsure_gets.update(turn.gets)
            return
        for name, data in turn.puts:
            self.there[name].append(data)
        for name, data in turn.gets:
            self.there[name].remove(data)
            if journal is None or journal.failed is not None:
                self.may_return.add((name, data))

    def crash(self) -> None:
        """The answers still out will never come: what those turns did may be there after it or not."""
        self.files.mend()
        for turn in self.unanswered:
            self.unsure.update(data for _, data in turn.puts)
            self.may_be_gone.update(turn.gets)
        self.unanswered.clear()
        self.engine.crash()

    def must_agree(self) -> None:
        """The engine holds what the books say: a failed commit has left no trace in memory."""
        self.engine.queue(WORK).flush_counters()
        for name, there in self.there.items():
            reader = self.engine.reader(name)
            assert reader.items == len(there)
            assert reader.data_bytes == sum(map(len, there))
            assert reader.mem_bytes == sum(len(item_data(record)) for record in reader.window)


def story(clients: Clients):
    """Turns of a family that outgrows its memory and its segments. Yields after each."""
    clients.make(WORK)
    clients.put()
    clients.put()
    yield
    clients.make(AUDIT)
    clients.put()
    clients.put(AUDIT)
    yield
    clients.put(size=70)
    clients.take()
    yield
    clients.open_and_close()
    clients.take(AUDIT)
    yield
    for round_ in range(5):
        clients.put()
        clients.put(size=30)
        clients.take()
        clients.take(AUDIT)
        yield
        clients.put(AUDIT)
        if round_ % 2:
            clients.open_and_close(AUDIT)
            clients.take(WORK)
        yield


def go_on(clients: Clients) -> None:
    """After the fault: gets always go on, puts once there is a segment again that may be trusted."""
    engine, files = clients.engine, clients.files
    engine.work(3)
    queue = engine.collection.families.get(WORK)
    if queue is None or queue.journal is None or queue.journal.failed is None:
        files.mend()
        return
    clients.take()
    clients.end_turn()
    clients.wait_for_answers()
    for _ in range(2):
        assert not clients.put()
        engine.clock.advance(999)
        if queue.journal.failed is not None and queue.journal.failed.disk_full:
            break
        engine.clock.advance(10_000)
    files.mend()
    if files.error == errno.ENOSPC:
        engine.clock.advance(1)
    else:
        engine.configure(**SETTINGS, sync_journal_ms=queue.sync_ms)
    assert clients.put()
    clients.end_turn()
    clients.wait_for_answers()
    assert queue.journal.failed is None


def tell(clients: Clients, *, to_the_end: bool) -> None:
    """The story up to the fault, and on to its end if wanted."""
    handled = False
    for _ in story(clients):
        clients.end_turn()
        if clients.files.failed and not to_the_end:
            return
        if clients.files.failed and not handled:
            handled = True
            go_on(clients)
    clients.wait_for_answers()


FAULTS = {
    "one error": {"error": errno.EIO},
    "one error, of a full disk": {"error": errno.ENOSPC},
    "an error in the middle of a record": {"error": errno.EIO, "short": True, "kinds": ("write",)},
    "a full disk in the middle of a record": {"error": errno.ENOSPC, "short": True, "kinds": ("write",), "stays": True},
    "a full disk for a while": {"error": errno.ENOSPC, "kinds": FULL, "stays": True},
    "a dead disk for a while": {"error": errno.EIO, "stays": True},
}
every_fault = pytest.mark.parametrize("fault", FAULTS)
every_sync = pytest.mark.parametrize(
    ("sync_ms", "disk_takes_turns"),
    [(None, 1), (0, 1), (0, 3), (20, 2)],
    ids=["not synced", "synced", "synced by a slow disk", "synced now and then"],
)


def all_clients(fault: str, sync_ms: int | None, disk_takes_turns: int, folder: Path):
    """Clients of an engine whose n-th disk call fails, for n from 1 until none does."""
    for fail_at in range(1, 1000):
        files = FaultyFiles(**FAULTS[fault])
        spool = folder / str(fail_at)
        spool.mkdir()
        engine = Engine(spool, files, **SETTINGS, sync_journal_ms=sync_ms)
        files.fail_from(fail_at)
        yield fail_at, Clients(engine, files, disk_takes_turns)
        engine.abandon()
        if not files.failed:
            assert fail_at > 10
            return
    raise AssertionError("there is no end to the calls")


@pytest.mark.exhaustive("one error-", "a dead disk for a while-synced now")
@every_sync
@every_fault
def test_after_any_failed_call_memory_holds_exactly_what_was_acknowledged(fault, sync_ms, disk_takes_turns, tmp_path):
    for fail_at, clients in all_clients(fault, sync_ms, disk_takes_turns, tmp_path):
        tell(clients, to_the_end=True)
        for name, there in clients.there.items():
            assert clients.engine.drain(name) == there, f"call {fail_at}"


def must_be_kept(clients: Clients, fail_at: int) -> None:
    """After a crash nothing acknowledged is missing, and nothing is there but what may be."""
    engine = clients.engine
    for name, there in clients.there.items():
        found = engine.drain(name)
        numbers = [int(data.rstrip(b".")) for data in found]
        assert numbers == sorted(set(numbers)), f"call {fail_at}: out of order or twice"
        # Their clients know no better either; but a disk that lets the file be cut back brings them all back.
        may_be_gone = clients.may_be_gone | (clients.unsure_gets if "truncate" in clients.files.refused else set())
        lost = [data for data in there if data not in found and (name, data) not in may_be_gone]
        assert lost == [], f"call {fail_at}: lost from {name}"
        allowed = clients.unsure | {data for one, data in clients.may_return if one == name}
        assert [data for data in found if data not in there and data not in allowed] == [], f"call {fail_at}"


@pytest.mark.exhaustive("one error-", "a dead disk for a while-synced now")
@every_sync
@every_fault
def test_a_crash_right_after_any_failed_call_loses_nothing_acknowledged(fault, sync_ms, disk_takes_turns, tmp_path):
    for fail_at, clients in all_clients(fault, sync_ms, disk_takes_turns, tmp_path):
        tell(clients, to_the_end=False)
        clients.crash()
        must_be_kept(clients, fail_at)


@pytest.mark.exhaustive("one error-synced", "a dead disk for a while-not synced")
@every_sync
@every_fault
def test_a_crash_long_after_any_failed_call_loses_nothing_acknowledged(fault, sync_ms, disk_takes_turns, tmp_path):
    for fail_at, clients in all_clients(fault, sync_ms, disk_takes_turns, tmp_path):
        tell(clients, to_the_end=True)
        clients.crash()
        must_be_kept(clients, fail_at)


def test_a_stream_sees_nothing_that_a_failed_sync_may_still_take_back(tmp_path):
    files = FaultyFiles(error=errno.EIO, kinds=("sync",))
    engine = Engine(tmp_path, files, sync_journal_ms=0)
    engine.put(WORK, b"first")
    queue = engine.queue(WORK)
    queue.add_stream("spark", 1)
    engine.end_turn()
    assert read_range(queue, 1, 10) == []
    files.finish_background()
    assert [item_data(record) for record in read_range(queue, 1, 10)] == [b"first"]
    files.fail_from(1)
    engine.put(WORK, b"second")
    engine.end_turn()
    assert len(read_range(queue, 1, 10)) == 1
    queue.advance_stream("spark", 2)
    files.finish_background()
    files.mend()
    engine.configure(sync_journal_ms=0)
    engine.put(WORK, b"third")
    for _ in range(3):
        engine.end_turn()
        files.finish_background()
    assert [item_data(record) for record in read_range(queue, queue.streams["spark"].head, 10)] == [b"third"]


@pytest.mark.parametrize("lost", ["the CHECKPOINT of the next", "half of it, too", "the name of the next"])
def test_a_failed_put_that_could_not_be_cut_off_does_not_come_back_with_the_id_of_another(lost, tmp_path):
    """Three segments: the first has it at its end, the second would say so and is lost in a power cut."""
    files = FaultyFiles(errno.EIO, ("sync", "truncate"), stays=True)
    engine = Engine(tmp_path / "spool", files, sync_journal_ms=0)
    engine.put(WORK, b"one", b"two")
    engine.end_turn()
    files.finish_background()
    for refused in (b"refused", b"refused, too"):
        files.fail_from(1)
        engine.put(WORK, refused)
        engine.end_turn()
        files.finish_background()
        assert engine.queue(WORK).journal.failed is not None
        engine.configure(sync_journal_ms=0)
    files.mend()
    files.refused.clear()
    engine.put(WORK, b"three", b"four")
    engine.end_turn()
    files.finish_background()
    assert engine.queue(WORK).pending_commit is None
    engine.abandon()
    first, second, _ = engine.segments(WORK)
    assert b"refused" in first.read_bytes()
    if lost == "the name of the next":
        second.unlink()
    else:
        second.write_bytes(b"")
    if lost == "half of it, too":
        first.write_bytes(first.read_bytes()[:-5])
    engine = Engine(tmp_path / "spool", QuickFiles(), sync_journal_ms=0)
    assert list(map(item_data, read_range(engine.queue(WORK), 1, 10))) == [b"one", b"two", b"three", b"four"]
    assert engine.drain(WORK) == [b"one", b"two", b"three", b"four"]


class CountingFiles(QuickFiles):
    """A disk that says what was synced, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[str] = []
        self.refuses = False
        self.has_room = True

    def create(self, path: str) -> int:
        if not self.has_room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().create(path)

    def sync(self, fd: int) -> None:
        self.synced.append("file")
        if self.refuses:
            raise OSError(errno.EIO, "Input/output error")

    def sync_dir(self, path: str) -> None:
        self.synced.append(path.rpartition("/")[2])

    def sync_file_system(self, fd: int) -> None:
        self.synced.append("all")
        if self.refuses:
            raise OSError(errno.EIO, "Input/output error")


def left_by_a_kill(spool: Path, *names: str) -> None:
    """Journals with items that were written, and not synced before the process was killed."""
    engine = Engine(spool, LateFiles(), sync_journal_ms=0)
    for name in names:
        engine.put(name, b"one")
    engine.end_turn()
    engine.abandon()


@pytest.mark.parametrize("sync_ms", [0, 100])
def test_what_a_start_finds_is_on_disk_before_anybody_gets_it(sync_ms, tmp_path):
    left_by_a_kill(tmp_path / "spool", WORK)
    files = CountingFiles()
    engine = Engine(tmp_path / "spool", files, sync_journal_ms=sync_ms)
    assert files.synced == ["file", "work.journal", "spool"]
    assert engine.drain(WORK) == [b"one"]


def test_one_call_puts_what_a_start_finds_in_many_journals_on_disk(tmp_path):
    names = [f"q{number}" for number in range(20)]
    left_by_a_kill(tmp_path / "spool", *names)
    files = CountingFiles()
    engine = Engine(tmp_path / "spool", files, sync_journal_ms=0)
    assert files.synced == ["all"]
    assert [engine.drain(name) for name in names] == [[b"one"]] * 20


def test_what_a_stop_in_good_order_left_is_not_synced_again(tmp_path):
    left_by_a_kill(tmp_path / "spool", WORK)
    engine = Engine(tmp_path / "spool", QuickFiles(), sync_journal_ms=0)
    engine.put(WORK, b"two")
    engine.end_turn()
    engine.collection.close()
    files = CountingFiles()
    engine = Engine(tmp_path / "spool", files, sync_journal_ms=0)
    assert files.synced == []
    assert engine.drain(WORK) == [b"one", b"two"]


def test_without_sync_journal_a_start_syncs_nothing(tmp_path):
    left_by_a_kill(tmp_path / "spool", WORK)
    files = CountingFiles()
    Engine(tmp_path / "spool", files)
    assert files.synced == []


def test_a_start_syncs_what_it_found_also_where_the_disk_has_no_room_for_a_new_segment(tmp_path):
    left_by_a_kill(tmp_path / "spool", WORK)
    (live,) = (tmp_path / "spool" / "work.journal").glob("*.seg")
    live.with_name(live.name + ".unsynced").touch()  # so that it begins a new one
    files = CountingFiles()
    files.has_room = False
    engine = Engine(tmp_path / "spool", files, sync_journal_ms=0)
    assert "No space left" in engine.log[-1]
    assert files.synced == ["file", "work.journal", "spool"]
    assert engine.drain(WORK) == [b"one"]


@pytest.mark.parametrize("names", [(WORK,), (WORK, "beside")])
def test_where_a_start_cannot_sync_what_it_found_the_journal_goes_on_in_a_new_segment(names, tmp_path):
    left_by_a_kill(tmp_path / "spool", *names)
    files = CountingFiles()
    files.refuses = True
    engine = Engine(tmp_path / "spool", files, sync_journal_ms=0)
    assert len([line for line in engine.log if "sync failed: Input/output error" in line]) == len(names)
    files.refuses = False
    assert [len(engine.segments(name)) for name in names] == [2] * len(names)
    for name in names:
        assert engine.put(name, b"two") == [True]
        assert engine.end_turn() == {}
        assert engine.drain(name) == [b"one", b"two"]


def test_a_get_and_the_put_that_leaves_a_failed_segment_behind_are_answered_in_one_turn(tmp_path):
    files = FaultyFiles(error=errno.ENOSPC, kinds=("sync",))
    engine = Engine(tmp_path, files, sync_journal_ms=0)
    engine.put(WORK, b"first")
    engine.end_turn()
    files.finish_background()
    files.fail_from(1)
    engine.put(WORK, b"second")
    engine.end_turn()
    files.finish_background()
    files.mend()
    engine.clock.advance(1000)
    assert engine.take(WORK) == b"first"
    engine.put(WORK, b"third")
    engine.end_turn()
    pending_commit = engine.queue(WORK).pending_commit
    assert pending_commit.pending
    files.finish_background()
    assert not pending_commit.pending


@pytest.mark.parametrize("sync_ms", [None, 0])
def test_once_a_second_some_of_the_queues_of_a_full_disk_are_tried_and_its_recovery_is_logged_once(
    tmp_path: Path, sync_ms: int | None
) -> None:
    def second() -> None:
        engine.clock.advance(1000)
        engine.work(200)
        engine.end_turn()
        files.finish_background()

    def failed() -> int:
        return sum(
            one.journal is not None and one.journal.failed is not None for one in engine.collection.families.values()
        )

    names = [f"q{number}" for number in range(2 * REFUSALS_MAX + 5)]
    files = FaultyFiles(errno.ENOSPC, FULL, stays=True)
    engine = Engine(tmp_path, files, sync_journal_ms=sync_ms)
    for name in names:
        engine.put(name, b"kept")
    engine.end_turn()
    files.finish_background()
    files.fail_from(1)
    for name in names:
        engine.put(name, b"refused")
    assert len(engine.end_turn()) == len(names)
    engine.log.clear()
    tried = set()
    for _ in range(3):
        since_ms, files.calls = engine.clock.monotonic_ms, 0
        second()
        assert files.calls == REFUSALS_MAX
        tried |= {name for name in names if engine.queue(name).journal.failed_at_ms > since_ms}
    assert tried == set(names), "each gets its turn"
    assert engine.log == []
    files.mend()
    second()
    assert failed() == 0
    assert engine.take("q1") == b"kept"
    engine.put("q1", b"again")
    engine.end_turn()
    files.finish_background()
    for _ in range(3):
        second()
    assert Counter(engine.log) == Counter(f"{name}: journal writes succeed again; puts are accepted" for name in names)
    engine.crash()
    assert engine.drain("q1") == [b"again"]
    assert engine.drain("q2") == [b"kept"]


@pytest.mark.parametrize("sync_fails", [True, False])
def test_a_reload_of_a_failed_journal_waits_for_the_commit_on_its_way_to_the_disk(
    tmp_path: Path, sync_fails: bool
) -> None:
    """Else what that commit took would be given back to nobody when its sync fails."""
    files = LateFiles()
    engine = Engine(tmp_path, files, sync_journal_ms=0)
    engine.put(WORK, b"1", b"2", b"3")
    engine.end_turn()
    files.finish_background()
    assert engine.take(WORK) == b"1"
    engine.end_turn()
    (segment,) = engine.segments(WORK)
    segment.write_bytes(segment.read_bytes() + b"by hand")
    journal = engine.queue(WORK).journal
    assert journal is not None
    assert journal.look() is not None
    assert engine.take(WORK) == b"2"
    reload = engine.collection.configure(engine.config)
    assert [next(reload), next(reload)] == [WAITS, WAITS]
    if sync_fails:
        ((_, finished),), files.under_way = files.under_way, []
        finished(OSError(errno.EIO, "Input/output error"))
    else:
        files.finish_background()
    assert WAITS not in list(reload)
    assert journal.failed is None
    engine.end_turn()
    files.finish_background()
    assert engine.drain(WORK) == ([b"1", b"2", b"3"] if sync_fails else [b"3"])
