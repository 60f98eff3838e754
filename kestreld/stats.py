"""Counters of the server as a whole, and the two shapes in which figures leave: STAT lines and `queue 'x' {` blocks."""

from collections.abc import Iterable
from dataclasses import astuple, dataclass

Figures = list[tuple[str, str]]


@dataclass(slots=True)
class ServerStats:
    """What only the server knows. Bytes are those of the data ports."""

    started_at_ms: int = 0  # on the monotonic clock
    curr_connections: int = 0
    total_connections: int = 0
    rejected_connections: int = 0
    logins: int = 0  # tries by password
    failed_logins: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    missed_gets: int = 0  # GETs that found nothing
    peeks: int = 0
    refused_sets: int = 0
    child_sets: int = 0  # SETs on a child, which its parent does not count
    admin_address: str = ""  # where the HTTP listener is; "" = it is off


@dataclass(slots=True)
class Totals:
    """What readers count over their lives. The server's are those of all readers, deleted ones too."""

    put_items: int = 0
    parent_items: int = 0  # those of them that parents count
    fetched_items: int = 0
    expired_items: int = 0

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(*map(sum, zip(astuple(self), astuple(other), strict=True)))


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
