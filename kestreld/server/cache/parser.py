"""Parser of memcached's text and meta protocols: bytes to commands, without sockets or stored values.

`commands` describes what a batch contains.
"""

from typing import Any, Final

from kestreld.cache.dictionary import RELATIVE_S_MAX, Dictionary
from kestreld.server.cache.commands import (
    BAD_CHUNK,
    BAD_FORMAT,
    ERROR,
    KEY_BYTES_MAX,
    Refusal,
    Storage,
)
from kestreld.server.cache.flags import OPAQUE_BYTES_MAX, OPAQUE_TOO_LONG, Flags
from kestreld.server.cache.flags import WORDS_MAX as META_WORDS_MAX
from kestreld.server.cache.numbers import signed_32, unsigned_32, unsigned_64
from kestreld.server.cache.slab_classes import item_bytes
from kestreld.server.command_handler import DATA_READ_BYTES, READ_BYTES, Parser
from kestreld.server.memcache.parser import BINARY_MAGIC, SMALL_ITEM_BYTES, binary_refusal

BAD_MODE: Final = b"CLIENT_ERROR invalid mode for ms M token\r\n"
TOO_LONG: Final = b"CLIENT_ERROR options flags too long\r\n"
DATA_BYTES_MAX: Final = (1 << 31) - 3
GETS_LINE_BYTES_MAX: Final = 1 << 22
WORDS_MAX: Final = 50_000  # limit of the keys of a get, so that it does not delay others
PLAIN_BYTES_MAX: Final = 16384
PLAIN_SPARE_BYTES: Final = 512  # more than an item has beside its data
GET: Final = ord("g")
_ERROR: Final = Refusal(ERROR)
_STORAGE: Final = frozenset((b"set", b"add", b"replace", b"append", b"prepend", b"cas"))
_WITHOUT_DATA: Final = frozenset((b"mg", b"mn", b"md", b"ma", b"incr", b"decr", b"delete", b"touch"))  # the commonest
_MODES: Final = {0: b"set", 69: b"add", 65: b"append", 80: b"prepend", 82: b"replace", 83: b"set"}  # EAPRS
_MANY_KEYS: Final = (b"get ", b"gets ", b"gat ", b"gats ")


class _SmallNumbers(dict[bytes, int]):
    """Word -> the small number that it is in the usual notation, -1 for anything else."""

    def __missing__(self, word: bytes) -> int:
        if not word.isdigit() or len(word) > 5 or word != b"%d" % int(word) or int(word) > PLAIN_BYTES_MAX:
            return -1
        self[word] = number = int(word)
        return number


_small_numbers: Final = _SmallNumbers()


