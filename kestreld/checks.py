"""Arguments are checked where they are given: TypeError for another kind of thing, ValueError for its value."""

from collections.abc import Callable
from typing import Any, Final

FAR_MS: Final = 1 << 53  # nobody waits longer


def whole(value: object, what: str, lowest: int = 0) -> int:
    """A whole number, not below `lowest`."""
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, int)):
        raise TypeError(f"{what} must be an int, not {type(value).__name__}")
    if value < lowest:
        raise ValueError(f"{what} must be at least {lowest}, not {value}")
    return value


def whole_or_none(value: object, what: str, lowest: int = 0) -> int | None:
    return None if value is None else whole(value, what, lowest)


def span_ms(value: object, what: str) -> int:
    """A time, whole or not, but no longer than anybody waits."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{what} must be an int, not {type(value).__name__}")
    if not value >= 0:  # NaN is not, either
        raise ValueError(f"{what} must be at least 0, not {value}")
    return int(min(value, FAR_MS))


def switch(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{what} must be True or False, not {type(value).__name__}")
    return value


def text(value: object, what: str, *, may_be_empty: bool = False) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    if not (value or may_be_empty):
        raise ValueError(f"{what} must not be empty")
    return value


def path(value: object, what: str) -> str:
    """A path as a str. An empty one would be wherever the process happens to be."""
    return text(value.__fspath__() if hasattr(value, "__fspath__") else value, what)


def path_or_none(value: object, what: str) -> str | None:
    return None if value is None else path(value, what)


def function(value: Any, what: str) -> Callable[..., Any]:
    if not callable(value):
        raise TypeError(f"{what} must be callable, not {type(value).__name__}")
    return value  # type: ignore[no-any-return]


def instance(value: object, kind: type, what: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{what} must be a {kind.__name__}, not {type(value).__name__}")
