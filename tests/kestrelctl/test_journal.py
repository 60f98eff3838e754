"""`journal import` and `journal export`: Kestrel's files into spools and running servers, and the way back."""

import json
import struct
from pathlib import Path

import pytest

from kestreld.journal.kestrel.ops import ADDX, REMOVE_TENTATIVE_XID, Op, encode
from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient
from tests.support.shell import Kestrelctl

ADDED_AT_MS = 1_700_000_000_000
FAR_MS = 4_000_000_000_000


def items(*datas: bytes, expire_at_ms: int = 0) -> bytes:
    """A Kestrel file that holds these items."""
    return b"".join([encode(Op(ADDX, 0, ADDED_AT_MS, expire_at_ms, data)) for data in datas])


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A spool of Kestrel's: `work` with a rotated file and an open read, its child, and a file of somebody else's."""
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "work.100").write_bytes(items(b"1"))
    (folder / "work").write_bytes(items(b"2", b"3") + encode(Op(REMOVE_TENTATIVE_XID, 1)))
    (folder / "work+audit").write_bytes(items(b"2"))
    (folder / "mail").write_bytes(items(b"m"))
    (folder / "read.me").write_bytes(b"words")
    return folder


def rows(out: bytes) -> dict[str, dict[str, object]]:
    return {row["queue"]: row for row in map(json.loads, out.splitlines())}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- into a spool --------------------------------------------------------------------------------------------------


def test_a_kestrel_spool_becomes_a_spool_and_is_left_as_it_was(
    kestrelctl: Kestrelctl, old: Path, tmp_path: Path
) -> None:
    before = contents(old)
    run = kestrelctl("journal", "import", str(old), "--to", str(tmp_path / "new/spool"), "-o", "ndjson")
    assert run.code == 0
    assert rows(run.out) == {
        "work": {"queue": "work", "items": 3, "bytes": 3, "unread_bytes": 0},
        "work+audit": {"queue": "work+audit", "items": 1, "bytes": 1, "unread_bytes": 0},
        "mail": {"queue": "mail", "items": 1, "bytes": 1, "unread_bytes": 0},
    }
    assert run.err == f"kestrelctl: {old}/read.me: not a file of Kestrel or kestreld; left alone\n"
    assert contents(old) == before
    with running_daemon(tmp_path / "new") as daemon, QueueClient(daemon.port) as client:
        assert client.drain("work") == [b"1", b"2", b"3"]
        assert client.drain("work+audit") == [b"2"]
        assert client.drain("mail") == [b"m"]


def test_a_file_brings_its_family_and_nothing_else(kestrelctl: Kestrelctl, old: Path, tmp_path: Path) -> None:
    run = kestrelctl("journal", "import", str(old / "work+audit"), "--to", str(tmp_path / "spool"), "-o", "ndjson")
    assert (run.code, run.err, set(rows(run.out))) == (0, "", {"work", "work+audit"})
    assert [path.name for path in (tmp_path / "spool").glob("*.journal")] == ["work.journal"]


def test_files_that_lie_in_the_spool_itself_move_to_imported(kestrelctl: Kestrelctl, old: Path) -> None:
    run = kestrelctl("journal", "import", str(old), "--to", f"{old}/.")
    assert run.code == 0
    (folder,) = (old / ".imported").iterdir()
    assert {path.name for path in folder.iterdir()} == {"work", "work.100", "work+audit", "mail"}


def test_a_second_import_changes_nothing_and_one_of_other_files_is_exit_73(
    kestrelctl: Kestrelctl, old: Path, tmp_path: Path
) -> None:
    command = ("journal", "import", str(old / "mail"), "--to", str(tmp_path / "spool"), "--no-headers")
    assert kestrelctl(*command).out == b"mail\t1\t1\t0\n"
    again = kestrelctl(*command)
    assert (again.code, again.out) == (0, b"")
    assert again.err == "kestrelctl: mail: already imported from Kestrel's files\n"
    (old / "mail").write_bytes(items(b"other"))
    other = kestrelctl(*command)
    assert (other.code, other.out) == (73, b"")
    assert f"{old}/mail: " in other.err
    assert f"{tmp_path}/spool/mail.journal" in other.err


def test_what_cannot_be_read_is_exit_65_and_all_else_is_imported(
    kestrelctl: Kestrelctl, old: Path, tmp_path: Path
) -> None:
    (old / "mail").write_bytes(items(b"a", b"b") + b"\x0a" + items(b"c"))
    run = kestrelctl("journal", "import", str(old / "mail"), "--to", str(tmp_path / "spool"), "-o", "ndjson")
    assert (run.code, rows(run.out)["mail"]["items"], rows(run.out)["mail"]["unread_bytes"]) == (65, 3, 1)
    assert run.err == f"kestrelctl: {old}/mail: byte 44: unknown opcode 10; unread_bytes=1\n"


def test_a_spool_with_a_kestreld_on_it_is_refused_and_its_pid_named(
    own_daemon: Daemon, own_kestrelctl: Kestrelctl, old: Path, tmp_path: Path
) -> None:
    for command in (
        ["import", str(old), "--to", str(own_daemon.spool)],
        ["export", str(own_daemon.spool), "--to", str(tmp_path / "out")],
    ):
        run = own_kestrelctl("journal", *command)
        assert (run.code, run.out) == (75, b"")
        assert f"{own_daemon.spool}: in use by pid {own_daemon.pid}" in run.err
    assert not list(own_daemon.spool.glob("*.journal"))


# --- into a running server -----------------------------------------------------------------------------------------


def test_a_file_is_put_on_a_running_server_with_its_expiry(
    daemon: Daemon, kestrelctl: Kestrelctl, queue: str, old: Path
) -> None:
    (old / "mail").write_bytes(
        items(b"first") + items(b"gone", expire_at_ms=ADDED_AT_MS + 1) + items(b"last", expire_at_ms=FAR_MS - 500)
    )
    run = kestrelctl("journal", "import", str(old / "mail"), "--queue", queue, "-o", "ndjson")
    assert (run.code, run.err) == (0, "")
    assert rows(run.out) == {queue: {"queue": queue, "items": 2, "expired": 1, "unread_bytes": 0}}
    with QueueClient(daemon.port) as client:
        assert client.drain(queue) == [b"first", b"last"]


def test_the_expiry_reaches_the_journal_rounded_up_to_seconds(
    own_daemon: Daemon, own_kestrelctl: Kestrelctl, old: Path, tmp_path: Path
) -> None:
    (old / "mail").write_bytes(items(b"a", expire_at_ms=FAR_MS - 500) + items(b"b"))
    assert own_kestrelctl("journal", "import", str(old / "mail"), "--queue", "q").code == 0
    own_daemon.stop()
    own_kestrelctl("journal", "export", str(own_daemon.spool), "--to", str(tmp_path / "out"))
    content = (tmp_path / "out" / "q").read_bytes()
    assert struct.unpack_from("<q", content, 13) == (FAR_MS,)
    assert struct.unpack_from("<q", content, 22 + 13) == (0,)


def test_a_full_queue_is_exit_81_with_the_number_stored(kestrelctl: Kestrelctl, old: Path, small: str) -> None:
    (old / "mail").write_bytes(items(b"1", b"2", b"3", b"4", b"5"))
    run = kestrelctl("journal", "import", str(old / "mail"), "--queue", small)
    assert (run.code, run.out) == (81, b"")
    assert "stored 3 of the 5 items sent" in run.err


def test_the_server_may_be_named_before_the_verb_and_behind_it(own_kestrelctl: Kestrelctl, old: Path) -> None:
    address = own_kestrelctl.address
    own_kestrelctl.environment["KESTRELCTL_SERVER"] = "127.0.0.1:1"
    rest = ["journal", "import", str(old / "mail"), "--queue", "q"]
    assert own_kestrelctl(*rest, "-s", address).code == 0
    assert own_kestrelctl("-s", address, *rest).code == 0
    assert own_kestrelctl(*rest).code == 69


# --- back ----------------------------------------------------------------------------------------------------------


def test_an_export_is_kestrels_ops_byte_for_byte(
    own_daemon: Daemon, own_kestrelctl: Kestrelctl, old: Path, tmp_path: Path
) -> None:
    own_daemon.stop()
    (old / "mail").write_bytes(items(b"a") + items(b"bcd", expire_at_ms=FAR_MS) + items(b""))
    own_kestrelctl("journal", "import", str(old), "--to", str(own_daemon.spool))
    run = own_kestrelctl("journal", "export", "--format", "kestrel", str(own_daemon.spool), "--to", str(tmp_path / "x"))
    assert (run.code, run.err) == (0, "")
    assert (tmp_path / "x" / "mail").read_bytes() == (
        struct.pack("<Biqq", 2, 16 + 1, ADDED_AT_MS, 0)
        + b"a"
        + struct.pack("<Biqq", 2, 16 + 3, ADDED_AT_MS, FAR_MS)
        + b"bcd"
        + struct.pack("<Biqq", 2, 16 + 0, ADDED_AT_MS, 0)
    )
    assert contents(tmp_path / "x")["work"] == items(b"1", b"2", b"3")
    assert contents(tmp_path / "x")["work+audit"] == items(b"2")


@pytest.mark.long
def test_ten_thousand_items_are_the_same_after_export_and_import(
    own_daemon: Daemon, own_kestrelctl: Kestrelctl, old: Path, tmp_path: Path
) -> None:
    datas = [b"item %d" % number for number in range(10_000)]
    with QueueClient(own_daemon.port) as client:
        client.put("q", *datas[:5_000], expiry_s=2_000_000_000, flags=7)
        client.put("q", *datas[5_000:])
        assert client.get("q") == datas[0]
        assert client.get("q/open") == datas[1]
        own_daemon.kill()
    first = own_kestrelctl("journal", "export", str(own_daemon.spool), "q", "--to", str(tmp_path / "x"), "--no-headers")
    assert (first.code, first.out.split(b"\t")[1]) == (0, b"9999")
    assert first.err == "kestrelctl: q: Kestrel keeps no flags: items=4999 lose theirs\n"
    own_kestrelctl("journal", "import", str(tmp_path / "x"), "--to", str(tmp_path / "again/spool"))
    own_kestrelctl("journal", "export", str(tmp_path / "again/spool"), "--to", str(tmp_path / "y"))
    assert contents(tmp_path / "y") == contents(tmp_path / "x")
    with running_daemon(tmp_path / "again") as copy, QueueClient(copy.port) as client:
        assert client.drain("q") == datas[1:]


def test_an_export_overwrites_nothing_and_does_not_go_into_the_spool(
    own_daemon: Daemon, own_kestrelctl: Kestrelctl, tmp_path: Path
) -> None:
    own_kestrelctl("put", "q", "1")
    own_daemon.stop()
    spool = str(own_daemon.spool)
    assert own_kestrelctl("journal", "export", spool, "--to", str(tmp_path / "x")).code == 0
    again = own_kestrelctl("journal", "export", spool, "--to", str(tmp_path / "x"))
    assert (again.code, again.out) == (73, b"")
    assert f"{tmp_path}/x/q: already exists" in again.err
    assert own_kestrelctl("journal", "export", spool, "--to", f"{spool}/../spool").code == 2


# --- mistakes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["import", "{old}"], 2, "either --to SPOOL or --queue QUEUE"),
        (["import", "{old}", "--to", "{tmp}/s", "--queue", "q"], 2, "either --to SPOOL or --queue QUEUE"),
        (["import", "{old}", "--queue", "q"], 2, "is a folder"),
        (["import", "{old}/read.me", "--to", "{tmp}/s"], 2, "Kestrel names its files QUEUE"),
        (["import", "{old}/nope", "--to", "{tmp}/s"], 66, "no such file or folder"),
        (["import", "{old}/mail", "--to", "{old}/work"], 73, "cannot import"),
        (["export", "{tmp}/nope", "--to", "{tmp}/x"], 66, "no such folder"),
        (["export", "{old}", "nope", "--to", "{tmp}/x"], 66, "no queue nope"),
        (["export", "{old}", "--to", "{old}/work"], 73, "cannot export"),
    ],
)
def test_a_mistake_is_said_in_a_line(
    kestrelctl: Kestrelctl, old: Path, tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    run = kestrelctl("journal", *[argument.format(old=old, tmp=tmp_path) for argument in arguments])
    assert (run.code, run.out) == (code, b"")
    assert words in run.err
    assert run.err.count("\n") == 1
