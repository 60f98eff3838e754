"""Execution of a session's cache commands on the dictionary."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from kestreld.cache.dictionary import Dictionary
from kestreld.cache.entries import CAS_AT, END_BYTES, HEADER_BYTES, KEY_AT, key_of, name_of
from kestreld.cache.parts import SHIFT
from kestreld.queues.slices import Work
from kestreld.server.cache import commands as wire
from kestreld.server.cache.administration import VERSION, refused, set_memory_limit, stats_of
from kestreld.server.cache.commands import (
    END,
    KEY_BYTES_MAX,
    NOT_FOUND,
    STORED,
    Refusal,
    Storage,
)
from kestreld.server.cache.counting import count
from kestreld.server.cache.meta import META, meta_set
from kestreld.server.cache.numbers import signed_32, unsigned_32, unsigned_64
from kestreld.server.cache.parser import words_of
from kestreld.server.cache.rights import CacheRights
from kestreld.server.cache.storing import stored
from kestreld.server.command_handler import CommandHandler
from kestreld.server.state import ServerState

KEYS_AT_ONCE: Final = 1000
NAME_BYTES_MIN: Final = 4  # without a key
NAME_BYTES_MAX: Final = KEY_BYTES_MAX + NAME_BYTES_MIN


class CacheHandler(CommandHandler):
    """Executor of one session's commands. `rights` are those of its account, None = all."""

    def __init__(
        self, state: ServerState, dictionary: Dictionary, rights: CacheRights | None, plan: Callable[[], None]
    ) -> None:
        super().__init__(state)
        self.dictionary = dictionary
        self._rights = rights
        self._plan = plan
        self._keys: list[bytes] | None = None  # of a get of many keys, those still to be answered, the next one last
        self._keys_word = b""
        self._keys_expire_at_ms = 0

    def execute(self, commands: Iterator[Any]) -> bool:
        out, dictionary = self.out, self.dictionary
        dictionary.read_clock()
        if dictionary.prefixes.is_on:
            commands = self._by_prefix(commands)
        table, fresh_after = dictionary.table, dictionary.fresh_after
        if self._keys is not None and self._answer_keys(self._keys):
            return True
        hits = sets = 0
        room_bytes, has_others, is_blocked = self.room_bytes, False, False
        for each in commands:
            if isinstance(each, bytes):
                entry = table[hash(each) >> SHIFT].get(each)
                if entry is not None and entry <= fresh_after:
                    entry = dictionary.fetch(each)
                if entry is not None:
                    hits += 1
                    out.append(entry[HEADER_BYTES:])
                    room_bytes -= len(entry)
                    if room_bytes >= 0:
                        continue
                    is_blocked = True
                    break
            elif isinstance(each, list) and each[0] == b"set":
                words: list[bytes] = each
                sets += 1
                if words[3] == b"0":
                    dictionary.put_plain(words[1], words[2], words[4], next(commands))
                else:
                    dictionary.put_plain(words[1], words[2], words[4], next(commands), int(words[3]))
                    has_others = True
                out.append(STORED)
                continue
            has_others, self.room_bytes = True, room_bytes
            if (hits or sets) and not isinstance(each, bytes):  # `stats` must include them
                dictionary.counts.add(hits, sets)
                hits = sets = 0
            self._carry_out(each)
            room_bytes = self.room_bytes
            if self._keys is not None or self.blocked:
                is_blocked = True
                break
        self.room_bytes = room_bytes
        counts = dictionary.counts
        counts.get_hits += hits
        if sets:
            counts.cmd_set += sets
            counts.total_items += sets
        if has_others:
            self._plan()
        return is_blocked

    def _by_prefix(self, commands: Iterator[Any]) -> Iterator[Any]:
        """Yield the same commands, counting text commands by prefix; `_answer_keys` counts those of many keys."""
        dictionary, prefixes = self.dictionary, self.dictionary.prefixes
        for each in commands:
            if isinstance(each, bytes):
                if _is_get_of_one(each):
                    prefixes.count_get(key_of(each), is_hit=dictionary.find(each) is not None)
            elif isinstance(each, Storage):
                if each.meta is None:
                    prefixes.count_set(each.key)
            elif isinstance(each, list) and each[0] == b"delete" and len(each) > 1:
                prefixes.count_delete(each[1])
            yield each
            if isinstance(each, list) and each[0] == b"set":
                prefixes.count_set(each[1])
                yield next(commands)

    def _carry_out(self, command: Any) -> None:
        """Execute a command that is neither a get with an entry nor a plain set."""
        if isinstance(command, bytes):
            if _is_get_of_one(command):
                self.dictionary.counts.get_misses += 1
                self.out.append(END)
            else:
                self._other(words_of(command + b"\n"))
        elif isinstance(command, Storage):
            self._store(command)
        elif isinstance(command, list):
            self._other(command)
        else:
            refusal: Refusal = command
            self.out.append(refusal.reply)
            self.closing = refusal.closes

    def commit_failure(self, reason: str) -> bytes:
        return b"SERVER_ERROR journal " + reason.encode("latin-1", "replace") + b"\r\n"

    def disconnect(self) -> None:
        super().disconnect()
        self._keys = None

    # Storage

    def _store(self, storage: Storage) -> None:
        dictionary = self.dictionary
        name = name_of(storage.key)
        refusal = self._rights.refusal([storage.word, storage.key]) if self._rights is not None else None
        if refusal is not None:
            self._answer(refusal, storage.quiet)
            return
        if storage.meta is not None:
            self.out.append(meta_set(dictionary, storage, storage.meta))
        elif storage.drops:
            dictionary.counts.store_too_large += 1
            if storage.word == b"set":
                dictionary.remove(name)
            self._answer(wire.TOO_LARGE, storage.quiet)
        else:
            self._answer(stored(dictionary, storage, name), storage.quiet)
        if dictionary.is_over_limit:
            self.held = True
            self.state.control.take_on(self._make_room())

    def _make_room(self) -> Work:
        """Evict many small items for a large one, in slices: its sender waits, others do not."""
        while self.dictionary.is_over_limit:
            self.dictionary.make_room()
            yield None
        self._let_go()

    # Everything else

    def _other(self, words: list[bytes]) -> None:
        word = words[0]
        command = _COMMANDS.get(word)
        meta = META.get(word) if command is None else None
        if command is None and meta is None:
            self.closing = len(words) > 1 and words[-1].startswith(b"HTTP/")
            if not self.closing:
                self.out.append(refused(words) or wire.ERROR)
            return
        refusal = self._rights.refusal(words) if self._rights is not None else None
        if refusal is not None:
            self._answer(refusal, quiet=words[-1] == b"noreply")
        elif meta is not None:
            answer = meta(self.dictionary, words)
            self.room_bytes -= len(answer)
            self.out.append(answer)
        elif command is not None:
            command(self, words)

    def _answer(self, reply: bytes, quiet: bool) -> None:
        if not quiet:
            self.out.append(reply)

    def _get(self, words: list[bytes]) -> None:
        if len(words) < 2:
            self.out.append(wire.ERROR)
            return
        keys = words[1:]
        if words[0] in (b"gat", b"gats"):
            expiry_s = signed_32(words[1])
            if expiry_s is None:
                self.out.append(wire.BAD_EXPIRY)
                return
            keys = words[2:]
            self._keys_expire_at_ms = self.dictionary.expiry_ms(expiry_s)
        if max(map(len, keys), default=0) > KEY_BYTES_MAX or (keys and b" " in keys[-1]):  # too long, or too many
            self.out.append(wire.BAD_FORMAT)
            return
        keys.reverse()
        self._keys, self._keys_word = keys, words[0]
        self._answer_keys(keys)

    def _answer_keys(self, keys: list[bytes]) -> bool:
        """Answer some of the keys of a get; returns True if others have to wait."""
        word = self._keys_word
        touches, with_cas = word in (b"gat", b"gats"), word in (b"gets", b"gats")
        dictionary, out = self.dictionary, self.out
        prefixes = dictionary.prefixes if dictionary.prefixes.is_on else None
        for _ in range(KEYS_AT_ONCE):
            if not keys:
                out.append(END)
                self._keys = None
                return False
            if self.room_bytes < 0:
                return True
            name = name_of(keys.pop())
            entry = dictionary.fetch(name)
            if prefixes is not None:
                prefixes.count_get(key_of(name), is_hit=entry is not None)
            if touches:
                self._extend_one(name)
            elif entry is None:
                dictionary.counts.get_misses += 1
            else:
                dictionary.counts.get_hits += 1
            if entry is not None:
                self.room_bytes -= len(entry)
                out.append(_with_cas(name, entry) if with_cas else entry[HEADER_BYTES:-END_BYTES])
        self.room_bytes = -1  # let other sessions run
        out.append(b"")
        return True

    def _extend_one(self, name: bytes) -> bool:
        found = self.dictionary.expire_at(name, self._keys_expire_at_ms)
        if found:
            self.dictionary.counts.touch_hits += 1
        else:
            self.dictionary.counts.touch_misses += 1
        return found

    def _extend(self, words: list[bytes]) -> None:
        if not 3 <= len(words) <= 4:
            self.out.append(wire.ERROR)
            return
        quiet = words[-1] == b"noreply"
        expiry_s = signed_32(words[2])
        if len(words[1]) > KEY_BYTES_MAX:
            self._answer(wire.BAD_FORMAT, quiet)
        elif expiry_s is None:
            self._answer(wire.BAD_EXPIRY, quiet)
        else:
            self._keys_expire_at_ms = self.dictionary.expiry_ms(expiry_s)
            self._answer(wire.TOUCHED if self._extend_one(name_of(words[1])) else NOT_FOUND, quiet)

    def _delete(self, words: list[bytes]) -> None:
        if not 2 <= len(words) <= 4:
            self.out.append(wire.ERROR)
            return
        quiet = len(words) > 2 and words[-1] == b"noreply"
        rest = words[2:]
        if rest not in ([], [b"0"], [b"noreply"], [b"0", b"noreply"]):
            self._answer(wire.BAD_DELETE, quiet)
        elif len(words[1]) > KEY_BYTES_MAX:
            self._answer(wire.BAD_FORMAT, quiet)
        elif self.dictionary.find(name_of(words[1])) is not None and self.dictionary.remove(name_of(words[1])):
            self.dictionary.counts.delete_hits += 1
            self._answer(wire.DELETED, quiet)
        else:
            self.dictionary.counts.delete_misses += 1
            self._answer(NOT_FOUND, quiet)

    def _count(self, words: list[bytes]) -> None:
        """Execute incr or decr."""
        if not 3 <= len(words) <= 4:
            self.out.append(wire.ERROR)
            return
        quiet = words[-1] == b"noreply"
        if len(words[1]) > KEY_BYTES_MAX:
            self._answer(wire.BAD_FORMAT, quiet)
            return
        delta = unsigned_64(words[2])
        if delta is None:
            self._answer(wire.BAD_DELTA, quiet)
            return
        name, goes_up = name_of(words[1]), words[0] == b"incr"
        item = self.dictionary.look(name)
        counts = self.dictionary.counts
        if item is None:
            if goes_up:
                counts.incr_misses += 1
            else:
                counts.decr_misses += 1
            self._answer(NOT_FOUND, quiet)
            return
        counted = count(self.dictionary, name, item, delta, goes_up=goes_up)
        self._answer(wire.NOT_A_NUMBER if counted is None else counted + b"\r\n", quiet)

    def _flush_all(self, words: list[bytes]) -> None:
        if len(words) > 3:
            self.out.append(wire.ERROR)
            return
        quiet = len(words) > 1 and words[-1] == b"noreply"
        delay_s: int | None = 0
        if len(words) > (2 if quiet else 1):
            delay_s = signed_32(words[1])
        if delay_s is None:
            self._answer(wire.BAD_EXPIRY, quiet)
            return
        self.dictionary.flush(delay_s)
        self._answer(wire.OK, quiet)

    def _version(self, words: list[bytes]) -> None:
        self.out.append(b"VERSION " + VERSION.encode() + b"\r\n")

    def _verbosity(self, words: list[bytes]) -> None:
        if not 2 <= len(words) <= 3:
            self.out.append(wire.ERROR)
            return
        is_number = unsigned_32(words[1]) is not None
        self._answer(wire.OK if is_number else wire.BAD_FORMAT, words[-1] == b"noreply")

    def _quit(self, words: list[bytes]) -> None:
        self.quit()

    def _stats(self, words: list[bytes]) -> None:
        self.out.append(stats_of(self.dictionary, self.state, words[1:]))

    def _memory_limit(self, words: list[bytes]) -> None:
        self.out.append(set_memory_limit(self.dictionary, self.state, words))


