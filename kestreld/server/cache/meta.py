"""memcached's meta commands, executed on the dictionary; each function returns the reply, b"" = none."""

from collections.abc import Callable
from typing import Final

from kestreld.cache.dictionary import Dictionary
from kestreld.cache.entries import (
    BINARY_KEY,
    CAS_AT,
    END_BYTES,
    FETCHED,
    HEADER_BYTES,
    KEY_AT,
    NEVER_MS,
    STALE,
    STATE_AT,
    TOKEN_SENT,
    Item,
    name_of,
)
from kestreld.server.cache.commands import (
    BAD_FORMAT,
    ERROR,
    EXISTS,
    KEY_BYTES_MAX,
    NOT_A_NUMBER,
    NOT_FOUND,
    STORED,
    TOO_LARGE,
    Storage,
)
from kestreld.server.cache.counting import count
from kestreld.server.cache.flags import OPAQUE_BYTES_MAX, OPAQUE_TOO_LONG, WORDS_MAX, Flags, shown
from kestreld.server.cache.slab_classes import item_bytes, slab_class
from kestreld.server.cache.storing import stored

USUAL_MAX: Final = 1024
_GET_TOO_LONG: Final = b"CLIENT_ERROR options flags are too long\r\n"
_TOO_LONG: Final = b"CLIENT_ERROR options flags too long\r\n"
_BAD_FLAG: Final = b"CLIENT_ERROR invalid or duplicate flag\r\n"
_BAD_MODE: Final = b"CLIENT_ERROR invalid mode for ma M token\r\n"
_CODES: Final = {STORED: b"HD", EXISTS: b"EX", NOT_FOUND: b"NF"}