class CacheParser(Parser):
    """Parser of one connection's input."""

    def __init__(self, dictionary: Dictionary, line_bytes_max: int, *, has_all_rights: bool) -> None:
        super().__init__()
        self._dictionary = dictionary
        self._line_bytes_max = line_bytes_max
        self._is_plain = has_all_rights  # a get of one key need not be parsed
        self._plain_bytes_max = 0
        self._rest = b""
        self._is_first = True
        self._over = False
        self._storage: Storage | None = None  # whose data is unfinished; None: the data is discarded
        self._chunks: list[bytes] = []
        self._missing = 0
        self._block_bytes = 0

    @property
    def mid_command(self) -> bool:
        return bool(self._rest) or self._missing > 0

    @property
    def held_bytes(self) -> int:
        if not self._missing or self._storage is None or self._block_bytes <= SMALL_ITEM_BYTES + 2:
            return 0
        return self._block_bytes - self._missing

    def close(self) -> None:
        self._over = True
        self._rest = b""
        self._chunks = []
        self._missing = 0

    def feed(self, data: bytes) -> list[Any]:
        batch: list[Any] = []
        at = 0
        if self._missing:
            at = self._continue_block(data, batch)
            if at < 0:
                return batch
        else:
            if self._rest:
                data = self._rest + data
                self._rest = b""
            elif (self._is_first or self._over) and not self._begin(data, batch):
                return batch
            if self._is_plain:
                if data and data[0] == GET and data.find(b"\n") == len(data) - 1 and data[-2:] == b"\r\n":
                    return [data[:-2]]
                self._plain_bytes_max = self._dictionary.item_size_max_bytes - PLAIN_SPARE_BYTES
                batch, at = self._split(data)
        if at < len(data):
            self._walk(data, at, batch)
        return batch

    def _begin(self, data: bytes, batch: list[Any]) -> bool:
        """Return True if the first bytes of the connection are text. Also drops bytes after its last command."""
        if self._over:
            return False
        if data[:1] in BINARY_MAGIC:
            batch.append(Refusal(binary_refusal(data), closes=True))
            self.close()
            return False
        self._is_first = not data
        return True

    def _split(self, data: bytes) -> tuple[list[Any], int]:
        """Find the plain commands that `data` begins with by one split, while no stored data contains a line end.

        Returns them, and the position of the first other command.
        """
        pieces: list[Any] = data.split(b"\r\n")  # become the batch
        rest: bytes = pieces.pop()
        at, end = 0, len(pieces)
        if data.count(b"\n") != end:
            return [], 0
        while at < end:
            line: bytes = pieces[at]
            if line and line[0] == GET:
                at += 1
                continue
            words = self._plain_words(line)
            if words is None:
                words = line.split(b" ")
                if words[0] not in _WITHOUT_DATA or b"" in words or 0 in line:
                    break
                pieces[at] = words
                at += 1
                continue
            if at + 1 == end or len(pieces[at + 1]) != _small_numbers[words[4]]:
                break
            pieces[at] = words
            at += 2
        begun = len(data) - len(rest)
        if at < end:
            begun -= sum([len(piece) + 2 for piece in pieces[at:]])
            del pieces[at:]
        return pieces, begun

    def _plain_words(self, line: bytes) -> list[bytes] | None:
        """Return the words of a line that sets a small value, to expire within 30 days or never; else None."""
        words = line.split(b" ")
        if len(words) != 5 or len(line) > KEY_BYTES_MAX:
            return None
        word, key, flags, expiry_s, size = words
        # `0 in line` searches for an int, in a fraction of the time that a bytes object would take.
        if word != b"set" or not key or 0 in line:
            return None
        if expiry_s != b"0" and (not expiry_s.isdigit() or len(expiry_s) > 7 or int(expiry_s) > RELATIVE_S_MAX):
            return None
        if (flags != b"0" and _small_numbers[flags] < 0) or not 0 <= _small_numbers[size] <= self._plain_bytes_max:
            return None
        return words

    def _walk(self, data: bytes, at: int, batch: list[Any]) -> None:
        """Parse the commands of `data` from `at` on, one by one, and keep an unfinished one."""
        find = data.find
        while True:
            end = find(b"\n", at) + 1
            if end == 0:
                break
            line = data[at:end]
            at = end
            if len(line) < 3:  # the shortest command has two letters
                batch.append(_ERROR)
                continue
            if self._is_plain and line[-2:] == b"\r\n":
                if line[0] == GET:
                    batch.append(line[:-2])
                    continue
                after = self._read_plain(line[:-2], data, at, batch)
                if after:
                    at = after
                    continue
            words = words_of(line)
            word = words[0] if words else b""
            if word in _STORAGE or word == b"ms":
                size = self._read_meta_set(words, batch) if word == b"ms" else self._read_storage(words, batch)
                if size < 0:
                    continue
                at = self._read_block(size, data, at, batch)
                if at < 0:
                    return
            elif len(word) < 2:
                batch.append(_ERROR)
            else:
                batch.append(words)
        if at < len(data):
            self._rest = data[at:] if at else data
            if len(self._rest) > self._line_bytes_max and not self._may_be_long():
                batch.append(Refusal(b"CLIENT_ERROR line too long\r\n", closes=True))
                self.close()

    def _may_be_long(self) -> bool:
        return self._rest.lstrip(b" ").startswith(_MANY_KEYS) and len(self._rest) <= GETS_LINE_BYTES_MAX

    # Data

    def _read_plain(self, line: bytes, data: bytes, at: int, batch: list[Any]) -> int:
        """Take a plain set whose data is complete; returns where the next line begins, 0 for anything else."""
        words = self._plain_words(line)
        if words is None:
            return 0
        end = at + _small_numbers[words[4]] + 2
        if data[end - 2 : end] != b"\r\n":
            return 0
        batch.append(words)
        batch.append(data[at : end - 2])
        return end

    def _read_storage(self, words: list[bytes], batch: list[Any]) -> int:
        """Make `_storage` of a line; returns the length of the data that follows, -1 if the line is refused."""
        has_cas = words[0] == b"cas"
        at_least = 6 if has_cas else 5
        if not at_least <= len(words) <= at_least + 1:
            batch.append(Refusal(ERROR))
            return -1
        quiet = words[-1] == b"noreply"
        flags, expiry_s, size = unsigned_32(words[2]), signed_32(words[3]), _length(words[4])
        cas = unsigned_64(words[5]) if has_cas else 0
        if flags is None or expiry_s is None or cas is None or size < 0 or len(words[1]) > KEY_BYTES_MAX:
            batch.append(Refusal(b"" if quiet else BAD_FORMAT))
            return -1
        storage = Storage(words[0], words[1], flags, expiry_s)
        storage.cas, storage.quiet = cas, quiet
        self._expect(storage, size, batch)
        return size

    def _read_meta_set(self, words: list[bytes], batch: list[Any]) -> int:
        """`_read_storage` for ms. If its flags are wrong, the reply is an error, and the data is discarded."""
        problem, size = b"", -1
        if len(words) < 2:
            problem = ERROR
        elif len(words[1]) > KEY_BYTES_MAX or len(words) == 2:
            problem = BAD_FORMAT
        elif len(words) > META_WORDS_MAX:
            problem = TOO_LONG
        else:
            size = _length(words[2])
            problem = b"" if size >= 0 else BAD_FORMAT
        if problem:
            batch.append(Refusal(problem))
            return -1
        flags = Flags(words[1], words[3:])
        word = _MODES.get(flags.mode)
        problem = flags.problem
        if not problem and word is None:
            problem = BAD_MODE
        elif not problem and len(flags.opaque) > OPAQUE_BYTES_MAX:
            problem = OPAQUE_TOO_LONG
        if problem or word is None:
            batch.append(Refusal(problem))
            self._storage = None
            return size
        if flags.cas is not None and word in (b"set", b"replace"):
            word = b"cas"
        storage = Storage(word, flags.key, flags.client_flags, flags.ttl_s or 0)
        storage.cas, storage.meta, storage.is_binary = flags.cas or 0, flags, flags.is_binary
        storage.may_be_stale = flags.has(b"I")
        self._expect(storage, size, batch)
        return size

    def _expect(self, storage: Storage, size: int, batch: list[Any]) -> None:
        """Prepare for the data of a command, which is discarded if it is too large."""
        self._storage = storage
        if item_bytes(len(storage.key), storage.flags, size) > self._dictionary.item_size_max_bytes:
            storage.drops = True
            batch.append(storage)
            self._storage = None

    def _read_block(self, size: int, data: bytes, at: int, batch: list[Any]) -> int:
        """Take the data that begins at `at`; returns where the next line begins, -1 if all input is consumed."""
        end = at + size
        storage = self._storage
        if storage is not None and len(data) >= end + 2:
            self._storage = None
            if data[end : end + 2] == b"\r\n":
                storage.data = data[at:end]
                batch.append(storage)
            else:
                batch.append(Refusal(b"" if storage.quiet else BAD_CHUNK))
            return end + 2
        self._missing = self._block_bytes = size + 2
        self._chunks = []
        taken = self._continue_block(data[at:], batch)
        return -1 if taken < 0 else at + taken

    def _continue_block(self, data: bytes, batch: list[Any]) -> int:
        """Feed an unfinished block of data; returns the bytes consumed, -1 if all are and more are missing."""
        take = min(self._missing, len(data))
        self._missing -= take
        storage = self._storage
        if storage is not None:
            self._chunks.append(data if take == len(data) else data[:take])
        if self._missing:
            self.wanted_bytes = max(READ_BYTES + 1, min(self._missing, DATA_READ_BYTES))
            return -1
        self.wanted_bytes = READ_BYTES
        if storage is not None:
            block = b"".join(self._chunks)
            self._storage, self._chunks = None, []
            if block[-2:] == b"\r\n":
                storage.data = block[:-2]
                batch.append(storage)
            else:
                batch.append(Refusal(b"" if storage.quiet else BAD_CHUNK))
        return take


def _length(word: bytes) -> int:
    """Parse a length of data, -1 if the word is none."""
    size = signed_32(word)
    return size if size is not None and 0 <= size <= DATA_BYTES_MAX else -1


def words_of(line: bytes) -> list[bytes]:
    """Split a line into words, up to a NUL and without its end. Of very many, the last is all the rest."""
    text = line[:-1]
    if len(text) > 1 and text.endswith(b"\r"):
        text = text[:-1]
    if b"\0" in text:
        text = text.partition(b"\0")[0]
    words = text.split(b" ", WORDS_MAX)
    if b"" in words:
        words = [word for word in words if word]
    return words
