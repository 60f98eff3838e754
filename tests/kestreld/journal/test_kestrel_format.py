"""Journals of the original Kestrel: what a real one recovered, what is left of damaged ones, and the way back."""

import json
from collections import deque
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kestreld.files import FileLayer
from kestreld.journal.kestrel.format import (
    KestrelItem,
    KestrelQueue,
    export_ops,
    find_queues,
    read_queue,
)
from kestreld.journal.kestrel.ops import (
    ADD,
    ADD_XID,
    ADDX,
    CONFIRM_REMOVE,
    CONTINUE,
    REMOVE,
    REMOVE_TENTATIVE,
    REMOVE_TENTATIVE_XID,
    SAVE_XID,
    UNREMOVE,
    BadOp,
    Op,
    Truncated,
    decode,
    encode,
)

# Each example writes files, and a busy disk is no failure.

JOURNALS = Path(__file__).parents[2] / "golden" / "journals"
RECORDED_AT_MS = 1_795_253_500_000
NOW_MS = 1_790_000_000_000

# Sets of which more comes back than Kestrel delivered: it cuts a damaged file, and all behind the cut is lost.
DAMAGED = ("c_trunc", "c_arch_trunc", "c_badop", "c_shortblock", "c_zero_tail")
# What Kestrel loses or turns around: 2.x two open reads of 1.x, 1.3 the order of several after a roll.
MENDED = {
    "c_old_rt2": ["a", "b", "c"],
    "c_old_roll": ["open4", "open5", "q1", "q2"],
    "v13_k_rollopen": ["0000" + "w" * 40, "0001" + "w" * 40, "0002" + "w" * 40, "tail"],
}
# 2.x does not start on these.
REFUSED = {"f_hugelen": ["a", "b"], "f_neglen": ["a", "b"], "f_weirdname": ["a"]}


def addx(data: bytes, add_at_ms: int = NOW_MS, expire_at_ms: int = 0) -> Op:
    return Op(ADDX, 0, add_at_ms, expire_at_ms, data)


def journal(*ops: Op | bytes) -> bytes:
    return b"".join(op if isinstance(op, bytes) else encode(op) for op in ops)


def read(folder: Path, *ops: Op | bytes, **rotated: bytes) -> KestrelQueue:
    """The queue `q` of a spool whose live file holds `ops`; the others are named after their suffix (`_100`)."""
    (folder / "q").write_bytes(journal(*ops))
    for suffix, content in rotated.items():
        (folder / ("q" + suffix.replace("_", "."))).write_bytes(content)
    return read_queue(FileLayer(), str(folder), "q", NOW_MS)


def datas(queue: KestrelQueue) -> list[bytes]:
    return [item.data for item in queue.items]


