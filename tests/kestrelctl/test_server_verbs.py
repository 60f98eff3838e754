"""Looking after a server: stats, config, reload, shutdown, and the questions that dangerous verbs ask."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kestreld import __version__
from tests.support.daemon import Daemon, running_daemon
from tests.support.shell import Kestrelctl


def test_stats_are_a_row_for_each_queue_and_the_same_in_every_format(kestrelctl: Kestrelctl, queue: str) -> None:
    kestrelctl("put", queue, "--lines", stdin=b"ab\ncde\n")
    header, row = kestrelctl("stats", queue).out.decode().splitlines()
    cells = dict(zip(header.split("\t"), row.split("\t"), strict=True))
    assert {name: cells[name] for name in ("queue", "items", "bytes")} == {"queue": queue, "items": "2", "bytes": "5"}
    time_goes_by = header.split("\t").index("oldest_ms")

    def still(cells: list[str]) -> list[str]:
        return cells[:time_goes_by] + cells[time_goes_by + 1 :]

    (alone,) = kestrelctl("stats", queue, "--no-headers").out.decode().splitlines()
    assert still(alone.split("\t")) == still(row.split("\t"))
    table = kestrelctl("stats", queue, "-o", "table").out.decode().splitlines()
    assert [still(line.split()) for line in table] == [still(header.split("\t")), still(row.split("\t"))]
    (record,) = json.loads(kestrelctl("stats", queue, "-o", "json").out)
    assert record.items() >= {"queue": queue, "items": 2, "bytes": 5, "total_items": 2}.items()
    assert json.loads(kestrelctl("stats", queue, "-o", "ndjson").out).keys() == record.keys()
    assert kestrelctl("stats", queue, "--wide").out.decode().splitlines()[0].split("\t") == list(record)


def test_stats_of_a_queue_that_is_not_there_are_exit_1(kestrelctl: Kestrelctl) -> None:
    stats = kestrelctl("stats", "no-such-queue", "--no-headers")
    assert (stats.code, stats.out) == (1, b"")


def test_names_that_look_like_counters_stay_apart(kestrelctl: Kestrelctl, queue: str) -> None:
    total = f"{queue}_total"
    kestrelctl("put", total, "x")
    kestrelctl("put", queue, "--lines", stdin=b"1\n2\n")
    rows = [json.loads(line) for line in kestrelctl("stats", queue, total, "-o", "ndjson").out.splitlines()]
    assert [(row["queue"], row["items"], row["total_items"]) for row in rows] == [(queue, 2, 2), (total, 1, 1)]


def test_server_wide_counters_are_names_and_values(kestrelctl: Kestrelctl) -> None:
    record = json.loads(kestrelctl("stats", "--server-wide", "-o", "json").out)
    assert record["version"] == __version__
    assert record["cmd_set"] >= 0
    assert not [name for name in record if name.startswith("queue_")]
    lines = kestrelctl("stats", "--server-wide").out.decode().splitlines()
    assert [line.split("\t")[0] for line in lines] == ["name", *record]


@pytest.mark.parametrize("verb", ["dump-stats", "dump-config"])
def test_dumps_are_the_servers_blocks_unless_a_format_is_asked_for(
    kestrelctl: Kestrelctl, queue: str, verb: str
) -> None:
    kestrelctl("put", queue, "x")
    blocks = kestrelctl(verb).out.decode("utf-8", "surrogateescape")
    assert f"queue '{queue}' {{\n  " in blocks
    assert "END" not in blocks
    records = {record["queue"]: record for record in json.loads(kestrelctl(verb, "-o", "json").out)}
    block = blocks.partition(f"queue '{queue}' {{\n")[2].partition("}")[0]
    assert ["queue", *re.findall(r"^  (\w+)=", block, re.MULTILINE)] == list(records[queue])


def test_dump_config_says_where_each_setting_is_from_if_asked_to(kestrelctl: Kestrelctl, queue: str) -> None:
    kestrelctl("put", queue, "x")
    records = {one["queue"]: one for one in json.loads(kestrelctl("dump-config", "--origins", "-o", "json").out)}
    assert (records[queue]["max_items"], records[queue]["max_items_from"]) == ("infinite", "default")
    assert (records[queue]["move_expired_to"], records[queue]["move_expired_to_from"]) == ("none", "default")


def test_counting_verbs_print_the_count(own_kestrelctl: Kestrelctl) -> None:
    assert own_kestrelctl("flush-expired", "work").out == b"0\n"
    assert own_kestrelctl("flush-all-expired").out == b"0\n"


def test_version_is_the_servers_and_the_option_ones_own(kestrelctl: Kestrelctl) -> None:
    assert kestrelctl("version").out.decode() == f"{__version__}\n"
    assert kestrelctl("--version").out.decode() == f"kestrelctl {__version__}\n"


def test_flush_prints_how_many_items_there_were_if_it_is_asked(kestrelctl: Kestrelctl, queue: str) -> None:
    assert kestrelctl("flush", queue, "--count").code == 1
    run = kestrelctl("flush", queue, "--count", "--missing-ok")
    assert (run.code, run.out) == (0, b"0\n")
    kestrelctl("put", queue, "--lines", stdin=b"a\nb\nc\n")
    kestrelctl("put", queue, "later", "--delay", "1h")
    run = kestrelctl("flush", queue, "--count", "--yes")
    assert (run.code, run.out) == (0, b"4\n")
    kestrelctl("put", queue, "a")
    run = kestrelctl("flush", queue, "--count", "--yes", "-o", "json")
    assert json.loads(run.out) == [{"items": 1, "queue": queue}]
    assert kestrelctl("flush", queue, "--yes").out == b"", "without being asked it says nothing"
    assert kestrelctl("flush", queue, "--yes", "-o", "json").code == 2


def test_flush_that_cannot_be_counted_discards_nothing(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "old", "compat=kestrel-1") as old:
        kestrelctl = Kestrelctl(old.address, tmp_path)
        kestrelctl("put", "work", "x")
        assert kestrelctl("flush", "work", "--count", "--yes").code == 77
        assert kestrelctl("get", "work").out == b"x"


def test_flush_all_empties_every_queue_and_shutdown_stops_the_server(
    own_daemon: Daemon, own_kestrelctl: Kestrelctl
) -> None:
    own_kestrelctl("put", "a", "x")
    own_kestrelctl("put", "b", "x")
    assert own_kestrelctl("flush-all").code == 0
    assert [own_kestrelctl("get", queue).code for queue in "ab"] == [1, 1]
    down = own_kestrelctl("shutdown")
    assert (down.code, down.out, down.err) == (0, b"", "")
    assert own_daemon.wait() == 0


def test_reload_takes_a_good_file_and_leaves_a_bad_one_with_exit_78(
    own_daemon: Daemon, own_kestrelctl: Kestrelctl
) -> None:
    own_daemon.config_path.write_text("max_items: 1\n")
    good = own_kestrelctl("reload")
    assert (good.code, good.err) == (0, "")
    own_daemon.config_path.write_text("max_itmes: 2\n")
    bad = own_kestrelctl("reload")
    assert bad.code == 78
    assert "max_itmes" in bad.err
    assert own_kestrelctl("put", "q", "--lines", stdin=b"1\n2\n").code == 81
    own_daemon.config_path.write_text("archive_path: /elsewhere\n")
    restart = own_kestrelctl("reload")
    assert (restart.code, restart.err) == (0, "kestrelctl: reloaded. Needs a restart: archive_path\n")


def _on_a_terminal(kestrelctl: Kestrelctl, *arguments: str, typed: bytes) -> tuple[int, bytes]:
    """Run with a terminal for stdin and stderr; the exit code and what the terminal showed."""
    terminal, inside = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "kestrelctl", *arguments],
        stdin=inside,
        stderr=inside,
        stdout=subprocess.DEVNULL,
        env=kestrelctl.environment,
    ) as process:
        os.close(inside)
        os.write(terminal, typed)
        process.wait()
        shown = b""
        try:
            while more := os.read(terminal, 4096):
                shown += more
        except OSError:  # nobody has the other end open any more
            pass
    os.close(terminal)
    return process.returncode, shown


def test_a_person_is_asked_before_items_are_thrown_away(kestrelctl: Kestrelctl, queue: str) -> None:
    kestrelctl("put", queue, "x")
    code, shown = _on_a_terminal(kestrelctl, "delete", queue, typed=b"n\n")
    assert code == 1
    assert f"delete {queue} and all its items? [y/N]".encode() in shown
    assert _on_a_terminal(kestrelctl, "flush", queue, typed=b"\n")[0] == 1
    assert kestrelctl("peek", queue).out == b"x"
    code, shown = _on_a_terminal(kestrelctl, "flush", queue, typed=b"y\n")
    assert code == 0
    assert f"flushed {queue}".encode() in shown
    code, shown = _on_a_terminal(kestrelctl, "delete", queue, "--yes", typed=b"")
    assert code == 0
    assert b"[y/N]" not in shown


def test_a_person_is_told_what_a_script_sees_in_the_exit_code(kestrelctl: Kestrelctl, queue: str) -> None:
    assert _on_a_terminal(kestrelctl, "get", queue, typed=b"")[1] == f"kestrelctl: {queue} is empty\r\n".encode()
    code, shown = _on_a_terminal(kestrelctl, "put", queue, typed=b"")
    assert (code, shown.split(b":")[1]) == (2, b" nothing to put")
