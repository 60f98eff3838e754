"""Putting items from the command line, files and pipes."""

import os
import time
from pathlib import Path

import pytest

from kestrelctl.items.putting import EXPIRY_RELATIVE_S_MAX, expiry_s
from tests.support.daemon import running_daemon
from tests.support.peer import WHO_IS_THERE, Exchange, scripted_peer
from tests.support.shell import Kestrelctl


def test_a_put_item_is_there_to_get(kestrelctl: Kestrelctl, queue: str) -> None:
    put = kestrelctl("put", queue, "hello")
    got = kestrelctl("get", queue)
    assert (put.code, put.out, put.err) == (0, b"", "")
    assert (got.code, got.out, got.err) == (0, b"hello", "")


@pytest.mark.parametrize("given", [["-"], []], ids=["dash", "nothing"])
def test_standard_input_is_one_item_byte_for_byte(kestrelctl: Kestrelctl, queue: str, given: list[str]) -> None:
    item = bytes(range(256)) + b"\r\nEND\r\n"
    assert kestrelctl("put", queue, *given, stdin=item).code == 0
    assert kestrelctl("get", queue).out == item


def test_a_file_is_one_item(kestrelctl: Kestrelctl, queue: str, tmp_path: Path) -> None:
    (tmp_path / "item").write_bytes(b"a\nb\n")
    assert kestrelctl("put", queue, f"@{tmp_path / 'item'}").code == 0
    assert kestrelctl("get", queue).out == b"a\nb\n"


@pytest.mark.parametrize("data", ["@home", "-", "--", "@/nowhere/item"])
def test_what_stands_alone_behind_two_dashes_is_the_item_itself(kestrelctl: Kestrelctl, queue: str, data: str) -> None:
    assert kestrelctl("put", queue, "--", data).code == 0
    assert kestrelctl("get", queue).out == data.encode()
    assert kestrelctl("put", "--", queue, "@/nowhere/item").code == 66


def test_a_missing_file_is_exit_66(kestrelctl: Kestrelctl, queue: str) -> None:
    put = kestrelctl("put", queue, "@/nowhere/item")
    assert (put.code, put.err) == (66, "kestrelctl: /nowhere/item: no such file\n")


def test_what_was_never_sent_is_not_called_unknown(kestrelctl: Kestrelctl, queue: str) -> None:
    for name, key in ((queue, "two words"), (queue, "k" * 300), ("q" * 300, "k")):
        refused = kestrelctl("put", name, "x", "--key", key)
        assert (refused.code, "unknown" in refused.err, refused.err.count("\n")) == (2, False, 1)


def test_a_journal_that_cannot_be_written_is_exit_74_in_plain_words(kestrelctl: Kestrelctl) -> None:
    reply = b"SERVER_ERROR journal segment creation failed: No space left on device\r\n"
    with scripted_peer([WHO_IS_THERE, Exchange(b"set q 0 0 1\r\nx\r\n", reply)]) as peer:
        run = kestrelctl("put", "q", "x", "-s", peer.address)
    words = f"{peer.address} refused: journal segment creation failed: No space left on device"
    assert (run.code, run.err) == (74, f"kestrelctl: {words}\n")


def test_a_folder_for_a_file_is_exit_74(kestrelctl: Kestrelctl, queue: str, tmp_path: Path) -> None:
    put = kestrelctl("put", queue, f"@{tmp_path}")
    assert (put.code, put.err) == (74, f"kestrelctl: cannot read {tmp_path}: is a directory\n")


def test_every_line_becomes_an_item_empty_ones_and_an_unfinished_last_one_too(
    kestrelctl: Kestrelctl, queue: str
) -> None:
    assert kestrelctl("put", queue, "--lines", stdin=b"one\n\nthree\r\nfour").code == 0
    assert kestrelctl("get", queue, "--all", "--null").out == b"one\0\0three\r\0four\0"


@pytest.mark.long
def test_ten_thousand_lines_arrive_in_order(kestrelctl: Kestrelctl, queue: str, tmp_path: Path) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(10_000))
    (tmp_path / "lines").write_bytes(lines)
    assert kestrelctl("put", queue, f"@{tmp_path / 'lines'}", "--lines").code == 0
    with (tmp_path / "got").open("wb") as got:
        process = kestrelctl.start("get", queue, "--all")
        assert process.stdout is not None
        got.write(process.stdout.read())
    assert process.wait() == 0
    assert (tmp_path / "got").read_bytes() == lines


def test_length_prefixed_items_make_the_round_trip(kestrelctl: Kestrelctl, queue: str) -> None:
    stream = b"\0\0\0\2a\n\0\0\0\0\0\0\0\1\0"
    assert kestrelctl("put", queue, "--length-prefixed", stdin=stream).code == 0
    assert kestrelctl("get", queue, "--all", "--length-prefixed").out == stream