def _remaining_s(dictionary: Dictionary, item: Item) -> int:
    """Return the whole seconds until an item expires, as clients count them; -1 = forever."""
    if item.expires_at_ms == NEVER_MS:
        return -1
    return max(-((dictionary.now_ms - item.expires_at_ms) // 1000), 0)


def _echoed(flags: Flags) -> bytes:
    """Return the flags that a reply without an item repeats: the opaque and the key."""
    answer = b""
    for letter in flags.letters:
        if letter == 79:  # O
            answer += b" " + flags.opaque
        elif letter == 107:  # k
            answer += shown(flags.key, flags.is_binary)
    return answer


def _read(words: list[bytes], too_long: bytes) -> Flags | bytes:
    """Parse the flags of a line; returns the reply instead if that is not possible."""
    if len(words) < 2:
        return ERROR
    if len(words[1]) > KEY_BYTES_MAX:
        return BAD_FORMAT
    return too_long if len(words) > WORDS_MAX else Flags(words[1], words[2:])


# mg


class _Usual(dict[bytes, bytes | None]):
    """The flags of an mg as text -> their letters, if they need only what a plain get finds; else None."""

    def __missing__(self, text: bytes) -> bytes | None:
        words = text.split(b" ")
        letters = b"".join(words)
        is_usual = len(letters) == len(words) == len(set(words)) and not set(letters) - set(b"vfskcq")
        if len(self) >= USUAL_MAX:
            self.clear()
        self[text] = letters if is_usual else None
        return self[text]


_usual: Final = _Usual()


def _usual_get(dictionary: Dictionary, key: bytes, letters: bytes) -> bytes | None:
    """mg of an item that no client has marked; None if one has."""
    name = name_of(key)
    entry = dictionary.fetch(name)
    if entry is None:
        dictionary.counts.get_misses += 1
        return b"" if b"q" in letters else b"EN k%b\r\n" % key if b"k" in letters else b"EN\r\n"
    if entry[STATE_AT] > FETCHED:
        return None
    dictionary.counts.get_hits += 1
    numbers_at = KEY_AT + len(key) + 1
    line_end = entry.index(b"\r\n", numbers_at)
    flags, size = entry[numbers_at:line_end].split(b" ")
    answer = b""
    for letter in letters:
        if letter == 102:  # f
            answer += b" f" + flags
        elif letter == 107:  # k
            answer += b" k" + key
        elif letter == 99:  # c
            answer += b" c%d" % int.from_bytes(entry[CAS_AT:HEADER_BYTES], "big")
        elif letter == 115:  # s
            answer += b" s" + size
    if b"v" in letters:
        return b"VA %b%b%b" % (size, answer, entry[line_end:-END_BYTES])
    return b"HD" + answer + b"\r\n"


def meta_get(dictionary: Dictionary, words: list[bytes]) -> bytes:
    """mg: get an item, or facts about it, and change its expiry."""
    if 2 < len(words) <= len(b"mkvfskcq") and len(words[1]) <= KEY_BYTES_MAX:
        letters = _usual[b" ".join(words[2:])]
        usual = None if letters is None else _usual_get(dictionary, words[1], letters)
        if usual is not None:
            return usual
    flags = _read(words, _GET_TOO_LONG)
    if isinstance(flags, bytes):
        return flags
    if flags.problem:
        return flags.problem
    name = name_of(flags.key)
    item = dictionary.look(name)
    is_new = item is None and flags.vivify_s is not None
    if is_new:
        item = _vivified(dictionary, name, flags)
    counts = dictionary.counts
    if item is None:
        if flags.ttl_s is None:
            counts.get_misses += 1
        else:
            counts.touch_misses += 1
        if len(flags.opaque) > OPAQUE_BYTES_MAX:
            return OPAQUE_TOO_LONG
        return b"" if flags.has(b"q") else b"EN" + _echoed(flags) + b"\r\n"
    told, is_won = _told(dictionary, item, flags, is_new=is_new)
    if told is None:
        dictionary.change(name, item)  # with the expiries before that flag, as memcached does
        return OPAQUE_TOO_LONG
    if flags.ttl_s is None:
        counts.get_hits += 1
    else:
        counts.touch_hits += 1
    answer = told + _markers(item, is_won=is_won)
    if is_won or is_new or flags.ttl_s is not None or item.state & (TOKEN_SENT | STALE):
        dictionary.change(name, item)
    if not flags.has(b"u"):
        dictionary.fetch(name)
    if flags.has(b"v"):
        return b"VA %d%b\r\n%b\r\n" % (len(item.data), answer, item.data)
    return b"HD" + answer + b"\r\n"


def _vivified(dictionary: Dictionary, name: bytes, flags: Flags) -> Item:
    item = dictionary.item(b"0", b"", 0)  # its expiry is set where the flag N stands
    if (flags.is_binary and not flags.key.isascii()) or not flags.key.decode("latin-1").isprintable():
        item.state = BINARY_KEY  # as text it would not be one word
    dictionary.put(name, item)
    return item


def _told(dictionary: Dictionary, item: Item, flags: Flags, *, is_new: bool) -> tuple[bytes | None, bool]:
    """Return the values that the flags ask for, in their order, and True if this client is to fetch the value anew.

    The values are None if the opaque is too long. T, N and R take effect where they stand.
    """
    answer, is_won = b"", False
    for letter in flags.letters:
        if letter == 107:  # k
            answer += shown(flags.key, bool(item.state & BINARY_KEY))
        elif letter == 79:  # O
            if len(flags.opaque) > OPAQUE_BYTES_MAX:
                return None, False
            answer += b" " + flags.opaque
        elif letter == 116:  # t
            answer += b" t%d" % _remaining_s(dictionary, item)
        elif letter == 84:  # T
            item.expires_at_ms = dictionary.expiry_ms(flags.ttl_s or 0)
        elif letter == 78:  # N
            if is_new:
                item.expires_at_ms = dictionary.expiry_ms(flags.vivify_s or 0)
                is_won = True
        elif letter == 82:  # R
            if not is_new and not item.state & TOKEN_SENT and item.expires_at_ms != NEVER_MS:
                is_won = is_won or _remaining_s(dictionary, item) < _from_now_s(dictionary, flags.recache_s or 0)
        elif letter == 99:  # c
            answer += b" c%d" % item.cas
        elif letter == 102:  # f
            answer += b" f" + item.flags
        elif letter == 115:  # s
            answer += b" s%d" % len(item.data)
        elif letter == 104:  # h
            answer += b" h1" if item.state & FETCHED else b" h0"
        elif letter == 108:  # l
            answer += b" l%d" % ((dictionary.now_ms - item.used_at_ms) // 1000)
    return answer, is_won


def _from_now_s(dictionary: Dictionary, expiry_s: int) -> int:
    """Convert an expiry, as clients write it, to seconds from now; 0 if it is never or over."""
    return 0 if expiry_s <= 0 else -((dictionary.now_ms - dictionary.expiry_ms(expiry_s)) // 1000)


def _markers(item: Item, *, is_won: bool) -> bytes:
    """Return the marks for a value to be fetched anew, and note in the item's state that a client was told."""
    answer = b""
    if item.state & TOKEN_SENT:
        answer += b" Z"
    if item.state & STALE:
        answer += b" X"
        is_won = is_won or not item.state & TOKEN_SENT
    if is_won:
        answer += b" W"
        item.state |= TOKEN_SENT
    return answer


# ms


def meta_set(dictionary: Dictionary, storage: Storage, flags: Flags) -> bytes:
    """ms: store an item."""
    name = name_of(storage.key)
    if storage.drops:
        dictionary.counts.store_too_large += 1
        if dictionary.find(name) is not None:
            dictionary.remove(name)
        return TOO_LARGE
    cas_before = dictionary.last_cas
    code = _CODES.get(stored(dictionary, storage, name), b"NS")
    if code == b"HD" and flags.has(b"q"):
        return b""
    answer = code
    for letter in flags.letters:
        if letter == 79:  # O
            answer += b" " + flags.opaque
        elif letter == 107:  # k
            answer += shown(storage.key, flags.is_binary)
        elif letter == 99:  # c
            answer += b" c%d" % (dictionary.last_cas if dictionary.last_cas != cas_before else 0)
    return answer + b"\r\n"


# md


def meta_delete(dictionary: Dictionary, words: list[bytes]) -> bytes:
    """md: delete an item, or mark it as stale."""
    flags = _read(words, _TOO_LONG)
    if isinstance(flags, bytes):
        return flags
    if flags.problem:
        return _BAD_FLAG
    if len(flags.opaque) > OPAQUE_BYTES_MAX:
        return OPAQUE_TOO_LONG
    name, counts = name_of(flags.key), dictionary.counts
    item = dictionary.look(name)
    code = b"HD"
    if item is None or (flags.cas is not None and flags.cas != item.cas):
        counts.delete_misses += 1
        code = b"NF" if item is None else b"EX"
    elif flags.has(b"I"):
        if flags.ttl_s is not None:
            item.expires_at_ms = dictionary.expiry_ms(flags.ttl_s)
        item.state = (item.state | STALE) & ~TOKEN_SENT
        item.cas = dictionary.next_cas()
        dictionary.change(name, item)
    else:
        counts.delete_hits += 1
        dictionary.remove(name)
    return b"" if code == b"HD" and flags.has(b"q") else code + _echoed(flags) + b"\r\n"


# ma


def meta_arithmetic(dictionary: Dictionary, words: list[bytes]) -> bytes:
    """ma: add to a number, or subtract from it."""
    flags = _read(words, _TOO_LONG)
    if isinstance(flags, bytes):
        return flags
    if flags.problem:
        return _BAD_FLAG
    if flags.mode not in b"\0I+D-":
        return _BAD_MODE
    name = name_of(flags.key)
    item = dictionary.look(name)
    if item is None:
        if flags.vivify_s is None:
            counts = dictionary.counts
            if flags.mode in b"D-":
                counts.decr_misses += 1
            else:
                counts.incr_misses += 1
            return _not_counted(b"NF", flags)
        item = dictionary.item(b"0", b"%d" % flags.initial, 0)
        dictionary.put(name, item)
        return _counted(dictionary, name, item, flags, item.data, is_new=True)
    if flags.cas and item.cas != flags.cas and item.data:
        return _not_counted(b"EX", flags)
    text = count(dictionary, name, item, flags.delta, goes_up=flags.mode not in b"D-")
    if text is None:
        return NOT_A_NUMBER
    answer = _counted(dictionary, name, item, flags, text, is_new=False)
    return b"" if flags.has(b"q") and answer != OPAQUE_TOO_LONG else answer


def _not_counted(code: bytes, flags: Flags) -> bytes:
    return OPAQUE_TOO_LONG if len(flags.opaque) > OPAQUE_BYTES_MAX else code + _echoed(flags) + b"\r\n"


def _counted(dictionary: Dictionary, name: bytes, item: Item, flags: Flags, text: bytes, *, is_new: bool) -> bytes:
    answer = b"VA %d" % len(text) if flags.has(b"v") else b"HD"
    for letter in flags.letters:
        if letter == 99:  # c
            answer += b" c%d" % item.cas
        elif letter == 116:  # t
            answer += b" t%d" % _remaining_s(dictionary, item)
        elif letter == 84:  # T
            item.expires_at_ms = dictionary.expiry_ms(flags.ttl_s or 0)
            dictionary.change(name, item)
        elif letter == 78 and is_new:  # N
            item.expires_at_ms = dictionary.expiry_ms(flags.vivify_s or 0)
            dictionary.change(name, item)
        elif letter == 79:  # O
            if len(flags.opaque) > OPAQUE_BYTES_MAX:
                return OPAQUE_TOO_LONG
            answer += b" " + flags.opaque
        elif letter == 107:  # k
            answer += shown(flags.key, flags.is_binary)
    return answer + (b"\r\n" + text + b"\r\n" if flags.has(b"v") else b"\r\n")


# me, mn


def meta_debug(dictionary: Dictionary, words: list[bytes]) -> bytes:
    """me: return the internal state of an item."""
    if len(words) < 2 or len(words[1]) > KEY_BYTES_MAX:
        return BAD_FORMAT
    key = words[1]
    if len(words) > 2 and words[2] == b"b":
        flags = Flags(key, words[2:3])
        if flags.problem:
            return BAD_FORMAT
        key = flags.key
    item = dictionary.look(name_of(key))
    if item is None:
        return b"EN\r\n"
    size_bytes = item_bytes(len(key), int(item.flags), len(item.data))
    return b"ME %b exp=%d la=%d cas=%d fetch=%b cls=%d size=%d\r\n" % (
        shown(key, bool(item.state & BINARY_KEY))[2:].removesuffix(b" b") if item.state & BINARY_KEY else key,
        -1 if item.expires_at_ms == NEVER_MS else -_remaining_s(dictionary, item),
        (dictionary.now_ms - item.used_at_ms) // 1000,
        item.cas,
        b"yes" if item.state & FETCHED else b"no",
        slab_class(size_bytes),
        size_bytes,
    )


def meta_noop(dictionary: Dictionary, words: list[bytes]) -> bytes:
    """mn: mark that all commands before it are answered."""
    return b"MN\r\n"


META: Final[dict[bytes, Callable[[Dictionary, list[bytes]], bytes]]] = {
    b"mg": meta_get,
    b"md": meta_delete,
    b"ma": meta_arithmetic,
    b"me": meta_debug,
    b"mn": meta_noop,
}
