"""Cache commands about the server: stats, the memory limit, and refusals in memcached's words."""

from typing import Final

from kestreld import __version__
from kestreld.cache.dictionary import Dictionary
from kestreld.cache.prefixes import DELIMITER
from kestreld.server.cache.commands import END, ERROR, OK
from kestreld.server.cache.numbers import unsigned_32
from kestreld.server.cache.slab_classes import slab_class
from kestreld.server.state import ServerState

# Begins with the version of memcached whose commands it has: clients use it to find out a server's commands.
VERSION: Final = f"1.6.18-kestreld-{__version__}"
_MEGABYTES_MIN: Final = 8
_DETAIL_USAGE: Final = b"CLIENT_ERROR usage: stats detail on|off|dump\r\n"
_REFUSALS: Final = {
    b"shutdown": b"ERROR: shutdown not enabled\r\n",
    b"slabs": b"CLIENT_ERROR slab reassignment disabled\r\n",
    b"lru_crawler": b"CLIENT_ERROR lru crawler disabled\r\n",
    b"watch": b"CLIENT_ERROR watch commands not allowed\r\n",
}
_NEED_WORDS: Final = frozenset((b"slabs", b"lru_crawler"))


def refused(words: list[bytes]) -> bytes | None:
    """Return the reply to a command that memcached has and kestreld does not support; None for any other."""
    word = words[0]
    if word in _NEED_WORDS and len(words) == 1:
        return ERROR
    return _REFUSALS.get(word)


def set_memory_limit(dictionary: Dictionary, state: ServerState, words: list[bytes]) -> bytes:
    """Lower the limit to some megabytes until the next reload, or raise it again, at most to `cache_memory`."""
    megabytes = unsigned_32(words[1]) if 2 <= len(words) <= 3 else None
    if megabytes is None:
        return ERROR
    config = state.collection.config
    if megabytes < _MEGABYTES_MIN:
        reply = b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n"
    elif megabytes << 20 > config.cache_memory_bytes:
        reply = b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n"
    else:
        dictionary.configure(megabytes << 20, config.cache_item_size_max_bytes)
        reply = OK
    return b"" if words[-1] == b"noreply" else reply


def stats_of(dictionary: Dictionary, state: ServerState, words: list[bytes]) -> bytes:
    """Return the reply to `stats` with these arguments."""
    if not words:
        return _lines(_general(dictionary, state))
    word = words[0]
    if word == b"reset":
        dictionary.counts.reset()
        dictionary.prefixes.reset()
        return b"RESET\r\n"
    if word == b"settings":
        return _lines(_settings(dictionary, state))
    if word == b"items":
        return _lines(_items(dictionary))
    if word == b"slabs":
        return _lines(_slabs(dictionary))
    if word == b"sizes":
        return _lines({"sizes_status": "disabled"})
    if word == b"detail":
        return _detail(dictionary, words[1:])
    return END if word in (b"conns", b"cachedump") else ERROR


def _detail(dictionary: Dictionary, words: list[bytes]) -> bytes:
    """Execute `stats detail`: start or stop counting by prefix, or return the counts."""
    if words[:1] == [b"dump"]:
        return dictionary.prefixes.lines() + END
    if words[:1] not in ([b"on"], [b"off"]):
        return _DETAIL_USAGE
    dictionary.prefixes.is_on = words[0] == b"on"
    return OK


def _lines(figures: dict[str, object]) -> bytes:
    return "".join([f"STAT {name} {value}\r\n" for name, value in figures.items()]).encode() + END


def _general(dictionary: Dictionary, state: ServerState) -> dict[str, object]:
    clock, stats = state.clock, state.stats
    user_s, system_s = stats.cpu_s()
    return {
        "pid": stats.pid,
        "uptime": (clock.monotonic_ms - stats.started_at_ms) // 1000,
        "time": clock.wall_ms // 1000,
        "version": VERSION,
        "pointer_size": 64,
        "rusage_user": f"{user_s:.6f}",
        "rusage_system": f"{system_s:.6f}",
        "max_connections": _connections_max(state),
        "curr_connections": stats.curr_connections,
        "total_connections": stats.total_connections,
        "rejected_connections": stats.rejected_connections,
        "store_no_memory": 0,  # it evicts
        "auth_cmds": stats.logins,
        "auth_errors": stats.failed_logins,
        "bytes_read": stats.bytes_read,
        "bytes_written": stats.bytes_written,
        "threads": 1,
        **dictionary.figures(),
    }


def _connections_max(state: ServerState) -> int:
    wanted, possible = state.collection.config.max_connections, state.stats.connections_max
    return possible if wanted is None else min(wanted, possible)


def _settings(dictionary: Dictionary, state: ServerState) -> dict[str, object]:
    config = state.collection.config
    return {
        "maxbytes": dictionary.memory_bytes,
        "maxconns": _connections_max(state),
        "verbosity": 0,
        "oldest": 0,
        "evictions": "on",
        "num_threads": 1,
        "stat_key_prefix": DELIMITER.decode(),
        "detail_enabled": "yes" if dictionary.prefixes.is_on else "no",
        "cas_enabled": "yes",
        "item_size_max": dictionary.item_size_max_bytes,
        "auth_enabled_ascii": "yes" if config.users else "no",
        "binding_protocol": "ascii",
        "flush_enabled": "yes",
        "dump_enabled": "no",
        "idle_timeout": config.timeout_ms // 1000,
    }


def _items(dictionary: Dictionary) -> dict[str, object]:
    """Return the figures of all items, as one class, that of the mean item: there are no others."""
    if not dictionary.items:
        return {}
    counts, prefix = dictionary.counts, f"items:{_class_of(dictionary)}"
    return {
        f"{prefix}:number": dictionary.items,
        f"{prefix}:age": dictionary.oldest_s(),
        f"{prefix}:mem_requested": dictionary.used_bytes,
        f"{prefix}:evicted": counts.evictions,
        f"{prefix}:evicted_unfetched": counts.evicted_unfetched,
        f"{prefix}:expired_unfetched": counts.expired_unfetched,
        f"{prefix}:outofmemory": 0,
        f"{prefix}:reclaimed": counts.reclaimed,
    }


def _slabs(dictionary: Dictionary) -> dict[str, object]:
    totals: dict[str, object] = {
        "active_slabs": 1 if dictionary.items else 0,
        "total_malloced": dictionary.used_bytes,
    }
    if not dictionary.items:
        return totals
    counts, prefix = dictionary.counts, f"{_class_of(dictionary)}"
    return {
        f"{prefix}:chunk_size": dictionary.used_bytes // dictionary.items,
        f"{prefix}:used_chunks": dictionary.items,
        f"{prefix}:get_hits": counts.get_hits,
        f"{prefix}:cmd_set": counts.cmd_set,
        f"{prefix}:delete_hits": counts.delete_hits,
        f"{prefix}:incr_hits": counts.incr_hits,
        f"{prefix}:decr_hits": counts.decr_hits,
        f"{prefix}:cas_hits": counts.cas_hits,
        f"{prefix}:cas_badval": counts.cas_badval,
        f"{prefix}:touch_hits": counts.touch_hits,
        **totals,
    }


def _class_of(dictionary: Dictionary) -> int:
    return slab_class(dictionary.used_bytes // dictionary.items)
