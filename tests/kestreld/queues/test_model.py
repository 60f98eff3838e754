"""One queue family through everything that can happen to it, against a model in plain lists."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from kestreld.config.config import QueueConfig
from kestreld.journal.records import item_add_at_ms, item_data, item_id, item_optional_fields
from kestreld.queues.queue import Queue
from kestreld.queues.ranges import earliest_id
from kestreld.queues.reader import Reader
from tests.support.engine import Engine, LateFiles, read_range
from tests.support.family_model import FamilyModel, ModelItem

FAMILY = "work"
LABELS = ("", "a", "b")
OpenRead = tuple[int, str, Reader, int]  # the server's life it belongs to, label, reader, item id

labels = st.sampled_from(["", "", *LABELS])
stream_names = st.sampled_from(["s", "t"])
few = st.sampled_from([1, 1, 2, 3, 7])
limits = st.fixed_dictionaries(
    {},
    optional={
        "max_items": st.sampled_from([None, 1, 2, 5]),
        "max_size_bytes": st.sampled_from([None, 1, 20, 60]),
        "max_item_size_bytes": st.sampled_from([None, 15, 30]),
        "discard_old_when_full": st.booleans(),
        "max_age_ms": st.sampled_from([None, 5, 50]),
        "max_memory_size_bytes": st.sampled_from([1, 30, 100]),
    },
)
limits_of_each = st.fixed_dictionaries(dict.fromkeys(LABELS, limits))
family_settings = st.fixed_dictionaries(
    {
        "max_journal_size_bytes": st.sampled_from([1, 200, 300, 1000, 1 << 24]),
        "max_journal_overflow": st.sampled_from([1, 2, 10]),
        "sync_journal_ms": st.sampled_from([None, None, 0, 20]),
    }
)


def name_of(label: str) -> str:
    return f"{FAMILY}+{label}" if label else FAMILY


def shown(record: bytes) -> ModelItem:
    """An item of the engine as the model writes it."""
    expire_at_ms, flags, only = item_optional_fields(record)
    return ModelItem(item_id(record), item_data(record), item_add_at_ms(record), expire_at_ms, flags, only)


def waiting(reader: Reader) -> int:
    """Items of a reader, those included that were put since the last fold."""
    queue = reader.queue
    uncounted = [] if reader.attached else queue.pending[queue.counted_items :]
    return reader.items + sum(item_optional_fields(record)[2] in (0, reader.number) for record in uncounted)


class Family(RuleBasedStateMachine):
    """`model` is what clients see now; `written` what the last commit made safe."""

    opened = Bundle("opened")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="kestreld-model-"))
        self.files = LateFiles()
        self.engine = Engine(self.folder, self.files)
        self.model = FamilyModel()
        self.written = FamilyModel()
        self.puts = 0
        self.lives = 0

    @initialize(own=limits_of_each, family=family_settings)
    def configure(self, own: dict[str, dict[str, object]], family: dict[str, object]) -> None:
        self.engine.configure({name_of(label): setting for label, setting in own.items()}, **family)
        for label, reader in self.model.readers.items():
            reader.config = self.config(label)

    def teardown(self) -> None:
        self.engine.abandon()
        shutil.rmtree(self.folder)

    def config(self, label: str) -> QueueConfig:
        return self.engine.config.for_queue(name_of(label))

    def queue(self) -> Queue | None:
        return self.engine.collection.families.get(FAMILY)

    @property
    def settled_id(self) -> int:
        """From here on nothing can be read back: its commit is on its way to the disk, or yet to be made."""
        queue = self.queue()
        return self.written.next_id - (len(queue.sync.in_flight) if queue is not None else 0)

    @property
    def now_ms(self) -> int:
        return self.engine.clock.wall_ms

    # Clients

    def reader(self, label: str) -> Reader:
        """The queue, made where there is none, as any command does that names it."""
        reader = self.engine.reader(name_of(label))
        if label not in self.model.readers:
            self.model.add_reader(label, self.config(label))
        return reader

    @rule(
        label=labels,
        count=few,
        size=st.sampled_from([0, 10, 10, 25, 40]),
        expire_in_ms=st.sampled_from([None, None, -1, 3, 40]),
        flags=st.sampled_from([0, 0, 9]),
    )
    def put(self, label: str, count: int, size: int, expire_in_ms: int | None, flags: int) -> None:
        reader = self.reader(label)
        only = reader if label else None
        expire_at_ms = 0 if expire_in_ms is None else self.now_ms + expire_in_ms
        for _ in range(count):
            self.puts += 1
            data = str(self.puts).encode().ljust(size, b".") if size else b""
            stored = self.model.put(data, self.now_ms, expire_at_ms, flags, label or None)
            assert reader.queue.put_with(data, expire_at_ms, flags, only) == stored

    @rule(count=few, size=st.sampled_from([10, 25]))
    def put_plain(self, count: int, size: int) -> None:
        self.put("", count, size, None, 0)

    @rule(label=labels, count=few)
    def take(self, label: str, count: int) -> None:
        reader = self.reader(label)
        for _ in range(count):
            if reader.window and not reader.slow:
                # The short cut of a plain GET.
                record = reader.window.popleft()
                reader.queue.mark_dirty()
                reader.taken.append(record)
            else:
                record = reader.take(self.now_ms)
            assert (record and shown(record)) == self.model.readers[label].take(self.now_ms)

    @rule(label=labels)
    def peek(self, label: str) -> None:
        record = self.reader(label).peek(self.now_ms)
        assert (record and shown(record)) == self.model.readers[label].peek(self.now_ms)

    @rule(target=opened, label=labels)
    def open_read(self, label: str) -> OpenRead:
        reader = self.reader(label)
        got = reader.open_read(self.now_ms)
        assert (got and shown(got[1])) == self.model.readers[label].open_read(self.now_ms)
        return self.lives, label, reader, got[0] if got else 0

    @rule(read=opened, confirm=st.booleans())
    def end_read(self, read: OpenRead, confirm: bool) -> None:
        """Close or abort: also of queues deleted since, and of reads that ended already."""
        life, label, reader, opened = read
        if life != self.lives:
            return  # the session that held it died with the server
        if confirm:
            reader.close(opened)
        else:
            reader.abort(opened, self.now_ms)
        model = self.model.readers.get(label)
        if not reader.deleted and model is not None and opened in model.open:
            if confirm:
                del model.open[opened]
            else:
                model.abort(opened)

    @rule(label=labels)
    def flush(self, label: str) -> None:
        model = self.model.readers.get(label)
        assert self.engine.collection.flush(name_of(label)) == (len(model.waiting) if model else 0)
        if model:
            model.waiting.clear()

    @rule(label=labels)
    def flush_expired(self, label: str) -> None:
        model = self.model.readers.get(label)
        expected = model.expire(self.now_ms) if model else 0
        assert self.engine.collection.flush_expired(name_of(label)) == expected

    @rule(label=st.sampled_from(LABELS))
    def delete(self, label: str) -> None:
        assert self.engine.collection.delete(name_of(label)) == (label in self.model.readers)
        if self.model.readers.pop(label, None) is not None and not self.model.readers:
            # The journal goes with its last reader, at once.
            self.model, self.written = FamilyModel(), FamilyModel()

    # Streams

    @precondition(lambda self: self.model.readers)
    @rule(name=stream_names, from_the_first=st.booleans())
    def add_stream(self, name: str, from_the_first: bool) -> None:
        queue = self.queue()
        if name not in self.model.streams:
            at_id = queue.first_id() if from_the_first else queue.next_id
            queue.add_stream(name, at_id)
            self.model.add_stream(name, at_id)

    @precondition(lambda self: self.model.streams)
    @rule(name=stream_names, through=st.integers(0, 40))
    def advance_stream(self, name: str, through: int) -> None:
        if name in self.model.streams:
            self.queue().advance_stream(name, through)
            self.model.advance_stream(name, min(through, self.settled_id - 1))

    @precondition(lambda self: self.model.streams)
    @rule(name=stream_names)
    def drop_stream(self, name: str) -> None:
        if self.model.streams.pop(name, None) is not None:
            self.queue().drop_stream(name)

    @precondition(lambda self: self.model.readers)
    @rule(first=st.integers(0, 40), limit=few, of=st.none() | labels)
    def read_range(self, first: int, limit: int, of: str | None) -> None:
        queue = self.queue()
        only = queue.readers.get(of) if of is not None else None
        numbers = {0, only.number} if only is not None else {0}
        got = [shown(record) for record in read_range(queue, first, limit, max(numbers))]
        last = got[-1].item_id if len(got) == limit else self.settled_id - 1
        wanted = [one for one in self.written.history if one.only in numbers]
        first = max(first, earliest_id(queue))  # less what is done and on its way out
        assert earliest_id(queue) <= max(queue.first_id(), queue.lowest_head())
        there = [one for one in wanted if first <= one.item_id <= last]
        # Compaction leaves out what is done everywhere.
        needed = (
            self.written.needed_ids() if queue.journal.segments[:1] and queue.journal.segments[0].compacted else None
        )
        assert [one for one in got if one not in there] == []
        assert [one for one in there if one not in got and (needed is None or one.item_id in needed)] == []

    # The server

    @rule(disk_thread_is_quick=st.booleans())
    def end_turn(self, disk_thread_is_quick: bool) -> None:
        assert not self.engine.end_turn()
        queue = self.queue()
        if queue is None or not queue.dirty:  # else it waits for the commit before it to get to the disk
            self.written = self.model.copy()
        if disk_thread_is_quick:
            self.files.finish_background()
        self.count()

    @rule(slices=few, disk_thread_is_quick=st.booleans())
    def maintenance(self, slices: int, disk_thread_is_quick: bool) -> None:
        self.engine.work(slices)
        if disk_thread_is_quick:
            self.files.finish_background()

    @rule(ms=st.sampled_from([1, 4, 30, 100]))
    def time_passes(self, ms: int) -> None:
        self.engine.clock.advance(ms)

    @rule(turns=st.integers(2, 12), label=labels, maintenance=st.booleans())
    def traffic(self, turns: int, label: str, maintenance: bool) -> None:
        """Turns of a queue that flows, which is how journals get old."""
        for _ in range(turns):
            self.put_plain(2, 25)
            self.take(label, 2)
            self.end_turn(disk_thread_is_quick=maintenance)
            if maintenance:
                self.maintenance(1, disk_thread_is_quick=True)

    @rule(own=limits_of_each, family=family_settings)
    def reload(self, own: dict[str, dict[str, object]], family: dict[str, object]) -> None:
        self.configure(own, family)

    @rule()
    def restart(self) -> None:
        self.engine.restart()
        self.start_again(self.model)

    @rule()
    def crash(self) -> None:
        self.engine.crash()
        self.start_again(self.written)

    def start_again(self, kept: FamilyModel) -> None:
        self.lives += 1
        self.model = kept.restarted({label: self.config(label) for label in LABELS})
        self.written = self.model.copy()

    # What must be true

    @rule()
    def count(self) -> None:
        """Within a turn counting is put off; whoever asks for figures has it done."""
        self.engine_and_model_agree()
        queue = self.queue()
        if queue is None:
            return
        queue.flush_counters()
        for label, model in self.model.readers.items():
            reader = queue.readers[label]
            assert reader.items == len(model.waiting)
            assert reader.data_bytes == model.data_bytes()
            assert reader.mem_bytes == sum(len(item_data(record)) for record in reader.window)
            assert reader.open_bytes == sum(len(item.data) for item in model.open.values())

    @invariant()
    def engine_and_model_agree(self) -> None:
        assert self.engine.log == []
        assert set(self.engine.collection.readers) == {name_of(label) for label in self.model.readers}
        queue = self.queue()
        if queue is None:
            return
        assert queue.next_id == self.model.next_id
        assert {name: stream.head for name, stream in queue.streams.items()} == self.model.streams
        for label, model in self.model.readers.items():
            reader = queue.readers[label]
            model.expire(self.now_ms, down_to=waiting(reader))  # when a head expires is the engine's choice
            assert waiting(reader) == len(model.waiting)
            assert [shown(record) for record in reader.window] == model.waiting[: len(reader.window)]
            assert {opened: shown(record) for opened, record in reader.open.items()} == model.open
            undone = [item.item_id for item in model.undone()]
            assert reader.head() <= min(undone, default=queue.next_id)


TestFamily = Family.TestCase
TestFamily.settings = settings(
    max_examples=min(settings().max_examples * 2, max(settings().max_examples, 200)),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
