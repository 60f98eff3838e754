"""The parser by itself: what it makes of bytes does not depend on how they come in pieces."""

from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kestreld.cache.dictionary import Dictionary
from kestreld.clock import Clock
from kestreld.server.cache.commands import Refusal, Storage
from kestreld.server.cache.parser import CacheParser

SESSION = (
    b"get a\r\nget a b\r\nset a 0 0 3\r\nabc\r\nset b 1 0 4\r\na\r\nb\r\nadd c 0 100 0 noreply\r\n\r\n"
    b"cas d 0 0 1 7\r\n1\r\nms e 2 c k O1\r\nab\r\nmg e v\r\nset f 0 0 2000\r\n%b\r\nset g 0 0 3\r\nabcdef\r\n"
    b"incr n 1\r\n\r\nget\r\nset h 0 0 x\r\nms i 3 MZ\r\nabc\r\nget a\nversion\r\n" % bytes(2000)
)


def parser() -> CacheParser:
    return CacheParser(Dictionary(Clock(), 1 << 20, 1024), 8192, has_all_rights=True)


def read(pieces: list[bytes]) -> list[Any]:
    """What it makes of them, in a form that compares."""
    reader = parser()
    commands = iter([command for piece in pieces for command in reader.feed(piece)])
    return [plain(command, commands) for command in commands]


def plain(command: Any, rest: Iterator[Any]) -> Any:
    if isinstance(command, bytes):
        return command.split(b" ")
    if isinstance(command, list) and command[0] == b"set":
        return ("set", command[1], int(command[2]), int(command[3]), next(rest), False)
    if isinstance(command, Storage):
        return (command.word.decode(), command.key, command.flags, command.expiry_s, command.data, command.quiet)
    return (command.reply, command.closes) if isinstance(command, Refusal) else command


def test_a_session_cut_at_every_byte_is_the_same_commands() -> None:
    whole = read([SESSION])
    assert len(whole) > 15
    inside = range(SESSION.index(bytes(2000)) + 10, SESSION.index(bytes(2000)) + 1990)  # of one value: seldom
    for at in range(len(SESSION)):
        if at not in inside or at % 50 == 0:
            assert read([SESSION[:at], SESSION[at:]]) == whole


def test_a_session_byte_by_byte_is_the_same_commands() -> None:
    assert read([SESSION[at : at + 1] for at in range(len(SESSION))]) == read([SESSION])


LINES = st.sampled_from(
    [
        b"get a\r\n",
        b"set a 0 0 2\r\n",
        b"ab\r\n",
        b"mg a v\r\n",
        b"ms a 2\r\n",
        b"x\r\n",
        b"\n",
        b"abc\r\n",
        b" ",
        b"\0",
        b"\r",
    ]
)


@settings(deadline=None)
@given(st.lists(LINES, max_size=20), st.data())
def test_any_lines_in_any_pieces_are_the_same_commands(lines: list[bytes], data: st.DataObject) -> None:
    session = b"version\r\n" + b"".join(lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(session)), max_size=5)))
    pieces = [session[at:end] for at, end in zip([0, *cuts], [*cuts, len(session)], strict=True)]
    assert read(pieces) == read([session])


def test_a_line_without_an_end_is_held_up_to_a_limit_only() -> None:
    reader = parser()
    batches = [reader.feed(b"x" * 4096) for _ in range(3)]
    assert [bool(batch) for batch in batches] == [False, False, True]
    assert batches[2][0].closes
    assert not reader.mid_command


def test_data_that_is_too_large_is_not_held() -> None:
    reader = parser()
    reader.feed(b"set a 0 0 100000\r\n")
    for _ in range(10):
        reader.feed(bytes(9000))
    assert reader.held_bytes == 0
    assert reader.mid_command