def test_a_length_that_says_too_much_stores_the_whole_items_before_it(kestrelctl: Kestrelctl, queue: str) -> None:
    put = kestrelctl("put", queue, "--length-prefixed", stdin=b"\0\0\0\1a\0\0\0\5b")
    assert put.code == 81
    assert "the input ends inside an item: 4 bytes are missing; stored 1 of the 1 item sent" in put.err
    assert kestrelctl("get", queue, "--all").out == b"a\n"


def test_lines_are_stored_as_they_come_not_only_at_the_end_of_input(kestrelctl: Kestrelctl, queue: str) -> None:
    putting = kestrelctl.start("put", queue, "--lines")
    assert putting.stdin is not None
    putting.stdin.write(b"early\n")
    putting.stdin.flush()
    assert kestrelctl("get", queue, "--wait", "20s").out == b"early"
    putting.stdin.close()
    assert putting.wait() == 0


def test_a_full_queue_refuses_with_exit_80_and_says_how_many_lines_it_took_with_81(
    kestrelctl: Kestrelctl, small: str
) -> None:
    some = kestrelctl("put", small, "--lines", stdin=b"1\n2\n3\n4\n5\n")
    none = kestrelctl("put", small, "6")
    assert some.code == 81
    assert some.err == (
        "kestrelctl: item 4: small refused the item: the queue is full; max_items is 3; stored 3 of the 5 items sent\n"
    )
    assert (none.code, none.err) == (
        80,
        "kestrelctl: small refused the item: the queue is full; max_items is 3\n",
    )
    assert kestrelctl("get", small, "--all").out == b"1\n2\n3\n"


def test_an_item_that_is_too_large_is_told_from_a_full_queue(tmp_path: Path) -> None:
    limits = ("queues.q.max_item_size=4", "queues.q+tight.max_items=1")
    with running_daemon(tmp_path / "limited", *limits) as daemon:
        ctl = Kestrelctl(daemon.address, tmp_path)
        large = ctl("put", "q", "12345")
        assert (large.code, large.err) == (80, "kestrelctl: q refused the item: it has 5 bytes, max_item_size is 4\n")
        ctl("get", "q+tight")  # from now on it is there
        assert ctl("put", "q", "1234").code == 0
        full = ctl("put", "q", "1234")
        assert (full.code, full.err) == (
            80,
            "kestrelctl: q refused the item: the queue is full; max_items is 1 in q+tight\n",
        )


def test_where_the_server_does_not_tell_its_limits_both_reasons_are_named(kestrelctl: Kestrelctl) -> None:
    refused = Exchange(b"set q 0 0 1\r\nx\r\n", b"NOT_STORED\r\n")
    exchanges = [WHO_IS_THERE, refused, Exchange(b"dump_config\r\n", b"ERROR\r\n")]
    with scripted_peer(exchanges) as peer:
        run = kestrelctl("put", "q", "x", "-s", peer.address)
    reasons = "the queue is full, or the item is larger than max_item_size"
    assert (run.code, run.err) == (80, f"kestrelctl: q refused the item: {reasons}\n")


def test_an_expired_item_is_not_delivered(kestrelctl: Kestrelctl, queue: str) -> None:
    kestrelctl("put", queue, "soon gone", "--expire", "1")
    kestrelctl("put", queue, "stays", "--expire", "20d")
    time.sleep(1.1)  # expiry is wall time, in whole seconds
    assert kestrelctl("get", queue, "--all").out == b"stays\n"


def test_expiry_is_rounded_up_to_seconds_and_made_absolute_where_the_wire_needs_it() -> None:
    assert expiry_s(None) == expiry_s(0) == 0
    assert expiry_s(1) == 1
    assert expiry_s(90_000) == 90
    assert expiry_s(EXPIRY_RELATIVE_S_MAX * 1000) == EXPIRY_RELATIVE_S_MAX
    far_s = EXPIRY_RELATIVE_S_MAX + 1
    assert 0 <= expiry_s(far_s * 1000) - far_s - int(time.time()) + 1 <= 2


def test_names_and_data_outside_utf8_are_passed_as_they_are(kestrelctl: Kestrelctl) -> None:
    name, data = os.fsdecode(b"caf\xe9"), os.fsdecode(b"\xff\xfe")
    assert kestrelctl("put", name, data).code == 0
    assert kestrelctl("get", name).out == b"\xff\xfe"


@pytest.mark.parametrize("name", ["", "a/open", "a b", "a\nflush_all"])
def test_a_name_that_could_end_or_change_the_command_never_reaches_the_server(
    kestrelctl: Kestrelctl, name: str
) -> None:
    put = kestrelctl("put", name, "x")
    assert put.code == 2
    assert put.err.startswith("kestrelctl: ")


def test_a_name_the_server_does_not_take_is_exit_77(kestrelctl: Kestrelctl) -> None:
    put = kestrelctl("put", "a.b", "x")
    assert put.code == 77
    assert put.err.startswith(f"kestrelctl: {kestrelctl.address} refused: ")
