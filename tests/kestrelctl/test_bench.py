"""The load tests against a real server, and against one that loses, doubles, damages and delays what it delivers."""

import json
import os
import pty
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrelctl.bench.items import ItemMaker
from kestrelctl.bench.latencies import Latencies
from kestreld.client.replies import ReplyParser
from tests.support.daemon import Daemon, running_daemon
from tests.support.shell import Kestrelctl, Outcome
from tests.support.tampering import tampering_proxy

SMALL_RUNS = {
    "flood with several clients": ["flood", "-n", "500", "-R", "3", "-C", "3", "-r", "7", "-b", "10"],
    "flood with blocking reliable reads": ["flood", "-n", "100", "-B", "-x", "-k", "2"],
    "flood of a queue that stays behind": ["flood", "-n", "100", "-P", "200", "-C", "2"],
    "flood for a time": ["flood", "-t", "200ms", "-w", "2", "--readers", "2", "--poll", "25", "--target", "50", "-V"],
    "many-clients": ["many-clients", "-s", "2ms", "-n", "50", "-c", "20"],
    "many-clients of which some are killed": ["many-clients", "-s", "2ms", "-n", "50", "-c", "20", "-k", "40", "-x"],
    "put-many on several queues": ["put-many", "-c", "10", "-n", "500", "-Q", "3", "-r", "5", "-C", "2", "-g"],
    "packing": ["packing", "-n", "200", "-c", "3", "-t", "0.01", "-x"],
    "timeout": ["timeout", "-t", "200ms", "-w", "2", "-r", "10", "-d", "5ms"],
    "fanout": ["fanout", "-n", "200", "-c", "3", "-b", "100"],
    "fanout with several clients": ["fanout", "-n", "200", "-c", "2", "-R", "2", "-C", "2", "-r", "5"],
}
GOOD = "each once and intact"


def figures(run: Outcome) -> Any:
    return json.loads(run.out)


@pytest.fixture(scope="module")
def small_runs(kestrelctl: Kestrelctl) -> dict[str, Outcome]:
    """All of them at the same time: each alone would mostly be Python's start."""
    runs = [
        kestrelctl.start("bench", *arguments, "-q", f"small{number}_", "--json")
        for number, arguments in enumerate(SMALL_RUNS.values())
    ]
    said = [run.communicate() for run in runs]
    outcomes = [Outcome(run.returncode, out, err.decode()) for run, (out, err) in zip(runs, said, strict=True)]
    return dict(zip(SMALL_RUNS, outcomes, strict=True))


@pytest.mark.parametrize("name", SMALL_RUNS)
def test_every_item_arrives_once_and_intact(small_runs: dict[str, Outcome], name: str) -> None:
    arguments, run = SMALL_RUNS[name], small_runs[name]
    assert (run.code, run.err.count(GOOD)) == (0, 1), run.err
    report = figures(run)
    destinations = arguments[arguments.index("-c") + 1] if arguments[0] == "fanout" else "0"
    assert report["verdict"]["arrived"] == report["verdict"]["stored"] * (1 + int(destinations)) > 0
    assert report["puts"] > 0
    assert report["latency"]["put"]["p50_us"] <= report["latency"]["put"]["max_us"]


def test_figures_are_a_table_on_stdout_and_the_verdict_is_words_on_stderr(kestrelctl: Kestrelctl, queue: str) -> None:
    run = kestrelctl("bench", "flood", "-q", queue, "-n", "20")
    heads = [line.split()[0] for line in run.out.decode().splitlines()]
    assert heads == ["test", "flood", "latency", "put", "get", "delivery"]
    assert run.err == "kestrelctl: flood: all good: 20 items put, 20 arrived, each once and intact\n"


def test_items_that_a_full_queue_refuses_are_not_waited_for(kestrelctl: Kestrelctl, small: str) -> None:
    run = kestrelctl("bench", "put-many", "-q", small, "-c", "2", "-n", "10")
    assert run.code == 0
    assert "3 items put, 3 arrived, each once and intact (7 refused)" in run.err


