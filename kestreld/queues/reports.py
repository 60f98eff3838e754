"""Long replies, such as those of STATS and DUMP_CONFIG, made piece by piece as the client reads.

Each is an iterator of pieces of text, and of None where other work may run. So the figures of two queues may be of
different times; those of one queue are of one.
"""

from collections.abc import Callable, Generator, Iterator
from heapq import merge
from typing import Final

from kestreld.clock import Clock
from kestreld.config.config import Compat
from kestreld.config.settings import queue_setting_lines
from kestreld.queues import leases
from kestreld.queues.collection import QueueCollection
from kestreld.queues.figures import Sees, adding_up, queue_figures, server_figures
from kestreld.queues.reader import Reader
from kestreld.queues.states import lease_of
from kestreld.stats import Figures, ServerStats

PIECE_BYTES: Final = 1 << 16
LEASES_AT_ONCE: Final = 256  # looked at in a step: two milliseconds at most
SORTED_AT_ONCE: Final = 2048
BINDINGS_AT_ONCE: Final = 512
END: Final = "END\r\n"
STOPPED: Final[Figures] = [("stopped", "1")]  # figures of a queue whose journal could not be read

Pieces = Iterator[bytes | None]


def stats_report(collection: QueueCollection, stats: ServerStats, sees: Sees | None) -> Pieces:
    """Stats in memcached's form. `sees` returns True for queues that the client may see; None = all."""
    sums = yield from adding_up(collection)
    if stats.jobs is not None:
        yield from stats.jobs.adding_up()
    text = "".join([f"STAT {key} {value}\r\n" for key, value in server_figures(collection, stats, sums)])
    yield from _in_pieces(text, _all_queues(collection, sees), _stat_lines)


def dump_stats_report(collection: QueueCollection, names: list[str] | None, sees: Sees | None) -> Pieces:
    """Stats in Kestrel's form: a block for each queue, or for each of `names`; an unknown name has an empty one."""
    strict = collection.config.compat is Compat.KESTREL_1
    queues = _all_queues(collection, sees) if names is None else _named(collection, names, sees)
    return _in_pieces("", queues, _block, nothing="\r\n" if strict else "")


def dump_job_queues_report(stats: ServerStats, sees: Sees | None) -> Pieces:
    """The queues of jobs in the form of DUMP_STATS."""
    if stats.jobs is not None:
        yield from stats.jobs.report(sees)
    yield END.encode()


def dump_config_report(collection: QueueCollection, *, has_origins: bool = False) -> Pieces:
    """Every setting of every queue, as in force; `has_origins`: each followed by where it is from."""
    strict = collection.config.compat is Compat.KESTREL_1
    # Kestrel puts a line end between what it lists and END, even if it lists nothing.
    return _in_pieces("", _all_settings(collection, has_origins=has_origins), _block, nothing="\r\n" if strict else "")


def bindings_report(collection: QueueCollection, exchange: bytes) -> Pieces:
    """The bindings of an exchange as they are when this begins, or of all exchanges, each as of its turn; b"" = all."""
    for keys in collection.bindings.of(exchange or None):
        for first in range(0, len(keys), BINDINGS_AT_ONCE):
            yield b"".join([b"BINDING %b\r\n" % key for key in keys[first : first + BINDINGS_AT_ONCE]])
    yield END.encode()


def leases_report(clock: Clock, readers: list[Reader], name: str, sees: Sees | None) -> Pieces:
    """A line for each lease that the holder of that name has from `readers`, those stopped and deleted left out."""
    lines: list[str] = []
    start = f"{name}/"
    for reader in readers:
        held = reader.held
        if held is None or not held.leased or (sees is not None and not sees(reader.name)):
            yield None
            continue
        for place, one in enumerate(list(held.leases), 1):
            if place % LEASES_AT_ONCE == 0:
                yield from _full(lines)
            lease = lease_of(reader, one)
            if lease is not None and lease.holder.startswith(start) and one in reader.open and not reader.deleted:
                length_ms, token = lease.ends_at_ms - lease.since_ms, leases.token_of(reader, one)
                left_ms = min(max(lease.ends_at_ms - clock.monotonic_ms, 0), length_ms)
                lines.append(f"LEASE {reader.name} {one} {token} {left_ms} {length_ms}\r\n")
        yield from _full(lines)
    yield "".join([*lines, END]).encode("latin-1")


