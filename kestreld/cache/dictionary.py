"""The cache's dictionary: entries expire, and the least recently used are evicted when memory is full.

An entry is one bytes object whose order as bytes says whether it can be served: a get compares it with `fresh_after`,
and looks at its fields only if that fails. Each part's dict is in the order of use, so eviction takes its first
entries. Parts keep every step short: no dict of millions of entries is ever resized, searched or freed at once.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from kestreld.cache.counts import Counts
from kestreld.cache.entries import (
    CAS_AT,
    EXPIRES_AT,
    FETCHED,
    FETCHED_STATE,
    NEVER,
    NEVER_MS,
    NEW,
    NEW_END,
    STATE_AT,
    TIME_BYTES,
    UNMARKED,
    USED_AT,
    Item,
    expires_at_ms,
    unpack,
    used_at_ms,
)
from kestreld.cache.parts import PLACES, SHIFT, SPLIT_MIN, Parts
from kestreld.cache.prefixes import Prefixes
from kestreld.clock import Clock

# Memory of an item without its name's and entry's bytes: two object headers, and its share of a dict.
ITEM_OVERHEAD_BYTES: Final = 2 * 33 + 16 + 96
MOVE_UP_MS_MAX: Final = 60_000  # an entry in use is moved up this often, more often if entries are evicted sooner
ROUNDS_AT_ONCE: Final = 64
EVICTED_AT_ONCE: Final = 500
SHARE_EVICTED: Final = 64  # one of this many entries of a part is evicted at a time
FREED_AT_ONCE: Final = 250  # each may be the last in a megabyte of free memory, which goes back to the kernel
TIDY_PAUSE_MS: Final = 1000
RELATIVE_S_MAX: Final = 60 * 60 * 24 * 30  # a longer expiry is a time since 1970

CAS_END: Final = b"\xff" * 8  # above every cas

_join: Final = b"".join


class Dictionary:
    """Entries by name (see `entries`). Names and entries are bytes, made by the protocol's handler.

    Every command calls `read_clock` first. Then a usual get needs only `table` and `fresh_after`: an entry that sorts
    after `fresh_after` is the reply; for any other, or none, call `fetch`.
    """

    def __init__(self, clock: Clock, memory_bytes: int, item_size_max_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        self.item_size_max_bytes = item_size_max_bytes
        self.counts = Counts()
        self.prefixes = Prefixes()
        self.items = 0
        self.used_bytes = 0
        self._clock = clock
        self._parts = Parts()
        self.table = self._parts.table
        self._garbage: list[dict[bytes, bytes]] = []
        self._garbage_bytes = 0
        self._cas = 0
        self._oldest_used_ms = clock.monotonic_ms  # last use of the entry evicted last
        self._flush_at_ms: int | None = None
        self._now_ms = -1
        self._now = b""
        self.fresh_after = b""
        self._new_lately = b""  # entries between it and NEW_END: not fetched so far, and moved up lately
        self.new_header = b""  # header of a new entry that never expires
        self._look_at = b""  # time field of entries moved up now
        self._used_lately = b""
        self._fetched_header = b""  # first fields of such an entry after a fetch
        self.read_clock()

    def configure(self, memory_bytes: int, item_size_max_bytes: int) -> None:
        """Set the limits of memory and item size."""
        self.memory_bytes = memory_bytes
        self.item_size_max_bytes = item_size_max_bytes

    def figures(self) -> dict[str, int]:
        """memcached's figures of contents and activity, by memcached's names."""
        return {
            **self.counts.figures(),
            "curr_items": self.items,
            "bytes": self.used_bytes,
            "limit_maxbytes": self.memory_bytes,
        }

    # Time

    def read_clock(self) -> None:
        """Take over the time of this turn, and a delayed flush that is due."""
        now_ms = self._clock.monotonic_ms
        if now_ms == self._now_ms:
            return
        self._now_ms = now_ms
        self._now = now_ms.to_bytes(TIME_BYTES, "big")
        stale_at_ms = now_ms - self._move_up_ms()
        self.fresh_after = (stale_at_ms + MOVE_UP_MS_MAX).to_bytes(TIME_BYTES, "big")
        self.new_header = NEW + self._now
        self._used_lately = max(stale_at_ms, 0).to_bytes(TIME_BYTES, "big")
        self._new_lately = NEW + self._used_lately + CAS_END
        self._look_at = (now_ms + MOVE_UP_MS_MAX).to_bytes(TIME_BYTES, "big")
        self._fetched_header = self._look_at + FETCHED_STATE + NEVER
        if self._flush_at_ms is not None and now_ms >= self._flush_at_ms:
            self._flush_at_ms = None
            self._drop_all()

    def _move_up_ms(self) -> int:
        """Time for which an entry in use may keep its place in the order of use."""
        if self.used_bytes < self.memory_bytes - self.memory_bytes // 4:
            return MOVE_UP_MS_MAX  # nothing is evicted soon
        return min(MOVE_UP_MS_MAX, (self._now_ms - self._oldest_used_ms) // 8)

    def expiry_ms(self, expiry_s: int) -> int:
        """Time of a client's expiry: seconds from now up to 30 days, or a time since 1970; 0 = NEVER_MS."""
        if expiry_s == 0:
            return NEVER_MS
        if expiry_s < 0:
            return self._now_ms
        ahead_ms = expiry_s * 1000
        if expiry_s > RELATIVE_S_MAX:
            ahead_ms -= self._clock.wall_ms
        return max(self._now_ms + ahead_ms, self._now_ms)

    @property
    def now_ms(self) -> int:
        """Time of this turn, on the monotonic clock of entries."""
        return self._now_ms

    # Entries

    def fetch(self, name: bytes) -> bytes | None:
        """The entry that answers a get, which counts as a use; None if there is none."""
        part = self.table[hash(name) >> SHIFT]
        entry = part.get(name)
        if entry is None:
            return None
        if self._new_lately < entry < NEW_END:
            entry = part[name] = entry.replace(NEW, self._fetched_header, 1)
            return entry
        if entry < NEW_END and entry[USED_AT:CAS_AT] > self._used_lately:
            expires = entry[EXPIRES_AT:USED_AT]
            if expires > self._now:
                entry = part[name] = min(expires, self._look_at) + FETCHED_STATE + entry[EXPIRES_AT:]
                return entry
        entry = self.find(name)
        if entry is None:
            return None
        if not entry[STATE_AT] & FETCHED:
            entry = self.rewrite(name, entry, entry[STATE_AT] | FETCHED)
        if self._now_ms - used_at_ms(entry) >= self._move_up_ms():
            return self._moved_up(name, entry)
        return entry

    def move_up(self, name: bytes) -> None:
        """Make an entry the most recently used; it does not count as fetched."""
        entry = self.find(name)
        if entry is not None:
            self._moved_up(name, entry)

    def _moved_up(self, name: bytes, entry: bytes) -> bytes:
        part = self.table[hash(name) >> SHIFT]
        del part[name]
        look_at = entry[:STATE_AT]
        if entry[STATE_AT] & FETCHED:
            look_at = min(self._now_ms + MOVE_UP_MS_MAX, expires_at_ms(entry)).to_bytes(TIME_BYTES, "big")
        entry = look_at + entry[STATE_AT:USED_AT] + self._now + entry[CAS_AT:]
        part[name] = entry
        return entry

    def find(self, name: bytes) -> bytes | None:
        """The entry, left as it is; None if there is none, or it has expired."""
        entry = self.table[hash(name) >> SHIFT].get(name)
        if entry is not None and entry[EXPIRES_AT:USED_AT] <= self._now:
            self.counts.get_expired += 1
            self._expire(name, entry)
            return None
        return entry

    def _expire(self, name: bytes, entry: bytes) -> None:
        self.counts.reclaimed += 1
        if not entry[STATE_AT] & FETCHED:
            self.counts.expired_unfetched += 1
        self.remove(name)

    def rewrite(self, name: bytes, entry: bytes, state: int) -> bytes:
        """Change the state of an entry, which keeps its place; returns the new entry."""
        if state & FETCHED:
            look_at_ms = min(used_at_ms(entry) + MOVE_UP_MS_MAX, expires_at_ms(entry))
            entry = look_at_ms.to_bytes(TIME_BYTES, "big") + state.to_bytes(1, "big") + entry[EXPIRES_AT:]
        else:
            entry = entry[:STATE_AT] + state.to_bytes(1, "big") + entry[EXPIRES_AT:]
        self.table[hash(name) >> SHIFT][name] = entry
        return entry

    def next_cas(self) -> int:
        """A cas that was never used."""
        self._cas += 1
        return self._cas

    def item(self, flags: bytes, data: bytes, expiry_s: int) -> Item:
        """A new item."""
        return Item(flags, data, self.expiry_ms(expiry_s), self._now_ms)

    def look(self, name: bytes) -> Item | None:
        """The entry unpacked, left as it is; None if there is none."""
        entry = self.find(name)
        return None if entry is None else unpack(name, entry)

    @property
    def last_cas(self) -> int:
        """The cas given last."""
        return self._cas

    def put_plain(self, key: bytes, flags: bytes, size: bytes, data: bytes, expiry_s: int = 0) -> None:
        """`put` of an item that never expires, or within 30 days; the caller counts it.

        `size` is the length of the data as text.
        """
        self._cas += 1
        name, cas, header = b"get " + key, self._cas.to_bytes(8, "big"), self.new_header
        if expiry_s:
            expires_at_ms = self._now_ms + expiry_s * 1000
            header = UNMARKED + expires_at_ms.to_bytes(TIME_BYTES, "big") + self._now
            self._parts.note_expiry(hash(name) >> SHIFT, expires_at_ms)
        entry = _join((header, cas, b"VALUE ", key, b" ", flags, b" ", size, b"\r\n", data, b"\r\nEND\r\n"))
        part = self.table[hash(name) >> SHIFT]
        before = part.pop(name, None)
        part[name] = entry
        if before is None:
            self._count_in(name, entry, part)
        else:
            self.used_bytes += len(entry) - len(before)
        if self.used_bytes + self._garbage_bytes > self.memory_bytes:
            self.make_room()

    def put(self, name: bytes, item: Item) -> None:
        """Store an item as the most recently used, with a new cas."""
        item.cas = self.next_cas()
        item.used_at_ms = self._now_ms
        if item.expires_at_ms <= self._now_ms:
            self.counts.total_items += 1
            self.remove(name)
            return
        self.store(name, item.pack(name, item.used_at_ms + MOVE_UP_MS_MAX))
        if item.expires_at_ms != NEVER_MS:
            self._parts.note_expiry(hash(name) >> SHIFT, item.expires_at_ms)

    def expire_at(self, name: bytes, expires_at_ms: int) -> bool:
        """Change the expiry of an entry, which counts as fetched; False if there is none."""
        item = self.look(name)
        if item is None:
            return False
        item.expires_at_ms = expires_at_ms
        item.state |= FETCHED
        self.change(name, item)
        return True

    def change(self, name: bytes, item: Item) -> None:
        """Write back an item from `look` or `put`; it keeps its place in the order of use."""
        expires_at_ms = item.expires_at_ms
        if expires_at_ms <= self._now_ms:
            self.remove(name)
            return
        part = self.table[hash(name) >> SHIFT]
        before = part.get(name)
        entry = part[name] = item.pack(name, item.used_at_ms + MOVE_UP_MS_MAX)
        if before is None:  # the item had expired when it was put
            self._count_in(name, entry, part)
        else:
            self.used_bytes += len(entry) - len(before)
        if expires_at_ms != NEVER_MS:
            self._parts.note_expiry(hash(name) >> SHIFT, expires_at_ms)

    def store(self, name: bytes, entry: bytes) -> None:
        """Store an entry as the most recently used, instead of any other of that name."""
        part = self.table[hash(name) >> SHIFT]
        before = part.pop(name, None)
        part[name] = entry
        self.counts.total_items += 1
        if before is not None:
            self.used_bytes += len(entry) - len(before)
        else:
            self._count_in(name, entry, part)
        if self.used_bytes + self._garbage_bytes > self.memory_bytes:
            self.make_room()

    def _count_in(self, name: bytes, entry: bytes, part: dict[bytes, bytes]) -> None:
        self.items += 1
        self.used_bytes += len(entry) + len(name) + ITEM_OVERHEAD_BYTES
        if len(part) > SPLIT_MIN:
            self._parts.grown(hash(name) >> SHIFT)

    def remove(self, name: bytes) -> bool:
        """Remove an entry; False if there was none."""
        before = self.table[hash(name) >> SHIFT].pop(name, None)
        if before is None:
            return False
        self._discount(name, before)
        return True

    def oldest_s(self) -> int:
        """Seconds since the oldest entry of one part was moved up."""
        first = next(iter(self.table[0].values()), None)
        return 0 if first is None else (self._now_ms - used_at_ms(first)) // 1000

    # Memory

    @property
    def is_over_limit(self) -> bool:
        """True if memory is over its limit and something can be removed."""
        used_bytes = self.used_bytes + self._garbage_bytes
        return used_bytes > self.memory_bytes and (self.items > 1 or bool(self._garbage))

    def make_room(self) -> None:
        """Free memory until it is within its limit, or as much as one command should."""
        items_min = self.items - EVICTED_AT_ONCE
        for _ in range(ROUNDS_AT_ONCE):
            if not self.is_over_limit or self.items < items_min:
                return
            if self._garbage:
                self._free_some()
            else:
                self._evict_some()

    def _evict_some(self) -> None:
        """Evict the least recently used of the next part.

        Each part loses the same share, because new entries are spread over all of them.
        """
        parts = self._parts
        first = parts.next_first()
        part = self.table[first]
        while not part:
            first = parts.next_first()
            part = self.table[first]
        counts = self.counts
        for name in list(islice(part, 1 + len(part) // SHARE_EVICTED)):
            entry = part.pop(name)
            self._discount(name, entry)
            self._oldest_used_ms = used_at_ms(entry)
            counts.evictions += 1
            if not entry[STATE_AT] & FETCHED:
                counts.evicted_unfetched += 1
        if len(part) < SPLIT_MIN // 8:
            parts.shrunk(first, USED_AT, CAS_AT)

    def _free_some(self) -> None:
        """Free some of the flushed entries."""
        part = self._garbage[-1]
        for _ in range(min(FREED_AT_ONCE, len(part))):
            name, entry = part.popitem()
            self._garbage_bytes -= len(entry) + len(name) + ITEM_OVERHEAD_BYTES
        if not part:
            self._parts.take_back(self._garbage.pop())

    # Everything at once

    def flush(self, delay_s: int) -> None:
        """Drop everything that is there now, or when the delay is over (given like an expiry)."""
        self.counts.cmd_flush += 1
        if delay_s <= 0:
            self._flush_at_ms = None
            self._drop_all()
        else:
            self._flush_at_ms = self.expiry_ms(delay_s)

    def _drop_all(self) -> None:
        self._garbage += self._parts.replace_all()
        self._garbage_bytes += self.used_bytes
        self.used_bytes = self.items = 0
        self._oldest_used_ms = self._now_ms

    # Long work, in short steps

    @property
    def tidy_at_ms(self) -> int:
        """Time from which on `tidy` has something to do, NEVER_MS = nothing."""
        if self._garbage or self.is_over_limit:
            return self._now_ms
        return self._parts.tidy_at_ms if self._flush_at_ms is None else min(self._flush_at_ms, self._parts.tidy_at_ms)

    def tidy(self) -> Iterator[None]:
        """Free expired and flushed entries, and those beyond the limit, a little at each step."""
        self.read_clock()
        while self._garbage:
            self._free_some()
            yield
        while self.is_over_limit:
            self.make_room()
            yield
        parts, first, started_ms = self._parts, 0, self._now_ms
        while first < PLACES:
            if parts.due_ms(first) <= self._now_ms:
                yield from self._drop_expired(first)
            first = parts.after(parts.first_of(first))
        parts.find_due(self._now_ms + max(TIDY_PAUSE_MS, 10 * (self._now_ms - started_ms)))

    def _drop_expired(self, first: int) -> Iterator[None]:
        """Free the expired entries of a part, which may be split or joined between steps."""
        part, now, due = self.table[first], self._now, NEVER
        expired = []
        for name, entry in part.items():
            expires = entry[EXPIRES_AT:USED_AT]
            if expires <= now:
                expired.append(name)
            elif expires < due:
                due = expires
        self._parts.set_due(first, int.from_bytes(due, "big"))
        yield
        for at, name in enumerate(expired):
            found = self.table[hash(name) >> SHIFT].get(name)
            if found is not None and found[EXPIRES_AT:USED_AT] <= self._now:
                self._expire(name, found)
            if at % FREED_AT_ONCE == 0:
                yield
        first = self._parts.first_of(first)
        if len(self.table[first]) < len(expired):
            self._parts.rebuild(first)
            self._parts.shrunk(first, USED_AT, CAS_AT)

    def _discount(self, name: bytes, entry: bytes) -> None:
        """Subtract a removed entry from the counts."""
        self.items -= 1
        self.used_bytes -= len(entry) + len(name) + ITEM_OVERHEAD_BYTES