def test_what_a_limited_queue_keeps_must_be_the_end_of_each_writers_items(tmp_path: Path) -> None:
    limit = ["queues.spam.max_items=50", "queues.spam.discard_old_when_full=true"]
    with running_daemon(tmp_path / "daemon", *limit) as daemon:
        kestrelctl = Kestrelctl(daemon.address, tmp_path)
        told = kestrelctl("bench", "put-many", "-c", "4", "-n", "400", "-L", "50")
        not_told = kestrelctl("bench", "put-many", "-c", "4", "-n", "400")
    assert (told.code, not_told.code) == (0, 86)
    assert "350 dropped by the server's limit" in told.err
    assert "350 lost" in not_told.err


def test_queues_that_were_made_for_it_are_deleted_and_others_stay(own_kestrelctl: Kestrelctl) -> None:
    own_kestrelctl("put", "spam+0", "of another time")
    runs = [
        own_kestrelctl("bench", "fanout", "-n", "10", "-c", "2"),
        own_kestrelctl("bench", "flood", "-n", "9", "-q", "q"),
    ]
    assert [run.code for run in runs] == [0, 0]
    left = json.loads(own_kestrelctl("stats", "-o", "json").out)
    assert [(queue["queue"], queue["items"]) for queue in left] == [("spam+0", 0)]


def test_a_signal_ends_it_and_leaves_nothing_behind(own_kestrelctl: Kestrelctl) -> None:
    process = own_kestrelctl.start("bench", "flood", "-t", "1m", "-B", "-R", "3", "-C", "3")
    while own_kestrelctl("stats", "spam").code == 1:
        pass
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")
    assert own_kestrelctl("stats", "spam").code == 1


def test_processor_time_of_the_server_is_counted(kestrelctl: Kestrelctl, daemon: Daemon, queue: str) -> None:
    run = kestrelctl("bench", "flood", "-n", "200", "-q", queue, "--pid", str(daemon.pid), "-o", "json")
    assert 1 < figures(run)["server_cpu_us_op"] < 1000


def test_behind_a_unix_socket_the_server_is_known(short_path: Path) -> None:
    with running_daemon(short_path / "daemon", listen=f"unix:{short_path}/socket") as daemon:
        run = Kestrelctl(daemon.address, short_path)("bench", "flood", "-n", "200", "-o", "json")
    assert run.code == 0
    assert figures(run)["server_cpu_us_op"] > 1


# A server that cheats


class Cheat:
    """Does something to the fifth item that the server delivers, and may put it in the place of an END later on."""

    def __init__(self, fifth: Callable[[bytes], bytes], an_end: Callable[[bytes], bytes] = lambda fifth: b"") -> None:
        self._fifth = fifth
        self._an_end = an_end
        self._lock = threading.Lock()
        self._items = 0
        self._kept = b""

    def __call__(self, reply: bytes) -> bytes:
        with self._lock:
            if reply.startswith(b"VALUE "):
                self._items += 1
                if self._items == 5:
                    self._kept = reply
                    return self._fifth(reply)
            elif reply == b"END\r\n" and self._items > 10 and self._kept:
                kept, self._kept = self._kept, b""
                return self._an_end(kept) or reply
            return reply


def keep(reply: bytes) -> bytes:
    return reply


def withhold(reply: bytes) -> bytes:
    return b"END\r\n"


def flip_a_bit(reply: bytes) -> bytes:
    assert reply.endswith(b"\r\nEND\r\n")
    return reply[:-8] + bytes([reply[-8] ^ 1]) + reply[-7:]


CHEATS = {
    "lost": (["packing", "-n", "20", "-c", "1"], Cheat(withhold), "packing: BAD: 40 items put: 1 lost; first writer 0"),
    "doubled": (
        ["packing", "-n", "20", "-c", "1"],
        Cheat(keep, keep),
        "1 too many; first writer 0 item 4",
    ),
    "damaged": (
        ["packing", "-n", "20", "-c", "1"],
        Cheat(flip_a_bit),
        "1 lost, 1 damaged; first an item starting with",
    ),
    "late": (["packing", "-n", "20", "-c", "1"], Cheat(withhold, keep), "1 out of order; first writer 0 item 4"),
    "lost by a child": (["fanout", "-n", "20", "-c", "1"], Cheat(withhold), "fanout: BAD: 20 items put: 1 lost; first"),
}


