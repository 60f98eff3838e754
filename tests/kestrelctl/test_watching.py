"""ls, wait and check: looking at queues from scripts and monitoring, without taking anything."""

import json
import re
import threading

import pytest

from kestrelctl.items.waiting import EMPTY, Awaited
from kestrelctl.remote.checking import Limits, State, judge
from tests.support.daemon import Daemon
from tests.support.peer import Exchange, scripted_peer
from tests.support.shell import Kestrelctl
from tests.support.wire import connected

# ls


def test_ls_prints_names_one_on_a_line_and_rows_when_a_format_is_asked_for(kestrelctl: Kestrelctl, queue: str) -> None:
    names = [f"{queue}-a", f"{queue}-a+child", f"{queue}:b"]
    kestrelctl("get", names[1])
    for name in (names[0], names[2]):
        kestrelctl("put", name, "x")
    assert kestrelctl("ls", f"{queue}*").out.decode().splitlines() == names
    assert kestrelctl("ls", f"{queue}-?", f"{queue}:*").out.decode().splitlines() == [names[0], names[2]]
    assert set(names) <= set(kestrelctl("ls").out.decode("latin-1").splitlines())
    rows = json.loads(kestrelctl("ls", f"{queue}*", "-o", "json").out)
    assert [(row["queue"], row["items"], row["bytes"]) for row in rows] == [(name, 1, 1) for name in names]
    assert kestrelctl("ls", f"{queue}*", "-o", "tsv", "--no-headers").out.count(b"\n") == 3


def test_ls_of_nothing_is_exit_1(kestrelctl: Kestrelctl) -> None:
    assert (kestrelctl("ls", "no-such-*").code, kestrelctl("ls", "no-such-*").out) == (1, b"")
    assert kestrelctl("ls", "no-such-*", "-o", "json").out == b"[]\n"


# wait


def test_wait_returns_when_the_queue_is_empty_and_nobody_holds_an_item(kestrelctl: Kestrelctl, queue: str) -> None:
    kestrelctl("put", queue, "x")
    with connected(kestrelctl.address) as worker:
        worker.send(f"get {queue}/open\r\n".encode())
        worker.read_until(b"END\r\n")
        assert kestrelctl("stats", queue, "-o", "tsv", "--no-headers").out.split(b"\t")[1] == b"0"
        waiting = kestrelctl.start("wait", queue, "--empty", "-i", "20ms", "--timeout", "60s")
        held = kestrelctl("wait", queue, "--empty", "-i", "20ms", "--timeout", "60ms")
        assert (held.code, held.out, held.err) == (124, b"", "")
        assert waiting.poll() is None
        worker.send(f"get {queue}/close\r\n".encode())
        worker.read_until(b"END\r\n")
        assert waiting.communicate() == (b"", b"")
    assert waiting.returncode == 0


def test_wait_for_items_waits_for_a_queue_that_is_not_there_yet(kestrelctl: Kestrelctl, queue: str) -> None:
    waiting = kestrelctl.start("wait", queue, "--items", "2", "-i", "20ms", "--timeout", "60s")
    putting = threading.Timer(0.2, kestrelctl, ("put", queue, "--lines"), {"stdin": b"a\nb\n"})
    putting.start()
    waiting.communicate()
    putting.join()
    assert waiting.returncode == 0
    assert kestrelctl("get", queue, "--all").out == b"a\nb\n"


def test_a_queue_that_is_not_there_is_not_taken_for_an_empty_one(kestrelctl: Kestrelctl) -> None:
    assert kestrelctl("wait", "no-such-queue", "--empty").code == 1
    assert kestrelctl("wait", "no-such-queue", "--empty", "--missing-ok").code == 0


@pytest.mark.parametrize("arguments", [[], ["--empty", "--items", "3"], ["--items", "few"], ["--empty", "-i", "0"]])
def test_wait_wants_to_know_what_for(kestrelctl: Kestrelctl, arguments: list[str]) -> None:
    run = kestrelctl("wait", "q", *arguments)
    assert (run.code, run.out) == (2, b"")


def test_what_is_awaited_is_a_comparison() -> None:
    met = {
        words: [items for items in range(5) if Awaited.parse(words).is_met(items, 9)]
        for words in ("2", ">=2", ">2", "=2", "<=2", "<2")
    }
    assert met == {"2": [2, 3, 4], ">=2": [2, 3, 4], ">2": [3, 4], "=2": [2], "<=2": [0, 1, 2], "<2": [0, 1]}
    assert [EMPTY.is_met(0, 0), EMPTY.is_met(0, 1), EMPTY.is_met(1, 0)] == [True, False, False]


# check


