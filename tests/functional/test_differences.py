"""Where kestreld differs from Kestrel on purpose: a test for each row of docs/compatibility.md, with every `compat`."""

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from kestreld.config.settings import SETTINGS
from kestreld.journal.kestrel.ops import ADDX, CONFIRM_REMOVE, REMOVE_TENTATIVE, UNREMOVE, Op, encode
from tests.functional.conftest import Connect
from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient
from tests.support.waiting import until

CONFIG: Final = """
listen: {admin: null}
max_open_reads: 3
queues:
  full: {max_items: 2}
  full+roomy: {max_items: 100}
  roomy+full: {max_items: 1}
  own: {max_items: 50}
  own+brief: {max_age: 1}
  swept: {max_age: 50}
  aging: {move_expired_to: late}
  kept: {trash_seconds: 60}
  rolled: {max_journal_size: 4KiB}
  tight: {max_memory_size: 1KiB}
  limited: {open_transaction_timeout: 50ms}
"""


@pytest.fixture(scope="module", params=["none", "kestrel-1"])
def compat(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def daemon_config(compat: str) -> str:
    return f"compat: {compat}\n{CONFIG}"


@pytest.fixture
def connect(no_queues: None, connect: Connect) -> Connect:
    """Of the tests with that daemon alone: the others run once."""
    return connect


def delete(client: QueueClient, queue: str) -> None:
    """There was such a queue, and now there is none."""
    client.send(b"delete %b\r\n" % queue.encode())
    assert client.read_line() in (b"DELETED", b"END")


# --- fanout


def test_what_a_full_parent_refuses_its_children_do_not_get(client: QueueClient) -> None:
    assert client.get("full+roomy") is None
    client.put("full", b"1", b"2")
    assert client.offer("full", b"3") == b"NOT_STORED"
    assert client.drain("full+roomy") == client.drain("full") == [b"1", b"2"]


def test_what_a_full_child_refuses_nobody_gets(client: QueueClient) -> None:
    assert client.get("roomy+full") is None
    client.put("roomy", b"1")
    assert client.offer("roomy", b"2") == b"NOT_STORED"
    assert client.drain("roomy") == client.drain("roomy+full") == [b"1"]


def test_a_child_has_its_parents_settings_and_over_them_its_own(client: QueueClient) -> None:
    client.get("own+brief")
    client.get("own")
    settings = config_of(client, "own+brief")
    assert (settings["max_items"], settings["max_age"]) == ("50", "1")
    client.put("own", b"x")
    until(lambda: client.get("own+brief/peek") is None, "an item to be older than 1 ms")
    assert client.get("own") == b"x"


# --- waiting


def test_a_waiting_peek_does_not_take_a_gets_wake_up(connect: Connect, queue: str, compat: str) -> None:
    peek, get, other = connect(), connect(), connect()
    other.get(queue)
    peek.ask_for(f"{queue}/peek/t=10000")
    if compat == "kestrel-1":
        assert peek.read_value() is None, "in Kestrel 1.x a peek does not wait"
    else:
        other.until(queue, waiters=1)
    get.ask_for(f"{queue}/t=10000")
    other.until(queue, waiters=1 if compat == "kestrel-1" else 2)
    other.put(queue, b"x")
    assert get.read_value() == b"x"
    if compat != "kestrel-1":
        assert peek.read_value() == b"x"


def test_a_wait_ends_when_it_should_and_not_at_the_next_tick_of_a_wheel(client: QueueClient, queue: str) -> None:
    """Ten waits of 10 ms, one behind the other in the server: of a wheel of 100 ms, a second, however often."""

    def took_s() -> float:
        started = time.monotonic()
        client.send(f"get {queue}/t=10\r\n".encode() * 10)
        assert [client.read_value() for _ in range(10)] == [None] * 10
        return time.monotonic() - started

    assert took_s() >= 0.1
    until(lambda: took_s() < 0.5, "ten waits of 10 ms to take less than 500: on a busy machine some may be late")


def test_a_client_that_waits_or_holds_an_open_read_is_not_idle(tmp_path: Path) -> None:
    with (
        running_daemon(tmp_path, config="compat: kestrel-1\n") as daemon,
        QueueClient(daemon.port) as waiting,
        QueueClient(daemon.port) as holding,
        QueueClient(daemon.port) as idle,
    ):
        holding.put("held", b"1")
        assert holding.get("held/open") == b"1"
        waiting.ask_for("empty/t=60000")
        idle.expect_nothing_more()
        daemon.reload("compat: kestrel-1\ntimeout: 1ms\n")
        idle.expect_end()
        with QueueClient(daemon.port) as other:
            other.put("empty", b"2")
        assert waiting.read_value() == b"2"
        holding.do(b"get held/abort", b"END\r\n")
        assert holding.get("held") == b"1"


# --- open reads


def test_closing_an_open_read_of_a_deleted_queue_does_nothing_to_a_new_one(connect: Connect, queue: str) -> None:
    old, new = connect(), connect()
    old.put(queue, b"old")
    assert old.get(f"{queue}/open") == b"old"
    delete(new, queue)
    new.put(queue, b"new")
    assert new.get(f"{queue}/open") == b"new"
    old.do(b"get %b/close" % queue.encode(), b"END\r\n")
    new.do(b"get %b/abort" % queue.encode(), b"END\r\n")
    assert old.drain(queue) == [b"new"]


def test_open_reads_of_one_client_come_back_in_their_order(connect: Connect, queue: str) -> None:
    holder, other = connect(), connect()
    holder.put(queue, b"1", b"2", b"3", b"4")
    assert [holder.get(f"{queue}/open") for _ in range(3)] == [b"1", b"2", b"3"]
    holder.do(b"quit", b"")
    holder.expect_end()
    assert other.drain(queue) == [b"1", b"2", b"3", b"4"]


def test_the_time_limit_of_an_open_read_is_enforced_when_it_is_due(connect: Connect) -> None:
    holder, other = connect(), connect()
    holder.put("limited", b"1")
    assert holder.get("limited/open") == b"1"
    assert other.get("limited/t=60000") == b"1", "which was empty"


# --- expiry


def test_an_expired_item_is_never_delivered_whatever_a_sweep_has_left(client: QueueClient) -> None:
    many = [b"%d" % number for number in range(20)]
    client.put("swept", *many)
    assert client.get("nothing/t=60") is None  # time goes by
    client.do(b"flush_expired swept", b"20\r\n")
    client.put("swept", *many)
    assert client.get("nothing/t=60") is None
    assert client.get("swept") is None


def test_a_deleted_destination_of_expired_items_is_made_again(client: QueueClient) -> None:
    for data in (b"first", b"second"):
        client.put("aging", data, expiry_s=-1)
        client.do(b"flush_expired aging", b"1\r\n")
        assert client.get("late") == data
        delete(client, "late")


# --- what clients send


@pytest.mark.parametrize("follows", [b"XYget q\r\n", b"flush_all\r\n", b"\n\r"])
def test_data_that_does_not_end_in_crlf_is_refused_and_never_run(connect: Connect, queue: str, follows: bytes) -> None:
    client, other = connect(), connect()
    other.put(queue, b"there before")
    client.send(b"set %b 0 0 3\r\nabc" % queue.encode() + follows)
    client.expect_end(b"CLIENT_ERROR bad data chunk\r\n")
    assert other.drain(queue) == [b"there before"]


NAME_OF_300: Final = b"n" * 300
HANGS_UP: Final = {
    b"set q 0 0 -1": b"bad data length",
    b"set q 0 0 -2": b"bad data length",
    b"set q 0 0 2147483648": b"bad data length",
    b"set q 0 0 abc": b"bad data length",
    b"set": b"",  # the bare word is Kestrel's own answer: with a reason only where `compat` is none
    b"set q": b"",
    b"set q 0 0": b"",
}
GOES_ON: Final = {
    b"set q 0 soon 9\r\nflush_all": b"bad expiry",
    b"set q x 0 9\r\nflush_all": b"bad flags",
    b"get q/t=abc": b"t= needs a number of milliseconds",
    b"   ": b"a line of blanks",
    b"get a~b": b"queue name must not contain '~'",
    b"set a/b 0 0 9\r\nflush_all": b"queue name must not contain '/'",
    b"get " + NAME_OF_300: b"queue name too long: its file name would have 300 bytes, the maximum is 200",
    b"set "
    + NAME_OF_300
    + b" 0 0 9\r\nflush_all": b"queue name too long: its file name would have 300 bytes, the maximum is 200",
}


@pytest.mark.parametrize("mistake", [*HANGS_UP, *GOES_ON], ids=lambda line: line.decode()[:24])
def test_a_mistake_is_answered_and_ends_the_connection_only_if_no_length_is_known(
    client: QueueClient, mistake: bytes
) -> None:
    reason = {**HANGS_UP, **GOES_ON}[mistake]
    client.send(mistake + b"\r\n")
    answer = client.read_line()
    if reason:
        assert answer == b"CLIENT_ERROR " + reason
    assert answer.startswith(b"CLIENT_ERROR")
    if mistake in HANGS_UP:
        client.expect_end()
    else:
        client.expect_nothing_more()


@pytest.mark.parametrize("mistake", [b"monitor q\r\n", b"confirm q x\r\n"])
def test_commands_of_kestrel_2_are_unknown(connect: Connect, compat: str, mistake: bytes) -> None:
    client = connect()
    client.send(mistake)
    if compat == "none":
        client.expect(b"ERROR\r\n")
        client.expect_nothing_more()
    else:
        client.expect_end(b"CLIENT_ERROR\r\n")


@pytest.mark.parametrize("command", ["get", "delete", "flush", "flush_expired"])
def test_a_missing_name_is_answered_and_the_connection_goes_on(client: QueueClient, compat: str, command: str) -> None:
    reason = "" if compat == "kestrel-1" else f" {command} needs a queue name"
    client.do(command.encode(), f"CLIENT_ERROR{reason}\r\n".encode())
    client.expect_nothing_more()


def test_a_line_of_more_than_8_kib_is_refused(connect: Connect, queue: str) -> None:
    client, other = connect(), connect()
    client.do(f"get {queue}/".encode().ljust(8192, b"x"), b"END\r\n")
    client.send(b"x" * 8193 + b"\r\n")
    client.expect_end(b"CLIENT_ERROR line too long\r\n")
    other.send(b"y" * 9000)
    other.expect_end(b"CLIENT_ERROR line too long\r\n")


def test_a_name_with_a_dot_is_refused(client: QueueClient) -> None:
    for command in (b"get a.b", b"set a.b 0 0 9\r\nflush_all"):
        client.do(command, b"CLIENT_ERROR queue name must not contain '.'\r\n")
    client.expect_nothing_more()


# --- what the server tells


def config_of(client: QueueClient, queue: str) -> dict[str, str]:
    """DUMP_CONFIG of one queue."""
    client.send(b"dump_config\r\n")
    text = client.read_until(b"}\r\nEND\r\n").decode()
    block = re.search(rf"queue '{re.escape(queue)}' {{\r\n(.*?)}}\r\n", text, re.DOTALL)
    assert block is not None
    return dict(line.strip().split("=", 1) for line in block[1].splitlines())


def test_dump_config_shows_every_setting_with_its_true_value(client: QueueClient, queue: str) -> None:
    client.put(queue, b"x")
    client.get("aging")
    shown = config_of(client, queue)
    assert set(shown) == {setting.name for setting in SETTINGS if setting.per_queue}
    assert shown["max_journal_size"] == str(16 << 20)
    assert (shown["max_items"], shown["max_item_size"], shown["move_expired_to"]) == ("infinite", "infinite", "none")
    assert config_of(client, "aging")["move_expired_to"] == "late"


def test_lifetime_counters_start_at_0_with_the_server(tmp_path: Path, compat: str) -> None:
    with running_daemon(tmp_path, f"compat={compat}") as daemon:
        with QueueClient(daemon.port) as client:
            client.put("q", b"1", b"2", b"3")
            client.put("q", b"gone", expiry_s=-1)
            assert client.drain("q") == [b"1", b"2", b"3"]
            client.put("q", b"4")
            stats = client.stats()
            assert (stats["total_items"], stats["queue_q_total_items"], stats["queue_q_expired_items"]) == (
                "5",
                "5",
                "1",
            )
        daemon.restart()
        with QueueClient(daemon.port) as client:
            stats = client.stats()
            assert stats["queue_q_items"] == "1"
            assert [
                stats[name] for name in ("total_items", "cmd_set", "queue_q_total_items", "queue_q_expired_items")
            ] == ["0"] * 4


# --- the files, and the end


def test_a_deleted_queues_files_are_gone_unless_it_has_trash_seconds(daemon: Daemon, client: QueueClient) -> None:
    trash = daemon.spool / ".trash"
    client.put("plain", b"x")
    assert (daemon.spool / "plain.journal").is_dir()
    delete(client, "plain")
    assert not (daemon.spool / "plain.journal").exists()
    until(lambda: not list(trash.glob("plain.*")), "a deleted queue's files to go, in the background")
    client.put("kept", b"x")
    delete(client, "kept")
    assert not (daemon.spool / "kept.journal").exists()
    (folder,) = trash.glob("kept.*")
    assert list(folder.glob("*.seg"))


@pytest.mark.parametrize("how", ["SIGTERM", "shutdown"])
def test_stopping_ends_waits_gives_back_open_reads_and_exits_with_0(tmp_path: Path, how: str) -> None:
    with running_daemon(tmp_path, "compat=kestrel-1", "sync_journal=false") as daemon:
        with (
            QueueClient(daemon.port) as waiter,
            QueueClient(daemon.port) as worker,
            QueueClient(daemon.port) as other,
        ):
            other.put("q", b"open", b"waits")
            assert worker.get("q/open") == b"open"
            waiter.ask_for("empty/t=60000")
            other.until("empty", waiters=1)
            if how == "SIGTERM":
                code = daemon.stop()
            else:
                other.send(b"shutdown\r\n")
                other.expect_end()
                code = daemon.wait()
            waiter.expect_end(b"END\r\n")
            worker.expect_end()
            assert code == 0
        daemon.start()
        with QueueClient(daemon.port) as client:
            assert client.drain("q") == [b"open", b"waits"]


# --- Kestrel's files

ADDED_AT_MS: Final = 1_795_253_600_000


def added(*datas: bytes) -> bytes:
    return b"".join([encode(Op(ADDX, 0, ADDED_AT_MS, 0, data)) for data in datas])


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A kestreld that was started on files which Kestrel does not start with, or loses items of."""
    folder = tmp_path_factory.mktemp("kestrels")
    spool = folder / "spool"
    spool.mkdir()
    negative_length = b"\x02" + (-5).to_bytes(4, "little", signed=True)
    (spool / "damaged").write_bytes(added(b"1", b"2") + b"\x7f" + added(b"3"))
    (spool / "negative").write_bytes(added(b"1") + negative_length + added(b"2"))
    (spool / "rotated.100").write_bytes(added(b"1") + b"\x7f" + added(b"2"))
    (spool / "rotated").write_bytes(added(b"3"))
    (spool / "q.backup").write_bytes(added(b"not a queue's"))
    (spool / "dotted.name").write_bytes(added(b"of 1.3"))
    tentative = encode(Op(REMOVE_TENTATIVE))
    (spool / "both-open").write_bytes(added(b"1", b"2", b"3") + tentative * 2)
    confirmed = tentative * 2 + encode(Op(CONFIRM_REMOVE, 2)) + encode(Op(UNREMOVE, 1))
    (spool / "second-confirmed").write_bytes(added(b"1", b"2", b"3") + confirmed)
    with running_daemon(folder, "compat=kestrel-1") as daemon:
        yield daemon


def test_of_a_damaged_kestrel_journal_every_whole_item_is_kept_and_the_rest_reported(imported: Daemon) -> None:
    with QueueClient(imported.port) as client:
        assert client.drain("damaged") == [b"1", b"2", b"3"]
        assert client.drain("negative") == [b"1", b"2"]
        assert client.drain("rotated") == [b"1", b"2", b"3"]
    for name, offset in (("damaged", 44), ("negative", 22), ("rotated.100", 22)):
        assert [line for line in imported.log if f"{imported.spool}/{name}: byte {offset}: " in line], imported.log


def test_a_dotted_file_is_a_rotated_one_or_reported_and_left_alone(imported: Daemon) -> None:
    for name in ("q.backup", "dotted.name"):
        assert [line for line in imported.log if f"{imported.spool}/{name}: " in line and "left alone" in line]
        assert (imported.spool / name).is_file()
    with QueueClient(imported.port) as client:
        assert client.get("q") is None
        assert client.get("dotted") is None


def test_tentative_removes_of_kestrel_1_are_counted_as_it_counts_them(imported: Daemon) -> None:
    with QueueClient(imported.port) as client:
        assert client.drain("both-open") == [b"1", b"2", b"3"]
        assert client.drain("second-confirmed") == [b"1", b"3"]


def test_a_damaged_journal_stops_its_own_queue_only(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "compat=kestrel-1") as daemon:
        with QueueClient(daemon.port) as client:
            client.put("sound", b"1")
            client.put("damaged", b"1", b"2", b"3")
        daemon.stop()
        (segment,) = (daemon.spool / "damaged.journal").glob("*.seg")
        content = bytearray(segment.read_bytes())
        content[content.index(b"2", 150)] ^= 1
        segment.write_bytes(content)
        kept = tmp_path / "copy.seg"
        shutil.copy(segment, kept)
        daemon.start()
        with QueueClient(daemon.port) as client:
            client.send(b"get damaged\r\n")
            client.expect_line(b"SERVER_ERROR corrupt ")
            assert client.drain("sound") == [b"1"]
        assert segment.read_bytes() == kept.read_bytes(), "nothing is cut off"


# --- journals and memory


def test_the_journal_of_a_queue_is_a_folder(daemon: Daemon, client: QueueClient) -> None:
    client.put("alone", b"item")
    assert [path.name for path in daemon.spool.glob("alone*")] == ["alone.journal"]
    assert (daemon.spool / "alone.journal").is_dir()


def test_children_share_the_journal_of_their_parent(daemon: Daemon, client: QueueClient) -> None:
    client.get("family+child")
    client.put("family", b"item")
    assert [path.name for path in daemon.spool.glob("family*")] == ["family.journal"]
    assert client.get("family+child") == client.get("family") == b"item"


def test_segments_roll_at_max_journal_size(daemon: Daemon, client: QueueClient) -> None:
    for _ in range(10):
        client.put("rolled", b"x" * 1000)
    sizes = [path.stat().st_size for path in daemon.spool.glob("rolled.journal/*.seg")]
    assert len(sizes) >= 2
    assert max(sizes) < 4096 + 2048


def test_mem_bytes_may_pass_the_limit_by_one_item(daemon: Daemon, client: QueueClient) -> None:
    for _ in range(3):
        client.put("tight", b"x" * 5000)
    assert client.stats()["queue_tight_mem_bytes"] == "5000"
