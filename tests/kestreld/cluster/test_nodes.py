"""What is known of a node: its address, its clock, what clients and operators are told."""

from random import Random

import pytest

from kestreld.cluster.nodes import ClockOffset, Flag, Node, NodeAddress, NodeTable, checked_address

MYSELF, OTHER = b"a" * 40, b"b" * 40
NOTHING = Flag(0)


def node(flags: Flag = NOTHING, *, linked: bool = True) -> Node:
    made = Node(OTHER, NodeAddress("10.0.0.1", 7711, 17711), flags, 0)
    made.linked_at_ms = 0 if linked else None
    return made


@pytest.mark.parametrize(
    ("flags", "is_linked", "priority", "words"),
    [
        (Flag(0), True, 1, b"noflags"),
        (Flag(0), False, 5, b"noflags"),
        (Flag.SUSPECT, True, 10, b"fail?"),
        (Flag.FAILED, True, 100, b"fail"),
        (Flag.LEAVING, True, 100, b"leaving"),
        (Flag.MYSELF, False, 1, b"myself"),
        (Flag.MYSELF | Flag.LEAVING, False, 100, b"myself,leaving"),
        (Flag.HANDSHAKE | Flag.MEET | Flag.NO_ADDRESS | Flag.LOADING, False, 5, b"handshake,noaddr"),
    ],
)
def test_flags_and_priority_are_shown_as_disque_shows_them(
    flags: Flag, is_linked: bool, priority: int, words: bytes
) -> None:
    shown = node(flags, linked=is_linked)
    assert (shown.priority, shown.flag_words()) == (priority, words)


@pytest.mark.parametrize(
    ("host", "text", "bus"),
    [("10.0.0.1", "10.0.0.1:7711", "10.0.0.1:1"), ("fe80::1", "[fe80::1]:7711", "[fe80::1]:1"), ("", ":7711", ":1")],
)
def test_an_address_is_written_as_it_is_given(host: str, text: str, bus: str) -> None:
    address = NodeAddress(host, 7711, 1)
    assert (str(address), address.bus) == (text, bus)


@pytest.mark.parametrize(
    ("host", "port", "bus_port"),
    [(b"a b", 1, 1), (b"a\nb", 1, 1), (b"\xff", 1, 1), (b"h", 0, 1), (b"h", 1, 65_536), (b"h" * 254, 1, 1)],
)
def test_an_address_that_is_none_is_not_taken_for_one(host: bytes, port: int, bus_port: int) -> None:
    assert checked_address(host, port, bus_port) is None


def test_a_node_whose_address_is_gone_is_not_found_at_it() -> None:
    table = NodeTable(Node(MYSELF, NodeAddress("10.0.0.1", 7711, 17711), Flag.MYSELF, 0))
    known = node()
    table.add(known)
    assert table.at(NodeAddress("10.0.0.1", 7711, 5)) is known
    known.flags |= Flag.NO_ADDRESS
    assert table.at(NodeAddress("10.0.0.1", 7711, 5)) is None


@pytest.mark.parametrize("ahead_ms", [0, 5_000_000, -5_000_000])
def test_the_offset_of_a_clock_is_that_of_the_frame_with_the_shortest_way(ahead_ms: int) -> None:
    random, clock = Random(1), ClockOffset()
    assert clock.offset_ms == 0
    for now_ms in range(0, 20_000, 100):
        clock.note(now_ms - random.randint(1, 50) + ahead_ms, now_ms)
    assert clock.offset_ms == 1 - ahead_ms


@pytest.mark.parametrize("drift", [1.0005, 0.9995])
def test_the_offset_follows_a_clock_that_drifts(drift: float) -> None:
    clock = ClockOffset()
    for now_ms in range(1, 3_600_000, 1000):
        clock.note(int(now_ms * drift), now_ms)
    assert abs(clock.offset_ms - (3_600_000 - int(3_600_000 * drift))) <= 70


def test_another_process_of_a_node_has_another_clock() -> None:
    known = node()
    known.note_run(b"one")
    known.note_frame(1000, 5000)
    known.note_run(b"one")
    assert known.clock_offset_ms == 4000
    known.note_run(b"two")
    assert known.clock_offset_ms == 0
    known.note_frame(5000, 5001)
    assert known.clock_offset_ms == 1