def _is_get_of_one(line: bytes) -> bool:
    is_get = line[:4] == b"get " and line.count(b" ") == 1 and 0 not in line
    return is_get and len(line) != NAME_BYTES_MIN and len(line) <= NAME_BYTES_MAX


def _with_cas(name: bytes, entry: bytes) -> bytes:
    """Return an entry as the reply to gets, without its END."""
    line_end = entry.index(b"\r\n", KEY_AT + len(name) - NAME_BYTES_MIN)
    cas = int.from_bytes(entry[CAS_AT:HEADER_BYTES], "big")
    return b"%b %d%b" % (entry[HEADER_BYTES:line_end], cas, entry[line_end:-END_BYTES])


_COMMANDS: Final[dict[bytes, Callable[[CacheHandler, list[bytes]], None]]] = {
    b"get": CacheHandler._get,
    b"gets": CacheHandler._get,
    b"gat": CacheHandler._get,
    b"gats": CacheHandler._get,
    b"bget": CacheHandler._get,
    b"touch": CacheHandler._extend,
    b"delete": CacheHandler._delete,
    b"incr": CacheHandler._count,
    b"decr": CacheHandler._count,
    b"flush_all": CacheHandler._flush_all,
    b"version": CacheHandler._version,
    b"verbosity": CacheHandler._verbosity,
    b"quit": CacheHandler._quit,
    b"stats": CacheHandler._stats,
    b"cache_memlimit": CacheHandler._memory_limit,
}
