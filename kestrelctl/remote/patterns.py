"""Patterns of queue names with * and ?, as in a shell. Pure."""

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase


def alike(pattern: str, names: Collection[str]) -> list[str]:
    """The names that the pattern matches, sorted. A pattern that is itself a name matches only that name."""
    return [pattern] if pattern in names else sorted(name for name in names if fnmatchcase(name, pattern))


def are_names(patterns: Sequence[str]) -> bool:
    """True if no pattern has a special character."""
    return not any(letter in pattern for pattern in patterns for letter in "*?[")
