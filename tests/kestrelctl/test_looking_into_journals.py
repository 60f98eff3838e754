"""`journal dump`, `journal diff` and `journal explain-space`, on what real servers and engines have written."""

import json
import shutil
from pathlib import Path

import pytest

from kestreld.journal.kestrel.ops import ADDX, CONFIRM_REMOVE, REMOVE_TENTATIVE_XID, Op, encode
from kestreld.journal.records import PUT_HEADER_BYTES
from tests.support.daemon import Daemon
from tests.support.engine import Engine
from tests.support.past import BEGIN_MS, write_past
from tests.support.queue_client import QueueClient
from tests.support.shell import Kestrelctl


def ndjson(out: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.splitlines()]


def segment(spool: Path, queue: str = "work") -> Path:
    (path,) = (spool / f"{queue}.journal").glob("*.seg")
    return path


@pytest.fixture
def filled(own_daemon: Daemon) -> Daemon:
    """A running server: three items on `work`, one of them binary, one got; its child has had one, too."""
    with QueueClient(own_daemon.port) as client:
        client.do(b"get work+audit", b"END\r\n")
        client.put("work", b"first", flags=7)
        client.put("work", b"\xff\x00", expiry_s=2_000_000_000)
        client.put("work", b"third")
        assert client.get("work") == b"first"
    return own_daemon


# --- dump ----------------------------------------------------------------------------------------------------------


def test_a_dump_has_every_record_with_its_place_and_checksum(filled: Daemon, own_kestrelctl: Kestrelctl) -> None:
    run = own_kestrelctl("journal", "dump", "work", "--spool", str(filled.spool), "-o", "ndjson")
    assert (run.code, run.err) == (0, "")
    rows = ndjson(run.out)
    content = segment(filled.spool).read_bytes()
    assert {row["segment"] for row in rows} == {segment(filled.spool).name}
    assert {row["checksum"] for row in rows} == {"ok"}
    ends = [row["offset"] + row["bytes"] for row in rows]  # type: ignore[operator]
    assert [row["offset"] for row in rows] == [0, *ends[:-1]]
    assert ends[-1] == len(content)
    assert [row["type"] for row in rows[:2]] == ["HEADER", "CHECKPOINT"]
    puts = [row for row in rows if row["type"] == "PUT"]
    assert [(row["id"], row["data_bytes"], row.get("flags")) for row in puts] == [(1, 5, 7), (2, 2, None), (3, 5, None)]
    assert puts[1]["expire_at_ms"] == 2_000_000_000_000
    (done,) = [row for row in rows if row["type"] == "DONE"]
    assert (done["queue"], done["reason"], done["items"], done["ids"]) == ("work", "got", 1, "1")
    assert {row["queue"] for row in rows if row["type"] == "READER"} == {"work", "work+audit"}
    assert b"first" not in run.out


def test_values_are_shown_when_asked_for(filled: Daemon, own_kestrelctl: Kestrelctl) -> None:
    run = own_kestrelctl("journal", "dump", str(segment(filled.spool)), "--values", "-o", "json")
    datas = [row for row in json.loads(run.out) if row["type"] == "PUT"]
    assert [(row.get("data"), row.get("data_base64")) for row in datas] == [
        ("first", None),
        (None, "/wA="),
        ("third", None),
    ]


def test_a_dump_for_people_has_times_and_says_the_rest_in_words(filled: Daemon, own_kestrelctl: Kestrelctl) -> None:
    run = own_kestrelctl("journal", "dump", "work", "--spool", str(filled.spool), "-o", "table")
    head, *lines = run.out.decode().splitlines()
    assert head.split() == [
        "segment",
        "offset",
        "type",
        "queue",
        "id",
        "at",
        "bytes",
        "data_bytes",
        "checksum",
        "words",
    ]
    (done,) = [line for line in lines if " DONE " in line]
    assert done.endswith("ok        reason=got items=1 ids=1")
    assert all(line[head.index("type") - 1] == " " for line in lines)


def test_behind_damage_the_dump_goes_on_and_exits_65(filled: Daemon, own_kestrelctl: Kestrelctl) -> None:
    filled.stop()
    path = segment(filled.spool)
    content = bytearray(path.read_bytes())
    at = content.index(b"first")
    content[at] ^= 1
    content[20] ^= 1
    path.write_bytes(content + b"\x40\0\0\0half")
    run = own_kestrelctl("journal", "dump", str(path), "-o", "ndjson")
    rows = ndjson(run.out)
    assert run.code == 65
    assert rows[0]["checksum"] == "bad: the segment header's checksum does not match"
    (bad,) = [row for row in rows[1:] if str(row["checksum"]).startswith("bad")]
    assert (bad["type"], bad["offset"], bad["checksum"]) == (
        "",
        at - PUT_HEADER_BYTES,
        "bad: the checksum does not match",
    )
    assert [row["id"] for row in rows if row["type"] == "PUT"] == [2, 3]
    assert (rows[-1]["checksum"], rows[-1]["bytes"]) == ("cut short", 8)


