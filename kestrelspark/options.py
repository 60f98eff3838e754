"""Options of the format "kestrel" as Spark passes them: text, with case-insensitive names."""

import re
from collections.abc import Collection, Mapping

from kestreld.errors import KestrelError


class BadOption(KestrelError):
    """An unknown option, or an invalid value."""


def check_names(options: Mapping[str, str], known: Collection[str], whose: str) -> None:
    """Raises BadOption for an unknown option. `known` in lower case; `whose` begins the message."""
    for name in options:
        if name.lower() not in known:
            raise BadOption(f"{whose} has no option {name}; options are {', '.join(known)}")


def option(options: Mapping[str, str], name: str, default: str = "") -> str:
    """Its value. `name` in lower case."""
    return next((value for key, value in options.items() if key.lower() == name), default)


def flag(options: Mapping[str, str], name: str, default: str = "false") -> bool:
    value = option(options, name, default).lower()
    if value not in ("true", "false"):
        raise BadOption(f"{name} must be true or false, not {value}")
    return value == "true"


def number(options: Mapping[str, str], name: str, default: int, least: int = 0) -> int:
    value = option(options, name, str(default)).strip()
    if not (value.isascii() and value.isdecimal()) or int(value) < least:
        raise BadOption(f"{name} must be a number of at least {least}, not {value}")
    return int(value)


def words(text: str) -> list[str]:
    """Names separated by commas or white space."""
    return [name for name in re.split(r"[,\s]+", text) if name]
