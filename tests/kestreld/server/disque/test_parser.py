"""RESP: a stream means the same however it is cut, and whatever is no command is refused as Redis refuses it."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kestreld.server.disque.parser import LARGE_BYTES, LINE_BYTES_MAX, RespParser, split_line
from tests.support.resp import request
from tests.support.resp_parsing import parse

words = st.lists(
    st.binary(max_size=12) | st.sampled_from([b"\r\n", b"$3\r\nabc\r\n", b"*1\r\n", b"x" * 2000]), min_size=1
)
SESSION = b"".join(
    [
        request("ADDJOB", "q", b"a\r\nb", 0),
        b'PING "a\\x41"\r\n',
        b"*0\r\n*-1\r\n\r\n",
        request("ACKJOB", *["D-" + "x" * 38] * 3),
        b"quit\n",
    ]
)


@given(st.lists(words, max_size=5), st.lists(st.integers(1, 40), min_size=1))
def test_a_stream_means_the_same_in_whatever_pieces_it_comes(commands: list[list[bytes]], sizes: list[int]) -> None:
    stream = b"".join([request(*command) for command in commands])
    pieces, at = [], 0
    while at < len(stream):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(stream[at : at + size])
        at += size
    assert parse([stream]) == parse(pieces) == commands


def test_a_session_cut_at_every_byte_means_the_same() -> None:
    whole = parse([SESSION])
    assert [command[0] for command in whole] == [b"ADDJOB", b"PING", b"ACKJOB", b"quit"]
    for at in range(len(SESSION)):
        assert parse([SESSION[:at], SESSION[at:]]) == whole, at
    assert parse([SESSION[at : at + 1] for at in range(len(SESSION))]) == whole


@pytest.mark.parametrize("size_bytes", [LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, 100_000])
def test_large_words_arrive_whole_in_whatever_pieces(size_bytes: int) -> None:
    body = bytes(range(256)) * (size_bytes // 256) + b"x" * (size_bytes % 256)
    stream = request("ADDJOB", "q", body, 0) + request("PING") * 3
    wanted = [[b"ADDJOB", b"q", body, b"0"], *[[b"PING"]] * 3]
    for size in (1000, 8191, 16384, len(stream) - 30, len(stream)):
        assert parse([stream[at : at + size] for at in range(0, len(stream), size)]) == wanted


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (b"*x\r\n", b"invalid multibulk length"),
        (b"*1048577\r\n", b"invalid multibulk length"),
        (b"* 1\r\n", b"invalid multibulk length"),
        (b"*+1\r\n", b"invalid multibulk length"),
        (b"*1\r\n$-1\r\n", b"invalid bulk length"),
        (b"*1\r\n$536870913\r\n", b"invalid bulk length"),
        (b"*1\r\n$\r\n", b"invalid bulk length"),
        (b"*1\r\n:1\r\n", b"expected '$', got ':'"),
        (b"*1\r\n\xff", b"expected '$', got '\xff'"),
        (b"PING 'a\r\n", b"unbalanced quotes in request"),
        (b'PING "a"b\r\n', b"unbalanced quotes in request"),
        (b"x" * (LINE_BYTES_MAX + 1), b"too big inline request"),
        (b"*" + b"1" * (LINE_BYTES_MAX + 1), b"too big mbulk count string"),
        (b"*1\r\n$" + b"1" * (LINE_BYTES_MAX + 1), b"too big bulk count string"),
    ],
)
def test_what_is_no_command_is_refused_and_nothing_behind_it_is_parsed(stream: bytes, reason: bytes) -> None:
    refusal = (b"ERR Protocol error: " + reason,)
    assert parse([request("PING") + stream, b"\r\n" + request("PING")]) == [[b"PING"], refusal]
    size = 1 + len(stream) // 100
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert parse([*pieces, request("PING")]) == [refusal]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (b"", []),
        (b"  a \t b\v", [b"a", b"b"]),
        (rb'"a b" c', [b"a b", b"c"]),
        (rb'"\n\r\t\a\b\x41\q"', [b"\n\r\t\a\bAq"]),
        (rb"'a\'b\n'", [rb"a'b\n"]),
        (b'""', [b""]),
        (b'a"b', None),
        (b"'a'b", None),
        (b'"a\\', None),
        (b"a\0b", [b"a"]),
    ],
)
def test_lines_are_split_as_redis_splits_them(line: bytes, wanted: list[bytes] | None) -> None:
    assert split_line(line) == wanted


def test_empty_words_of_a_line_are_dropped() -> None:
    assert parse([b'PING "" a\r\n""\r\n']) == [[b"PING", b"a"]]


def test_a_client_that_is_not_known_may_send_little() -> None:
    many, large = request(*["x"] * 11), request("AUTH", "x" * 16385)
    assert parse([request(*["x"] * 10)], is_known=False) == [[b"x"] * 10]
    assert parse([many], is_known=False) == [(b"ERR Protocol error: unauthenticated multibulk length",)]
    assert parse([large], is_known=False) == [(b"ERR Protocol error: unauthenticated bulk length",)]


def test_what_was_too_much_before_the_login_is_parsed_behind_it() -> None:
    parser = RespParser(is_known=False)
    large = request("ADDJOB", "q", "x" * 20000, 0)
    stream = request("AUTH", "secret") + large + request("PING")
    login, refusal = parser.feed(stream[:5000])
    assert login == [b"AUTH", b"secret"]
    assert refusal.is_of_unknown
    assert parser.feed(stream[5000:]) == []
    assert parser.trust() == [[b"ADDJOB", b"q", b"x" * 20000, b"0"], [b"PING"]]


def test_what_is_held_of_an_unfinished_command_is_counted() -> None:
    parser = RespParser(is_known=True)
    parser.feed(b"*2\r\n$100000\r\n" + b"x" * 60_000)
    assert 60_000 <= parser.held_bytes <= 61_000
    assert parser.mid_command
    parser.feed(b"x" * 40_000 + b"\r\n$1\r\n")
    assert parser.held_bytes >= 100_000
    assert parser.feed(b"y\r\n") == [[b"x" * 100_000, b"y"]]
    assert (parser.held_bytes, parser.mid_command) == (0, False)


@given(st.binary(), st.integers(1, 20))
@example(b"*1\r\n$1\r\n\r\n\r\n*", 3)
def test_any_bytes_mean_the_same_in_pieces(stream: bytes, size: int) -> None:
    assert parse([stream[at : at + size] for at in range(0, len(stream), size)]) == parse([stream])
