"""Parser of Kestrel's memcache protocol: bytes to commands, without sockets or queues (docs/protocol.md).

Push bytes into `MemcacheParser.feed`, get a list: each command, followed by its data if it stores some. Errors are
commands too (kind REPLY, with the reply to send), so that replies are in the order of commands.
"""

import re
from collections.abc import Callable
from typing import Any, Final

from kestreld.checks import ABSENCE_MS_MAX, holder_problem, reason_problem
from kestreld.config.config import Compat, QueueConfig
from kestreld.config.queue_names import queue_name_problem
from kestreld.queues.bindings import EMPTY, WORD_BYTES_MAX, binding_key, decoded, encoded_word
from kestreld.server.command_handler import DATA_READ_BYTES, READ_BYTES, Parser
from kestreld.server.memcache import commands as wire
from kestreld.server.memcache.commands import (
    CONFIRM,
    GET,
    GET_MANY,
    LEASE,
    LEASE_BY,
    NEXT,
    READ,
    REPLY,
    SET,
    SET_WITH,
    TOO_LARGE,
    Command,
    CommandCache,
)

DATA_BYTES_MAX: Final = (1 << 31) - 1
LINES_CACHED_MAX: Final = 32768
SHORT_LINE_BYTES: Final = 64
SMALL_ITEM_BYTES: Final = 1 << 16  # unfinished data of smaller items is not counted
EXPIRY_S_MAX: Final = 10**13
FLAGS_MAX: Final = (1 << 32) - 1
WAIT_MS_MAX: Final = 10**12
KEYED_WORD_BYTES_MAX: Final = 250  # memcache clients refuse longer ones
LIST_MARK: Final = b"~"  # what a list of queues begins with: no queue's name has it
TOKEN_FOLLOWS: Final = -2  # in the place of a length of data
_WITH_LEASE: Final = frozenset((b"open", b"deliveries"))  # options without a value that a lease may have

BINARY_MAGIC: Final = (b"\x80", b"\x81")  # the first byte of memcached's binary protocol, of requests and of answers

_HTTP: Final = re.compile(rb"[A-Za-z]+ \S+ HTTP/\d")
_BINARY_UNKNOWN: Final = b"Unknown command"
_NUMBER: Final = re.compile(rb"-?\d{1,19}")
TOKEN_DIGITS_MAX: Final = 20
_TOKEN: Final = re.compile(rb"\d{1,%d}(?![^ /])" % TOKEN_DIGITS_MAX)
_LIST: Final = re.compile(rb"~[!-.0-~]{1,64}")
# Storage commands that queues do not have, and the index of the word with the length of their data
_STORAGE_WORDS: Final = {b"add": 4, b"replace": 4, b"append": 4, b"prepend": 4, b"cas": 4, b"ms": 2}
_BARE: Final = {
    b"flush_all_expired": wire.FLUSH_ALL_EXPIRED,
    b"version": wire.VERSION,
    b"shutdown": wire.SHUTDOWN,
    b"reload": wire.RELOAD,
    b"dump_config": wire.DUMP_CONFIG,
    b"stats": wire.STATS,
    b"dump_stats": wire.DUMP_STATS,
    b"dump_job_queues": wire.DUMP_JOB_QUEUES,
    b"quit": wire.QUIT,
}
_NAMED: Final = {
    b"delete": wire.DELETE,
    b"flush": wire.FLUSH,
    b"flush_expired": wire.FLUSH_EXPIRED,
    b"repair": wire.REPAIR,
    b"undo": wire.UNDO,
}
_ABOUT_BINDINGS: Final = {b"bind": wire.BIND, b"unbind": wire.UNBIND, b"bindings": wire.BINDINGS}


_DEFAULTS: Final = QueueConfig()
_UNKNOWN: Final = Command(REPLY)
_UNKNOWN.reply = wire.ERROR
# In the place of a command whose data block is unfinished: no input so far, and no input accepted any longer
_BEGINNING: Final = Command(REPLY)
_OVER: Final = Command(REPLY)


def _number_behind(option: bytes) -> int:
    """Return the number behind the `=` of an option, -1 if there is none."""
    value = option.partition(b"=")[2]
    return int(value) if value.isdigit() and len(value) <= 19 else -1


def _unknown_option(option: bytes) -> str:
    word = option.partition(b"=")[0].decode("latin-1")
    return f"unknown option {word}=" if b"=" in option else f"unknown option {word!r}"


def _doubled(options: list[bytes]) -> str:
    """Return the error about an option that is given twice; "" if there is none."""
    names: set[bytes] = set()
    for option in options:
        name, is_given, _ = option.partition(b"=")
        if is_given and name in names:
            return f"{name.decode('latin-1')}= is given twice"
        names.add(name)
    return ""


