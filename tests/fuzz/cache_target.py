"""The cache under bytes of any kind: its parser, its commands and its dictionary, without a socket."""

from functools import cache
from pathlib import Path
from typing import Final

from kestreld.cache.dictionary import ITEM_OVERHEAD_BYTES, Dictionary
from kestreld.server.cache.handler import CacheHandler
from kestreld.server.cache.parser import CacheParser
from kestreld.server.command_handler import OUTPUT_BYTES_MAX
from kestreld.server.state import ServerState
from kestreld.stats import ServerStats
from tests.support.clock import START_MONOTONIC_MS, START_WALL_MS, FakeClock
from tests.support.engine import Engine
from tests.support.memory_files import MemoryFiles

PAUSE: Final = b"\xffPAUSE"  # in a stream: some time goes by
PAUSE_MS: Final = 50_000
MEMORY_BYTES: Final = 8192
ITEM_BYTES_MAX: Final = 1024
LINE_BYTES_MAX: Final = 1 << 16  # more than an input has: what is too long depends on the pieces


class Session:
    """A client of a cache of its own."""

    def __init__(self, state: ServerState, clock: FakeClock) -> None:
        clock.wall_ms, clock.monotonic_ms = START_WALL_MS, START_MONOTONIC_MS
        self.clock = clock
        self.dictionary = Dictionary(clock, MEMORY_BYTES, ITEM_BYTES_MAX)
        self.parser = CacheParser(self.dictionary, LINE_BYTES_MAX, has_all_rights=True)
        self.handler = CacheHandler(state, self.dictionary, None, lambda: None)
        self.answers = b""

    def say(self, piece: bytes) -> None:
        commands = iter(self.parser.feed(piece))
        handler = self.handler
        while not handler.closing:
            handler.room_bytes = OUTPUT_BYTES_MAX
            is_stalled = handler.execute(commands)
            self.answers += b"".join(handler.out)
            handler.out.clear()
            if not is_stalled:
                break

    def pause(self) -> None:
        self.clock.advance(PAUSE_MS)
        self.dictionary.read_clock()
        for _ in self.dictionary.tidy():
            pass

    @property
    def is_binary(self) -> bool:
        """Then what it answers of a request is what had come of it."""
        return self.answers.startswith(b"\x81")

    def check(self) -> None:
        """What it holds is what it has counted, and no more than it may."""
        dictionary = self.dictionary
        parts = {id(part): part for part in dictionary.table}  # each is in many places
        entries = [entry for part in parts.values() for entry in part.items()]
        assert dictionary.items == len(entries)
        used_bytes = sum(len(name) + len(entry) + ITEM_OVERHEAD_BYTES for name, entry in entries)
        assert dictionary.used_bytes == used_bytes
        assert used_bytes <= MEMORY_BYTES or dictionary.items == 1
        assert not self.answers or self.is_binary or self.answers.endswith(b"\r\n")


@cache
def _server() -> tuple[ServerState, FakeClock]:
    engine = Engine(Path("/spool"), MemoryFiles())
    return ServerState(engine.collection, ServerStats(), None), engine.clock


def cache_commands(data: bytes) -> None:
    """A stream has the same answers in whatever pieces it comes, and leaves a cache in good order.

    The first byte says in pieces of how many bytes it comes.
    """
    if not data:
        return
    size_bytes, stream = data[0] % 16 + 1, data[1:]
    whole, cut = _session(stream, len(data)), _session(stream, size_bytes)
    assert cut.answers == whole.answers or (cut.is_binary and whole.is_binary), "in pieces"


def _session(stream: bytes, size_bytes: int) -> Session:
    session = Session(*_server())
    for number, part in enumerate(stream.split(PAUSE)):
        if number:
            session.pause()
        for at in range(0, len(part), size_bytes):
            session.say(part[at : at + size_bytes])
    session.check()
    return session
