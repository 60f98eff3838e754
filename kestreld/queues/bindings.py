"""Bindings of exchanges to queues, which clients make and read; the server itself routes nothing by them.

<queue_path>/.bindings, a ledger: key = "<exchange> <queue> <routing key> <pattern>" as in the protocol, no value.
"""

import re
from collections.abc import Callable, Generator, Iterator
from typing import Final

from kestreld.errors import JournalFailed
from kestreld.files import FileLayer
from kestreld.journal.ledger import Changes, Done, Ledger
from kestreld.queues.slices import WAITS

FILE_NAME: Final = ".bindings"  # in the spool
WORD_BYTES_MAX: Final = 255  # of an exchange, a routing key or a pattern, before it is encoded; as in AMQP
EMPTY: Final = b"%"
_REMOVED_AT_ONCE: Final = 200
_CODE: Final = re.compile(rb"%([0-9A-Fa-f]{2})?")
_TO_ENCODE: Final = re.compile(rb"[^!-$&-~]")  # %, blanks, control characters, and all beyond ASCII


def encoded_word(word: bytes) -> bytes:
    """Encode bytes as a word of a command or reply: as %XX where need be, `%` alone if there are none."""
    return _TO_ENCODE.sub(lambda found: b"%%%02X" % found[0][0], word) or EMPTY


def decoded(word: bytes) -> bytes | None:
    """The bytes that a text with %XX stands for; None if a `%` in it is not followed by two hexadecimal digits."""
    if b"%" not in word:
        return word
    if any(found[1] is None for found in _CODE.finditer(word)):
        return None
    return _CODE.sub(lambda found: bytes([int(found[1], 16)]), word)


def binding_key(exchange: bytes, queue: bytes, routing_key: bytes, pattern: bytes) -> bytes:
    """Key of a binding, of encoded words and the queue's name."""
    return b" ".join((exchange, queue, routing_key, pattern))


def _is_binding(key: bytes, value: bytes) -> bool:
    return key.count(b" ") == 3 and not value


class Bindings:
    """All bindings of a server, by exchange and by queue. What it shows is on disk."""

    def __init__(self, files: FileLayer, spool: str, bindings_max: int, report: Callable[[str], None]) -> None:
        self.ledger = Ledger(files, f"{spool}/{FILE_NAME}", bindings_max, report, _is_binding)
        self._by_exchange: dict[bytes, dict[bytes, None]] = {}
        self._by_queue: dict[bytes, dict[bytes, None]] = {}

    def __len__(self) -> int:
        return len(self.ledger)

    def read(self) -> None:
        """Read the file, at the start."""
        self.ledger.read()
        for key, _ in self.ledger.items():
            self._add(key)

    def of(self, exchange: bytes | None) -> Iterator[list[bytes]]:
        """Yield the bindings of an exchange as its key has them, or those of each exchange, as of that step."""
        for name in list(self._by_exchange) if exchange is None else [exchange]:
            if name in self._by_exchange:
                yield list(self._by_exchange[name])

    def has(self, queue: bytes) -> bool:
        """True if the queue has bindings."""
        return queue in self._by_queue

    def bind(self, key: bytes, done: Done) -> None:
        """Add a binding, unless it is there. Raises as `Ledger.change`, as does the next."""
        self._change({key: b""}, done)

    def unbind(self, key: bytes, done: Done) -> None:
        """Remove a binding, if it is there."""
        self._change({key: None}, done)

    def unbind_all(
        self, queue: bytes, exchange: bytes | None = None
    ) -> Generator[int | None, None, JournalFailed | None]:
        """Remove the bindings of a queue, or those to one exchange, in steps, each on disk before the next.

        Returns the failure that has stopped it.
        """
        keys, start = list(self._by_queue.get(queue, ())), b"" if exchange is None else exchange + b" "
        for first in range(0, len(keys), _REMOVED_AT_ONCE):
            ends: list[JournalFailed | None] = []
            chosen = [key for key in keys[first : first + _REMOVED_AT_ONCE] if key.startswith(start)]
            self._change(dict.fromkeys(chosen), ends.append)
            yield None
            while not ends:
                yield WAITS
            if ends[0] is not None:
                return ends[0]
        return None

    def _change(self, changes: Changes, done: Done) -> None:
        def made(failure: JournalFailed | None) -> None:
            if failure is None:
                for key, value in changes.items():
                    if value is None:
                        self._remove(key)
                    else:
                        self._add(key)
            done(failure)

        self.ledger.change(changes, made)

    def _add(self, key: bytes) -> None:
        exchange, queue, _, _ = key.split(b" ")
        self._by_exchange.setdefault(exchange, {})[key] = None
        self._by_queue.setdefault(queue, {})[key] = None

    def _remove(self, key: bytes) -> None:
        exchange, queue, _, _ = key.split(b" ")
        for table, name in ((self._by_exchange, exchange), (self._by_queue, queue)):
            keys = table.get(name, {})
            keys.pop(key, None)
            if not keys:
                table.pop(name, None)
