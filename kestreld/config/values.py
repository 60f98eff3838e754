"""Parsers of configuration values: a node becomes a number, switch or path, or raises BadValue.

Ranges are given by the caller; this module does not know the settings.
"""

import posixpath
import re
from collections.abc import Callable
from typing import Final

from kestreld.config.units import WHOLE_NUMBER_MAX, parse_duration_ms, parse_size_bytes, parse_whole_number
from kestreld.config.yaml_tree import Kind, Node

TIMER_MS_MAX: Final = 2**31 - 1  # the limit of epoll_wait(2): 24 days

_SWITCH: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


class BadValue(Exception):
    """A node's value is not valid for its setting."""

    def __init__(self, node: Node, reason: str) -> None:
        super().__init__(reason)
        self.node = node
        self.reason = reason


def unexpected(node: Node, expected: str) -> BadValue:
    return BadValue(node, f"expected {expected}, not {node}")


def text_of(node: Node, expected: str) -> str:
    """Return the text of a scalar that is neither a switch nor null. Raises BadValue, as all parsers here do."""
    if node.kind is not Kind.TEXT:
        raise unexpected(node, expected)
    return node.text


def as_clients_send_it(text: str) -> str:
    """Convert a queue name from text to the form used in the server: its UTF-8 bytes, read as latin-1."""
    return text.encode("utf-8", "surrogatepass").decode("latin-1")


def as_people_write_it(name: str) -> str:
    """Reverse `as_clients_send_it`."""
    return name.encode("latin-1").decode("utf-8", "surrogatepass")


def number_from(
    expected: str, read: Callable[[str], int], lowest: int, highest: int = WHOLE_NUMBER_MAX
) -> Callable[[Node], int]:
    def parse(node: Node) -> int:
        text = text_of(node, expected)
        try:
            number = read(text)
        except ValueError:
            raise unexpected(node, expected) from None
        if number < lowest:
            raise BadValue(node, f"{text} is too small: the minimum is {lowest}")
        if number > highest:
            raise BadValue(node, f"{text} is too large: the maximum is {highest}")
        return number

    return parse


def count_from(lowest: int, highest: int = WHOLE_NUMBER_MAX) -> Callable[[Node], int]:
    return number_from("a whole number", parse_whole_number, lowest, highest)


def size_bytes_from(lowest: int, highest: int = WHOLE_NUMBER_MAX) -> Callable[[Node], int]:
    expected = "a size (bytes, or such as 64KiB, 16MiB, 2GiB)"
    return number_from(expected, parse_size_bytes, lowest, highest)


def seconds_from(lowest_ms: int, highest_ms: int = TIMER_MS_MAX) -> Callable[[Node], int]:
    """Return a parser of times in ms, by default for a timer; a plain number counts seconds."""
    expected = "a duration (seconds, or such as 250ms, 30s, 1h30m)"
    return number_from(expected, lambda text: parse_duration_ms(text, 1000), lowest_ms, highest_ms)


def milliseconds_from(lowest_ms: int, highest_ms: int) -> Callable[[Node], int]:
    """Return a parser of times in ms; a plain number counts ms."""
    expected = "a duration (milliseconds, or such as 250ms, 30s, 1h30m)"
    return number_from(expected, lambda text: parse_duration_ms(text, 1), lowest_ms, highest_ms)


def switch(node: Node) -> bool:
    if node.kind is not Kind.SWITCH or (value := _SWITCH.get(node.text.lower())) is None:
        raise unexpected(node, "true or false")
    return value


def sync_interval_ms(node: Node) -> int | None:
    """Parse a sync interval: `true` is 0, `false` None, a number the ms between syncs."""
    if node.kind is Kind.SWITCH:
        return 0 if switch(node) else None
    expected = "true, false, or a duration (milliseconds, or such as 250ms, 1s)"
    return number_from(expected, lambda text: parse_duration_ms(text, 1), 1, TIMER_MS_MAX)(node)


def path_of(node: Node) -> str:
    text = text_of(node, "a path")
    try:
        return usable_path(text)
    except ValueError as error:
        raise BadValue(node, str(error)) from None


def usable_path(text: str) -> str:
    """Expand the ~ of a path. Raises ValueError with the reason."""
    if not text or re.search("[\x00-\x1f\x7f\ud800-\udc7f\udd00-\udfff]", text):
        raise ValueError("path must not be empty or contain control characters")
    expanded = posixpath.expanduser(text)
    if expanded.startswith("~"):
        raise ValueError(f"no home directory known for {text.partition('/')[0]}")
    return expanded
