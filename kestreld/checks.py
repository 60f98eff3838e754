"""Checks of arguments that users of the library pass: they raise InvalidType or InvalidValue.

Each error names the argument, the values allowed, and the value given.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from kestreld.errors import InvalidType, InvalidValue

FAR_MS: Final = 1 << 53  # the longest wait
REASON_BYTES_MAX: Final = 200
HOLDER_BYTES_MAX: Final = 64
ABSENCE_MS_MAX: Final = 60_000  # of a holder that is present, before its leases end
_HOLDER: Final = re.compile(rf"[!-.0-~]{{1,{HOLDER_BYTES_MAX}}}")


def whole(value: object, what: str, lowest: int = 0, *, may_be_none: bool = False) -> int:
    """Return `value` if it is an int of at least `lowest`."""
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, int)):
        raise InvalidType(what, _whole(lowest, may_be_none=may_be_none), value)
    if value < lowest:
        raise InvalidValue(what, _whole(lowest, may_be_none=may_be_none), value)
    return value


def _whole(lowest: int, *, may_be_none: bool) -> str:
    return f"{'None or ' if may_be_none else ''}an int{'' if lowest == -FAR_MS else f' of at least {lowest}'}"


def whole_or_none(value: object, what: str, lowest: int = 0) -> int | None:
    return None if value is None else whole(value, what, lowest, may_be_none=True)


def span_ms(value: object, what: str) -> int:
    """Return a time of at least 0 ms, rounded down and limited to FAR_MS."""
    return int(min(_at_least_0(value, what, "a number of milliseconds"), FAR_MS))


def span_s(value: object, what: str) -> float:
    """Return a time of at least 0 s, limited to FAR_MS."""
    return min(_at_least_0(value, what, "a number of seconds"), FAR_MS / 1000)


def seconds_ms(value: object, what: str, most_ms: int, least_ms: int = 0) -> int:
    """Convert a number of seconds, from `least_ms` to `most_ms`, to ms."""
    allowed = f"a number of seconds from {least_ms / 1000:.15g} to {most_ms / 1000:.15g}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidType(what, allowed, value)
    if not least_ms <= value * 1000 <= most_ms:
        raise InvalidValue(what, allowed, value)
    return round(value * 1000)


def key(value: object, what: str) -> bytes:
    """Return the key of an item as bytes."""
    if not isinstance(value, (str, bytes)):
        raise InvalidType(what, "bytes or a str", value)
    if not value:
        raise InvalidValue(what, "bytes or a str that is not empty", value)
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")


def _at_least_0(value: object, what: str, unit: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidType(what, f"{unit}, at least 0", value)
    if not value >= 0:  # NaN is not, either
        raise InvalidValue(what, f"{unit}, at least 0", value)
    return value


def switch(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidType(what, "True or False", value)
    return value


def text(value: object, what: str, *, may_be_empty: bool = False, is_secret: bool = False) -> str:
    if not isinstance(value, str):
        raise InvalidType(what, "a str", type(value) if is_secret else value)
    if not (value or may_be_empty):
        raise InvalidValue(what, "a str that is not empty", value)
    return value


def reason(value: object, what: str) -> str:
    """Return the reason of an item's failure; "" for None."""
    return _text_or_none(value, what, reason_problem)


def _text_or_none(value: object, what: str, problem_of: Callable[[str], str]) -> str:
    """Return a str for which `problem_of` names no requirement that it does not meet; "" for None."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidType(what, "None or a str", value)
    if problem := problem_of(value):
        raise InvalidValue(what, f"a str that {problem}", value)
    return value


def reason_problem(text: str) -> str:
    """Return the requirement that a text does not meet as reason of a failure; "" if it meets all."""
    if not text:
        return "is not empty"
    if not text.isprintable():
        return "consists of printable characters"
    return f"takes at most {REASON_BYTES_MAX} bytes" if len(text.encode()) > REASON_BYTES_MAX else ""


def holder(value: object, what: str) -> str:
    """Return the name of a holder of leases; "" for None."""
    return _text_or_none(value, what, holder_problem)


def holder_problem(name: str) -> str:
    """Return the requirement for a name of a holder of leases if this one does not meet it; else ""."""
    if _HOLDER.fullmatch(name):
        return ""
    return f"has from 1 to {HOLDER_BYTES_MAX} printable ASCII characters, without blanks and /"


def path(value: object, what: str) -> str:
    """Return a path as a str. An empty one is invalid: it would mean the working directory."""
    return text(value.__fspath__() if hasattr(value, "__fspath__") else value, what)


def path_or_none(value: object, what: str) -> str | None:
    return None if value is None else path(value, what)


def function(value: Any, what: str) -> Callable[..., Any]:
    if not callable(value):
        raise InvalidType(what, "callable", value)
    return value  # type: ignore[no-any-return]


def instance(value: object, kind: type, what: str) -> None:
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise InvalidType(what, f"{article} {kind.__name__}", value)


def data(value: object, what: str) -> None:
    """Check that `value` is bytes, as the data of an item is."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise InvalidType(what, "bytes", value)


def several(values: object, what: str) -> list[Any]:
    if not isinstance(values, Iterable):
        raise InvalidType(what, "iterable", values)
    return list(values)


def not_none(value: object, what: str) -> None:
    if value is None:
        raise InvalidType(what, "anything but None, which means that there is no item", None)
