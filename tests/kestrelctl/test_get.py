"""Taking and looking at items."""

import json

import pytest

from tests.support.shell import Kestrelctl


@pytest.mark.parametrize("verb", ["get", "peek"])
def test_no_item_is_exit_1_and_silence(kestrelctl: Kestrelctl, queue: str, verb: str) -> None:
    outcome = kestrelctl(verb, queue)
    assert (outcome.code, outcome.out, outcome.err) == (1, b"", "")
    assert kestrelctl(verb, queue, "--empty-ok").code == 0


@pytest.mark.parametrize("verb", ["get", "peek"])
def test_an_empty_item_is_not_an_empty_queue(kestrelctl: Kestrelctl, queue: str, verb: str) -> None:
    kestrelctl("put", queue, "")
    outcome = kestrelctl(verb, queue)
    assert (outcome.code, outcome.out) == (0, b"")


def test_peek_leaves_the_item_there(kestrelctl: Kestrelctl, queue: str) -> None:
    kestrelctl("put", queue, "--lines", stdin=b"1\n2\n")
    assert kestrelctl("peek", queue, "--lines").out == b"1\n"
    assert kestrelctl("get", queue, "--all").out == b"1\n2\n"


@pytest.mark.parametrize("verb", ["get", "peek"])
def test_a_wait_in_vain_is_exit_124(kestrelctl: Kestrelctl, queue: str, verb: str) -> None:
    assert kestrelctl(verb, queue, "--wait", "50ms").code == 124


def test_a_wait_ends_with_the_item_and_may_be_longer_than_the_time_out(kestrelctl: Kestrelctl, queue: str) -> None:
    waiting = kestrelctl.start("get", queue, "--wait", "60s", "--timeout", "1s")
    assert kestrelctl("get", queue, "--wait", "1500ms").code == 124
    kestrelctl("put", queue, "at last")
    out, _ = waiting.communicate()
    assert (waiting.returncode, out) == (0, b"at last")


@pytest.mark.parametrize("options", [[], ["--wait", "1h"], ["--lease", "1s", "--json"]])
def test_a_queue_that_is_not_there_is_not_created_if_that_is_not_wanted(
    kestrelctl: Kestrelctl, queue: str, options: list[str]
) -> None:
    refused = kestrelctl("get", queue, "--no-create", *options)
    assert (refused.code, refused.out, refused.err) == (1, b"", f"kestrelctl: no such queue: {queue}\n")
    assert kestrelctl("ls", queue).code == 1
    kestrelctl("put", queue, "x")
    assert b"x" in kestrelctl("get", queue, "--no-create", *options).out
    assert kestrelctl("get", queue, "--no-create").err == ""


def test_several_items_come_on_lines_unless_told_otherwise(kestrelctl: Kestrelctl, queue: str) -> None:
    kestrelctl("put", queue, "--lines", stdin=b"1\n2\n3\n4\n5\n6\n7\n")
    assert kestrelctl("get", queue, "-n", "2").out == b"1\n2\n"
    assert kestrelctl("get", queue, "-n", "2", "--raw").out == b"34"
    assert kestrelctl("get", queue, "-n", "1", "--lines").out == b"5\n"
    fewer = kestrelctl("get", queue, "-n", "9", "--null")
    assert (fewer.code, fewer.out) == (0, b"6\x007\x00")


def test_json_carries_text_as_text_and_other_bytes_as_base64(kestrelctl: Kestrelctl, queue: str) -> None:
    kestrelctl("put", queue, "--null", stdin="é\n\0".encode() + b"\xff\0")
    lines = kestrelctl("get", queue, "--all", "--json").out.splitlines()
    assert [json.loads(line) for line in lines] == [{"data": "é\n"}, {"data_base64": "/w=="}]


@pytest.mark.parametrize(
    "options", [["-n", "2", "--all"], ["--raw", "--json"], ["--exec", "cat", "--lines"], ["-n", "0"]]
)
def test_options_that_exclude_each_other_are_exit_2_and_take_nothing(
    kestrelctl: Kestrelctl, queue: str, options: list[str]
) -> None:
    kestrelctl("put", queue, "x")
    got = kestrelctl("get", queue, *options)
    assert (got.code, got.out) == (2, b"")
    assert got.err.startswith("kestrelctl: ")
    assert got.err.count("\n") == 1
    assert kestrelctl("get", queue).out == b"x"
