"""The same random commands to a memcached and to kestreld's cache: the same answers, byte for byte.

Not compared are the figures of `stats`, versions, and cas numbers but for which of them are equal. Times that are left
may differ by the second that ends between the two.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cache.requests import KEYS, LONG_KEYS, endings, meta, text
from tests.support.wire import connected

CAS: Final = re.compile(rb"<cas(\d)>")
TOLD_CAS: Final = re.compile(rb"(?m)^((?:VALUE \S+ \d+ \d+ |(?:HD|VA|EN|NS|EX|NF)\b.* c))(\d+)\b")
LEFT_S: Final = re.compile(rb"(?m)^((?:HD|VA|EN|NS|EX|NF)\b.*) t(\d+)\b")
IDLE_S: Final = re.compile(rb"(?m)^((?:HD|VA|EN|NS|EX|NF)\b.*) l[01]\b")
DEBUG: Final = re.compile(rb"(?m)^(ME \S+) exp=\S+ la=\S+ cas=\S+")
# Behind everything: lines for a command that waits for more data, and what shows that all is answered.
END: Final = b"HD O" + b"=" * 20 + b"\r\n"
LAST: Final = b"\r\n" * 8 + b"ma last N0 O" + b"=" * 20 + b"\r\n"
FORGET: Final = b"".join([b"delete %b noreply\r\n" % key for key in KEYS]) + b"flush_all noreply\r\n"

Round = tuple[list[bytes], list[int]]  # commands, and in how long pieces they come


class Side:
    """One of the servers, and the cas numbers it has told."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.told: list[bytes] = []

    def answers(self, stream: bytes, pieces: Sequence[int]) -> bytes:
        """All that comes back on a connection of its own."""
        stream = CAS.sub(self._cas, stream) + LAST
        heard = bytearray()
        with connected(self.port) as client, suppress(ConnectionError):  # it may have hung up on what it did not read
            with suppress(ConnectionError):
                at = 0
                for size_bytes in pieces:
                    client.send(stream[at : at + size_bytes])
                    at += size_bytes
                client.send(stream[at:])
            while not heard.endswith(END) and (more := client.socket.recv(1 << 16)):
                heard += more
        return self._comparable(bytes(heard))

    def _cas(self, found: re.Match[bytes]) -> bytes:
        return self.told[int(found[1]) % len(self.told)] if self.told else b"987654321"

    def _comparable(self, heard: bytes) -> bytes:
        heard = re.sub(rb"(?m)^STAT .*\n", b"", heard)
        heard = re.sub(rb"(?m)^VERSION .*\r$", b"VERSION\r", heard)
        heard = DEBUG.sub(rb"\1", heard)
        heard = LEFT_S.sub(_rounded, heard)
        heard = IDLE_S.sub(rb"\1 l0", heard)
        return TOLD_CAS.sub(self._ordinal, heard)

    def _ordinal(self, found: re.Match[bytes]) -> bytes:
        if found[2] == b"0":  # none
            return found[0]
        if found[2] not in self.told:
            self.told.append(found[2])
        return b"%b<cas%d>" % (found[1], self.told.index(found[2]))


