"""RESP for clients: replies in any pieces, and what is no reply."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestreld.client.replies import UnparsableReply
from kestreld.client.resp import ErrorReply, RespReader, RespValue, request

REPLIES: list[tuple[bytes, RespValue]] = [
    (b"+OK\r\n", b"OK"),
    (b"-NOJOB no\xff\r\n", ErrorReply("NOJOB no\udcff")),
    (b":-12\r\n", -12),
    (b"$0\r\n\r\n", b""),
    (b"$-1\r\n", None),
    (b"$4\r\n\r\n*1\r\n", b"\r\n*1"),
    (b"*-1\r\n", None),
    (b"*0\r\n", []),
    (b"*3\r\n:1\r\n*2\r\n$1\r\na\r\n*-1\r\n*1\r\n*0\r\n", [1, [b"a", None], [[]]]),
]


@given(st.lists(st.sampled_from(REPLIES)), st.lists(st.integers(1, 9), min_size=1))
def test_replies_come_in_any_pieces(replies: list[tuple[bytes, RespValue]], sizes: list[int]) -> None:
    data, reader, found, number = b"".join(wire for wire, _ in replies), RespReader(), list[RespValue](), 0
    while data:
        size = sizes[number % len(sizes)]
        found += reader.feed(data[:size])
        data, number = data[size:], number + 1
    assert found == [value for _, value in replies]


@pytest.mark.parametrize(
    "wire",
    [
        b"VALUE a\r\n",
        b"$x\r\n",
        b"$-2\r\n",
        b"$536870913\r\n",
        b"*1.5\r\n",
        b":\r\n",
        b"\r\n",
        b":" + b"1" * 30 + b"\r\n",
    ],
)
def test_what_is_no_reply_is_refused(wire: bytes) -> None:
    with pytest.raises(UnparsableReply):
        RespReader().feed(wire)


@given(st.binary(max_size=60))
def test_no_bytes_are_a_surprise(data: bytes) -> None:
    with suppress(UnparsableReply):
        RespReader().feed(data)


def test_a_line_without_an_end_is_not_waited_for() -> None:
    with pytest.raises(UnparsableReply):
        RespReader().feed(b"+" + bytes(70_000))


def test_a_command_has_the_bytes_of_its_words() -> None:
    assert request([b"GETJOB", "q\udcff", 7, b""]) == b"*4\r\n$6\r\nGETJOB\r\n$2\r\nq\xff\r\n$1\r\n7\r\n$0\r\n\r\n"


def test_a_code_that_says_nothing_is_left_out() -> None:
    assert [ErrorReply(words).reason for words in ("ERR syntax error", "PAUSED later")] == [
        "syntax error",
        "PAUSED later",
    ]
