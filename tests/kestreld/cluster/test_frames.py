"""Frames of the bus: two nodes make sure of each other, and nothing that was changed on the way is heeded."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestreld.cluster.frames import FIRST_MESSAGE, Frame, Introduction, Link, LinkRefused
from kestreld.cluster.nodes import NodeAddress

BYTES_MAX = 1000


def introduction(number: int) -> Introduction:
    digit = b"%x" % number
    return Introduction(digit * 40, digit * 40, NodeAddress(f"10.0.0.{number}", 7711, 17711))


def ends(*, secrets: tuple[bytes, bytes] = (b"", b"")) -> tuple[Link, Link]:
    random = Random(1)
    caller = Link(introduction(1), random.randbytes(32), is_caller=True, secret=secrets[0], frame_bytes_max=BYTES_MAX)
    called = Link(introduction(2), random.randbytes(32), is_caller=False, secret=secrets[1], frame_bytes_max=BYTES_MAX)
    return caller, called


def shake_hands(caller: Link, called: Link) -> None:
    to_called, to_caller = caller.begin(), b""
    while to_called or to_caller:
        _, answer = called.feed(to_called)
        to_caller += answer
        _, to_called = caller.feed(to_caller)
        to_caller = b""


@pytest.mark.parametrize("secret", [b"", b"s3cret"])
def test_two_nodes_know_each_other_and_talk(secret: bytes) -> None:
    caller, called = ends(secrets=(secret, secret))
    shake_hands(caller, called)
    assert caller.is_ready
    assert called.is_ready
    assert caller.peer == introduction(2)
    assert called.peer == introduction(1)
    for number in range(3):
        assert called.feed(caller.frame(FIRST_MESSAGE, b"x" * number)) == ([Frame(FIRST_MESSAGE, b"x" * number)], b"")
        assert caller.feed(called.frame(FIRST_MESSAGE + 9, b"")) == ([Frame(FIRST_MESSAGE + 9, b"")], b"")


@pytest.mark.parametrize("secrets", [(b"a", b"b"), (b"", b"b"), (b"a", b"")])
def test_who_has_another_secret_is_refused(secrets: tuple[bytes, bytes]) -> None:
    caller, called = ends(secrets=secrets)
    with pytest.raises(LinkRefused):
        shake_hands(caller, called)
    assert not (caller.is_ready and called.is_ready)


def test_what_was_said_before_cannot_be_said_again() -> None:
    caller, called = ends(secrets=(b"s", b"s"))
    shake_hands(caller, called)
    said = caller.frame(FIRST_MESSAGE, b"once")
    called.feed(said)
    with pytest.raises(LinkRefused):
        called.feed(said)


def test_what_one_says_cannot_be_sent_back_to_it() -> None:
    caller, called = ends(secrets=(b"s", b"s"))
    shake_hands(caller, called)
    with pytest.raises(LinkRefused):
        caller.feed(caller.frame(FIRST_MESSAGE, b"mirror"))


@pytest.mark.parametrize("secret", [b"", b"s3cret"])
def test_a_changed_byte_is_never_heeded(secret: bytes) -> None:
    for place in range(24 + len(b"body")):
        caller, called = ends(secrets=(secret, secret))
        shake_hands(caller, called)
        said = bytearray(caller.frame(FIRST_MESSAGE, b"body"))
        said[place] ^= 1
        try:
            frames, _ = called.feed(bytes(said))
        except LinkRefused:
            continue
        assert frames == [], place


def test_frames_that_come_byte_by_byte_are_whole_in_the_end() -> None:
    caller, called = ends()
    shake_hands(caller, called)
    said = caller.frame(FIRST_MESSAGE, b"slowly")
    for place in range(len(said) - 1):
        assert called.feed(said[place : place + 1]) == ([], b"")
    assert called.feed(said[-1:]) == ([Frame(FIRST_MESSAGE, b"slowly")], b"")
    assert called.held_bytes == 0


def test_a_frame_that_is_too_large_is_refused_before_it_has_come() -> None:
    caller, called = ends()
    shake_hands(caller, called)
    with pytest.raises(LinkRefused, match="a frame of 1001 bytes"):
        called.feed(caller.frame(FIRST_MESSAGE, bytes(BYTES_MAX + 1))[:24])


def test_nothing_is_heeded_before_the_other_side_is_known() -> None:
    caller, called = ends()
    with pytest.raises(LinkRefused, match="out of its order"):
        called.feed(caller.frame(FIRST_MESSAGE, b"no hello"))


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_waited_behind_never_heeded(garbage: bytes) -> None:
    _, called = ends(secrets=(b"s", b"s"))
    try:
        frames, answer = called.feed(garbage)
    except LinkRefused:
        return
    assert (frames, answer) == ([], b"")
