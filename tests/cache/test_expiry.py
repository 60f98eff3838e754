"""Expiries of seconds and delays of flush_all, on a memcached and on kestreld's cache at once."""

import time
from typing import Final

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.cache.test_same_as_memcached import Side
from tests.support.waiting import until

pytestmark = pytest.mark.long  # for time goes by

SHORT_S: Final = 3  # the longest expiry that is over in the end
LANES: Final = 100  # whatever is done to one key is a lane: all of them share one wait

expiries = st.sampled_from((b"0", b"2", b"3", b"100"))
steps = st.one_of(
    st.builds(
        lambda word, expiry: b"%b @ 0 %b 1\r\n5\r\n" % (word, expiry), st.sampled_from((b"set", b"add")), expiries
    ),
    st.builds(lambda expiry: b"touch @ %b\r\n" % expiry, expiries),
    st.builds(lambda expiry: b"gat %b @\r\n" % expiry, expiries),
    st.builds(lambda expiry: b"mg @ T%b v\r\n" % expiry, expiries),
    st.builds(lambda expiry: b"mg @ N%b v\r\n" % expiry, expiries),
    st.builds(lambda expiry: b"ma @ N%b J7 v\r\n" % expiry, expiries),
    st.builds(lambda expiry: b"ms @ 1 T%b\r\n8\r\n" % expiry, expiries),
    st.builds(lambda expiry: b"md @ I T%b\r\n" % expiry, expiries),
    st.sampled_from(
        (b"get @\r\n", b"delete @\r\n", b"incr @ 1\r\n", b"append @ 0 0 1\r\n1\r\n", b"md @ I\r\n", b"mg @ t v\r\n")
    ),
)
lanes = st.lists(st.tuples(st.lists(steps, max_size=5), st.lists(steps, max_size=3)), min_size=LANES, max_size=LANES)


def stream(parts: list[list[bytes]]) -> bytes:
    return b"".join([b"".join(part).replace(b"@", b"lane%d" % number) for number, part in enumerate(parts)])


def is_gone(sides: list[Side]) -> bool:
    return all(b"VALUE marker" not in side.answers(b"get marker\r\n", []) for side in sides)


@settings(max_examples=8)
@given(lanes=lanes)
def test_short_expiries_end_alike(
    memcached_port: int, cache_port: int, lanes: list[tuple[list[bytes], list[bytes]]]
) -> None:
    sides = [Side(memcached_port), Side(cache_port)]
    before, after = stream([first for first, _ in lanes]), stream([[*second, b"get @\r\n"] for _, second in lanes])
    forget = b"".join([b"delete lane%d noreply\r\n" % number for number in range(LANES)])
    started = time.monotonic()
    answers = [side.answers(forget + before + b"set marker 0 %d 1\r\nx\r\n" % SHORT_S, []) for side in sides]
    assume(time.monotonic() < started + 0.8)  # else something may have expired already
    assert answers[1] == answers[0]
    until(lambda: is_gone(sides), "the marker to expire")
    assert sides[1].answers(after, []) == sides[0].answers(after, [])


FLUSHES: Final = {
    "later": b"flush_all 3\r\n",
    "later and put off": b"flush_all 3\r\nflush_all 1000\r\n",
    "later and sooner": b"flush_all 1000\r\nflush_all 3\r\n",
    "later and at once": b"flush_all 1000\r\nflush_all\r\n",
}


@pytest.mark.parametrize("flush", FLUSHES)
def test_a_delayed_flush_all_takes_what_was_stored_before_its_time(
    memcached_port: int, cache_port: int, flush: str
) -> None:
    sides = [Side(memcached_port), Side(cache_port)]
    before = b"flush_all\r\nset a 0 0 1\r\na\r\n" + FLUSHES[flush] + b"get a\r\nset b 0 0 1\r\nb\r\nget b\r\n"
    answers = [side.answers(before + b"set marker 0 4 1\r\nx\r\n", []) for side in sides]
    assert answers[1] == answers[0]
    until(lambda: is_gone(sides), "the marker to expire")
    after = b"get a b\r\nadd a 0 0 1\r\n1\r\nset c 0 0 1\r\nc\r\nget a b c\r\nflush_all\r\n"
    assert sides[1].answers(after, []) == sides[0].answers(after, [])
