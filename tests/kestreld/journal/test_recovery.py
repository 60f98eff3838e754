"""Journals as crashes, bad disks and people leave them: what comes back, what is refused, what is kept of the rest."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from kestreld.errors import JournalCorrupt
from kestreld.journal.records import (
    FailedItem,
    Origin,
    Reason,
    Type,
    find_whole_records,
    item_data,
    item_flags,
    item_id,
    read_sync,
)
from kestreld.journal.segment import decode_header, encode_header
from kestreld.journal.verify import verify_journal
from kestreld.queues import leases
from kestreld.queues.reader import Reader
from tests.support.clock import FakeClock
from tests.support.engine import Engine
from tests.support.memory_files import MemoryFiles

FAMILY = "work"
SPOOL = Path("/spool")
FOLDER = f"{SPOOL}/{FAMILY}.journal"
SETTINGS: dict[str, object] = {"max_retries": 5, "move_failed_to": "failed"}
Files = dict[str, bytes]  # the segments of a journal by file name

# A server in memory, started on given files


class Planted(Engine):
    """A server started on a journal of these files."""

    def __init__(self, files: Files, clock: FakeClock | None = None, **settings: object) -> None:
        self.disk = MemoryFiles()
        self.disk.make_dir(FOLDER)
        for name, data in files.items():
            self.disk.files[f"{FOLDER}/{name}"] = bytearray(data)
        super().__init__(SPOOL, self.disk, clock, **{**SETTINGS, **settings})

    def left(self, what: str) -> Files:
        """The files of the journal whose names have `what` in them."""
        found = {path.rpartition("/")[2]: bytes(data) for path, data in self.disk.files.items()}
        return {name: data for name, data in sorted(found.items()) if what in name}

    @property
    def segments_left(self) -> Files:
        return {name: data for name, data in self.left(".seg").items() if name.endswith(".seg")}

    @property
    def torn(self) -> bytes:
        return b"".join(self.left(".torn-").values())

    @property
    def stopped(self) -> bool:
        return FAMILY in self.collection.broken


@dataclass(frozen=True)
class Content:
    """What the readers of a journal hold. `items` are (id, flags, data) by queue, in the order of delivery."""

    items: dict[str, list[tuple[int, int, bytes]]]
    streams: dict[str, int]
    retries: dict[str, dict[int, int]]
    next_id: int
    due: dict[str, list[tuple[int, int, bytes]]]  # (id, when, data) of what is not due yet, in the order of delivery
    keys: dict[str, dict[str, int]]  # the ids of the items that were put with each of KEYS
    origins: dict[int, Origin]
    failures: dict[FailedItem, str]


NOTHING = Content({}, {}, {}, 1, {}, {}, {}, {})
KEYS = ("order-17", "order-18")


def content_of(engine: Engine) -> Content:
    """Drains every queue. Raises JournalCorrupt when the journal is stopped, at start or on the way."""
    if FAMILY in engine.collection.broken:
        raise engine.collection.broken[FAMILY]
    family = engine.collection.families.get(FAMILY)
    if family is None:
        return NOTHING
    streams = {name: stream.head for name, stream in family.streams.items()}
    retries = {reader.name: dict(reader.retries) for reader in family.readers.values()}
    keys = {
        reader.name: {key: one for key in KEYS if (one := reader.find_key(key.encode()))}
        for reader in family.readers.values()
    }
    origins, failures = dict(family.origins), dict(family.failures)
    items = {
        reader.name: [(item_id(record), item_flags(record), item_data(record)) for record in what_waits(engine, reader)]
        for reader in family.readers.values()
    }
    due: dict[str, list[tuple[int, int, bytes]]] = {reader.name: [] for reader in family.readers.values()}
    while (due_at_ms := engine.collection.agenda.next_at_ms()) is not None:
        engine.clock.advance(max(due_at_ms - engine.clock.monotonic_ms, 0))
        engine.collection.agenda.fall_due(engine.clock.monotonic_ms)
        for reader in family.readers.values():
            for record in what_waits(engine, reader):
                due[reader.name].append((item_id(record), engine.clock.wall_ms, item_data(record)))
    return Content(items, streams, retries, family.next_id, due, keys, origins, failures)


def what_waits(engine: Engine, reader: Reader) -> Iterator[bytes]:
    while record := reader.take(engine.clock.wall_ms):
        yield record


# A history with every kind of record, every step a commit of its own


@dataclass
class History:
    files: Files
    states: list[tuple[int, int, Content]]  # segment number, its bytes, and the content they stand for; in order

    @property
    def live(self) -> str:
        return max(self.files)

    @property
    def closed(self) -> list[str]:
        return sorted(self.files)[:-1]

    @property
    def last(self) -> Content:
        return self.states[-1][2]

    def at(self, name: str, used_bytes: int) -> Content:
        """What is left when the journal ends there."""
        place = (int(name[:10]), used_bytes)
        return [content for number, size, content in self.states if (number, size) <= place][-1]


def open_two_and_close_the_second(engine: Engine) -> None:
    reader = engine.reader("work")
    reader.open_read(engine.clock.wall_ms)
    second = reader.open_read(engine.clock.wall_ms)
    assert second is not None
    reader.close(second[0])


def abort_what_is_open(engine: Engine) -> None:
    reader = engine.reader("work")
    for opened in list(reader.open):
        reader.abort(opened, engine.clock.wall_ms)


def put_later(engine: Engine, name: str, data: bytes, delay_ms: int, key: str = "") -> None:
    reader = engine.reader(name)
    one = reader.queue.next_id
    assert reader.queue.put_later(data, 0, 3, reader if reader.label else None, delay_ms)
    if key:
        reader.remember_key(key.encode(), one, delay_ms)


def put_with_key(engine: Engine, data: bytes, key: str) -> None:
    reader = engine.reader("work")
    reader.queue.use_version(2)
    engine.put("work", data)
    reader.remember_key(key.encode(), reader.queue.next_id - 1, 0)


def fail_with_the_head(engine: Engine, reason: str = "") -> None:
    engine.configure(**{**SETTINGS, "retry_delays_ms": (60_000,)})
    reader = engine.reader("work")
    leased = leases.lease(reader, engine.clock.wall_ms, 1000, "127.0.0.1:1")
    assert leased is not None
    assert leases.fail(reader, leased[0], engine.clock.wall_ms, reason)
    engine.configure(**SETTINGS)


def cancel_the_first_delayed(engine: Engine) -> None:
    reader = engine.reader("work")
    reader.withdraw(min(reader.held_items().later), Reason.DISCARDED)


def lease_the_head(engine: Engine) -> None:
    assert leases.lease(engine.reader("work"), engine.clock.wall_ms, 30_000, "127.0.0.1:1") is not None


FROM = Origin(0, Reason.MOVED, 3, 1_600_000_000_000, "elsewhere+child", "no route")
STEPS: list[Callable[[Engine], object]] = [
    lambda engine: engine.reader("work"),
    lambda engine: engine.put("work", b"one"),
    lambda engine: engine.put("work", b"two", flags=7),
    lambda engine: engine.reader("work+audit"),
    lambda engine: engine.put("work", b"three", expire_at_ms=engine.clock.wall_ms + 10_000),
    lambda engine: engine.put("work+audit", b"for audit only"),
    lambda engine: engine.queue("work").add_stream("spark", 1),
    lambda engine: put_later(engine, "work", b"in an hour, for both", 3_600_000),
    lambda engine: engine.take("work"),
    lambda engine: engine.put("work", b"four"),
    open_two_and_close_the_second,
    abort_what_is_open,
    lambda engine: engine.queue("work").advance_stream("spark", 2),
    lambda engine: engine.put("work", b""),
    lambda engine: engine.reader("work+gone"),
    lambda engine: put_with_key(engine, b"five", KEYS[0]),
    lambda engine: engine.collection.delete("work+gone"),
    lambda engine: put_later(engine, "work+audit", b"never, for it is flushed", 1000, KEYS[0]),
    lambda engine: engine.collection.flush("work+audit"),
    lambda engine: put_later(engine, "work+audit", b"in a second, for one", 1000),
    lambda engine: put_later(engine, "work", b"in a minute", 60_000, KEYS[1]),
    cancel_the_first_delayed,
    lambda engine: fail_with_the_head(engine, "no room"),
    lambda engine: engine.queue("work").put_moved(b"six", 0, None, FROM),
    lease_the_head,
]


def play(*, version: int = 4, **settings: object) -> History:
    """`version` is that of the first segment."""
    engine = Planted({}, **settings)
    engine.reader(FAMILY)
    journal = engine.queue(FAMILY).journal
    assert journal is not None
    journal.need_version(version)
    states = [(0, 0, NOTHING)]
    for step in STEPS:
        step(engine)
        engine.commit.run()
        assert not engine.commit.failed
        states.append((journal.live.number, journal.live.used_bytes, content_of(Planted(engine.segments_left))))
        engine.maintenance.after_turn()
    return History(engine.segments_left, states)


ONE_SEGMENT = play()
SYNCED = play(sync_journal_ms=0)  # every commit but the first begins with a SYNC
# The stream, which stays behind, keeps them all.
MANY_SEGMENTS = play(version=1, max_journal_size_bytes=360, max_journal_overflow=1000)
histories = pytest.mark.parametrize(
    "history", [ONE_SEGMENT, SYNCED, MANY_SEGMENTS], ids=["one segment", "synced", "many segments"]
)
# The quick tests try some of all places: each time another of the bits in a byte.
every = pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.long)], ids=["some", "all"])


def test_the_history_has_every_kind_of_record():
    assert (len(ONE_SEGMENT.files), len(SYNCED.files), len(MANY_SEGMENTS.files)) == (1, 1, 5)
    (data,) = SYNCED.files.values()
    _, at = decode_header(data, "")
    assert {kind for kind, _, _ in find_whole_records(data, at)} == set(Type) - {Type.IMPORT}
    for history in (ONE_SEGMENT, SYNCED, MANY_SEGMENTS):
        assert [data for _, _, data in history.last.items["work"]] == [b"", b"five", b"six"]
        assert [data for _, _, data in history.last.items["work+audit"]] == [b"six"]
        assert [data for _, _, data in history.last.due["work"]] == [b"four", b"two", b"in a minute"]
        assert [data for _, _, data in history.last.due["work+audit"]] == [b"in a second, for one", b"in a minute"]
        assert (history.last.retries["work"], history.last.streams) == ({2: 2}, {"spark": 3})
        assert history.last.keys == {"work": {KEYS[0]: 8, KEYS[1]: 11}, "work+audit": {}}
        assert history.last.origins == {12: replace(FROM, item_id=12)}
        assert history.last.failures == {(1, 2): "no room"}


# Cut short


def must_go_on(engine: Engine, expected: Content) -> None:
    """The recovered journal takes items, and they are there after the next crash."""
    engine.put(FAMILY, b"later")
    assert not engine.end_turn()
    engine.clock.advance(1)
    engine.crash()
    before = expected.items.get(FAMILY, [])
    assert content_of(engine).items[FAMILY] == [*before, (expected.next_id, 0, b"later")]


@every
@pytest.mark.exhaustive("synced")
@histories
def test_a_journal_cut_at_any_byte_of_its_tail_comes_back_as_it_was_some_commits_ago(history, step):
    whole = history.files[history.live]
    _, at = decode_header(whole, "")
    ends = {end for _, _, end in find_whole_records(whole, at)}
    for cut in sorted({*range(0, len(whole), step), *ends} - {len(whole)}):
        expected = history.at(history.live, cut)
        files = {**history.files, history.live: whole[:cut]}
        engine = Planted(files)
        assert not engine.stopped, f"cut at {cut}"
        if expected.items:  # else there never was a queue
            assert engine.segments_left.get(history.live, b"") + engine.torn == whole[:cut], f"cut at {cut}"
        engine.clock.advance(1)
        engine.crash()  # nothing that the first start did may spoil the second
        found = content_of(engine)
        # Why an item failed stands before the count of that.
        assert found.failures in (expected.failures, history.last.failures), f"cut at {cut}"
        assert replace(found, failures=expected.failures) == expected, f"cut at {cut}"
        must_go_on(Planted(files), expected)


@histories
def test_every_byte_cut_off_is_kept_and_spoken_of_once(history):
    whole = history.files[history.live]
    _, at = decode_header(whole, "")
    # What is said of a PUT stands before it, and is cut off with it; what is said of a lease is not.
    ends = {end for kind, _, end in find_whole_records(whole, at) if kind < Type.DUE or kind >= Type.LEASE}
    for cut in range(len(whole) - 60, len(whole)):
        engine = Planted({**history.files, history.live: whole[:cut]})
        assert len(engine.log) == (cut not in ends)
        if engine.log:
            assert f"torn tail of {len(engine.torn)} bytes cut off at byte {cut - len(engine.torn)}" in engine.log[0]
            engine.clock.advance(1)
            engine.crash()
            assert len(engine.log) == 1


@every
def test_a_closed_segment_cut_anywhere_never_costs_an_item_unnoticed(step):
    history = MANY_SEGMENTS
    for name in history.closed:
        whole = history.files[name]
        for cut in range(0, len(whole), step):
            engine = Planted({**history.files, name: whole[:cut]})
            with pytest.raises(JournalCorrupt):
                content_of(engine)
            assert "stopped" in engine.log[0]
            assert engine.segments_left[name] == whole[:cut]


def test_a_closed_segment_that_is_missing_stops_the_queue_where_a_reader_needs_it():
    history = MANY_SEGMENTS
    for name in history.closed:
        engine = Planted({other: data for other, data in history.files.items() if other != name})
        if engine.stopped:
            assert "missing" in engine.log[0]
            continue
        try:
            is_whole = content_of(engine) == history.last
        except JournalCorrupt:
            assert "stopped: " in engine.log[-1]
            continue
        if not is_whole:
            assert name == history.closed[0], "without a marker nobody can tell whether it was needed"
            assert "fewer in the journal than counted" in engine.log[0]


def failing_for_a_whole_segment() -> History:
    """Of its three segments the second holds no PUT, but says that an item waits which is in the first."""
    engine = Planted({}, max_journal_size_bytes=300, max_journal_overflow=1000)
    engine.put("work", b"one", b"x" * 300)
    engine.queue(FAMILY).use_version(2)
    for step in (
        lambda: None,
        lambda: fail_with_the_head(engine),
        lambda: engine.queue(FAMILY).want_segment(wanted=True),
    ):
        step()
        assert not engine.end_turn()
    engine.put("work", b"two")
    assert not engine.end_turn()
    return History(engine.segments_left, [(0, 0, NOTHING), (3, 1 << 20, content_of(Planted(engine.segments_left)))])


@every
def test_a_segment_that_only_says_what_is_held_back_stops_the_queue_where_it_is_damaged_or_missing(step):
    history = failing_for_a_whole_segment()
    assert [data for _, _, data in history.last.due[FAMILY]] == [b"one"]
    name = history.closed[1]
    whole = history.files[name]
    cuts, bits = range(0, len(whole), step), range(0, len(whole) * 8, step)
    for damaged in [*[whole[:cut] for cut in cuts], *[flipped(whole, bit) for bit in bits]]:
        assert Planted({**history.files, name: damaged}).stopped
    engine = Planted({other: data for other, data in history.files.items() if other != name})
    assert engine.stopped
    assert "DUE records are missing: items=1 are delayed or retrying, but their ids are unknown" in engine.log[0]


@histories
def test_zeros_after_the_last_record_are_room_made_in_advance(history):
    for zeros in (1, 8, 9, 5000):
        engine = Planted({**history.files, history.live: history.files[history.live] + b"\0" * zeros})
        assert (engine.segments_left, engine.torn) == (history.files, b"")
        assert f"{zeros} unused bytes cut off" in engine.log[0]
        assert content_of(engine) == history.last


def test_what_follows_the_used_bytes_of_a_closed_segment_is_no_part_of_it():
    history = MANY_SEGMENTS
    for name in history.closed:
        whole = history.files[name]
        left_over = whole[-60:] + b"\0" * 40  # as a failed commit leaves it that could not be cut back
        assert content_of(Planted({**history.files, name: whole + left_over})) == history.last


# Segments in the making


@pytest.mark.parametrize("name", ["0000000002-00000000000000000009.seg.new", "compacting.seg.new"])
def test_a_segment_that_had_no_name_yet_is_swept_away(name):
    engine = Planted({**ONE_SEGMENT.files, name: ONE_SEGMENT.files[ONE_SEGMENT.live][:100]})
    assert engine.left(".new") == {}
    assert content_of(engine) == ONE_SEGMENT.last


def test_a_newest_segment_without_its_checkpoint_is_set_aside_for_the_one_before():
    history = MANY_SEGMENTS
    whole = history.files[history.live]
    _, header_bytes = decode_header(whole, history.live)
    for start in (b"", b"KEST", whole[:header_bytes], whole[: header_bytes + 30], b"\0" * len(whole)):
        engine = Planted({**history.files, history.live: start})
        assert list(engine.left(".torn-").values()) == [start]
        assert "incomplete when it was created" in engine.log[0]
        before = history.closed[-1]
        assert content_of(engine) == history.at(before, len(history.files[before]))


def test_an_unfinished_segment_alone_does_not_pass_for_an_empty_journal():
    # What stood before it is gone, so its CHECKPOINT was on disk once, and the readers with it.
    history = MANY_SEGMENTS
    whole = history.files[history.live]
    _, header_bytes = decode_header(whole, history.live)
    engine = Planted({history.live: whole[: header_bytes + 30]})
    assert engine.stopped
    assert engine.segments_left == {history.live: whole[: header_bytes + 30]}


def test_a_first_segment_that_was_never_finished_holds_nothing():
    whole = ONE_SEGMENT.files[ONE_SEGMENT.live]
    for cut in (0, 10, 60):
        files = {ONE_SEGMENT.live: whole[:cut]}
        assert content_of(Planted(files)) == NOTHING
        must_go_on(Planted(files), NOTHING)


def test_a_count_of_failures_is_not_inherited_from_an_item_whose_put_was_torn_off():
    """An ABORT stands before the PUTs of its commit."""
    engine = Planted({})
    engine.put(FAMILY, b"a")
    engine.end_turn()
    engine.put(FAMILY, b"b")
    reader = engine.reader(FAMILY)
    for _ in range(2):
        found = reader.open_read(engine.clock.wall_ms)
        assert found is not None
    reader.fail(found[0], engine.clock.wall_ms)
    engine.end_turn()
    ((name, whole),) = engine.segments_left.items()
    _, header_bytes = decode_header(whole, name)
    cut = next(end for kind, _, end in find_whole_records(whole, header_bytes) if kind == Type.ABORT)
    again = Planted({name: whole[:cut]})
    again.put(FAMILY, b"c")
    again.end_turn()
    assert again.drain(FAMILY) == [b"a", b"c"]
    assert again.reader(FAMILY).retries == {}


# Damage


def flipped(data: bytes, bit: int) -> bytes:
    altered = bytearray(data)
    altered[bit // 8] ^= 1 << bit % 8
    return bytes(altered)


def how_noticed(files: Files, history: History) -> str:
    """What a start on a damaged journal makes of it. Nothing altered, out of order or silently lost in any case."""
    engine = Planted(files)
    try:
        content = content_of(engine)
    except JournalCorrupt:
        assert "stopped" in engine.log[0]
        assert engine.segments_left == files, "a journal that is not trusted is left as it was"
        return "stopped"
    if engine.log:
        assert engine.torn
        # Why an item failed stands before the count of that.
        some_commits_ago = [earlier for _, _, earlier in history.states]
        assert content in some_commits_ago or content in [
            replace(earlier, failures=history.last.failures) for earlier in some_commits_ago
        ]
        return "torn tail" if "torn tail" in engine.log[0] else "set aside"
    assert content == history.last
    return "unharmed"


def verify_finds_it(files: Files) -> bool:
    disk = Planted({}).disk
    for name, data in files.items():
        disk.files[f"{FOLDER}/{name}"] = bytearray(data)
    return any(report.bad_offset is not None for report in verify_journal(disk, FOLDER, FAMILY))


@pytest.mark.exhaustive("one segment")
@every
@pytest.mark.parametrize(
    "history",
    [
        pytest.param(ONE_SEGMENT, id="one segment"),
        pytest.param(SYNCED, id="synced"),
        pytest.param(MANY_SEGMENTS, id="many segments", marks=pytest.mark.long),
    ],
)
def test_every_flipped_bit_is_noticed_and_none_is_delivered(history, step):
    outcomes: Counter[str] = Counter()
    for name, whole in history.files.items():
        for bit in range(0, len(whole) * 8, step):
            files = {**history.files, name: flipped(whole, bit)}
            where = f"{name} byte {bit // 8} bit {bit % 8}"
            noticed = how_noticed(files, history)
            outcomes[noticed] += 1
            if noticed == "unharmed":
                # Of a closed segment a start reads only what somebody still needs; a check reads all of it.
                assert name != history.live, where
                assert verify_finds_it(files), where
    assert outcomes["stopped"] > outcomes["torn tail"] > 0


@every
def test_no_flipped_bit_before_the_last_sync_passes_for_a_torn_tail(step):
    (whole,) = SYNCED.files.values()
    _, at = decode_header(whole, "")
    synced = max(
        read_sync(whole[start + 9 : end]) for kind, start, end in find_whole_records(whole, at) if kind == Type.SYNC
    )
    for bit in range(0, synced * 8, step):
        assert how_noticed({SYNCED.live: flipped(whole, bit)}, SYNCED) == "stopped", f"byte {bit // 8} bit {bit % 8}"


def test_a_damaged_record_on_disk_stops_the_queue_and_no_other():
    engine = Planted({ONE_SEGMENT.live: flipped(ONE_SEGMENT.files[ONE_SEGMENT.live], 8 * 200)})
    for name in ("work", "work+audit", "work+new"):
        with pytest.raises(JournalCorrupt):
            engine.reader(name)
    engine.put("other", b"served")
    assert not engine.end_turn()
    assert engine.take("other") == b"served"


def test_a_segment_of_a_later_version_is_refused_by_that_name():
    whole = ONE_SEGMENT.files[ONE_SEGMENT.live]
    header, header_bytes = decode_header(whole, "")
    later = bytearray(encode_header(header))
    later[8] = 5
    later[-4:] = (xxh3_64_intdigest(bytes(later[:-4])) & 0xFFFFFFFF).to_bytes(4, "little")
    engine = Planted({ONE_SEGMENT.live: bytes(later) + whole[header_bytes:]})
    assert "journal version 5; this kestreld reads versions 1 to 4" in engine.log[0]
    assert engine.stopped


def test_a_segment_renamed_by_hand_is_refused():
    whole = ONE_SEGMENT.files[ONE_SEGMENT.live]
    engine = Planted({"0000000007-00000000000000000001.seg": whole})
    assert "was the file renamed?" in engine.log[0]
    assert engine.stopped


def test_two_segments_of_one_number_are_refused():
    whole = ONE_SEGMENT.files[ONE_SEGMENT.live]
    # What is in the second was found by its number in the first.
    engine = Planted({"0000000001-00000000000000000000.seg": whole[:25], ONE_SEGMENT.live: whole})
    assert "0000000001-00000000000000000000.seg has the same number" in engine.log[0]
    assert engine.stopped


def test_foreign_files_in_the_spool_are_left_alone_and_spoken_of():
    engine = Planted(ONE_SEGMENT.files)
    disk = engine.disk
    for name in ("notes.txt", "work.journal/README", "a%2Fb.journal/x"):
        disk.files[f"{SPOOL}/{name}"] = bytearray(b"mine")
    disk.make_dir(f"{SPOOL}/a%2Fb.journal")
    before = {path: bytes(data) for path, data in disk.files.items()}
    engine.crash()
    assert {path: bytes(data) for path, data in disk.files.items()} == before
    spoken_of = " ".join(engine.log)
    assert all(f"{SPOOL}/{name}: " in spoken_of for name in ("a%2Fb.journal", "notes.txt"))
    assert content_of(engine) == ONE_SEGMENT.last


def test_a_segment_that_replaces_thousands_is_read_all_the_same():
    whole = ONE_SEGMENT.files[ONE_SEGMENT.live]
    header, header_bytes = decode_header(whole, "")
    renumbered = replace(header, segment=5001, replaced=tuple(range(2, 5000)))
    name = "0000005001-00000000000000000001.seg"
    dead = {"0000000007-00000000000000000001.seg": b"dead on sight"}
    engine = Planted({**dead, name: encode_header(renumbered) + whole[header_bytes:]})
    assert content_of(engine) == ONE_SEGMENT.last
