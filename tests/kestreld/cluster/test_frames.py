"""Frames of the bus: two nodes make sure of each other, and nothing forged or changed on the way is accepted."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestreld.cluster.frames import (
    FIRST_MESSAGE,
    FRAME_BYTES_MAX,
    HEAD_BYTES,
    HELLO_BYTES_MAX,
    PART,
    VERSION,
    Frame,
    Hello,
    LinkProtocol,
    LinkRefused,
    RefusedByPeer,
    record,
)
from kestreld.cluster.nodes import NodeAddress

BYTES_MAX = 2000
SECRET = b"sixteen bytes or more"
SENT_AT_MS = (1000, 9000)  # by the clocks of caller and called


def hello(number: int, host: str = "10.0.0.1") -> Hello:
    digit = b"%x" % number
    return Hello(digit * 40, digit * 40, NodeAddress(host, 7711, 17711))


def ends(*, secrets: tuple[bytes, bytes] = (b"", b"")) -> tuple[LinkProtocol, LinkProtocol]:
    random = Random(1)
    caller, called = (
        LinkProtocol(
            hello(number + 1),
            random.randbytes(32),
            lambda number=number: SENT_AT_MS[number],  # type: ignore[misc]
            is_caller=not number,
            secret=secrets[number],
            message_bytes_max=BYTES_MAX,
        )
        for number in range(2)
    )
    return caller, called


def shake_hands(caller: LinkProtocol, called: LinkProtocol) -> None:
    while caller.output or called.output:
        called.feed(caller.take_output())
        caller.feed(called.take_output())


def linked(secret: bytes = b"") -> tuple[LinkProtocol, LinkProtocol]:
    caller, called = ends(secrets=(secret, secret))
    shake_hands(caller, called)
    return caller, called


@pytest.mark.parametrize("secret", [b"", SECRET])
def test_two_nodes_know_each_other_and_talk(secret: bytes) -> None:
    caller, called = linked(secret)
    assert caller.is_ready
    assert called.is_ready
    assert caller.peer == hello(2)
    assert called.peer == hello(1)
    for number in range(3):
        messages = [(FIRST_MESSAGE + at, b"x" * at) for at in range(number)]
        frame = caller.pack([record(*message) for message in messages])
        assert called.feed(frame) == [Frame(SENT_AT_MS[0], tuple(messages))]
        answer = called.pack([record(200, b"")])
        assert caller.feed(answer) == [Frame(SENT_AT_MS[1], ((200, b""),))]


def said_of(end: LinkProtocol, data: bytes) -> str:
    with pytest.raises(LinkRefused) as refused:
        end.feed(data)
    return str(refused.value)


def test_a_node_with_another_secret_is_refused_by_both_sides() -> None:
    caller, called = ends(secrets=(SECRET, SECRET + b"!"))
    called.feed(caller.take_output())
    assert "cluster secrets differ" in said_of(caller, called.take_output())
    assert "cluster secrets differ" in said_of(called, caller.take_output())
    assert not caller.is_ready
    assert not called.is_ready


@pytest.mark.parametrize("secrets", [(b"", SECRET), (SECRET, b"")])
def test_a_node_without_a_secret_is_refused_by_both_sides(secrets: tuple[bytes, bytes]) -> None:
    caller, called = ends(secrets=secrets)
    said = said_of(called, caller.take_output()), said_of(caller, called.take_output())
    assert said[0] != said[1]
    assert all("set the secret file on both nodes" in one for one in said)
    assert not caller.is_ready
    assert not called.is_ready


def test_a_frame_is_accepted_once() -> None:
    caller, called = linked(SECRET)
    frame = caller.pack([record(FIRST_MESSAGE, b"once")])
    called.feed(frame)
    assert said_of(called, frame) == "frame checksum does not match"


def test_frames_are_accepted_in_their_order_only() -> None:
    caller, called = linked(SECRET)
    caller.pack([record(FIRST_MESSAGE, b"withheld")])
    assert said_of(called, caller.pack([])) == "frame checksum does not match"


def test_a_frame_cannot_be_sent_back_to_its_sender() -> None:
    caller, _ = linked(SECRET)
    assert said_of(caller, caller.pack([record(FIRST_MESSAGE, b"mirror")])) == "frame checksum does not match"


def test_a_link_that_was_recorded_cannot_be_replayed() -> None:
    caller, called = ends(secrets=(SECRET, SECRET))
    recorded = [caller.take_output()]
    called.feed(recorded[0])
    caller.feed(called.take_output())
    recorded.append(caller.take_output())
    called.feed(recorded[1])
    assert called.is_ready
    again = LinkProtocol(hello(2), b"n" * 32, lambda: 0, is_caller=False, secret=SECRET, message_bytes_max=BYTES_MAX)
    again.feed(recorded[0])
    assert "cluster secrets differ" in said_of(again, recorded[1])


@pytest.mark.parametrize("secret", [b"", SECRET])
def test_a_changed_bit_is_never_accepted(secret: bytes) -> None:
    body = record(FIRST_MESSAGE, b"body")
    for place in range(8 * (HEAD_BYTES + len(body))):
        caller, called = linked(secret)
        frame = bytearray(caller.pack([body]))
        frame[place // 8] ^= 1 << place % 8
        try:
            frames = called.feed(bytes(frame))
        except LinkRefused:
            continue
        assert frames == [], place


def test_frames_that_come_byte_by_byte_are_whole_in_the_end() -> None:
    caller, called = linked()
    frame = caller.pack([record(FIRST_MESSAGE, b"slowly")])
    for place in range(len(frame) - 1):
        assert called.feed(frame[place : place + 1]) == []
        missing_bytes = len(frame) - place - 1 if place + 1 >= HEAD_BYTES else 0
        assert (called.held_bytes, called.missing_bytes) == (place + 1, missing_bytes)
    assert called.feed(frame[-1:]) == [Frame(SENT_AT_MS[0], ((FIRST_MESSAGE, b"slowly"),))]
    assert (called.held_bytes, called.missing_bytes) == (0, 0)


def test_a_frame_that_is_too_large_is_refused_before_it_has_come() -> None:
    caller, called = linked()
    assert said_of(called, caller.pack([bytes(FRAME_BYTES_MAX + 1)])[:HEAD_BYTES]) == (
        "a frame of 1048577 bytes, the maximum is 1048576"
    )


def test_a_message_may_come_in_parts_over_several_frames() -> None:
    caller, called = linked(SECRET)
    frames = [
        [record(5, b"before"), record(PART, b"one ")],
        [record(PART, b"message ")],
        [record(7, b"ends"), record(8, b"")],
    ]
    received = [called.feed(caller.pack(records))[0].messages for records in frames]
    assert received == [((5, b"before"),), (), ((7, b"one message ends"), (8, b""))]
    assert called.held_bytes == 0


def test_parts_of_a_message_that_is_too_large_are_not_kept() -> None:
    caller, called = linked()
    called.feed(caller.pack([record(PART, bytes(BYTES_MAX))]))
    assert called.held_bytes == BYTES_MAX
    assert said_of(called, caller.pack([record(PART, b"x")])) == "a message of more than 2000 bytes"


def test_before_the_handshake_frames_have_to_be_small() -> None:
    caller, _ = linked()
    _, called = ends()
    large = caller.pack([bytes(HELLO_BYTES_MAX + 1)])
    assert said_of(called, large[:HEAD_BYTES]) == "a frame of 1025 bytes, the maximum is 1024"


def test_nothing_is_accepted_before_the_handshake() -> None:
    caller, called = ends()
    caller.output.clear()
    caller._sent = 0
    assert said_of(called, caller.pack([record(FIRST_MESSAGE, b"no hello")])) == "a frame of kind 4 out of order"


def test_a_second_hello_is_refused() -> None:
    caller, called = linked()
    caller._say(1, caller._hello)
    assert said_of(called, caller.take_output()) == "a frame of kind 1 out of order"


@pytest.mark.parametrize("secret", [b"", SECRET])
def test_a_refusal_tells_the_other_end_why(secret: bytes) -> None:
    caller, called = linked(secret)
    called.refuse("the reason " + "é" * 1000)
    with pytest.raises(RefusedByPeer, match=r"the reason é+"):
        caller.feed(called.take_output())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"DbuZ\0\0\1", "an original Disque node"),
        (b"RCmb\0\0\1", "a node of a Redis cluster"),
        (b"\x16\x03\x01\x02\0", "TLS of the cluster is off on this node"),
        (b"GET / HTTP/1.1\r\n", "not the protocol of the cluster bus"),
        (b"*1\r\n$4\r\nPING\r\n", "not the protocol of the cluster bus"),
        (b"KB\x07", f"bus protocol version 7 is not supported; this node uses version {VERSION}"),
    ],
)
def test_other_protocols_are_named(data: bytes, reason: str) -> None:
    _, called = ends()
    assert reason in said_of(called, data)


@pytest.mark.parametrize("body", [b"\1", b"\1\5\0\0\0four", b"\1\0\0\0\0\2\1\0\0\0"])
def test_a_frame_whose_messages_do_not_add_up_is_refused(body: bytes) -> None:
    caller, called = linked()
    with pytest.raises(LinkRefused, match=r"message"):
        called.feed(caller.pack([body]))


@pytest.mark.parametrize("host", ["a b", "a\nb", "host\0", "x" * 254, "\xe9"])
def test_a_host_that_is_none_is_refused(host: str) -> None:
    caller = LinkProtocol(hello(1, host), bytes(32), lambda: 0, is_caller=True, secret=b"", message_bytes_max=BYTES_MAX)
    _, called = ends()
    assert said_of(called, caller.take_output()) == "HELLO with an invalid id or address"


@given(st.binary(max_size=200), st.booleans())
def test_garbage_is_refused_or_waited_behind_never_accepted(garbage: bytes, is_in_place: bool) -> None:
    _, called = ends(secrets=(SECRET, SECRET))
    try:
        frames = called.feed(b"KB\1" + garbage if is_in_place else garbage)
    except (LinkRefused, RefusedByPeer):
        return
    assert frames == []
    assert not called.is_ready
