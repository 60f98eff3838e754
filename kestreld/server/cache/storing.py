"""Storage commands of the text and meta protocols: set, add, replace, append, prepend and cas."""

from kestreld.cache.dictionary import Dictionary
from kestreld.cache.entries import BINARY_KEY, STALE, TOKEN_SENT, Item
from kestreld.server.cache.commands import EXISTS, NOT_FOUND, NOT_STORED, STORED, Storage
from kestreld.server.cache.slab_classes import item_bytes


def stored(dictionary: Dictionary, storage: Storage, name: bytes) -> bytes:
    """Execute a storage command if its condition holds; returns the reply of the text protocol."""
    word, counts = storage.word, dictionary.counts
    counts.cmd_set += 1
    item = dictionary.item(b"%d" % storage.flags, storage.data, storage.expiry_s)
    if storage.is_binary:
        item.state = BINARY_KEY
    if word == b"set":
        dictionary.put(name, item)
        return STORED
    before = dictionary.look(name)
    if before is None:
        if word == b"cas":
            counts.cas_misses += 1
            return NOT_FOUND
        if word != b"add":
            return NOT_STORED
    elif word == b"add":
        dictionary.move_up(name)
        return NOT_STORED
    elif word == b"cas":
        if not _fits(dictionary, storage, before, item):
            counts.cas_badval += 1
            return EXISTS
        counts.cas_hits += 1
    elif word != b"replace":
        if storage.cas and storage.cas != before.cas:
            return EXISTS
        before.data = before.data + storage.data if word == b"append" else storage.data + before.data
        before.state &= BINARY_KEY
        item = before
        size_bytes = item_bytes(len(storage.key), int(item.flags), len(item.data))
        if size_bytes > dictionary.item_size_max_bytes:
            return NOT_STORED
    dictionary.put(name, item)
    return STORED


def _fits(dictionary: Dictionary, storage: Storage, before: Item, item: Item) -> bool:
    """Return True if the cas matches, or is an older one where that is allowed: the item is then stale."""
    if storage.cas == before.cas:
        return True
    if not storage.may_be_stale or not 0 < storage.cas < before.cas:
        return False
    item.expires_at_ms = before.expires_at_ms
    item.state |= STALE | (before.state & TOKEN_SENT)
    return True
