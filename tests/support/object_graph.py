"""What objects are reachable from one, and in which state they are: for leaks, and for states that were seen before."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import cache, partial
from itertools import chain
from types import BuiltinMethodType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, Final

ATOMS: Final = (int, str, bytes, float, type(None), Enum, type, ModuleType)
Skipped = Callable[[object, str], bool]  # whether an attribute does not count


def _skip_nothing(owner: object, name: str) -> bool:
    return False


def attributes(value: object) -> Iterator[tuple[str, Any]]:
    """Of an object with a `__dict__`, with slots, or with both."""
    for name in _all_slots(type(value)):
        if hasattr(value, name):
            yield name, getattr(value, name)
    yield from getattr(value, "__dict__", {}).items()


@cache
def _all_slots(kind: type) -> tuple[str, ...]:
    return tuple(dict.fromkeys(chain.from_iterable(map(_slots, reversed(kind.__mro__)))))


def _slots(kind: type) -> Iterable[str]:
    slots = kind.__dict__.get("__slots__", ())
    return (
        (slots,)
        if isinstance(slots, str)
        else [
            f"_{kind.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name
            for name in slots
        ]
    )


class ObjectGraph:
    """Everything that is reachable from `root`, but for attributes that are skipped.

    `state` is a value that can be compared: the same for two graphs of the same shape with the same values.
    """

    def __init__(self, root: object, skipped: Skipped = _skip_nothing) -> None:
        self._skipped = skipped
        self._places: dict[int, int] = {}
        self._kept: list[object] = []  # so that no two have one id
        self._values = 0
        self.state = self._state(root)

    @property
    def size(self) -> int:
        """How many objects there are, and values in their containers."""
        return len(self._places) + self._values

    def _state(self, value: Any) -> object:
        if isinstance(value, ATOMS):
            return value
        if isinstance(value, FunctionType):
            return value.__qualname__
        if isinstance(value, (tuple, frozenset, set)):
            parts = [self._state(one) for one in value]
            return tuple(parts if isinstance(value, tuple) else sorted(parts, key=repr))
        place = self._places.get(id(value))
        if place is not None:
            return ("seen", place)
        self._places[id(value)] = len(self._places)
        self._kept.append(value)
        if isinstance(value, (dict, list, deque)):
            self._values += len(value)
        return (type(value).__name__, *self._parts(value))

    def _parts(self, value: Any) -> Iterator[object]:
        if isinstance(value, dict):
            for key, one in value.items():
                yield self._state(key)
                yield self._state(one)
        elif isinstance(value, (list, deque)):
            yield from map(self._state, value)
        elif isinstance(value, MethodType):
            yield value.__name__
            yield self._state(value.__self__)
        elif isinstance(value, BuiltinMethodType):
            yield value.__name__
        elif isinstance(value, partial):
            yield from map(self._state, (value.func, value.args, value.keywords))
        elif isinstance(value, GeneratorType):
            yield value.__name__
            frame = value.gi_frame
            yield from map(self._state, () if frame is None else (frame.f_lasti, frame.f_locals))
        else:
            for name, one in attributes(value):
                if not self._skipped(value, name):
                    yield name
                    yield self._state(one)
