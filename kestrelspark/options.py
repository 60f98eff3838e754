"""Parsing of the format's options, which Spark passes as text with names in lower case."""

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Final

from kestrelctl.journals.times import now_ms, parse_instant_ms, parse_span_ms
from kestreld.errors import KestrelError

# Spellings in the documentation: Spark passes names in lower case.
_SPELLED: Final = (
    "checkpointLocation", "credentialsFile", "dedupKey", "endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp",
    "expirySeconds", "failOnDataLoss", "ignoreMissingFiles", "includeValue", "maxBytesPerTrigger",
    "maxOffsetsPerTrigger", "maxPartitionBytes", "maxTriggerDelay", "minOffsetsPerTrigger", "minPartitions",
    "passwordFile", "startingOffsets", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
    "startingTimestamp", "subscribePattern", "timeoutMs", "walPath"
)  # fmt: skip
SPELLINGS: Final = {name.lower(): name for name in _SPELLED}


class BadOption(KestrelError):
    """An unknown option, or an invalid value."""


def spelled(name: str) -> str:
    """An option's name as spelled in the documentation."""
    return SPELLINGS.get(name.lower(), name)


def check_names(options: Mapping[str, str], known: Collection[str], whose: str) -> None:
    """Raise BadOption for an unknown option. `known` is in lower case; `whose` begins the message."""
    for name in options:
        if name.lower() not in known:
            close = difflib.get_close_matches(name.lower(), known, 1)
            hint = f"; did you mean {spelled(close[0])}?" if close else ""
            words = f"options are {', '.join(map(spelled, known))}"
            raise BadOption(f"{whose} has no option {name}{hint or ';'} {words}")


def option(options: Mapping[str, str], name: str, default: str = "") -> str:
    """Value of an option. `name` in lower case."""
    return next((value for key, value in options.items() if key.lower() == name), default)


def flag(options: Mapping[str, str], name: str, default: str = "false") -> bool:
    value = option(options, name, default).lower()
    if value not in ("true", "false"):
        raise BadOption(f"{spelled(name)} must be true or false, not {value}")
    return value == "true"


def number(options: Mapping[str, str], name: str, default: int, least: int = 0) -> int:
    value = option(options, name, str(default)).strip()
    if not (value.isascii() and value.isdecimal()) or int(value) < least:
        raise BadOption(f"{spelled(name)} must be a number of at least {least}, not {value}")
    return int(value)


def words(text: str) -> list[str]:
    """Names separated by commas or white space."""
    return [name for name in re.split(r"[,\s]+", text) if name]


def instant_ms(text: str, name: str, at_ms: int | None = None) -> int | None:
    """Parse a time as kestrelctl does, by default in UTC: ms since 1970, None = not given.

    `at_ms`: the time that `24h` and `now` refer to, None = now.
    """
    if not text:
        return None
    try:
        return parse_instant_ms(text, now_ms() if at_ms is None else at_ms)
    except ValueError:
        hint = "2025-01-31T12:00, 24h for a day ago, or milliseconds since 1970"
        raise BadOption(f"{spelled(name)} must be a time such as {hint}, not {text}") from None


def duration_ms(options: Mapping[str, str], name: str, default: str) -> int:
    text = option(options, name, default).strip()
    try:
        return parse_span_ms(text)
    except ValueError:
        raise BadOption(f"{spelled(name)} must be a time span such as 15m or 30s, not {text}") from None


def size_bytes(options: Mapping[str, str], name: str) -> int:
    """Parse a size such as 64m or 64MiB; 0 = not given."""
    text = option(options, name).strip()
    if not text:
        return 0
    found = re.fullmatch(r"(\d+)\s*([kmg]?)i?b?", text.lower())
    if found is None or int(found[1]) == 0:
        raise BadOption(f"{spelled(name)} must be a size such as 128m, not {text}")
    return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2]]
