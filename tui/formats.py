"""Short, readable forms of figures and names."""

from typing import Final

Number = int | float | None  # None = unknown, shown as a blank
NOT_SEEN: Final = "not seen since the restart"  # the holder of a lease
_SIZES: Final = ("", "K", "M", "G", "T", "P")
_SPANS_MS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"))


def count(value: Number) -> str:
    """`12,345`, `1.2M`; a blank for None."""
    if value is None:
        return ""
    if value < 100_000:
        return f"{value:,.0f}"
    return _scaled(value, 1000)


def rate(value: Number) -> str:
    if value is None:
        return ""
    return f"{value:.1f}" if 0 < value < 10 else count(value)


def size(value: Number) -> str:
    """Bytes: `512`, `1.5K`, `2.0G`."""
    if value is None:
        return ""
    return f"{value:.0f}" if value < 1024 else _scaled(value, 1024)


def _scaled(value: float, step: int) -> str:
    for unit in _SIZES:
        if value < step or unit == _SIZES[-1]:
            break
        value /= step
    return f"{value:.1f}{unit}" if value < 100 else f"{value:.0f}{unit}"


def span(value_ms: Number) -> str:
    """`250ms`, `3.5s`, `12m`, `4.1h`."""
    if value_ms is None:
        return ""
    for unit_ms, unit in _SPANS_MS:
        if value_ms >= unit_ms:
            number = value_ms / unit_ms
            return f"{number:.1f}{unit}" if number < 10 else f"{number:.0f}{unit}"
    return f"{value_ms:.0f}ms" if value_ms else "0"


def times(words: str, number: int) -> str:
    """`failed 1 time`, `extended 2 times`."""
    return f"{words} {number} time{'' if number == 1 else 's'}"


def printable(name: str) -> str:
    """A name, which may hold any bytes, made safe for a terminal."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() else "·" for letter in text)