def _rounded(found: re.Match[bytes]) -> bytes:
    """To hundreds of seconds. memcached counts what is over with 32 bits."""
    left_s = int(found[2])
    return b"%b t~%d" % (found[1], (left_s + 50) // 100 if left_s < 1 << 31 else 0)


def rounds(commands: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[Round]]:
    lines = st.builds(lambda some, last: [*some, last], st.lists(commands, min_size=3, max_size=25), endings)
    pieces = st.lists(st.integers(1, 60), max_size=12)
    return st.lists(st.tuples(lines, pieces), min_size=1, max_size=3)


def compare(memcached_port: int, cache_port: int, sent: list[Round]) -> None:
    memcached, cache = Side(memcached_port), Side(cache_port)
    for side in (memcached, cache):
        side.answers(FORGET, [])
    for commands, pieces in sent:
        stream = b"".join(commands)
        assert cache.answers(stream, pieces) == memcached.answers(stream, pieces)


EXAMPLES: Final = settings.default.max_examples


@settings(max_examples=EXAMPLES * 2)
@given(sent=rounds(text))
def test_text_commands_have_memcacheds_answers(memcached_port: int, cache_port: int, sent: list[Round]) -> None:
    compare(memcached_port, cache_port, sent)


@settings(max_examples=EXAMPLES * 2)
@given(sent=rounds(meta | meta | text))
def test_meta_commands_have_memcacheds_answers(memcached_port: int, cache_port: int, sent: list[Round]) -> None:
    compare(memcached_port, cache_port, sent)


LONG_OPAQUE: Final = b"O" + b"o" * 32
META_EDGES: Final = (
    (b"mg e t N300 v", b"mg e t"),  # what stands before N sees an item that never expires
    (b"mg e N300 t v", b"mg e t"),
    (b"mg e t T900 N300", b"mg e t"),
    (b"mg e N300 T900 t", b"mg e t"),
    (b"mg e t N-1 v", b"mg e v"),
    (b"ma e t N300", b"mg e t"),
    (b"ma e T900 t N300", b"mg e t"),
    (b"ma e t N300 v", b"ma e t N900 v"),
    (b"ma e T300 N0", b"mg e t"),
    (b"set e 0 500 1\r\nx", b"mg e R2592001 v", b"mg e R1000000000 v", b"mg e R0 v", b"mg e R-5 v", b"mg e R300 v"),
    (b"set e 0 500 1\r\nx", b"mg e R2000000000 v", b"mg e v"),
    (b"set e 0 500 1\r\nx", b"mg e R300 T100 t", b"mg e R300 t", b"mg e T900 t"),
    (b"set e 0 500 1\r\nx", b"mg e T100 R300 t", b"mg e t"),
    (b"set e 0 0 1\r\nx", b"mg e R2000000000 v"),
    (b"mg e %b v" % LONG_OPAQUE, b"mg e %b q" % LONG_OPAQUE, b"mg e v"),
    (b"mg e %b N300" % LONG_OPAQUE, b"mg e t"),
    (b"mg e N300 %b" % LONG_OPAQUE, b"mg e t"),
    (b"set e 0 500 1\r\nx", b"mg e %b T100" % LONG_OPAQUE, b"mg e t", b"mg e T100 %b" % LONG_OPAQUE, b"mg e t v"),
    (b"ma e %b" % LONG_OPAQUE, b"ma e N300 J5 %b" % LONG_OPAQUE, b"mg e t v", b"ma e q %b" % LONG_OPAQUE, b"mg e v"),
    (b"set e 0 500 1\r\nx", b"md e q %b" % LONG_OPAQUE, b"mg e v", b"ms e 1 q %b\r\ny" % LONG_OPAQUE, b"mg e v"),
)


@pytest.mark.parametrize("lines", META_EDGES, ids=lambda lines: lines[-2].split(b"\r")[0].decode())
def test_the_edges_of_meta_commands_have_memcacheds_answers(
    memcached_port: int, cache_port: int, lines: tuple[bytes, ...]
) -> None:
    stream = b"\r\n".join((b"delete e", *lines, b""))
    assert Side(cache_port).answers(stream, []) == Side(memcached_port).answers(stream, [])


@pytest.mark.parametrize("line", [b"get %b", b"gets a %b", b"get %b a", b"gat 100 a %b", b"gats x %b"])
def test_a_key_that_is_too_long_has_memcacheds_answer(memcached_port: int, cache_port: int, line: bytes) -> None:
    """By itself: memcached drops the answers before this one in the same packet."""
    for key in LONG_KEYS:
        answers = [Side(port).answers(line % key + b"\r\n", []) for port in (memcached_port, cache_port)]
        assert answers[0] == answers[1]
