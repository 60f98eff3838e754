"""Plots of braille characters: two values per column, four levels per line."""

import math
from collections.abc import Sequence
from typing import Final

BLANK: Final = 0x2800
# The dots of a braille character from the bottom up, left and right.
_DOTS: Final = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
LEVELS: Final = 4
CURVE_SPAN_MIN: Final = 0.1


def largest(values: Sequence[float]) -> float:
    """The largest known value; 0 if all are unknown."""
    return max((value for value in values if not math.isnan(value)), default=0.0)


def plot(values: Sequence[float], width: int, height: int) -> list[str]:
    """The last values as `height` lines of `width` characters, newest at the right, filled from 0 to the largest."""
    values = values[-2 * width :]
    top = largest(values) or 1.0
    padded = [math.nan] * (2 * width - len(values)) + list(values)
    # A value above 0 gets at least one dot.
    levels = [
        0 if math.isnan(value) or value <= 0 else max(1, round(value / top * LEVELS * height)) for value in padded
    ]
    lines = []
    for line in range(height - 1, -1, -1):
        letters = []
        for left in range(0, len(levels), 2):
            letter = BLANK
            for side in (0, 1):
                filled = min(max(levels[left + side] - line * LEVELS, 0), LEVELS)
                letter |= sum(_DOTS[side][:filled])
            letters.append(chr(letter))
        lines.append("".join(letters))
    return lines


def curve(values: Sequence[float], width: int) -> str:
    """The last values as a thin line, scaled from their smallest to their largest; blank for 0 and unknown.

    A change of less than a tenth of the largest value is not scaled up to the full height.
    """
    values = values[-2 * width :]
    top = largest(values)
    low = min([value for value in values if not math.isnan(value)], default=0.0)
    step = max(top - low, top * CURVE_SPAN_MIN) / (LEVELS - 1)
    padded = [math.nan] * (2 * width - len(values)) + list(values)
    dots = [-1 if math.isnan(value) or value <= 0 else min(int((value - low) / step), LEVELS - 1) for value in padded]
    return "".join(
        chr(BLANK + sum(_DOTS[side][dots[at + side]] for side in (0, 1) if dots[at + side] >= 0))
        for at in range(0, len(dots), 2)
    )