def _full(lines: list[str]) -> Pieces:
    """The lines as a piece if there are enough of them, which empties the list; else None."""
    if len(lines) < LEASES_AT_ONCE:
        yield None
        return
    piece = "".join(lines).encode("latin-1")
    lines.clear()
    yield piece


def _in_pieces(
    text: str,
    queues: Iterator[tuple[str, Figures] | None],
    written: Callable[[str, Figures], str],
    nothing: str = "",
) -> Pieces:
    """`text`, each queue as `written` formats it, and END, which `nothing` precedes if there is no queue."""
    parts, size, is_empty = [text], len(text), True
    for found in queues:
        if found is None:
            yield None
            continue
        is_empty = False
        part = written(*found)
        parts.append(part)
        size += len(part)
        if size >= PIECE_BYTES:
            yield "".join(parts).encode("latin-1")
            parts, size = [], 0
        else:
            yield None
    parts += [nothing, END] if is_empty else [END]
    yield "".join(parts).encode("latin-1")


def _stat_lines(name: str, figures: Figures) -> str:
    start = f"STAT queue_{name}_"
    return "".join([f"{start}{key} {value}\r\n" for key, value in figures])


def _block(name: str, figures: Figures) -> str:
    lines = "".join([f"  {key}={value}\r\n" for key, value in figures])
    return f"queue '{name}' {{\r\n{lines}}}\r\n"


def _all_queues(collection: QueueCollection, sees: Sees | None) -> Iterator[tuple[str, Figures] | None]:
    """Every queue that exists at its step, by name; then those whose journals could not be read."""
    strict = collection.config.compat is Compat.KESTREL_1
    names = yield from _in_order(list(collection.readers))
    for name in names:
        if sees is not None and not sees(name):
            yield None
        elif (reader := collection.find(name)) is not None:
            while reader.seek_head():
                yield None
            yield name, queue_figures(reader, collection.clock.wall_ms, guide_only=strict, sees=sees)
    for name in sorted(collection.broken):
        if sees is None or sees(name):
            yield name, STOPPED


def _named(collection: QueueCollection, names: list[str], sees: Sees | None) -> Iterator[tuple[str, Figures] | None]:
    for name in names:
        reader = collection.find(name) if sees is None or sees(name) else None
        while reader is not None and reader.seek_head():
            yield None
        if reader is not None:
            yield name, queue_figures(reader, collection.clock.wall_ms, sees=sees)
        else:
            is_stopped = (sees is None or sees(name)) and collection.problem_of(name) is not None
            yield name, STOPPED if is_stopped else []


def _all_settings(collection: QueueCollection, *, has_origins: bool) -> Iterator[tuple[str, Figures] | None]:
    names = yield from _in_order(list(collection.readers))
    for name in names:
        if (reader := collection.find(name)) is not None:
            lines = queue_setting_lines(reader.config)
            yield name, _with_origins(collection, name, lines) if has_origins else lines


def _with_origins(collection: QueueCollection, queue: str, lines: Figures) -> Figures:
    told: list[tuple[str, int | str]] = []
    for name, value in lines:
        told += [(name, value), (f"{name}_from", collection.declared.origin_of(collection.config, queue, name))]
    return told


def _in_order(names: list[str]) -> Generator[None, None, Iterator[str]]:
    """The names sorted, in many small steps."""
    runs = []
    for start in range(0, len(names), SORTED_AT_ONCE):
        runs.append(sorted(names[start : start + SORTED_AT_ONCE]))
        yield
    return merge(*runs)
