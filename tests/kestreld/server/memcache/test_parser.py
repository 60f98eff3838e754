"""Bytes to commands: whatever comes, in whatever pieces, and nothing that was sent as data is ever a command."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kestreld.config.config import Compat, QueueConfig
from kestreld.server.memcache import commands as wire
from kestreld.server.memcache import parser as limits
from kestreld.server.memcache.commands import CommandCache
from kestreld.server.memcache.parser import MemcacheParser
from tests.support.parsing import SMALL_LINE_BYTES, Shown, hangs_up, parse


def kinds(values: list[Shown]) -> list[int]:
    return [value[0] for value in values]


def replies(stream: bytes, compat: Compat = Compat.NONE) -> list[bytes]:
    """The answers that the parser itself gives."""
    return [value[13] for value in parse([stream], compat) if value[0] == wire.REPLY]


# What clients send, well formed and not

names = st.sampled_from([b"work", b"work+audit", b"q", b"", b"a/b", b"x" * 70])
options = st.sampled_from(
    [b"", b"/t=250", b"/open", b"/close/open", b"/abort", b"/peek", b"/t=", b"/odd", b"/peek/open"]
)
options |= st.sampled_from(
    [b"/open/lease=5", b"/lease=5/open/t=9", b"/odd=1", b"/delay=5", b"/delay=5/key=a/b", b"/key=k"]
)
options |= st.sampled_from([b"/open/lease=5/by=w-7", b"/by=w/t=9/open/lease=5", b"/by=w", b"/open/lease=5/by=a/b"])
options |= st.sampled_from([b"/open/lease=5/deliveries", b"/deliveries/by=w/t=9/open/lease=5", b"/deliveries"])
options |= st.sampled_from([b"/12", b"/12/failed", b"/7/delay=3", b"/12/lease=9", b"/12x", b"/99999999999999999999"])
numbers = st.sampled_from([b"0", b"5", b"-1", b"007", b"99999999999999999999", b"x", b""])
sizes = st.integers(0, 30)
endings = st.sampled_from([b"\r\n", b"\r\n", b"\n"])
datas = st.binary(max_size=30) | st.sampled_from([b"flush_all\r\n", b"\r\n", b"shutdown\r\nget q", b"x\r\nset q 0 0 1"])
verbs = st.sampled_from(
    [
        b"get",
        b"GET",
        b"gets",
        b"delete",
        b"touch",
        b"flush",
        b"flush_expired",
        b"flush_all",
        b"flush_all_expired",
        b"stats",
        b"dump_stats",
        b"dump_config",
        b"version",
        b"quit",
        b"shutdown",
        b"reload",
        b"nonsense",
        b"",
        b" ",
        b"\x00",
    ]
)
sets = st.builds(
    lambda verb, name, flags, expiry, data, tail, ending: b"".join(
        [b" ".join([verb, name, flags, expiry, b"%d" % len(data)]), tail, ending, data, b"\r\n"]
    ),
    st.sampled_from([b"set", b"SET", b"add", b"cas", b"append"]),
    names,
    numbers,
    numbers,
    datas,
    st.sampled_from([b"", b"", b" noreply", b" 7", b" ", b" 0 noreply"]),
    endings,
)
lying_sets = st.builds(
    lambda name, size, data: b"set %b 0 0 %b\r\n%b\r\n" % (name, size, data),
    names,
    numbers | sizes.map(b"%d".__mod__),
    datas,
)
others = st.builds(
    lambda verb, words, ending: b" ".join([verb, *words]) + ending,
    verbs,
    st.lists(st.builds(bytes.__add__, names, options) | numbers, max_size=3),
    endings,
)
streams = st.lists(sets | sets | others | lying_sets | st.binary(max_size=20), max_size=12).map(b"".join)
compats = st.sampled_from(Compat)


def pieces_of(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    return [stream[start:end] for start, end in itertools.pairwise(places)]


# Any stream, in any pieces


@given(streams, st.lists(st.integers(0, 2000), max_size=20), compats)
@example(b"get " + b"q" * (SMALL_LINE_BYTES - 4) + b"\r\n", [SMALL_LINE_BYTES + 1], Compat.NONE)
@example(b"\x80\x01" + b"x" * 20 + b"\n", [1, 3], Compat.NONE)
@example(b"\r\r\nversion\r\n\x80\n", [1, 2, 12], Compat.KESTREL_1)
def test_commands_survive_any_split_of_the_stream(stream, cuts, compat):
    assert parse(pieces_of(stream, cuts), compat) == parse([stream], compat)


@given(streams, compats)
def test_commands_survive_coming_byte_by_byte(stream, compat):
    assert parse([stream[at : at + 1] for at in range(len(stream))], compat) == parse([stream], compat)


@given(st.binary(max_size=400) | streams, compats)
def test_any_bytes_give_commands_or_answers_and_nothing_else(stream, compat):
    for value in parse([stream], compat):
        if value[0] == wire.REPLY:
            reply = value[13]
            if reply == b"\x81":  # in the binary protocol
                continue
            assert reply.endswith(b"\r\n")
            assert reply.count(b"\n") == 1
        elif value[0] <= wire.SET_WITH:
            assert isinstance(value[-1], bytes)
        elif value[0] >= wire.CONFIRM:
            assert isinstance(value[-1], int)
        else:
            assert 0 <= value[0] <= wire.FAIL


@given(st.lists(streams, max_size=5), streams, compats)
def test_lines_seen_before_mean_the_same_as_lines_seen_first(seen, stream, compat):
    lines = CommandCache()
    for earlier in seen:
        parse([earlier], compat, lines)
    assert parse([stream], compat, lines) == parse([stream], compat, CommandCache())


@given(
    st.lists(st.tuples(st.sampled_from([b"a", b"b"]), datas), max_size=10), st.lists(st.integers(0, 500), max_size=5)
)
def test_items_of_mixed_sizes_through_the_line_cache_are_the_items_sent(items, cuts):
    stream = b"".join(b"set %b 0 0 %d\r\n%b\r\n" % (name, len(data), data) for name, data in items)
    got = parse(pieces_of(stream, cuts))
    assert [(value[1], value[-1]) for value in got] == items


def test_a_line_with_a_word_too_many_does_not_teach_the_cache_a_wrong_length():
    first = b"set q 0 0 5 3\r\nhello\r\n"
    second = b"set q 0 0 5\r\nworld\r\n"
    assert [value[-1] for value in parse([first + second])] == [None, b"world"]


def test_the_line_cache_forgets_queues_when_it_is_cleared():
    lines = CommandCache()
    parser = MemcacheParser(lines)
    (command,) = parser.feed(b"get q\r\n")
    command.target = "a queue"
    lines.clear()
    assert command.target is None
    assert parser.feed(b"get q\r\n") != [command]


def test_the_line_cache_stays_bounded():
    lines = CommandCache()
    parser = MemcacheParser(lines)
    for number in range(limits.LINES_CACHED_MAX + 10):
        parser.feed(b"get q%d\r\n" % number)
    assert len(lines.whole) <= limits.LINES_CACHED_MAX


def test_lines_with_a_token_or_a_key_take_no_room_in_the_line_cache():
    lines = CommandCache()
    parser = MemcacheParser(lines)
    for number in range(1, 1000):
        parser.feed(b"delete q/%d\r\ntouch q/%d 30\r\ntouch q/%d/failed 0 noreply\r\n" % (number, number, number))
        parser.feed(b"set q/delay=5/key=%d 0 0 1\r\nx\r\ndelete q/key=%d\r\n" % (number, number))
    assert lines.about_leases.keys() == {b"delete q/", b"touch q/ 30", b"touch q//failed 0 noreply"}
    assert not lines.whole
    assert not lines.stores


LONG_KEY = b"k" * (limits.KEYED_WORD_BYTES_MAX - len("q/key="))
PUTS_WITH_KEYS = [
    b"set q/key=b 0 0 1",
    b"SET q/key=b 0 0 1",
    b"add q/key=b/c 0 0 1",
    b"set q+child/key=b 0 0 1",
    b"set q/key=b 1 0 1",
    b"set q/key=b 0 1 1",
    b"set q/key=b 0 0 1 noreply",
    b"set q/key=b 0 0 1 2",
    b"set q/key=b c 0 0 1",
    b"set q/key= 0 0 1",
    b"set q/key=b 0 0 x",
    b"set q/key=b 0 0 -1",
    b"set q/key=b 0 0 1001",
    b"set q/key=b 0 0 9999999999",
    b"set q/key=%b 0 0 1" % LONG_KEY,
    b"set q/key=%bk 0 0 1" % LONG_KEY,
    b"set q/key=b 0 0 1 ",
    b"set q/delay=5/key=b 0 0 1",
]


@pytest.mark.parametrize("line", PUTS_WITH_KEYS)
def test_a_put_with_a_key_means_what_it_does_on_a_connection_without_one_before(line):
    def command_of(line: bytes, lines: CommandCache) -> dict[str, object]:
        parser = MemcacheParser(lines, config_of=lambda name: QueueConfig(max_item_size_bytes=1000))
        command = parser.feed(line + b"\r\n%b\r\n" % (b"x" * (1001 if b"1001" in line else 1)))[0]
        return {name: getattr(command, name) for name in dir(command) if not name.startswith("_")}

    lines = CommandCache()
    for verb in (b"set", b"add", b"SET"):
        for name in (b"q", b"q+child"):
            command_of(b"%b %b/key=a 0 0 1" % (verb, name), lines)
    assert len(lines.keyed) == 6
    assert command_of(line, lines) == command_of(line, CommandCache())


def test_a_line_with_the_name_of_a_holder_is_parsed_once():
    parser = MemcacheParser(CommandCache())
    (command,) = parser.feed(b"gets q/open/lease=5/by=worker-7\r\n")
    assert (command.kind, command.item_key) == (wire.LEASE_BY, b"worker-7")
    assert parser.feed(b"gets q/open/lease=5/by=worker-7\r\n") == [command]
    assert parser.feed(b"gets q/open/lease=5/by=worker-7\r\nget q\r\n")[0] is command


def test_a_line_that_asks_for_deliveries_is_parsed_once():
    parser = MemcacheParser(CommandCache())
    (command,) = parser.feed(b"gets q/open/lease=5/deliveries\r\n")
    assert (command.kind, command.counts) == (wire.LEASE_BY, True)
    assert parser.feed(b"gets q/open/lease=5/deliveries\r\n") == [command]
    (plain,) = parser.feed(b"gets q/open/lease=5\r\n")
    assert (plain.kind, plain.counts) == (wire.LEASE, False)


# Data is never executed

EVIL = b"flush_all\r\nshutdown\r\nset q 0 0 1\r\n"


@pytest.mark.parametrize("compat", Compat)
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"set q 0 0 %d", [wire.SET]),
        (b"set q bad 0 %d", [wire.REPLY]),
        (b"set q 0 bad %d", [wire.REPLY]),
        (b"set  0 0 %d", [wire.REPLY]),
        (b"set big 0 0 %d", [wire.TOO_LARGE]),
        (b"add q 0 0 %d", [wire.REPLY]),
        (b"cas q 0 0 %d 77", [wire.REPLY]),
        (b"append q 0 0 %d noreply", [wire.REPLY]),
        (b"set q 0 0 -%d", [wire.REPLY]),
        (b"set q 0 0 %dx", [wire.REPLY]),
        (b"set q 0 0 99999999%d", [wire.REPLY]),
        (b"set q 0 0", [wire.REPLY]),
    ],
)
def test_the_data_of_a_refused_set_is_never_run_as_commands(compat, line, expected):
    line = line % len(EVIL) if b"%d" in line else line
    stream = line + b"\r\n" + EVIL + b"\r\n" + b"version\r\n"
    got = parse([stream], compat, config_of=lambda name: QueueConfig(max_item_size_bytes=10 if name == "big" else None))
    followed = [] if hangs_up(got) or not got else [wire.VERSION]
    assert kinds(got) == expected + followed


def test_a_set_whose_data_is_longer_than_it_says_is_refused_and_hangs_up():
    got = parse([b"set q 0 0 3\r\nabcdef\r\nflush_all\r\n"])
    assert kinds(got) == [wire.REPLY]
    assert got[0][13] == b"CLIENT_ERROR bad data chunk\r\n"
    assert hangs_up(got)


def test_data_larger_than_the_queue_takes_is_thrown_away_as_it_comes():
    parser = MemcacheParser(CommandCache(), config_of=lambda name: QueueConfig(max_item_size_bytes=1000))
    batch = parser.feed(b"set q 0 0 50000\r\n")
    for _ in range(50):
        batch += parser.feed(b"x" * 1000)
        assert parser.mid_command
    batch += parser.feed(b"\r\nversion\r\n")
    assert [command.kind for command in batch] == [wire.TOO_LARGE, wire.VERSION]
    assert not parser.mid_command


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1", b"POST /x HTTP/1.0", b"options * HTTP/1.1"])
def test_an_http_request_is_refused_at_its_first_line(line):
    got = parse([line + b"\r\nHost: localhost\r\n\r\nflush_all\r\n"])
    assert kinds(got) == [wire.REPLY]
    assert hangs_up(got)


# Lines


def test_lines_end_with_lf_and_a_cr_before_it_is_dropped():
    assert parse([b"get q\n"]) == parse([b"get q\r\n"])
    assert parse([b"set q 0 0 1\nx\r\n"]) == parse([b"set q 0 0 1\r\nx\r\n"])


def test_a_line_may_be_as_long_as_the_limit_and_no_longer():
    longest = b"get " + b"q" * (8192 - 4)
    assert kinds(parse([longest + b"\r\n"], line_bytes_max=8192)) == [wire.GET]
    for pieces in ([longest + b"q\r\n"], [longest + b"q", b"\r\n"], [longest + b"qq"]):
        got = parse(pieces, line_bytes_max=8192)
        assert [value[13] for value in got] == [b"CLIENT_ERROR line too long\r\n"]
        assert hangs_up(got)


def test_options_of_a_get_come_in_any_order_and_unknown_ones_are_ignored():
    expected = parse([b"get q/t=250/open\r\n"])
    (value,) = expected
    assert (value[0], value[2], value[6], value[7]) == (wire.READ, "q", 250, True)
    for line in (b"get q/open/t=250\r\n", b"get q/open//t=250/odd\r\n"):
        (other,) = parse([line])
        assert other[6:12] == value[6:12]


@pytest.mark.parametrize("compat", Compat)
@pytest.mark.parametrize("key", [b"q/peek/open", b"q/open/peek", b"q/abort/close", b"q/close/abort", b"q/abort/peek"])
def test_options_that_do_not_go_together_are_refused(compat, key):
    (reply,) = replies(b"get " + key + b"\r\n", compat)
    assert reply.startswith(b"CLIENT_ERROR")


def test_the_key_in_a_value_is_as_requested_or_as_kestrel_1_writes_it():
    (new,) = parse([b"get q/open\r\n"], Compat.NONE)
    (old,) = parse([b"get q/open\r\n"], Compat.KESTREL_1)
    assert (new[12], old[12]) == (b"VALUE q/open 0 ", b"VALUE q 0 ")


def test_an_unknown_word_is_an_error_in_memcache_and_hangs_up_in_kestrel_1():
    assert replies(b"nonsense\r\nversion\r\n") == [b"ERROR\r\n"]
    assert kinds(parse([b"nonsense\r\nversion\r\n"])) == [wire.REPLY, wire.VERSION]
    assert replies(b"nonsense\r\nversion\r\n", Compat.KESTREL_1) == [b"CLIENT_ERROR\r\n"]
    assert kinds(parse([b"nonsense\r\nversion\r\n"], Compat.KESTREL_1)) == [wire.REPLY]


def test_noreply_is_honoured_except_in_kestrel_1():
    for line in (
        b"set q 0 0 1 noreply\r\nx\r\n",
        b"delete q noreply\r\n",
        b"flush_all noreply\r\n",
        b"flush_all 0 noreply\r\n",
    ):
        assert [value[5] for value in parse([line])] == [True]
        assert [value[5] for value in parse([line], Compat.KESTREL_1)] == [False]


def test_flags_are_kept_as_32_bits_and_read_as_0_in_kestrel_1():
    for text, flags in ((b"4294967295", 2**32 - 1), (b"-1", 2**32 - 1), (b"7", 7)):
        line = b"set q %b 0 1\r\nx\r\n" % text
        assert [value[4] for value in parse([line])] == [flags]
        assert [value[4] for value in parse([line], Compat.KESTREL_1)] == [0]
    assert replies(b"set q 4294967296 0 1\r\nx\r\n") == [b"CLIENT_ERROR bad flags\r\n"]
