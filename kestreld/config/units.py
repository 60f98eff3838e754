"""Parsers of whole numbers, sizes and durations, such as 16MiB and 1h30m, as bytes and milliseconds.

Numbers are without signs, underscores and leading zeros: other forms that int() accepts are probably mistakes.
"""

import re
from typing import Final

WHOLE_NUMBER_MAX: Final = 2**63 - 1  # the limit of the journal's fields and of the memcache protocol
SIZE_BYTES: Final = {"": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}

_NUMBER: Final = "(0|[1-9][0-9]{0,18})"  # 19 digits hold 2**63 - 1
_WHOLE: Final = re.compile(_NUMBER)
_SIZE: Final = re.compile(f"{_NUMBER}(|KiB|MiB|GiB)")
_DURATION: Final = re.compile("".join(f"(?:{_NUMBER}{unit})?" for unit in ("d", "h", "m", "s", "ms")))
_DURATION_MS: Final = (86_400_000, 3_600_000, 60_000, 1_000, 1)


def parse_whole_number(text: str) -> int:
    """Parse a plain number. Raises ValueError."""
    match = _WHOLE.fullmatch(text)
    if match is None:
        raise ValueError("not a whole number")
    return _bounded(int(text))


def parse_size_bytes(text: str) -> int:
    """Parse `1048576`, `64KiB`, `16MiB` or `2GiB`. Raises ValueError."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError("not a size")
    return _bounded(int(match[1]) * SIZE_BYTES[match[2]])


def parse_duration_ms(text: str, plain_unit_ms: int) -> int:
    """Parse `250ms`, `30s`, `1h30m` or `1d`; a plain number counts units of `plain_unit_ms`. Raises ValueError."""
    if _WHOLE.fullmatch(text):
        return _bounded(int(text) * plain_unit_ms)
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        raise ValueError("not a duration")
    return _bounded(sum(int(n) * unit for n, unit in zip(match.groups("0"), _DURATION_MS, strict=True)))


def _bounded(number: int) -> int:
    if number > WHOLE_NUMBER_MAX:
        raise ValueError("too large")
    return number
