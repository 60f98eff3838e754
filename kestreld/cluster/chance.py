"""Random choices, made from random bytes that are passed in."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
RandomBytes = Callable[[int], bytes]
_DRAW_BYTES = 4


def sample(some: Sequence[T], count: int, random_bytes: RandomBytes) -> list[T]:
    """Return `count` random elements, or all if there are fewer, each as likely as any other."""
    left, chosen = list(some), list[T]()
    for _ in range(min(count, len(left))):
        place = int.from_bytes(random_bytes(_DRAW_BYTES), "little") % len(left)
        left[place], left[-1] = left[-1], left[place]
        chosen.append(left.pop())
    return chosen
