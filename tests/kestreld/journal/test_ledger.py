"""Small tables in a ledger: kept over stops, kills and power cuts, refused where damaged, never long for long."""

import errno
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from kestreld.errors import JournalCorrupt, JournalFailed, LedgerFull
from kestreld.files import FileLayer
from kestreld.journal.ledger import HEADER_BYTES, LONG_BYTES, Changes, Ledger, ledger_header
from kestreld.journal.records import framed, sync_record
from tests.simulation.crash_states import crash_states
from tests.simulation.disk import Disk
from tests.simulation.process_files import KINDS, Faults, ProcessFiles
from tests.support.engine import LateFiles, QuickFiles
from tests.support.faulty_files import FULL, FaultyFiles
from tests.support.mortal_files import Killed

Table = dict[bytes, bytes]


class Open:
    """An open ledger, its log, and what became of changes."""

    def __init__(self, files: FileLayer, path: str | Path, entries_max: int = 1000) -> None:
        self.log: list[str] = []
        self.ends: list[JournalFailed | None] = []
        self.ledger = Ledger(files, str(path), entries_max, self.log.append)
        self.ledger.read()

    @property
    def table(self) -> Table:
        return dict(self.ledger.items())

    def change(self, changes: Changes) -> None:
        self.ledger.change(changes, self.ends.append)


def reopened(path: Path, files: FileLayer | None = None) -> Open:
    return Open(files or QuickFiles(), path)


def test_what_is_set_and_removed_is_there_after_a_stop_and_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "table"
    first = reopened(path)
    first.change({b"a": b"1", b"b": b"", b"": b"empty key"})
    first.change({b"a": None, b"c": b"3"})
    expected = {b"b": b"", b"": b"empty key", b"c": b"3"}
    assert first.ends == [None, None]
    assert first.table == expected
    assert (first.ledger.get(b"c"), first.ledger.get(b"a"), b"b" in first.ledger) == (b"3", None, True)

    killed = reopened(path)  # the first one is not closed
    assert killed.table == expected
    killed.change({b"d": b"4"})
    killed.ledger.close()
    stopped = reopened(path)
    assert stopped.table == {**expected, b"d": b"4"}
    assert first.log + killed.log + stopped.log == []


def test_a_power_cut_during_the_first_change_after_a_stop_leaves_what_was_there(tmp_path: Path) -> None:
    """The SYNC of a stop is not on disk itself: nothing is written behind it."""
    path, files = tmp_path / "table", LateFiles()
    first = reopened(path)
    first.change({b"a": b"1"})
    size_bytes = path.stat().st_size
    first.ledger.close()
    stopped = reopened(path, files)
    stopped.change({b"b": b"2"})
    cut = bytearray(path.read_bytes())
    sync_bytes = len(sync_record(0))
    cut[size_bytes : size_bytes + sync_bytes] = bytes(sync_bytes)
    (tmp_path / "cut").write_bytes(cut)
    after = reopened(tmp_path / "cut")
    assert (after.ledger.problem, after.table) == (None, {b"a": b"1"})
    while files.under_way:
        files.finish_background()
    assert reopened(path).table == {b"a": b"1", b"b": b"2"}


def test_a_table_that_nobody_uses_has_no_file(tmp_path: Path) -> None:
    unused = reopened(tmp_path / "table")
    unused.change({b"a": None})
    unused.ledger.close()
    assert unused.ends == [None]
    assert list(tmp_path.iterdir()) == []


def test_changes_are_seen_and_answered_once_they_are_on_disk_in_one_write_for_all_that_waited(tmp_path: Path) -> None:
    files = LateFiles()
    late = Open(files, tmp_path / "table")
    late.change({b"a": b"1"})
    late.change({b"a": b"2"})
    late.change({b"b": b"1"})
    assert (late.ends, late.table) == ([], {})
    files.finish_background()  # the file
    late.change({b"a": None})  # waits for the sync of the three
    assert (late.ends, late.table) == ([], {})
    files.finish_background()
    assert (late.ends, late.table) == ([None] * 3, {b"a": b"2", b"b": b"1"})
    files.finish_background()
    assert (late.ends, late.table) == ([None] * 4, {b"b": b"1"})


def test_a_repeated_change_writes_nothing_unless_it_may_not_be_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "table"
    files = LateFiles()
    late = Open(files, path)
    late.change({b"a": b"1"})
    late.change({b"a": b"1"})
    assert late.ends == []
    files.finish_background()
    files.finish_background()
    size_bytes = path.stat().st_size
    late.change({b"a": b"1", b"b": None})
    assert late.ends == [None] * 3
    assert (files.under_way, path.stat().st_size) == ([], size_bytes)


def test_a_full_table_takes_changes_of_what_it_has_and_nothing_new(tmp_path: Path) -> None:
    files = LateFiles()
    full = Open(files, tmp_path / "table", entries_max=2)
    full.change({b"a": b"1"})
    full.change({b"b": b"1"})
    with pytest.raises(LedgerFull, match="has 2 entries, as many as it may have"):
        full.change({b"c": b"1"})
    full.change({b"a": b"2"})
    full.change({b"a": None})
    full.change({b"c": b"1"})
    for _ in range(3):
        files.finish_background()
    assert (full.ends, full.table) == ([None] * 5, {b"b": b"1", b"c": b"1"})
    with pytest.raises(LedgerFull):
        full.change({b"b": None, b"d": b"1", b"e": b"1"})


