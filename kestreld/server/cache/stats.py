"""The answers to `stats`."""

from kestreld import __version__
from kestreld.cache.dictionary import Dictionary
from kestreld.server.cache.commands import END, ERROR
from kestreld.server.state import ServerState


def stats_of(dictionary: Dictionary, state: ServerState, words: list[bytes]) -> bytes:
    """The answer to `stats` with these words behind it."""
    if not words:
        return _lines(_general(dictionary, state))
    if words[0] == b"reset":
        dictionary.counts.reset()
        return b"RESET\r\n"
    if words[0] == b"settings":
        return _lines(_settings(dictionary))
    if words[0] in (b"items", b"slabs", b"sizes"):
        return END
    return ERROR


def _lines(figures: dict[str, object]) -> bytes:
    return "".join([f"STAT {name} {value}\r\n" for name, value in figures.items()]).encode() + END


def _general(dictionary: Dictionary, state: ServerState) -> dict[str, object]:
    clock = state.clock
    return {
        "uptime": (clock.monotonic_ms - state.stats.started_at_ms) // 1000,
        "time": clock.wall_ms // 1000,
        "version": __version__,
        "pointer_size": 64,
        "curr_connections": state.stats.curr_connections,
        **dictionary.figures(),
    }


def _settings(dictionary: Dictionary) -> dict[str, object]:
    return {
        "maxbytes": dictionary.memory_bytes,
        "evictions": "on",
        "item_size_max": dictionary.item_size_max_bytes,
        "cas_enabled": "yes",
        "flush_enabled": "yes",
    }