def test_a_cheating_server_is_exit_86(daemon: Daemon, tmp_path: Path) -> None:
    with ExitStack() as stack:
        runs: list[subprocess.Popen[bytes]] = []
        for number, (arguments, cheat, _) in enumerate(CHEATS.values()):
            address = stack.enter_context(tampering_proxy(daemon.port, cheat))
            kestrelctl = Kestrelctl(address, tmp_path)
            runs.append(stack.enter_context(kestrelctl.start("bench", *arguments, "-q", f"cheated{number}")))
        said = {name: run.communicate()[1].decode() for name, run in zip(CHEATS, runs, strict=True)}
    assert [run.returncode for run in runs] == [86] * len(CHEATS)
    assert [name for name, (_, _, words) in CHEATS.items() if words not in said[name]] == [], said


def test_a_stall_counts_for_every_put_that_was_due_in_it(daemon: Daemon, tmp_path: Path, queue: str) -> None:
    stall_s = 0.4
    answers = 0

    def stall_once(reply: bytes) -> bytes:
        nonlocal answers
        answers += reply == b"STORED\r\n"
        if answers == 100 and reply == b"STORED\r\n":
            time.sleep(stall_s)
        return reply

    with tampering_proxy(daemon.port, stall_once) as address:
        kestrelctl = Kestrelctl(address, tmp_path)
        run = kestrelctl("bench", "put-many", "-c", "1", "-n", "600", "--rate", "1000", "-q", queue, "-o", "json")
    assert run.code == 0, run.err
    put = figures(run)["latency"]["put"]
    # 400 of 600 puts were due during the stall, evenly: a sixth of all is late by three quarters of it and more.
    assert put["p90_us"] > 0.7 * stall_s * 1e6


# Comparing


def test_a_run_worse_than_the_old_one_is_exit_1(kestrelctl: Kestrelctl, queue: str, tmp_path: Path) -> None:
    arguments = ["bench", "flood", "-q", queue, "-n", "500"]
    old = figures(kestrelctl(*arguments, "-o", "json"))
    slower, faster = tmp_path / "slower.json", tmp_path / "faster.json"
    slower.write_text(json.dumps({**old, "ops_s": old["ops_s"] / 1000, "latency": {}}))
    faster.write_text(json.dumps({**old, "ops_s": old["ops_s"] * 1000, "latency": {}}))

    than_slower = kestrelctl(*arguments, "--compare", str(slower))
    than_faster = kestrelctl(*arguments, "--compare", str(faster), "--tolerance", "50%")

    assert (than_slower.code, than_faster.code) == (0, 1)
    assert "flood: worse than in" in than_faster.err
    assert "by more than 50%: ops_s\n" in than_faster.err
    assert than_slower.out.decode().splitlines()[-1].split()[0] == "ops_s"


@pytest.mark.parametrize(
    ("old", "code", "words"),
    [
        ("{}", 2, "is not a result printed by bench -o json"),
        ("nonsense", 2, "is not a result printed by bench -o json"),
        ('{"test": "packing", "options": {}, "ops_s": 1, "latency": {}}', 2, "is a run of packing, not of flood"),
        ('{"test": "flood", "options": {"items": 7}, "ops_s": 1, "latency": {}}', 2, "with different options: items"),
        (None, 66, "no such file"),
    ],
    ids=["empty", "not json", "another test", "other options", "missing"],
)
def test_what_cannot_be_compared_is_said_before_the_run(
    kestrelctl: Kestrelctl, tmp_path: Path, old: str | None, code: int, words: str
) -> None:
    if old is not None:
        (tmp_path / "old.json").write_text(old)
    run = kestrelctl("bench", "flood", "--compare", str(tmp_path / "old.json"))
    assert (run.code, run.out) == (code, b"")
    assert words in run.err


# Options


def test_a_span_after_s_is_the_pause_of_many_clients(kestrelctl: Kestrelctl, queue: str) -> None:
    arguments = ["bench", "many-clients", "-n", "5", "-c", "2", "-q", queue, "-o", "json"]
    run = kestrelctl(*arguments, "-s", "3ms", "-s", kestrelctl.address)
    assert run.code == 0, run.err
    assert figures(run)["options"]["sleep_ms"] == 3
    assert figures(run)["server"] == kestrelctl.address