def contains_in_order(got: list[bytes], wanted: list[bytes]) -> bool:
    rest = iter(got)
    return all(data in rest for data in wanted)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One spool, for tests that write the same file over and over."""
    return tmp_path_factory.mktemp("spool")


# --- what a real Kestrel recovered ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(path.name for path in JOURNALS.iterdir() if path.is_dir()))
def test_a_recorded_journal_gives_what_kestrel_recovered(name: str) -> None:
    expect = json.loads((JOURNALS / name / "expect.json").read_text())
    wanted = {queue: recovered["items"] for queue, recovered in expect.get("queues", {}).items()}
    wanted.update(expect.get("queues_recovered_by_13", {}))
    spool = str(JOURNALS / name / "files")
    queues, _ = find_queues(FileLayer(), spool)
    if name in REFUSED:
        assert expect["started"] is False
        wanted = dict.fromkeys(queues, REFUSED[name])
    elif name in MENDED:
        wanted = dict.fromkeys(wanted, MENDED[name])
    assert sorted(queues) == sorted(wanted)
    for queue, items in wanted.items():
        left = [
            item.data.decode("latin-1")
            for item in read_queue(FileLayer(), spool, queue, RECORDED_AT_MS).items
            if item.expire_at_ms == 0 or item.expire_at_ms > RECORDED_AT_MS
        ]
        if name.startswith(DAMAGED):
            assert contains_in_order([data.encode() for data in left], [data.encode() for data in items])
        else:
            assert left == items


def test_what_follows_a_bad_op_or_a_torn_rotated_file_is_kept_too() -> None:
    files = FileLayer()
    bad_op = read_queue(files, str(JOURNALS / "c_badop10" / "files"), "c_badop10", NOW_MS)
    assert datas(bad_op) == [b"a", b"b", b"c", b"d"]
    assert [(unread.offset, unread.size_bytes) for unread in bad_op.unread] == [(44, 1)]
    torn = read_queue(files, str(JOURNALS / "c_arch_trunc" / "files"), "c_arch_trunc", NOW_MS)
    assert datas(torn) == [b"a", b"b", b"L1", b"L2", b"L3", b"L4", b"L5"]
    assert [Path(unread.path).name for unread in torn.unread] == ["c_arch_trunc.100"]


# --- ops -----------------------------------------------------------------------------------------------------------

i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
ops = st.one_of(
    st.builds(Op, st.sampled_from([REMOVE, REMOVE_TENTATIVE])),
    st.builds(Op, st.sampled_from([SAVE_XID, UNREMOVE, CONFIRM_REMOVE, REMOVE_TENTATIVE_XID]), i32),
    st.builds(Op, st.just(ADDX), st.just(0), i64, i64, st.binary()),
    st.builds(Op, st.sampled_from([ADD_XID, CONTINUE]), i32, i64, i64, st.binary()),
    st.builds(Op, st.just(ADD), st.just(0), st.just(0), i32.map(lambda at_s: at_s * 1000), st.binary()),
)


@given(ops, st.binary(max_size=4), st.binary(max_size=4))
def test_an_op_survives_encoding(op: Op, before: bytes, behind: bytes) -> None:
    content = encode(op)
    assert decode(memoryview(before + content + behind), len(before)) == (op, len(before) + len(content))


@given(ops, st.data())
def test_an_op_cut_short_is_truncated(op: Op, data: st.DataObject) -> None:
    content = encode(op)
    cut = data.draw(st.integers(0, len(content) - 1))
    if cut:
        with pytest.raises(Truncated):
            decode(content[:cut], 0)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x0a", "unknown opcode 10"),
        (b"\x02\xff\xff\xff\xff", "ADDX declares -1 bytes"),
        (b"\x02\x0f\x00\x00\x00" + bytes(15), "ADDX declares 15 bytes"),
        (b"\x00\x03\x00\x00\x00abc", "ADD declares 3 bytes"),
    ],
)
def test_a_bad_op_says_where_and_why(content: bytes, reason: str) -> None:
    with pytest.raises(BadOp) as error:
        decode(b"\x01" + content, 1)
    assert (error.value.offset, error.value.reason) == (1, reason)


def test_addx_is_laid_out_as_kestrel_writes_it() -> None:
    content = (JOURNALS / "c_badop10" / "files" / "c_badop10").read_bytes()
    assert decode(content, 0) == (Op(ADDX, 0, 0x01A1FD713AEF, 0, b"a"), 22)


# --- replay --------------------------------------------------------------------------------------------------------


def model(ops: list[Op]) -> list[bytes]:
    """The items a Kestrel 2.x holds after these ops and a restart."""
    queue: deque[bytes] = deque()
    opened: dict[int, bytes] = {}
    for op in ops:
        if op.opcode == ADDX:
            queue.append(op.data)
        elif op.opcode == REMOVE and queue:
            queue.popleft()
        elif op.opcode == REMOVE_TENTATIVE_XID and queue:
            opened[op.xid] = queue.popleft()
        elif op.opcode == CONFIRM_REMOVE:
            opened.pop(op.xid, None)
        elif op.opcode == UNREMOVE and op.xid in opened:
            queue.appendleft(opened.pop(op.xid))
        elif op.opcode == CONTINUE:
            opened.pop(op.xid, None)
            queue.append(op.data)
    return [opened[xid] for xid in sorted(opened)] + list(queue)


@st.composite
def histories(draw: st.DrawFn) -> list[Op]:
    """What a 2.x server can write: items numbered in their data, each open read under an xid of its own."""
    history: list[Op] = []
    opened: list[int] = []
    for number, step in enumerate(draw(st.lists(st.sampled_from("aaarroocuC"), max_size=30))):
        closes = bool(opened) and step in "cuC"
        xid = draw(st.sampled_from(opened)) if closes else number + 1
        if closes:
            opened.remove(xid)
        item = b"%d:" % number + draw(st.binary(max_size=12))
        if step == "r":
            history.append(Op(REMOVE))
        elif step == "o":
            history.append(Op(REMOVE_TENTATIVE_XID, xid))
            opened.append(xid)
        elif step == "C":
            history.append(Op(CONTINUE, xid, NOW_MS, 0, item))
        elif step in "cu":
            history.append(Op(CONFIRM_REMOVE if step == "c" else UNREMOVE, xid))
        else:
            history.append(addx(item))
    return history


@given(histories())
def test_replay_gives_what_a_restarted_kestrel_holds(folder: Path, history: list[Op]) -> None:
    queue = read(folder, *history)
    assert datas(queue) == model(history)
    assert queue.unread == []


@settings(max_examples=settings().max_examples // 3)
@given(histories())
def test_a_journal_cut_anywhere_gives_an_earlier_state(folder: Path, history: list[Op]) -> None:
    content = journal(*history)
    ends = list(accumulate((len(encode(op)) for op in history), initial=0))
    for cut in range(len(content) + 1):
        whole = sum(end <= cut for end in ends[1:])
        queue = read(folder, content[:cut])
        assert datas(queue) == model(history[:whole])
        torn = [(unread.offset, unread.size_bytes) for unread in queue.unread]
        assert torn == ([(ends[whole], cut - ends[whole])] if cut > ends[whole] else [])


def test_times_and_expiry_are_kept(tmp_path: Path) -> None:
    old = Op(ADD, 0, 0, 2_000_000_000_000, b"old")
    queue = read(tmp_path, addx(b"new", 1234, 5678), old)
    assert queue.items == [KestrelItem(b"new", 1234, 5678), KestrelItem(b"old", NOW_MS, 2_000_000_000_000)]


def test_removes_without_an_item_and_closes_without_an_open_read_do_nothing(tmp_path: Path) -> None:
    strays = [Op(REMOVE), Op(REMOVE_TENTATIVE), Op(REMOVE_TENTATIVE_XID, 4), Op(UNREMOVE, 9), Op(CONFIRM_REMOVE, 4)]
    assert datas(read(tmp_path, *strays, addx(b"x"), Op(UNREMOVE, 0))) == [b"x"]


def test_an_item_whose_xid_is_opened_twice_is_not_lost(tmp_path: Path) -> None:
    twice = Op(REMOVE_TENTATIVE_XID, 1)
    assert datas(read(tmp_path, addx(b"a"), addx(b"b"), addx(b"c"), twice, twice)) == [b"a", b"b", b"c"]


# --- 1.x -----------------------------------------------------------------------------------------------------------


def test_tentative_removes_of_1x_take_the_next_free_xid(tmp_path: Path) -> None:
    items = [addx(data) for data in (b"a", b"b", b"c", b"d", b"e")]
    opened = [Op(REMOVE_TENTATIVE)] * 3
    closed = [Op(CONFIRM_REMOVE, 2), Op(UNREMOVE, 1), Op(REMOVE_TENTATIVE), Op(CONFIRM_REMOVE, 4)]
    assert datas(read(tmp_path, *items, *opened, *closed)) == [b"c", b"d", b"e"]
    jump = [Op(SAVE_XID, 41), *opened, Op(CONFIRM_REMOVE, 43)]
    assert datas(read(tmp_path, *items, *jump)) == [b"a", b"c", b"d", b"e"]
    wrapped = [Op(SAVE_XID, -2), *opened, Op(CONFIRM_REMOVE, 0), Op(CONFIRM_REMOVE, 1)]
    assert datas(read(tmp_path, *items, *wrapped)) == [b"a", b"c", b"d", b"e"]
    last = [Op(SAVE_XID, 2**31 - 1), Op(REMOVE_TENTATIVE), Op(CONFIRM_REMOVE, -(2**31))]
    assert datas(read(tmp_path, *items, *last)) == [b"b", b"c", b"d", b"e"]


def test_tentative_removes_of_1x_count_on_from_those_of_2x(tmp_path: Path) -> None:
    mixed = [Op(REMOVE_TENTATIVE_XID, 7), Op(REMOVE_TENTATIVE), Op(CONFIRM_REMOVE, 8)]
    assert datas(read(tmp_path, addx(b"a"), addx(b"b"), addx(b"c"), *mixed)) == [b"a", b"c"]


def test_items_open_at_a_roll_of_1x_keep_their_xids(tmp_path: Path) -> None:
    rolled = [Op(ADD_XID, 5, 1, 0, b"five"), Op(REMOVE_TENTATIVE), Op(ADD_XID, 4, 1, 0, b"four"), Op(REMOVE_TENTATIVE)]
    later = [Op(SAVE_XID, 5), addx(b"tail")]
    assert datas(read(tmp_path, *rolled, *later)) == [b"four", b"five", b"tail"]
    assert datas(read(tmp_path, *rolled, *later, Op(CONFIRM_REMOVE, 5))) == [b"four", b"tail"]


def test_a_restart_of_1x_after_a_roll_hands_back_by_its_own_count(tmp_path: Path) -> None:
    rolled = [Op(ADD_XID, 5, 1, 0, b"five"), Op(REMOVE_TENTATIVE), Op(ADD_XID, 4, 1, 0, b"four"), Op(REMOVE_TENTATIVE)]
    restarted = [Op(SAVE_XID, 5), addx(b"tail"), Op(UNREMOVE, 2), Op(UNREMOVE, 1), Op(REMOVE)]
    assert datas(read(tmp_path, *rolled, *restarted)) == [b"four", b"tail"]


def test_the_first_start_of_2x_hands_back_the_last_read_of_1x(tmp_path: Path) -> None:
    upgraded = [addx(b"a"), addx(b"b"), addx(b"c"), Op(REMOVE_TENTATIVE), Op(CONFIRM_REMOVE, 1), Op(UNREMOVE, 0)]
    assert datas(read(tmp_path, *upgraded)) == [b"a", b"b", b"c"]
    # 2.x delivers `a` once more; a later remove is that one, not `b`
    assert datas(read(tmp_path, *upgraded, Op(REMOVE))) == [b"b", b"c"]


# --- files ---------------------------------------------------------------------------------------------------------


def test_queues_are_told_from_foreign_files(tmp_path: Path) -> None:
    mine = ["work", "work.9", "work.10", "work.10.pack", "work~~11", "work+child", "only.5"]
    foreign = ["work.backup", "work.tmp", "work.10.old", "a.b.10", "work~~x", "gone~~3", "work.-1", "work."]
    for name in [*mine, *foreign, ".lock"]:
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    queues, others = find_queues(FileLayer(), str(tmp_path))
    assert others == sorted(foreign)
    assert {queue: sorted(names) for queue, names in queues.items()} == {
        "work": sorted(["work", "work.9", "work.10", "work.10.pack", "work~~11"]),
        "work+child": ["work+child"],
        "only": ["only.5"],
    }


def test_rotated_files_are_replayed_by_number_and_the_live_file_last(tmp_path: Path) -> None:
    rotated = {"_10": journal(addx(b"second")), "_9": journal(addx(b"first"), addx(b"gone"))}
    queue = read(tmp_path, Op(REMOVE), addx(b"third"), **rotated)
    assert datas(queue) == [b"gone", b"second", b"third"]
    assert [Path(path).name for path in queue.files] == ["q.9", "q.10", "q"]


def test_a_pack_replaces_what_is_not_newer_and_unfinished_files_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "q~~250").write_bytes(journal(addx(b"unfinished")))
    (tmp_path / "q2").write_bytes(journal(addx(b"another queue's")))
    queue = read(
        tmp_path,
        addx(b"live"),
        _100=journal(addx(b"old")),
        _100_pack=journal(addx(b"earlier pack")),
        _150=journal(addx(b"older than the pack")),
        _200=journal(addx(b"as old as the pack")),
        _200_pack=journal(addx(b"packed")),
        _300=journal(addx(b"newer")),
    )
    assert datas(queue) == [b"packed", b"newer", b"live"]
    names = [Path(path).name for path in queue.files]
    assert names == ["q.100", "q.100.pack", "q.150", "q.200", "q.200.pack", "q.300", "q", "q~~250"]
    assert sorted(names) == sorted(find_queues(FileLayer(), str(tmp_path))[0]["q"])


def test_a_queue_without_files_is_empty(tmp_path: Path) -> None:
    assert read_queue(FileLayer(), str(tmp_path), "none", NOW_MS) == KestrelQueue("none")


# --- damage --------------------------------------------------------------------------------------------------------

TEXT = [addx(b"item %d, some text" % number, NOW_MS + number) for number in range(6)]
BINARY = [addx(bytes((number, 0, 255, 1, 3, 2, 17)) * (2 + number), NOW_MS + number) for number in range(6)]
TAKES = [Op(REMOVE), Op(REMOVE_TENTATIVE_XID, 1), Op(REMOVE), Op(REMOVE_TENTATIVE_XID, 2), Op(CONFIRM_REMOVE, 2)]


def other_values(byte: int) -> set[int]:
    """What damage makes of a byte: any one bit turned, every opcode, and the extremes."""
    return ({byte ^ (1 << bit) for bit in range(8)} | set(range(11)) | {0x7F, 0x80, 0xFF}) - {byte}


@pytest.mark.parametrize(
    "history",
    [
        pytest.param(TEXT[:3], id="short text"),
        pytest.param(TEXT, id="text", marks=pytest.mark.long),
        pytest.param(BINARY, id="binary", marks=pytest.mark.long),
        pytest.param([*TEXT, *TAKES, *BINARY], id="takes", marks=pytest.mark.long),
    ],
)
def test_one_damaged_byte_costs_no_other_item(folder: Path, history: list[Op]) -> None:
    content = journal(*history)
    start = 0
    for op in history:
        size_bytes = len(encode(op))
        others = [data for data in model(history) if data != op.data]
        for at in range(start, start + size_bytes if op.opcode == ADDX else start):
            for value in other_values(content[at]):
                queue = read(folder, content[:at], bytes((value,)), content[at + 1 :])
                if not queue.unread and start < at < start + 5:
                    continue  # a length that happens to end where another op does
                assert contains_in_order(datas(queue), others), (at, value)
        start += size_bytes


@given(st.binary(max_size=400))
def test_no_bytes_whatever_are_an_error(folder: Path, content: bytes) -> None:
    queue = read(folder, content)
    assert all(0 <= unread.offset < len(content) and unread.size_bytes > 0 for unread in queue.unread)


@given(histories(), st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=4))
def test_damage_in_several_places_is_no_error(folder: Path, history: list[Op], flips: list[tuple[int, int]]) -> None:
    content = bytearray(journal(*history, addx(b"last")))
    for at, value in flips:
        content[at % len(content)] = value
    read(folder, bytes(content))


@pytest.mark.parametrize("claimed_bytes", [-1, -(2**31), 0, 15, 200, 2**31 - 1])
def test_a_wrong_length_costs_one_item_and_later_removes_find_theirs(tmp_path: Path, claimed_bytes: int) -> None:
    damaged = bytearray(encode(addx(b"damaged")))
    damaged[1:5] = claimed_bytes.to_bytes(4, "little", signed=True)
    queue = read(tmp_path, addx(b"a"), bytes(damaged), addx(b"c"), addx(b"d"), addx(b"e"), Op(REMOVE), Op(REMOVE))
    assert datas(queue) == [b"c", b"d", b"e"]
    assert [(unread.offset, unread.size_bytes) for unread in queue.unread] == [(22, len(damaged))]


@pytest.mark.parametrize("opcode", [1, 3, 4, 5, 6, 7, 8, 9, 10, 0x82, 0xFF])
def test_a_wrong_opcode_costs_one_item_and_later_removes_find_theirs(tmp_path: Path, opcode: int) -> None:
    damaged = bytes((opcode,)) + encode(addx(b"damaged"))[1:]
    queue = read(tmp_path, addx(b"a"), damaged, Op(REMOVE), addx(b"c"), addx(b"d"), Op(REMOVE), Op(REMOVE))
    assert datas(queue) == [b"d"]
    assert [(unread.offset, unread.size_bytes) for unread in queue.unread] == [(22, len(damaged))]


def test_an_item_cut_in_the_middle_of_a_file_does_not_swallow_the_next(tmp_path: Path) -> None:
    cut = encode(addx(b"cut short"))[:-4]
    queue = read(tmp_path, addx(b"a"), cut, addx(b"c"), addx(b"d"))
    assert datas(queue) == [b"a", b"c", b"d"]
    assert [(unread.offset, unread.size_bytes) for unread in queue.unread] == [(22, len(cut))]


def test_a_hole_in_a_file_is_skipped_and_what_later_ops_take_is_kept(tmp_path: Path) -> None:
    """Nobody knows what stood in the hole, so nobody knows which items the removes behind it mean."""
    for hole in (bytes(5000), b"\xee" * 5000, b"\x02" * 5000, b"\x01\x02\x03\x07" * 1000):
        queue = read(tmp_path, addx(b"a"), addx(b"b"), b"\xff", hole, addx(b"c"), Op(REMOVE), addx(b"d"))
        assert datas(queue) == [b"a", b"b", b"c", b"d"]
        assert [(unread.offset, unread.size_bytes) for unread in queue.unread] == [(44, 1 + len(hole))]


def test_journals_as_old_as_starling_are_read_on_after_damage(tmp_path: Path) -> None:
    old = [Op(ADD, 0, 0, 0, b"item %d" % number) for number in range(20)]
    queue = read(tmp_path, *old[:10], b"\x99", *old[10:])
    assert datas(queue) == [op.data for op in old]


def test_an_item_that_holds_a_journal_is_one_item(tmp_path: Path) -> None:
    inner = journal(*TEXT)
    for nested in (inner, inner[:-3]):
        queue = read(tmp_path, addx(nested), b"\x99", addx(b"next"), addx(nested), addx(b"last"))
        assert datas(queue) == [nested, b"next", nested, b"last"]


# --- export --------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.builds(KestrelItem, st.binary(max_size=40), st.integers(0, 2**42), st.integers(0, 2**42))),
    st.integers(0, 3),
)
def test_an_exported_journal_is_read_back_to_the_same_items(
    folder: Path, items: list[KestrelItem], open_count: int
) -> None:
    queue = read(folder, *export_ops(items[open_count:], items[:open_count]))
    assert queue.items == items
    assert queue.unread == []


def test_an_export_is_what_kestrel_2_writes_when_it_rewrites_a_journal() -> None:
    recorded = (JOURNALS / "j_rewrite_open" / "files" / "j_rewrite_open").read_bytes()
    queue = read_queue(FileLayer(), str(JOURNALS / "j_rewrite_open" / "files"), "j_rewrite_open", NOW_MS)
    assert b"".join(export_ops(queue.items[4:], queue.items[:4])) == recorded
