"""Counters of the server as a whole, and the two shapes in which figures leave: STAT lines and `queue 'x' {` blocks."""

from collections.abc import Iterable
from dataclasses import dataclass

Figures = list[tuple[str, str]]


@dataclass(slots=True)
class ServerStats:
    """What only the server knows. Bytes are those of the data ports."""

    started_at_ms: int = 0
    curr_connections: int = 0
    total_connections: int = 0
    rejected_connections: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    missed_gets: int = 0  # GETs that found nothing
    peeks: int = 0
    refused_sets: int = 0


def stat_lines(figures: Iterable[tuple[str, str]]) -> bytes:
    """memcached's form, closed by END."""
    lines = [f"STAT {name} {value}\r\n" for name, value in figures]
    return "".join([*lines, "END\r\n"]).encode("latin-1")


def blocks(queues: Iterable[tuple[str, Figures]]) -> bytes:
    """Kestrel's form: a block a queue, closed by END."""
    parts = []
    for name, figures in queues:
        parts.append(f"queue '{name}' {{\r\n")
        parts.extend([f"  {key}={value}\r\n" for key, value in figures])
        parts.append("}\r\n")
    parts.append("END\r\n")
    return "".join(parts).encode("latin-1")
