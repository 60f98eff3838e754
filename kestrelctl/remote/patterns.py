"""Names of queues with * and ?, as in a shell. Pure."""

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase


def alike(pattern: str, names: Collection[str]) -> list[str]:
    """Those that the pattern matches, sorted. A name that is there means itself, whatever letters it has."""
    return [pattern] if pattern in names else sorted(name for name in names if fnmatchcase(name, pattern))


def are_names(patterns: Sequence[str]) -> bool:
    """Whether none of them can match anything but itself."""
    return not any(letter in pattern for pattern in patterns for letter in "*?[")