def binary_refusal(request: bytes) -> bytes:
    """Return memcached's binary "unknown command" reply to a binary request, of which a part may be missing."""
    header = request[:24].ljust(24, b"\0")
    status = b"\0\0\0\0\x00\x81"  # behind the lengths of key and extras and the data type
    length = len(_BINARY_UNKNOWN).to_bytes(4, "big")
    return b"\x81" + header[1:2] + status + length + header[12:16] + bytes(8) + _BINARY_UNKNOWN


def not_text(line: bytes) -> str:
    """Return the reason why a line, or a part of one, cannot be a command by its first byte; "" if it may be."""
    if not line or 0x20 <= line[0] < 0x7F or line in (b"\r", b"\r\n", b"\n"):
        return ""
    return f"no command begins with the byte 0x{line[0]:02x}"


class MemcacheParser(Parser):
    """Parser of one connection's input: between commands, or inside the data block of `_store`.

    `config_of` returns a queue's configuration: the limits of data (more is discarded as it arrives, never held),
    leases and delays. `check` examines each command before it is cached, and may replace it by a refusal.
    """

    def __init__(
        self,
        cache: CommandCache,
        compat: Compat = Compat.NONE,
        line_bytes_max: int = 8192,
        config_of: Callable[[str], QueueConfig] | None = None,
        check: Any = None,
    ) -> None:
        super().__init__()
        self._cache = cache
        self._compat = compat
        self._strict = compat is Compat.KESTREL_1
        self._line_bytes_max = line_bytes_max
        self._config_of = config_of
        self._check = check
        self._rest = b""  # an unfinished line
        self._has_line_ends = False  # items have held line ends: splitting there does not pay
        self._store: Command | None = _BEGINNING  # whose data block is unfinished
        self._chunks: list[bytes] = []
        self._missing = 0  # bytes of data and CRLF still to come,
        self._block_bytes = 0  # of so many
        self._drop = False  # the data block is not kept
        self._token = 0  # of the line looked up last

    @property
    def mid_command(self) -> bool:
        """True if a command has begun and not ended."""
        return bool(self._rest) or self._missing > 0

    @property
    def held_bytes(self) -> int:
        """Bytes held of an unfinished large item."""
        if not self._missing or self._drop or self._block_bytes <= SMALL_ITEM_BYTES + 2:
            return 0
        return self._block_bytes - self._missing

    def close(self) -> None:
        """Accept no more input, and hold none."""
        self._store = _OVER
        self._rest = b""
        self._chunks = []
        self._missing = 0

    def feed(self, data: bytes) -> list[Any]:
        """Return the commands that `data` completes, each SET followed by its data, each about a lease by its token.

        None follow a command that closes the connection.
        """
        batch: list[Any] = []
        at = 0
        if self._store is not None:
            at = self._continue_store(data, batch) if self._missing else self._begin(data, batch)
            if at < 0:
                return batch
        elif self._rest:
            data = self._rest + data
            self._rest = b""
        elif len(data) < SHORT_LINE_BYTES:
            command = self._cache.whole.get(data)  # a line and nothing else: all that most consumers send at a time
            if command is not None and command.data_bytes < 0:
                return [command]
        if at == 0 and not self._has_line_ends:
            batch, at = self._split(data)
            if at < 0:
                return batch
        self._walk(data, at, batch)
        return batch

    def _begin(self, data: bytes, batch: list[Any]) -> int:
        """Return 0 if the first bytes of the connection are text, else -1. Also drops bytes after its last command."""
        if self._store is _OVER:
            return -1
        if not data:
            return 0
        self._store = None
        if data[:1] not in BINARY_MAGIC:
            return 0
        refusal = Command(REPLY)
        refusal.reply, refusal.closes = binary_refusal(data), True
        self._break_off(refusal, batch)
        return -1

    def _split(self, data: bytes) -> tuple[list[Any], int]:
        """Find the known commands that `data` begins with by one split, while no data contains a line end.

        Returns them, and the position of the first other command, -1 if there is none.
        """
        texts, about_leases = self._cache.texts, self._cache.about_leases
        pieces: list[Any] = data.split(b"\r\n")  # become the batch, each line giving way to its command
        rest: bytes = pieces.pop()
        at, end = 0, len(pieces)
        while at < end:
            line: bytes = pieces[at]
            command = texts.get(line)
            if command is None:
                cut = line.rfind(b"/") + 1
                command = about_leases.get(line[:cut])
                if command is None:
                    break
                token = line[cut:]
                if not token.isdigit() or len(token) > TOKEN_DIGITS_MAX:
                    break
                pieces[at] = command
                pieces.insert(at + 1, int(token))
                at += 2
                end += 1
                continue
            size = command.data_bytes
            if size >= 0:
                if at + 1 == end or len(pieces[at + 1]) != size:
                    # Rare, but a client that sends such an item sends more of them.
                    self._has_line_ends = at + 1 < end
                    break
                pieces[at] = command
                at += 2
            else:
                pieces[at] = command
                at += 1
        else:
            return pieces, len(data) - len(rest) if rest else -1
        begun = len(data) - len(rest)
        for index in range(at, end):
            begun -= len(pieces[index]) + 2
        del pieces[at:]
        return pieces, begun

    def _walk(self, data: bytes, at: int, batch: list[Any]) -> None:
        """Parse the commands of `data` from `at` on, one by one, and keep an unfinished one."""
        whole = self._cache.whole
        find = data.find
        while True:
            eol = find(b"\n", at) + 1
            if eol == 0:
                break
            line = data[at:eol]
            command = whole.get(line)
            if command is None:
                command, size = self._look_up(line)
            else:
                size = command.data_bytes
            at = eol
            if size < 0:
                batch.append(command)
                if size == TOKEN_FOLLOWS:
                    batch.append(self._token)
                if command.kind == REPLY and command.closes:
                    self.close()
                    return
                continue
            end = at + size
            if command.kind > SET_WITH or len(data) < end + 2:
                at = self._begin_store(command, size, data, at, batch)
                if at < 0:
                    return
            elif data[end : end + 2] == b"\r\n":
                batch.append(command)
                batch.append(data[at:end])
                at = end + 2
            else:
                self._break_off(self._refuse("bad data chunk", closes=True), batch)
                return
        if at < len(data):
            self._rest = data[at:] if at else data
            if problem := not_text(self._rest):
                self._break_off(self._refuse_as_kestrel(problem, closes=True), batch)
            elif len(self._rest) - self._rest.endswith(b"\r") > self._line_bytes_max:
                self._break_off(self._refuse("line too long", closes=True), batch)

    def _break_off(self, refusal: Command, batch: list[Any]) -> None:
        """Refuse, and close: it is unknown where the next command begins."""
        batch.append(refusal)
        self.close()

    # Data blocks

    def _begin_store(self, command: Command, size: int, data: bytes, at: int, batch: list[Any]) -> int:
        """Start on a data block that is unfinished or unwanted.

        Returns where the next line begins, -1 if all input is consumed.
        """
        self._store = command
        self._missing = self._block_bytes = size + 2
        self._drop = command.kind > SET_WITH
        self._chunks = []
        taken = self._continue_store(data[at:], batch)
        return -1 if taken < 0 else at + taken

    def _continue_store(self, data: bytes, batch: list[Any]) -> int:
        """Feed an open data block; returns the bytes consumed, -1 on an error, or if all are and more are missing."""
        take = min(self._missing, len(data))
        self._missing -= take
        chunk = data if take == len(data) else data[:take]
        if self._drop:
            tail = (self._chunks[0] if self._chunks else b"") + chunk
            self._chunks = [tail[-2:]]
        else:
            self._chunks.append(chunk)
        if self._missing:
            self.wanted_bytes = max(READ_BYTES + 1, min(self._missing, DATA_READ_BYTES))
            return -1
        self.wanted_bytes = READ_BYTES
        block = b"".join(self._chunks)
        command = self._store
        self._store, self._chunks = None, []
        if block[-2:] != b"\r\n":
            self._break_off(self._refuse("bad data chunk", closes=True), batch)
            return -1
        batch.append(command)
        if command is not None and command.kind <= SET_WITH:
            batch.append(block[:-2])
        return take

    # Lines

    def _look_up(self, line: bytes) -> tuple[Command, int]:
        """Return the command of a line that is not cached as a whole, and the length of its data (-1 = none)."""
        text = line[:-2] if line.endswith(b"\r\n") else line[:-1]
        if not text and self._check is None:
            return self._unknown(), -1  # many empty lines cost little
        head, _, size_word = text.rpartition(b" ")
        known = self._cache.stores.get(head)
        if known is not None and size_word.isdigit() and len(size_word) < 10:
            size = int(size_word)
            limit = known.data_bytes
            if size <= limit:
                return known, size
        slash = text.find(b"/") + 1
        has_key = slash > 0 and text.startswith(b"key=", slash)
        if has_key and (known := self._with_key(head, size_word, slash + 4)) is not None:
            return known, known.data_bytes
        if slash and (known := self._about_lease(text, slash)) is not None:
            return known, TOKEN_FOLLOWS
        if problem := not_text(line):
            return self._refuse_as_kestrel(problem, closes=True), -1
        if len(text) > self._line_bytes_max:
            return self._refuse("line too long", closes=True), -1
        command = self._parse(text)
        if self._check is not None:
            command = self._check(command)
        if command.kind >= CONFIRM:
            return self._remember_about_lease(text, slash, command), TOKEN_FOLLOWS
        is_common = not command.item_key or command.kind == LEASE_BY  # a name comes again, most keys do not
        if command.kind != REPLY and command.kind != TOO_LARGE and is_common:
            self._remember(line, text, head, command)
        elif has_key and command.kind == SET_WITH and self._check is None:
            self._remember_with_key(text[: slash + 4], command)
        return command, command.data_bytes

    def _with_key(self, head: bytes, size_word: bytes, at: int) -> Command | None:
        """Return the command of a line whose key begins at `at`, by a known one with another key; None = parse it.

        `head` is the line less its last word, `size_word`.
        """
        known = self._cache.keyed.get(head[:at])
        if known is None or not head.endswith(b" 0 0") or not size_word.isdigit() or len(size_word) > 9:
            return None
        item_key, size = head[at:-4], int(size_word)
        if not item_key or b" " in item_key or size > known.data_bytes:
            return None
        command = Command(SET_WITH)
        command.key, command.name, command.item_key = head[4:-4], known.name, item_key
        command.adds, command.data_bytes = known.adds, size
        return command if len(command.key) <= KEYED_WORD_BYTES_MAX else None

    def _remember_with_key(self, start: bytes, command: Command) -> None:
        keyed = self._cache.keyed
        if len(keyed) >= LINES_CACHED_MAX:
            self._cache.clear()
        if not (command.flags or command.expiry_s or command.noreply or len(start) > 512):
            template = Command(SET_WITH)
            template.name, template.adds = command.name, command.adds
            template.data_bytes = min(self._limit(command.name), 10**9)
            keyed[start] = template

    def _about_lease(self, text: bytes, slash: int) -> Command | None:
        """Return the known command of a line whose token begins at `slash`; None if it must be parsed."""
        token = text[slash:]
        if token.isdigit() and len(token) <= TOKEN_DIGITS_MAX:
            known = self._cache.about_leases.get(text[:slash])
        else:
            found = _TOKEN.match(text, slash)
            if found is None:
                return None
            token = found[0]
            known = self._cache.about_leases.get(text[:slash] + text[found.end() :])
        if known is not None:
            self._token = int(token)
        return known

    def _remember_about_lease(self, text: bytes, slash: int, command: Command) -> Command:
        known, found = self._cache.about_leases, _TOKEN.match(text, slash)
        assert found is not None
        self._token = int(found[0])
        if len(known) >= LINES_CACHED_MAX:
            self._cache.clear()
        if len(text) <= 512 and not command.item_key:
            known[text[:slash] + text[found.end() :]] = command
        return command

    def _remember(self, line: bytes, text: bytes, head: bytes, command: Command) -> None:
        cache = self._cache
        if len(cache.whole) >= LINES_CACHED_MAX or len(cache.stores) >= LINES_CACHED_MAX:
            cache.clear()
        if len(line) > 512:
            return
        cache.whole[line] = command
        if command.kind <= SET_WITH or command.data_bytes < 0:
            cache.texts[text] = command
        # With more words on the line its last one is not the length.
        if command.kind <= SET_WITH and line.count(b" ") == 4:
            template = Command(command.kind)
            template.key, template.name, template.expiry_s, template.flags, template.delay_ms = (
                command.key,
                command.name,
                command.expiry_s,
                command.flags,
                command.delay_ms,
            )
            template.data_bytes = min(self._limit(command.name), 10**9)
            cache.stores[head] = template

    def _limit(self, name: str) -> int:
        limit = self._config(name).max_item_size_bytes
        return DATA_BYTES_MAX if limit is None else min(limit, DATA_BYTES_MAX)

    def _config(self, name: str) -> QueueConfig:
        return self._config_of(name) if self._config_of is not None else _DEFAULTS

    def _refuse(self, reason: str, *, closes: bool = False) -> Command:
        command = Command(REPLY)
        command.reply = b"CLIENT_ERROR " + reason.encode("latin-1") + b"\r\n"
        command.closes = closes
        return command

    def _refuse_as_kestrel(self, reason: str, *, closes: bool = False) -> Command:
        """Refuse a command that Kestrel answers with a bare word, which is the reply with `kestrel-1`."""
        command = self._refuse(reason, closes=closes)
        if self._strict:
            command.reply = b"CLIENT_ERROR\r\n"
        return command

    def _unknown(self) -> Command:
        """Refuse an unknown command: Kestrel closes the connection, memcached does not."""
        if self._strict:
            return self._refuse_as_kestrel("unknown command", closes=True)
        return _UNKNOWN

    def _parse(self, line: bytes) -> Command:
        words = line.split(b" ")
        while words and not words[-1]:
            words.pop()
        if not words:
            return self._refuse("a line of blanks") if line else self._unknown()
        verb = words[0].lower()
        if _HTTP.match(line):
            return self._refuse("this is not an HTTP port", closes=True)
        if verb in (b"get", b"gets"):
            return self._parse_get(words, with_id=verb == b"gets")
        if verb == b"set" or (verb == b"add" and self._has_key(words)):
            return self._parse_set(words, verb)
        if verb == b"touch" and not self._strict:
            return self._parse_touch(words)
        if verb in _NAMED:
            return self._parse_named(_NAMED[verb], words)
        if verb == b"flush_all":
            return self._parse_flush_all(words)
        if verb == b"leases" and not self._strict:
            return self._parse_leases(words)
        if verb == b"wait" and not self._strict:
            return self._parse_wait(words)
        if verb == b"present" and not self._strict:
            return self._parse_present(words)
        if verb == b"declare" and not self._strict:
            return self._parse_declare(words)
        if verb in _BARE:
            command = Command(_BARE[verb])
            command.words = words[1:]
            command.noreply = command.kind == wire.FLUSH_ALL_EXPIRED and self._noreply(words, 1)
            rest = words[1:-1] if command.noreply else words[1:]
            changes = command.kind in (wire.FLUSH_ALL_EXPIRED, wire.SHUTDOWN, wire.RELOAD)
            return (self._surplus(words[0], rest) if changes else None) or command
        if verb in _ABOUT_BINDINGS and not self._strict:
            return self._parse_about_bindings(_ABOUT_BINDINGS[verb], verb.decode(), words[1:])
        if verb in _STORAGE_WORDS:
            return self._swallow(words, _STORAGE_WORDS[verb])
        return self._unknown()

    def _parse_get(self, words: list[bytes], *, with_id: bool) -> Command:
        if len(words) < 2:
            return self._refuse_as_kestrel("get needs a queue name")
        keys = words[1:2] if self._strict else words[1:]
        if keys[0].startswith(LIST_MARK) and not self._strict:
            return self._parse_listed(keys, with_id=with_id)
        parts = [self._parse_read(key, with_id and not self._strict) for key in keys]
        if len(parts) == 1:
            return parts[0]
        for part in parts:
            if part.kind == REPLY:
                return part
        command = Command(GET_MANY)
        command.parts = parts
        if any(part.wait_ms > 0 for part in parts):
            if not all(part.lease_ms and part.wait_ms > 0 for part in parts):
                return self._refuse("t= cannot be used with several queues, unless each has open, lease= and t=")
            command.kind, command.wait_ms = wire.LEASE_FIRST, min(part.wait_ms for part in parts)
        return command

    def _parse_listed(self, keys: list[bytes], *, with_id: bool) -> Command:
        """Parse a lease from a list of queues: as from one queue, and `/turn`."""
        pieces = keys[0].split(b"/")
        options = [one for one in pieces[1:] if one != b"turn"]
        command = self._parse_read(b"/".join([pieces[0], *options]), with_id)
        if command.kind == REPLY:
            return command
        flags = [one for one in options if b"=" not in one and one not in _WITH_LEASE]
        if len(keys) > 1 or flags or command.kind not in (LEASE, LEASE_BY) or len(pieces) - len(options) > 2:
            return self._refuse(
                "of a list of queues items can only be leased: gets ~list/open/lease=, t=, by=, deliveries and turn"
            )
        command.kind = wire.LEASE_LISTED
        command.words = pieces[1:]
        command.key = b"".join([b"/" + one for one in options])
        return command

    def _parse_wait(self, words: list[bytes]) -> Command:
        """Parse `wait ~list <queue> ...`, which adds queues to a list of the connection, or drops it without any."""
        if len(words) < 2 or not _LIST.fullmatch(words[1]):
            return self._refuse("wait needs the name of a list, ~ and up to 64 characters without /, and queues")
        parts = list[Command]()
        for word in words[2:]:
            command = Command(GET)
            command.key, command.name = word, word.decode("latin-1")
            if problem := queue_name_problem(command.name):
                return self._refuse(problem)
            parts.append(command)
        command = Command(wire.LIST_QUEUES)
        command.key, command.name, command.parts = words[1], words[1].decode("latin-1"), parts
        return command

    def _parse_read(self, key: bytes, with_id: bool) -> Command:
        """Parse one key of a GET: queue name and options in any order; unknown ones without a `=` are ignored."""
        pieces = key.split(b"/")
        command = Command(GET if len(pieces) == 1 and not with_id else READ)
        command.key = pieces[0] if self._strict else key
        command.name = pieces[0].decode("latin-1")
        command.with_id = with_id
        command.prefix = b"VALUE " + command.key + b" 0 "
        if not command.name:
            # Kestrel splits at the slashes and drops empty pieces at the end: of slashes alone nothing is left.
            slashes_only = bool(key) and not key.strip(b"/")
            return self._refuse_as_kestrel("empty queue name", closes=self._strict and not slashes_only)
        if len(pieces) == 1:
            return command
        for option in pieces[1:]:
            if option == b"open":
                command.opens = True
            elif option == b"close":
                command.closes = True
            elif option == b"abort":
                command.aborts = True
            elif option == b"peek":
                command.peeks = True
            elif option == b"deliveries" and not self._strict:
                command.counts = True
            elif option.startswith(b"t="):
                if not _NUMBER.fullmatch(option, 2):
                    return self._refuse("t= needs a number of milliseconds")
                command.wait_ms = min(int(option[2:]), WAIT_MS_MAX)
            elif b"=" in option and not self._strict and (problem := self._read_lease_or_holder(command, option)):
                return self._refuse(problem)
        if not self._strict and (problem := _doubled(pieces)):
            return self._refuse(problem)
        if command.lease_ms or command.item_key or command.counts:
            problem = self._lease_problem(command) or self._holder_problem(command, pieces[1:])
            command.kind = LEASE_BY if command.item_key or command.counts else LEASE
            return self._refuse(problem) if problem else command
        if (command.peeks or command.aborts) and (command.opens or command.closes):
            word = "peek" if command.peeks else "abort"
            return self._refuse_as_kestrel(f"{word} cannot be combined with open or close", closes=self._strict)
        if command.peeks and command.aborts:
            return self._refuse_as_kestrel("peek cannot be combined with abort", closes=self._strict)
        if command.opens and command.closes and command.wait_ms <= 0 and not with_id:
            command.kind = NEXT
        return command

    def _read_lease_or_holder(self, command: Command, option: bytes) -> str:
        """Read `lease=` or `by=`; returns as `_read_lease`."""
        if not option.startswith(b"by="):
            return self._read_lease(command, option)
        command.item_key = option[3:]
        problem = holder_problem(command.item_key.decode("latin-1"))
        return f"by= needs a name that {problem}" if problem else ""

    def _read_lease(self, command: Command, option: bytes) -> str:
        """Read `lease=`; returns the error, for any other option "unknown option", or "" if there is none."""
        if not option.startswith(b"lease="):
            return _unknown_option(option)
        command.lease_ms = _number_behind(option)
        if command.lease_ms < 1:
            return "lease= needs a number of milliseconds from 1 on"
        limit_ms = self._config(command.name).max_lease_ms
        return f"lease= allows at most {limit_ms} (max_lease)" if command.lease_ms > limit_ms else ""

    def _lease_problem(self, command: Command) -> str:
        if not command.lease_ms:
            return "deliveries needs lease=" if command.counts else "by= needs lease="
        if not command.with_id:
            return "lease= needs gets, whose reply has the token to confirm with"
        if command.closes or command.aborts or command.peeks:
            return "lease= cannot be combined with close, abort or peek"
        return "" if command.opens else "lease= needs open"

    def _holder_problem(self, command: Command, options: list[bytes]) -> str:
        """Return the error if a name may have had a `/`, so that a part of it would be ignored as an option."""
        if command.item_key and any(b"=" not in option and option not in _WITH_LEASE for option in options):
            return f"by= needs a name that {holder_problem('/')}"
        return ""

    def _has_key(self, words: list[bytes]) -> bool:
        return not self._strict and len(words) > 1 and b"/key=" in words[1]

    def _parse_set(self, words: list[bytes], verb: bytes) -> Command:
        if len(words) < 5:
            needed = f"{verb.decode()} needs a queue name, flags, expiry and length"
            return self._refuse_as_kestrel(needed, closes=True)
        command = Command(SET)
        command.key, command.name = words[1], words[1].decode("latin-1")
        command.adds = verb == b"add"
        size = self._data_bytes(words[4])
        if size < 0:
            return self._refuse("bad data length", closes=True)
        command.data_bytes = size
        command.noreply = self._noreply(words, 5)
        problem = self._set_problem(command, words)
        refusal = self._refuse(problem) if problem else self._surplus(verb, words[5 + command.noreply :])
        if refusal is not None:
            refusal.data_bytes = size
            return refusal
        if size > self._limit(command.name):
            command.kind = TOO_LARGE
        elif command.expiry_s or command.flags or command.noreply or b"+" in command.key or b"/" in command.key:
            command.kind = SET_WITH
        return command

    def _set_problem(self, command: Command, words: list[bytes]) -> str:
        """Fill in options, flags and expiry; returns the error in the line, "" if there is none."""
        if b"/" in command.key and not self._strict and (problem := self._read_put_options(command)):
            return problem
        if not command.name:
            return "empty queue name"
        if not _NUMBER.fullmatch(words[2]) or not -(1 << 31) <= int(words[2]) <= FLAGS_MAX:
            return "bad flags"
        if not _NUMBER.fullmatch(words[3]):
            return "bad expiry"
        if not self._strict:
            command.flags = int(words[2]) & FLAGS_MAX
        command.expiry_s = max(min(int(words[3]), EXPIRY_S_MAX), -EXPIRY_S_MAX)
        return ""

    def _read_put_options(self, command: Command) -> str:
        """Read `delay=` and `key=`, which extends to the end; returns the error, "" if there is none."""
        name, _, options = command.key.partition(b"/")
        if b"=" not in options:
            return ""  # a bad name
        if problem := _doubled(options.partition(b"key=")[0].split(b"/")):
            return problem
        command.name = name.decode("latin-1")
        while options:
            if options.startswith(b"key="):
                return self._read_key(command, options)
            option, _, options = options.partition(b"/")
            if not option.startswith(b"delay="):
                return _unknown_option(option)
            command.delay_ms = _number_behind(option)
            if problem := self._delay_problem(command):
                return problem
        return ""

    def _read_key(self, command: Command, option: bytes) -> str:
        command.item_key = option[4:]
        if not command.item_key:
            return "key= needs a key"
        if len(command.key) > KEYED_WORD_BYTES_MAX:
            return f"a queue name with its options and key takes at most {KEYED_WORD_BYTES_MAX} bytes"
        return ""

    def _delay_problem(self, command: Command) -> str:
        if command.delay_ms < 0:
            return "delay= needs a number of milliseconds"
        limit_ms = self._config(command.name).max_delay_ms
        return f"delay= allows at most {limit_ms} (max_delay)" if command.delay_ms > limit_ms else ""

    def _parse_touch(self, words: list[bytes]) -> Command:
        """Parse a `touch`, which extends a lease, gives it back, or reports a failure."""
        if len(words) < 3:
            return self._refuse("touch needs <queue>/<token> and a number of seconds")
        name, _, rest = words[1].partition(b"/")
        token, slash, option = rest.partition(b"/")
        seconds = int(words[2]) if _NUMBER.fullmatch(words[2]) else -1
        if not name or not _TOKEN.fullmatch(token) or seconds < 0:
            return self._refuse("touch needs <queue>/<token> and a number of seconds")
        command = Command(wire.GIVE_BACK)
        command.key, command.name = words[1], name.decode("latin-1")
        command.noreply = self._noreply(words, 3)
        surplus = self._surplus(words[0], words[3:-1] if command.noreply else words[3:])
        if surplus is not None:
            return surplus
        problem = ""
        if slash and seconds:
            problem = "touch with an option needs 0 seconds"
        elif problem := _doubled(option.split(b"/")):
            return self._refuse(problem)
        elif option == b"failed" or option.startswith(b"failed/reason="):
            command.kind = wire.FAIL
            problem = self._read_reason(command, option[14:]) if len(option) > 6 else ""
        elif option.startswith(b"delay="):
            command.delay_ms = _number_behind(option)
            problem = self._delay_problem(command)
        elif slash or seconds:
            command.kind = wire.EXTEND
            problem = self._read_lease(command, option if slash else b"lease=%d" % (seconds * 1000))
        return self._refuse(problem) if problem else command

    def _parse_leases(self, words: list[bytes]) -> Command:
        """Parse `leases by=NAME`, which lists what a holder has, of one queue if one is named."""
        if len(words) < 2 or not words[1].startswith(b"by="):
            return self._refuse("leases needs by= and the name of a holder")
        command = Command(wire.LEASES)
        command.item_key = words[1][3:]
        if problem := holder_problem(command.item_key.decode("latin-1")):
            return self._refuse(f"by= needs a name that {problem}")
        if len(words) > 2:
            command.key, command.name = words[2], words[2].decode("latin-1")
            if not command.name:
                return self._refuse("empty queue name")
        return self._surplus(words[0], words[3:]) or command

    def _parse_present(self, words: list[bytes]) -> Command:
        """Parse `present NAME MS`: a holder is present, and its leases end after so many ms of absence."""
        if len(words) < 3 or not words[2].isdigit() or len(words[2]) > 19:
            return self._refuse("present needs the name of a holder and a number of milliseconds")
        command = Command(wire.PRESENT)
        command.item_key, command.delay_ms = words[1], int(words[2])
        if problem := holder_problem(command.item_key.decode("latin-1")):
            return self._refuse(f"present needs a name that {problem}")
        if command.delay_ms > ABSENCE_MS_MAX:
            return self._refuse(f"present allows at most {ABSENCE_MS_MAX} milliseconds of absence")
        return self._surplus(words[0], words[3:]) or command

    def _read_reason(self, command: Command, encoded: bytes) -> str:
        """Read the reason of a failure, with %XX for bytes that keys cannot have; returns the error, or ""."""
        text = decoded(encoded)
        if text is None:
            return "reason= needs two hexadecimal digits behind each %"
        try:
            problem = reason_problem(text.decode())
        except UnicodeDecodeError:
            problem = "is UTF-8"
        command.item_key = text
        return f"reason= needs a text that {problem}" if problem else ""

    def _data_bytes(self, word: bytes) -> int:
        """Parse a data length, -1 if the word is none."""
        if not word.isdigit() or len(word) > 10 or int(word) > DATA_BYTES_MAX:
            return -1
        return int(word)

    def _noreply(self, words: list[bytes], at: int) -> bool:
        return not self._strict and len(words) > at and words[-1] == b"noreply"

    def _swallow(self, words: list[bytes], length_at: int) -> Command:
        """Refuse a storage command that queues do not have, and discard its data if its length is known."""
        if self._strict:
            return self._unknown()
        size = self._data_bytes(words[length_at]) if len(words) > length_at else -1
        if size < 0:
            return self._refuse("bad data length", closes=True)
        command = Command(REPLY)
        command.reply, command.data_bytes = wire.ERROR, size
        return command

    def _parse_named(self, kind: int, words: list[bytes]) -> Command:
        if len(words) < 2 or not words[1]:
            return self._refuse_as_kestrel(f"{words[0].decode('latin-1').lower()} needs a queue name")
        command = Command(kind)
        command.key, command.name = words[1], words[1].decode("latin-1")
        command.noreply = self._noreply(words, 2)
        rest = words[2:-1] if command.noreply else words[2:]
        if kind == wire.DELETE and len(rest) == 1 and rest[0].isdigit():
            rest = []  # the time argument of old memcached versions
        if kind == wire.DELETE and b"/" in words[1] and not self._strict:
            name, _, option = words[1].partition(b"/")
            if _TOKEN.fullmatch(option):
                command.kind, command.name = CONFIRM, name.decode("latin-1")
            elif option.startswith(b"key="):
                command.kind, command.name = wire.CANCEL, name.decode("latin-1")
                if problem := self._read_key(command, option):
                    return self._refuse(problem)
            elif b"=" in option:
                return self._refuse(_unknown_option(option))
            if not command.name:
                return self._refuse("empty queue name")
        if kind in (wire.FLUSH, wire.FLUSH_EXPIRED) and b"/" in words[1] and not self._strict:
            name, _, option = words[1].partition(b"/")
            if kind != wire.FLUSH or option != b"count":
                return self._refuse(_unknown_option(option))
            command.kind, command.name = wire.FLUSH_COUNTED, name.decode("latin-1")
            if not command.name:
                return self._refuse("empty queue name")
        return self._surplus(words[0], rest) or command

    def _parse_about_bindings(self, kind: int, verb: str, words: list[bytes]) -> Command:
        """Parse a `bind` or `unbind` of exchange, queue, routing key and pattern, or a `bindings` of an exchange."""
        command = Command(kind)
        if kind == wire.BINDINGS:
            if len(words) > 1:
                return self._refuse("too many words for bindings")
        elif not 2 <= len(words) <= 4:
            return self._refuse(f"{verb} needs an exchange and a queue, and may have a routing key and a pattern")
        else:
            command.key = words.pop(1)
            command.name = command.key.decode("latin-1")
            if problem := queue_name_problem(command.name):
                return self._refuse(problem)
            if kind == wire.UNBIND and len(words) == 1:
                command.kind = wire.UNBIND_ALL
        for what, word in zip(("exchange", "routing key", "pattern"), words, strict=False):
            text = b"" if word == EMPTY else decoded(word)
            if text is None:
                return self._refuse(f"{what} needs two hexadecimal digits behind each %")
            if len(text) > WORD_BYTES_MAX:
                return self._refuse(f"{what} is longer than {WORD_BYTES_MAX} bytes")
            command.words.append(encoded_word(text))
        if command.kind in (wire.BIND, wire.UNBIND):
            exchange, *rest = command.words
            command.item_key = binding_key(exchange, command.key, *[*rest, EMPTY, EMPTY][:2])
        elif command.words:
            command.item_key = command.words[0]
        return command

    def _parse_declare(self, words: list[bytes]) -> Command:
        if len(words) < 2 or not words[1]:
            return self._refuse("declare needs a queue name and options, such as max_age=60000")
        command = Command(wire.DECLARE)
        command.key, command.name, command.words = words[1], words[1].decode("latin-1"), words[2:]
        command.item_key = b" ".join(words[2:])  # such lines come once for each queue, and are not worth a cache
        for word in command.words:
            if b"=" not in word:
                return self._refuse(f"declare needs options such as max_age=60000, not {word.decode('latin-1')!r}")
        if problem := _doubled(command.words):
            return self._refuse(problem)
        return command

    def _surplus(self, verb: bytes, rest: list[bytes]) -> Command | None:
        """Return a refusal of surplus words, by which the client meant something else; None if there are none."""
        if not rest or self._strict:
            return None
        return self._refuse(f"too many words for {verb.decode('latin-1').lower()}")

    def _parse_flush_all(self, words: list[bytes]) -> Command:
        command = Command(wire.FLUSH_ALL)
        command.noreply = self._noreply(words, 1)
        delays = words[1:-1] if command.noreply else words[1:]
        if not self._strict and delays and delays != [b"0"]:
            return self._refuse("flush_all cannot be delayed")
        return command