def test_host_and_port_name_the_server_as_with_kestrels_tools(
    kestrelctl: Kestrelctl, daemon: Daemon, queue: str
) -> None:
    run = kestrelctl("bench", "flood", "-n", "5", "-q", queue, "--host", "localhost", "-p", str(daemon.port))
    assert run.code == 0, run.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["flood", "-n", "5", "-t", "5"], "-n and -t are mutually exclusive"),
        (["flood", "-q", "a/open"], "is not a queue name"),
        (["flood", "-o", "xml"], "--output must be table or json"),
        (["flood", "--tolerance", "much"], "is not a share"),
        (["timeout", "-L", "9ms", "-H", "8ms"], "--low 9ms is more than --high 8ms"),
        (["flood", "--pid", "4194999"], "is not the server's"),
    ],
    ids=["both ends", "queue", "format", "share", "range", "pid"],
)
def test_mistakes_on_the_command_line_are_exit_2(kestrelctl: Kestrelctl, arguments: list[str], words: str) -> None:
    run = kestrelctl("bench", *arguments)
    assert run.code == 2
    assert words in run.err


def test_a_server_without_monitor_is_exit_77(kestrelctl: Kestrelctl, queue: str) -> None:
    run = kestrelctl("bench", "flood", "-n", "5", "-q", queue, "-M")
    assert (run.code, run.err.count("refused a monitor")) == (77, 1)


def test_a_server_that_leaves_midway_is_exit_69(own_daemon: Daemon, own_kestrelctl: Kestrelctl) -> None:
    process = own_kestrelctl.start("bench", "many-clients", "-s", "100ms", "-n", "1000", "-c", "3")
    while own_kestrelctl("stats", "spam", "-o", "tsv").code == 1:
        pass
    own_daemon.kill()
    assert process.wait() == 69


def test_progress_is_shown_on_a_terminal_only(kestrelctl: Kestrelctl, queue: str) -> None:
    ours, theirs = pty.openpty()
    command = f"exec kestrelctl bench flood -n 200 --rate 1000 -q {queue} 2>{os.ttyname(theirs)}"
    run = kestrelctl.script("dash", command, TERM="xterm", COLUMNS="100")
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(ours, 65536):
            shown += data
    except OSError:  # what Linux says at the end of a terminal
        pass
    os.close(ours)
    assert run.code == 0
    assert b"operations" in shown
    assert GOOD.encode() in shown


# The parts


@given(st.integers(0, 2**40), st.integers(0, 5000), st.integers(0, 99), st.integers(0, 10**9))
def test_an_item_says_who_wrote_it_and_any_change_shows(seed: int, size: int, writer: int, number: int) -> None:
    maker = ItemMaker(seed, size)
    item = maker.make(writer, number)
    assert item == ItemMaker(seed, size).make(writer, number)
    assert maker.read(item) == (writer, number)
    assert maker.read(item + b"x") is None
    assert maker.read(item[:-1]) is None
    assert maker.read(b"x" + item[1:]) is None
    assert len(item) == size or len(item) < 40


@given(
    st.lists(st.sampled_from([b"STORED", b"END", b"ERROR", (b"x",), (b"",), (b"a\r\nEND\r\n", b"b" * 300)])), st.data()
)
def test_replies_survive_any_split_of_the_stream(replies: list[Any], data: st.DataObject) -> None:
    stream = b"".join(
        reply + b"\r\n"
        if isinstance(reply, bytes)
        else b"".join(b"VALUE q 0 %d\r\n%b\r\n" % (len(item), item) for item in reply) + b"END\r\n"
        for reply in replies
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    parser = ReplyParser()
    heard = [
        reply
        for first, last in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for reply in parser.feed(stream[first:last])
    ]
    assert heard == [() if reply == b"END" else reply for reply in replies]


def test_percentiles_are_the_nearest_rank() -> None:
    latencies = Latencies()
    for took_us in range(1000, 0, -1):
        latencies.add(took_us * 1000)
    assert latencies.summary() == {
        "count": 1000,
        "p50_us": 500,
        "p90_us": 900,
        "p99_us": 990,
        "p99_9_us": 999,
        "max_us": 1000,
    }