def test_a_segment_that_is_cut_short_or_has_unused_room_is_no_damage(
    filled: Daemon, own_kestrelctl: Kestrelctl
) -> None:
    filled.kill()
    path = segment(filled.spool)
    content = path.read_bytes()
    for tail, said in ((b"\x40\0\0\0half", "cut short"), (bytes(100), "unused")):
        path.write_bytes(content + tail)
        run = own_kestrelctl("journal", "dump", str(path), "-o", "ndjson")
        assert (run.code, ndjson(run.out)[-1]["checksum"]) == (0, said)


def test_the_operations_of_a_kestrel_file_are_dumped_too(kestrelctl: Kestrelctl, tmp_path: Path) -> None:
    ops = [Op(ADDX, 0, BEGIN_MS, 0, b"one"), Op(REMOVE_TENTATIVE_XID, 5), Op(CONFIRM_REMOVE, 5)]
    path = tmp_path / "work"
    path.write_bytes(b"".join(map(encode, ops)))
    run = kestrelctl("journal", "dump", str(path), "--values", "-o", "ndjson")
    rows = ndjson(run.out)
    assert (run.code, [row["type"] for row in rows]) == (0, ["ADDX", "REMOVE_TENTATIVE_XID", "CONFIRM_REMOVE"])
    assert (rows[0]["at_ms"], rows[0]["data"], rows[0]["checksum"]) == (BEGIN_MS, "one", "none")
    path.write_bytes(path.read_bytes() + b"\x55" * 30 + encode(ops[0]) * 3)
    assert kestrelctl("journal", "dump", str(path)).code == 65


def test_an_archive_is_dumped_before_the_spool(kestrelctl: Kestrelctl, tmp_path: Path) -> None:
    past = write_past(tmp_path)
    both = ["--spool", str(past.spool), "--archive", str(past.archive), "-o", "ndjson"]
    run = kestrelctl("journal", "dump", "work", *both)
    ids = [row["id"] for row in ndjson(run.out) if row["type"] == "PUT"]
    assert ids == list(range(1, 50))
    assert len(set(past.archive.rglob("*.seg"))) > 1


# --- diff ----------------------------------------------------------------------------------------------------------


def differences(run_out: bytes) -> list[tuple[object, ...]]:
    return [(row["queue"], row["change"], row["id_a"], row["id_b"]) for row in ndjson(run_out)]


def test_a_copy_is_the_same_and_what_was_done_to_it_since_is_the_difference(
    filled: Daemon, own_kestrelctl: Kestrelctl, tmp_path: Path
) -> None:
    filled.stop()
    copy = tmp_path / "copy"
    shutil.copytree(filled.spool, copy)
    command = ["journal", "diff", str(filled.spool), str(copy), "-o", "ndjson"]
    assert own_kestrelctl(*command).out == b""
    assert own_kestrelctl(*command).code == 0
    filled.start()
    with QueueClient(filled.port) as client:
        assert client.get("work") == b"\xff\x00"
        client.put("work", b"fourth")
        client.put("other", b"x")
    run = own_kestrelctl(*command)
    assert (run.code, run.err) == (1, "")
    assert differences(run.out) == [
        ("other", "only in A", 1, ""),
        ("work", "only in A", 4, ""),
        ("work", "only in B", "", 2),
        ("work+audit", "only in A", 4, ""),
    ]
    one = own_kestrelctl(*command, "--queue", "other", "--values")
    assert [row["data"] for row in ndjson(one.out)] == ["x"]
    assert own_kestrelctl(*command, "--queue", "nope").code == 66
    quiet = own_kestrelctl(*command, "-q")
    assert (quiet.code, quiet.out) == (1, b"")
    assert own_kestrelctl(*command, "--queue", "other", "--all", "-q").code == 1


