"""The configuration: what a wrong one does at the start, and how a new one takes effect while the server runs."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.functional.conftest import Connect, delete_all
from tests.support.accounts import login, quick_hash
from tests.support.daemon import ROOT, STOP_S, Daemon, running_daemon
from tests.support.queue_client import QueueClient
from tests.support.waiting import until

CONFIG = """
listen: {admin: null}
queues:
  work: {max_items: 3}
"""
BROKEN = """listen: {admin: null}
queues:
  work:
    max_itms: 5
    max_size: lots
  bad/name: {}
"""


def configure(daemon: Daemon, text: str) -> None:
    daemon.config_path.write_text(text)


# At the start


def test_a_wrong_configuration_ends_the_start_naming_every_mistake(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, config=BROKEN)
    ended = daemon.run()
    assert ended.returncode == 78
    path = daemon.config_path
    assert f"{path}:4:5: unknown setting 'max_itms'; did you mean max_items?" in ended.stderr
    assert f"{path}:5:15: max_size: " in ended.stderr
    assert f"{path}:6:3: 'bad/name': " in ended.stderr
    assert ended.stderr.count("\n") == 3
    assert not daemon.spool.exists(), "nothing is made before the configuration is right"


@pytest.mark.exhaustive("just words", "work: 5")
@pytest.mark.parametrize(
    "text", ["queues: [1, 2", "\t- x", "just words", "- a\n- list", "queues: {work: 5}", "timeout: -1", "\x00"]
)
def test_nonsense_is_no_configuration(tmp_path: Path, text: str) -> None:
    daemon = Daemon(tmp_path, config=text)
    ended = daemon.run()
    assert ended.returncode == 78
    assert ended.stderr.startswith(f"kestreld: {daemon.config_path}:1:")


def test_wrong_words_on_the_command_line_end_the_start(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    assert daemon.run("--set", "max_itms=5").returncode == 78
    assert daemon.run("--set", "nonsense").returncode == 78
    assert daemon.run("--config", str(tmp_path / "missing.yaml")).returncode == 78
    assert daemon.run("--sideways").returncode == 2
    assert daemon.run("word").returncode == 2


def test_check_config_says_whether_a_configuration_is_right(tmp_path: Path) -> None:
    right = Daemon(tmp_path / "right", config=CONFIG).run("--check-config")
    assert (right.returncode, right.stderr) == (0, "")
    assert right.stdout.endswith(": ok\n")
    wrong = Daemon(tmp_path / "wrong", config=BROKEN).run("--check-config")
    assert wrong.returncode == 78
    assert wrong.stderr.count("\n") == 3
    assert not (tmp_path / "right" / "spool").exists()


def test_a_dumped_configuration_is_one_that_means_the_same(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(quick_hash("pw"))
    users = f"users: {{shop: {{password_file: {secret}, rights: {{'*': [put, get]}}}}}}\n"
    text = f"{users}queues: {{work: {{max_items: 1}}}}\n"
    daemon = Daemon(tmp_path / "first", ("max_open_reads=2",), config=text)
    dumped = daemon.run("--dump-config")
    assert (dumped.returncode, dumped.stderr) == (0, "")
    assert not daemon.spool.exists()
    assert f"    max_items: 1  # {daemon.config_path}:2\n" in dumped.stdout
    assert "max_open_reads: 2  # --set max_open_reads\n" in dumped.stdout
    assert f"    password_file: {secret}\n" in dumped.stdout
    assert "scrypt" not in dumped.stdout
    again = tmp_path / "again.yaml"
    again.write_text(dumped.stdout)
    command = [sys.executable, "-m", "kestreld", "--dump-config"]
    environment = os.environ | {"KESTRELD_CONFIG": str(again)}
    twice = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=STOP_S)
    first, _, rest = twice.stdout.partition("\n")
    assert first == f"# {again}, as $KESTRELD_CONFIG says"
    values = [[line.partition("  # ")[0] for line in each.splitlines()] for each in (rest, dumped.stdout)]
    assert values[0] == values[1][1:]
    with running_daemon(tmp_path / "second", config=dumped.stdout) as own, QueueClient(own.port) as client:
        client.ask(login("shop", "pw"), b"STORED\r\n")
        client.put("work", b"1")
        assert client.offer("work", b"2") == b"NOT_STORED"


def test_a_configuration_with_mistakes_is_not_dumped_and_they_are_named(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, config=BROKEN)
    dumped, checked = daemon.run("--dump-config"), daemon.run("--check-config")
    assert (dumped.returncode, dumped.stdout, dumped.stderr) == (78, "", checked.stderr)


def test_the_command_line_overrides_the_file(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "queues.work.max_items=1", config=CONFIG) as own, QueueClient(own.port) as client:
        client.put("work", b"1")
        assert client.offer("work", b"2") == b"NOT_STORED"


# While it runs


@pytest.fixture(scope="module")
def daemon_config() -> str:
    return CONFIG


@pytest.fixture
def reloaded(daemon: Daemon, client: QueueClient) -> QueueClient:
    """A client of a daemon with CONFIG in force and no queues."""
    configure(daemon, CONFIG)
    client.do(b"reload", b"Reloaded config.\r\n")
    delete_all(client)
    return client


def test_hup_and_reload_put_a_new_configuration_into_force(daemon: Daemon, reloaded: QueueClient) -> None:
    reloaded.put("work", b"1", b"2", b"3")
    assert reloaded.offer("work", b"4") == b"NOT_STORED"
    configure(daemon, CONFIG.replace("3", "5"))
    daemon.signal(signal.SIGHUP)
    until(lambda: reloaded.offer("work", b"4") == b"STORED", "room for more items")  # the log may be of a reload before
    reloaded.put("work", b"5")
    assert reloaded.offer("work", b"6") == b"NOT_STORED"
    configure(daemon, CONFIG.replace("3", "6"))
    reloaded.do(b"reload", b"Reloaded config.\r\n")
    reloaded.put("work", b"6")


def test_a_limit_below_what_is_there_discards_nothing_until_the_next_put(daemon: Daemon, reloaded: QueueClient) -> None:
    reloaded.put("work", b"1", b"2", b"3")
    configure(daemon, CONFIG.replace("max_items: 3", "max_items: 2, discard_old_when_full: true"))
    reloaded.do(b"reload", b"Reloaded config.\r\n")
    assert reloaded.items("work") == 3
    reloaded.put("work", b"4")
    assert reloaded.drain("work") == [b"3", b"4"]


def test_every_setting_of_a_queue_changes_while_it_is_in_use(daemon: Daemon, reloaded: QueueClient) -> None:
    reloaded.put("work", b"older than a moment", b"x")
    reloaded.put("work+child", b"x")
    assert reloaded.get("pause/t=30") is None
    changed = "work: {max_age: 20, max_item_size: 5, move_expired_to: late, max_memory_size: 1000, max_size: 1MiB}"
    configure(daemon, CONFIG.replace("work: {max_items: 3}", changed))
    reloaded.do(b"reload", b"Reloaded config.\r\n")
    assert reloaded.get("work") is None
    assert reloaded.get("late") == b"older than a moment"
    assert reloaded.offer("work", b"123456") == b"NOT_STORED"
    reloaded.put("work", b"12345")
    reloaded.send(b"dump_config\r\n")
    text = reloaded.read_until(b"}\r\nEND\r\n").decode()
    for name in ("work", "work+child"):
        block = text.partition(f"queue '{name}' {{")[2].partition("}")[0]
        assert "max_age=20\r\n" in block
        assert "max_items=infinite\r\n" in block
        assert "move_expired_to=late\r\n" in block


def test_a_put_sent_again_and_again_meets_the_new_limit(daemon: Daemon, reloaded: QueueClient) -> None:
    """What is remembered of a command line is forgotten with the configuration it was made under."""
    for _ in range(3):
        assert reloaded.offer("other", b"123456") == b"STORED"
    configure(daemon, CONFIG + "max_item_size: 5\n")
    reloaded.do(b"reload", b"Reloaded config.\r\n")
    assert reloaded.offer("other", b"123456") == b"NOT_STORED"
    configure(daemon, CONFIG)
    reloaded.do(b"reload", b"Reloaded config.\r\n")
    assert reloaded.offer("other", b"123456") == b"STORED"


def test_patterns_change_while_their_queues_are_in_use(daemon: Daemon, reloaded: QueueClient) -> None:
    reloaded.put("mail-1", b"1", b"2", b"3")
    patterns = "  mail-*: {max_items: 3}\n", "  '*-1': {max_items: 4}\n"
    configure(daemon, CONFIG + "".join(patterns))
    reloaded.do(b"reload", b"Reloaded config.\r\n")
    assert reloaded.offer("mail-1", b"4") == b"NOT_STORED"
    assert [reloaded.offer("mail-new", b"x") for _ in range(4)] == [b"STORED"] * 3 + [b"NOT_STORED"]
    configure(daemon, CONFIG + "".join(reversed(patterns)))
    reloaded.do(b"reload", b"Reloaded config.\r\n")
    assert reloaded.offer("mail-1", b"4") == b"STORED", "their order is all that has changed"
    reloaded.send(b"dump_config origins\r\n")
    block = reloaded.read_until(b"}\r\nEND\r\n").decode().partition("queue 'mail-1' {")[2].partition("}")[0]
    path = daemon.config_path
    assert f"max_items=4\r\n  max_items_from={path}:5 (*-1), before {path}:6 (mail-*)\r\n" in block
    assert "max_size=infinite\r\n  max_size_from=default\r\n" in block


def test_settings_of_the_server_change_too(daemon: Daemon, reloaded: QueueClient, connect: Connect) -> None:
    configure(daemon, CONFIG + "max_open_reads: 2\nexpiration_timer_frequency_seconds: 1\n")
    reloaded.do(b"reload", b"Reloaded config.\r\n")
    reloaded.put("work", b"1", b"2")
    assert reloaded.get("work/open") == b"1"
    assert reloaded.get("work/open") == b"2"
    reloaded.put("swept", b"x", expiry_s=-1)
    reloaded.until("swept", items=0)  # the timer is on
    for _ in range(2):
        reloaded.do(b"get work/close", b"END\r\n")


def test_what_needs_a_restart_is_named(daemon: Daemon, reloaded: QueueClient, tmp_path: Path) -> None:
    configure(daemon, CONFIG + f"compat: kestrel-1\narchive_path: {tmp_path}\n")
    daemon.log.clear()
    reloaded.send(b"reload\r\n")
    line = reloaded.expect_line(b"Reloaded config.")
    assert b"compat" in line
    assert b"archive_path" in line
    assert "compat" in daemon.logged("needs a restart")
    reloaded.do(b"frobnicate", b"ERROR\r\n")


def test_a_broken_configuration_changes_nothing(daemon: Daemon, reloaded: QueueClient) -> None:
    reloaded.put("work", b"1", b"2", b"3")
    configure(daemon, BROKEN)
    daemon.log.clear()
    daemon.signal(signal.SIGHUP)
    assert f"{daemon.config_path}:4:5: " in daemon.logged("max_itms")
    assert f"{daemon.config_path}:6:3: " in daemon.logged("bad/name")
    reloaded.send(b"reload\r\n")
    assert b":4:5: " in reloaded.expect_line(b"SERVER_ERROR ")
    assert reloaded.offer("work", b"4") == b"NOT_STORED"
    daemon.config_path.unlink()
    reloaded.send(b"reload\r\n")
    reloaded.expect_line(b"SERVER_ERROR ")
    assert reloaded.offer("work", b"4") == b"NOT_STORED"
    configure(daemon, CONFIG.replace("3", "4"))
    reloaded.do(b"reload", b"Reloaded config.\r\n")
    reloaded.put("work", b"4")
    assert reloaded.drain("work") == [b"1", b"2", b"3", b"4"]


def test_commands_behind_a_reload_come_after_it(daemon: Daemon, reloaded: QueueClient) -> None:
    reloaded.put("work", b"1", b"2", b"3")
    configure(daemon, CONFIG.replace("3", "4"))
    reloaded.send(b"set work 0 0 1\r\nx\r\nreload\r\nset work 0 0 1\r\n4\r\nversion\r\n")
    reloaded.expect(b"NOT_STORED\r\nReloaded config.\r\nSTORED\r\n")
    reloaded.expect_line(b"VERSION ")


def test_a_reload_disturbs_no_waiter_and_no_open_read(daemon: Daemon, reloaded: QueueClient, connect: Connect) -> None:
    waiter, worker = connect(), connect()
    reloaded.put("work", b"held")
    assert worker.get("work/open") == b"held"
    waiter.ask_for("quiet/t=600000")
    reloaded.until("quiet", waiters=1)
    configure(daemon, CONFIG + "max_age: 1h\n")
    reloaded.do(b"reload", b"Reloaded config.\r\n")
    waiter.expect_no_answer_yet()
    worker.do(b"get work/abort", b"END\r\n")
    reloaded.put("quiet", b"x")
    assert waiter.read_value() == b"x"
    assert reloaded.drain("work") == [b"held"]


def test_a_lower_max_item_size_holds_for_lines_that_were_used_before(tmp_path: Path) -> None:
    """A line of a set is understood once and then remembered; what it means follows the configuration."""
    with running_daemon(tmp_path, config="listen: {admin: null}\n") as daemon, QueueClient(daemon.port) as client:
        for _ in range(3):
            client.do(b"set work 0 0 10\r\n0123456789", b"STORED\r\n")
        configure(daemon, "listen: {admin: null}\nmax_item_size: 9\n")
        client.do(b"reload", b"Reloaded config.\r\n")
        client.send(b"set work 0 0 10\r\n0123456789\r\n")
        refused = client.read_line()
        assert refused.startswith((b"SERVER_ERROR", b"NOT_STORED")), refused
        client.do(b"set work 0 0 9\r\n012345678", b"STORED\r\n")