# Crashes


def test_every_prefix_is_a_torn_tail_or_is_refused_by_name_and_never_silently_less(tmp_path: Path) -> None:
    path = tmp_path / "table"
    run = reopened(path)
    tables: dict[int, Table] = {}
    for changes in ({b"a": b"1"}, {b"b": b"22", b"c": b"333"}, {b"a": None}):
        tables.setdefault(path.stat().st_size if path.exists() else HEADER_BYTES, run.table)
        run.change(changes)
    content, whole = path.read_bytes(), run.table
    tables[len(content)] = whole
    for size_bytes in range(len(content) + 1):
        path.write_bytes(content[:size_bytes])
        found = reopened(path)
        if size_bytes < HEADER_BYTES:
            assert found.ledger.problem is not None
            assert f"{path}: byte 0: the header is cut short; restore the file" in found.log[0]
            assert path.read_bytes() == content[:size_bytes]
            continue
        before = max(at for at in tables if at <= size_bytes)
        assert found.table == tables[before]
        torn_bytes = size_bytes - before
        said = [f"{path}: torn tail of {torn_bytes} bytes left out from byte {before} on"] if torn_bytes else []
        assert found.log == said
        found.change({b"z": b"26"})  # it goes on
        assert reopened(path).table == {**tables[before], b"z": b"26"}


def test_a_flipped_bit_is_found_and_named_unless_it_is_in_the_last_record_of_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "table"
    run = reopened(path)
    for number in range(3):
        run.change({b"key %d" % number: b"value"})
    last_at = path.stat().st_size
    run.change({b"last": b"value"})
    run.ledger.close()
    content = path.read_bytes()
    for at in range(len(content)):
        flipped = bytearray(content)
        flipped[at] ^= 1 << at % 8
        path.write_bytes(flipped)
        found = reopened(path)
        if found.ledger.problem is None:
            assert at >= last_at
            assert found.log
            continue
        assert str(path) in found.log[0]
        assert "and restart" in found.log[0]
        assert found.table == {}
        with pytest.raises(JournalCorrupt, match="and restart"):
            found.change({b"a": b"1"})
        found.ledger.close()
        assert path.read_bytes() == flipped


def test_damage_in_what_was_written_anew_is_never_taken_for_a_torn_tail(tmp_path: Path) -> None:
    path = tmp_path / "table"
    run = reopened(path)
    run.change({b"a": b"1"})
    reopened(path)  # after a kill: written anew, with one record
    content = path.read_bytes()
    for damaged in (content[:-1], content[:-1] + b"\xff", content[:HEADER_BYTES]):
        path.write_bytes(damaged)
        assert reopened(path).ledger.problem is not None


def test_a_file_of_a_later_version_or_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "table"
    header = bytearray(ledger_header(HEADER_BYTES))
    header[8] = 2
    for content, why in ((bytes(header), "checksum"), (b"KESTRELJ" + bytes(100), "not a ledger")):
        path.write_bytes(content)
        assert why in str(reopened(path).ledger.problem)
    path.write_bytes(ledger_header(HEADER_BYTES) + framed(1, b"\xff" * 8))
    assert "unsupported record fields" in str(reopened(path).ledger.problem)


def test_a_file_with_an_entry_of_another_kind_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "table"
    reopened(path).change({b"a": b"1", b"b": b"2"})
    content, log = path.read_bytes(), list[str]()
    ledger = Ledger(QuickFiles(), str(path), 10, log.append, lambda key, value: key == b"a")
    ledger.read()
    assert len(ledger) == 0
    assert log == [str(ledger.problem)]
    assert "an entry of another kind: b'b'" in log[0]
    assert path.read_bytes() == content


STEPS: tuple[Changes, ...] = (
    {b"a": b"1", b"b": b"1"},
    {b"a": b"2", b"c": b"x" * 700},
    {b"b": None},
    {b"a": b"x" * (LONG_BYTES + 1)},
    {b"a": b"3"},  # now the file is long for what it says
    {b"d": b"4"},
)


def disk_with_spool() -> Disk:
    disk = Disk()
    ProcessFiles(disk).make_dir("/spool")
    disk.sync_all_names()
    return disk


def play(files: ProcessFiles, answered: list[Table]) -> None:
    """Take the steps; the tables that hold after each one that succeeded go to `answered`."""
    opened = Open(files, "/spool/table")
    for changes in STEPS:
        opened.change(changes)
        if opened.ends[-1] is None:
            answered.append(opened.table)
    opened.ledger.close()


def expected(count: int) -> Table:
    table: Table = {}
    for changes in STEPS[:count]:
        table |= {key: value for key, value in changes.items() if value is not None}
        table = {key: value for key, value in table.items() if key not in changes or changes[key] is not None}
    return table