def test_check_says_ok_warning_or_critical_by_the_limits(kestrelctl: Kestrelctl, queue: str) -> None:
    kestrelctl("put", queue, "--lines", stdin=b"a\nb\nc\n")
    for limits, code, state in [
        ((), 0, "OK"),
        (("--items-warn", "4", "--items-crit", "5"), 0, "OK"),
        (("--items-warn", "3", "--items-crit", "4"), 1, "WARNING"),
        (("--items-warn", "1", "--items-crit", "3"), 2, "CRITICAL"),
        (("--age-warn", "1h", "--age-crit", "0"), 2, "CRITICAL"),
        (("--waiters-min", "1"), 2, "CRITICAL"),
    ]:
        run = kestrelctl("check", queue, *limits)
        assert (run.code, run.err) == (code, "")
        assert run.out.startswith(f"KESTREL {state} - ".encode())
        assert run.out.count(b"\n") == 1
    assert re.search(rb" \| '\S+ items'=3;;;0 '\S+ oldest'=\d+ms;;;0 '\S+ waiters'=0;;1:;0\n$", run.out)


def test_one_is_not_many() -> None:
    assert judge("here", [{"queue": "a", "items": 1}], [], Limits()).words == "1 queue with 1 item"
    assert judge("here", [{"queue": "a", "items": 0}] * 2, [], Limits()).words == "1 queue with 0 items"


def test_check_says_first_what_is_critical() -> None:
    many = [{"queue": f"q{number}", "items": 5, "waiters": 0} for number in range(9)]
    stopped = {"queue": "zz", "items": 5, "waiters": 0, "stopped": 1}
    report = judge("here", [*many, stopped], [], Limits(items_warn=5))
    assert report.words.startswith(
        "zz: stopped: its journal is corrupt; run: kestrelctl repair zz; q0: items=5 (5 or more); "
    )
    assert report.queues[-1].findings == [
        "stopped: its journal is corrupt; run: kestrelctl repair zz",
        "items=5 (5 or more)",
    ]


def test_check_in_json_and_for_prometheus(kestrelctl: Kestrelctl, queue: str) -> None:
    kestrelctl("put", queue, "x")
    run = kestrelctl("check", queue, "no-such-queue", "-o", "json", "--items-warn", "1")
    record = json.loads(run.out)
    assert (run.code, record["state"], record["server"]) == (2, "critical", kestrelctl.address)
    assert [(each["queue"], each["state"], each["items"]) for each in record["queues"]] == [
        (queue, "warning", 1),
        ("no-such-queue", "critical", None),
    ]
    exposition = kestrelctl("check", queue, "-o", "prometheus").out.decode()
    server = f'server="{kestrelctl.address}"'
    assert f"kestrel_check_state{{{server}}} 0\n" in exposition
    assert f'kestrel_check_items{{{server},queue="{queue}"}} 1\n' in exposition


def test_a_stopped_queue_is_critical_without_any_limit(own_daemon: Daemon, own_kestrelctl: Kestrelctl) -> None:
    own_kestrelctl("put", "sound", "x")
    own_kestrelctl("put", "work", "--lines", stdin=b"first\nsecond\n")
    own_daemon.stop()
    (segment,) = (own_daemon.spool / "work.journal").glob("*.seg")
    data = bytearray(segment.read_bytes())
    data[data.index(b"first")] ^= 1
    segment.write_bytes(data)
    own_daemon.start()
    run = own_kestrelctl("check")
    assert run.code == 2
    assert run.out.startswith(
        b"KESTREL CRITICAL - work: stopped: its journal is corrupt; run: kestrelctl repair work | "
    )
    assert own_kestrelctl("check", "sound").code == 0


def test_check_of_a_server_that_is_down_is_critical_and_of_a_wrong_line_unknown(kestrelctl: Kestrelctl) -> None:
    down = kestrelctl("check", "-s", "127.0.0.1:1")
    assert (down.code, down.err) == (2, "")
    assert down.out.startswith(b"KESTREL CRITICAL - cannot reach 127.0.0.1:1: ")
    assert kestrelctl("check", "--items-warn", "many").code == 3
    with scripted_peer([Exchange(b"dump_stats\r\n", b"CLIENT_ERROR unauthenticated\r\n")]) as peer:
        refused = kestrelctl("check", "-o", "json", "-s", peer.address)
    assert (refused.code, json.loads(refused.out)["state"]) == (3, "unknown")


def test_an_old_kestrel_is_judged_by_what_it_says() -> None:
    (queue,) = judge("old", [{"queue": "work", "items": 3, "age": 7000}], [], Limits(oldest_warn_ms=5000)).queues
    assert (queue.state, queue.oldest_ms, queue.findings) == (State.WARNING, 7000, ["oldest_ms=7000 (5000 or more)"])
    assert judge("old", [{"queue": "work"}], ["work"], Limits()).state == State.CRITICAL  # named by dump_stats only