def test_journals_of_different_servers_are_compared_by_data_and_order(kestrelctl: Kestrelctl, tmp_path: Path) -> None:
    for name, datas in (("a", (b"1", b"2", b"3", b"same", b"same")), ("b", (b"0", b"2", b"3", b"1", b"same"))):
        engine = Engine(tmp_path / name)
        engine.clock.advance(ord(name))
        engine.put("work", *datas)
        engine.end_turn()
        engine.collection.close()
    run = kestrelctl("journal", "diff", str(tmp_path / "a"), str(tmp_path / "b"), "-o", "ndjson")
    assert run.code == 1
    assert differences(run.out) == [
        ("work", "reordered", 1, 4),
        ("work", "only in A", 5, ""),
        ("work", "only in B", "", 1),
    ]


def test_what_was_imported_from_kestrel_is_the_same_as_its_files(kestrelctl: Kestrelctl, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    (old / "work").write_bytes(b"".join(encode(Op(ADDX, 0, BEGIN_MS, 0, b"%d" % number)) for number in range(9)))
    assert kestrelctl("journal", "import", str(old), "--to", str(tmp_path / "new")).code == 0
    assert kestrelctl("journal", "diff", str(old), str(tmp_path / "new")).code == 0
    assert kestrelctl("journal", "diff", str(old / "work"), str(tmp_path / "new" / "work.journal")).code == 0
    (old / "work").write_bytes((old / "work").read_bytes() + encode(Op(ADDX, 0, BEGIN_MS, 0, b"more")))
    assert kestrelctl("journal", "diff", str(old), str(tmp_path / "new")).code == 1


def test_a_damaged_journal_is_not_compared(filled: Daemon, own_kestrelctl: Kestrelctl) -> None:
    filled.stop()
    path = segment(filled.spool)
    path.write_bytes(path.read_bytes().replace(b"first", b"fIrst"))
    run = own_kestrelctl("journal", "diff", str(filled.spool), str(filled.spool))
    assert (run.code, run.out) == (65, b"")
    assert run.err.startswith(f"kestrelctl: corrupt: {path}: ")


# --- explain-space -------------------------------------------------------------------------------------------------


def test_the_space_of_each_segment_is_told_apart_with_whom_it_waits_for(kestrelctl: Kestrelctl, tmp_path: Path) -> None:
    past = write_past(tmp_path)
    run = kestrelctl("journal", "explain-space", "work", "--spool", str(past.spool), "-o", "ndjson")
    assert (run.code, run.err) == (0, "")
    rows = ndjson(run.out)
    paths = sorted((past.spool / "work.journal").glob("*.seg"))
    assert [(row["segment"], row["bytes"]) for row in rows] == [(path.name, path.stat().st_size) for path in paths]
    assert all(row["live_bytes"] + row["dead_bytes"] == row["bytes"] for row in rows)  # type: ignore[operator]
    # 24 minutes: 49 items, 36 of them got from the queue and 16 from its child, which came in with item 9.
    assert sum(int(str(row["live_items"])) for row in rows) == 49 - 9 - 16 + 1
    assert rows[0]["pinned_by"] == "work+audit"
    assert str(rows[0]["goes"]).startswith("when work+audit is done with items=")
    assert rows[-1]["goes"] == "not before the next segment is begun: this one is being written"


def test_a_held_item_and_what_is_done_behind_it_are_named(own_daemon: Daemon, own_kestrelctl: Kestrelctl) -> None:
    own_daemon.stop()
    own_daemon.settings += ["queues.work.max_journal_size=1024"]
    own_daemon.start()
    with QueueClient(own_daemon.port) as holder, QueueClient(own_daemon.port) as client:
        client.put("work", b"held")
        assert holder.get("work/open") == b"held"
        for _ in range(3):
            client.put("work", *[b"x" * 300] * 3)
            client.drain("work")
        run = own_kestrelctl("journal", "explain-space", "work", "--spool", str(own_daemon.spool), "-o", "ndjson")
    first = ndjson(run.out)[0]
    assert (first["live_items"], first["pinned_by"]) == (1, "work")
    assert str(first["goes"]).startswith("when work is done with item 1; item 1 was put ")
    assert "probably in an open read as items=" in str(first["goes"])


def test_what_is_not_there_and_what_is_no_name_are_told_apart(kestrelctl: Kestrelctl, tmp_path: Path) -> None:
    spool = ["--spool", str(tmp_path)]
    for command in ("dump", "explain-space"):
        for bad in ("a b", "", "a/b"):
            assert kestrelctl("journal", command, bad, *spool).code == 2
        assert kestrelctl("journal", command, "::a:b::", *spool).code == 66
        assert kestrelctl("journal", command, "work", "--spool", f"{tmp_path}/nope").code == 66