def found_on(disk: Disk) -> Table:
    """What a start finds; a change that is made then is there after a power cut that takes all that it may."""
    opened = Open(ProcessFiles(disk), "/spool/table")
    assert opened.ledger.problem is None
    found = opened.table
    opened.change({b"more": b"1"})
    left = disk.after_power_cut([], lambda file, change: None)
    assert Open(ProcessFiles(left), "/spool/table").table == {**found, b"more": b"1"}
    return found


def test_after_a_crash_at_any_change_to_the_disk_every_answered_change_is_there() -> None:
    dies_at, states, is_over = 0, 0, False
    while not is_over:
        dies_at += 1
        disk = disk_with_spool()
        files = ProcessFiles(disk)
        files.dies_in = dies_at
        answered: list[Table] = []
        try:
            play(files, answered)
            is_over = True
        except Killed:
            pass
        for state in (disk.copy(), *crash_states(disk)):
            states += 1
            assert found_on(state) in (expected(len(answered)), expected(len(answered) + 1))
    assert states > 100


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("link", "remove_dir", "list_dir")])
def test_a_call_that_fails_fails_its_changes_by_name_and_loses_no_others(kind: str) -> None:
    call = 0
    while True:
        call += 1
        disk = disk_with_spool()
        faults = Faults(Random(1))
        faults.kinds, faults.fails_at = frozenset({kind}), call
        opened = Open(ProcessFiles(disk, faults), "/spool/table")
        may_be: list[Table] = [{}]
        for changes in STEPS:
            opened.change(changes)
            failure = opened.ends[-1]
            after = {**may_be[-1], **changes}
            after = {key: value for key, value in after.items() if value is not None}
            may_be = [opened.table] if failure is None else [*may_be, after]
            assert failure is None or "/spool/table: Input/output error" in str(failure)
            assert opened.ledger.doubt == "" or opened.log
        if not faults.failed:
            return
        for state in (disk.copy(), *crash_states(disk)):
            assert found_on(state) in may_be


def test_after_a_failed_sync_the_file_is_written_anew_and_not_synced_again(tmp_path: Path) -> None:
    path = tmp_path / "table"
    files = FaultyFiles(errno.EIO, ("sync",))
    run = Open(files, path)
    run.change({b"a": b"1"})
    files.finish_background()
    files.finish_background()
    old = path.stat().st_ino
    files.fail_from(1)
    run.change({b"a": b"2"})
    files.finish_background()
    assert str(run.ends[-1]) == f"{path}: Input/output error"
    assert run.table == {b"a": b"1"}
    assert run.log == [f"{path}: Input/output error; the next change writes the file anew, or is refused"]
    run.change({b"a": b"1"})  # it is so already, but who knows what the disk has
    assert len(run.ends) == 2
    files.finish_background()
    assert run.ends[-1] is None
    assert path.stat().st_ino != old
    assert reopened(path).table == {b"a": b"1"}


def test_a_full_disk_refuses_changes_until_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "table"
    files = FaultyFiles(errno.ENOSPC, FULL, stays=True, short=True)
    run = Open(files, path)

    def change(changes: Changes) -> JournalFailed | None:
        run.change(changes)
        while files.under_way:
            files.finish_background()
        return run.ends[-1]

    assert change({b"a": b"1"}) is None
    files.fail_from(1)
    for _ in range(3):
        failure = change({b"b": b"2"})
        assert failure is not None
        assert failure.disk_full
    assert run.table == reopened(path).table == {b"a": b"1"}
    assert len(run.log) == 1
    files.mend()
    assert change({b"b": b"2"}) is None
    assert reopened(path).table == {b"a": b"1", b"b": b"2"}


# Length


def test_a_file_that_is_long_for_what_it_says_is_written_anew_while_changes_wait(tmp_path: Path) -> None:
    path = tmp_path / "table"
    files = LateFiles()
    run = Open(files, path)
    longest = 0
    for number in range(500):
        run.change({b"key": b"%d" % number * 200})
        while files.under_way:
            files.finish_background()
            longest = max(longest, path.stat().st_size)
    assert LONG_BYTES < longest < LONG_BYTES + 2000
    assert run.ends == [None] * 500
    assert reopened(path).table == {b"key": b"499" * 200}
    assert sorted(one.name for one in tmp_path.iterdir()) == ["table"]


@pytest.mark.parametrize("how", [Ledger.close, lambda ledger: None], ids=["stopped", "killed"])
def test_any_changes_make_the_table_that_a_dict_would_be(tmp_path: Path, how: Callable[[Ledger], None]) -> None:
    chance = Random(7)
    table: Table = {}
    path = tmp_path / "table"
    for _ in range(20):
        run = reopened(path)
        assert run.table == table
        for _ in range(chance.randrange(60)):
            key = b"%d" % chance.randrange(20)
            value = chance.choice([None, chance.randbytes(chance.randrange(2000))])
            run.change({key: value})
            table.pop(key, None)
            if value is not None:
                table[key] = value
        how(run.ledger)
