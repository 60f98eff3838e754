"""How values are written in a configuration: a node becomes a number, a switch or a path, or is a BadValue.

Ranges come from whoever owns the setting; which settings there are is not known here.
"""

import posixpath
import re
from collections.abc import Callable
from typing import Final

from kestreld.config.units import WHOLE_NUMBER_MAX, parse_duration_ms, parse_size_bytes, parse_whole_number
from kestreld.config.yaml_tree import Kind, Node

TIMER_MS_MAX: Final = 2**31 - 1  # what epoll_wait(2) takes: 24 days

_SWITCH: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


class BadValue(Exception):
    """A node does not hold what its setting takes."""

    def __init__(self, node: Node, reason: str) -> None:
        super().__init__(reason)
        self.node = node
        self.reason = reason


def unexpected(node: Node, expected: str) -> BadValue:
    return BadValue(node, f"expected {expected}, not {node}")


def text_of(node: Node, expected: str) -> str:
    """The text of a scalar that is neither a switch nor null. Raises BadValue, as all here do."""
    if node.kind is not Kind.TEXT:
        raise unexpected(node, expected)
    return node.text


def as_clients_send_it(text: str) -> str:
    """A queue name in a file is UTF-8 as in most clients; the server reads the bytes of names as latin-1."""
    return text.encode("utf-8", "surrogatepass").decode("latin-1")


def as_people_write_it(name: str) -> str:
    """The reverse of `as_clients_send_it`."""
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
    """Time in ms, by default for a timer; a plain number is seconds."""
    expected = "a duration (seconds, or such as 250ms, 30s, 1h30m)"
    return number_from(expected, lambda text: parse_duration_ms(text, 1000), lowest_ms, highest_ms)


def milliseconds_from(lowest_ms: int, highest_ms: int) -> Callable[[Node], int]:
    """Time in ms, of which a plain number is a count."""
    expected = "a duration (milliseconds, or such as 250ms, 30s, 1h30m)"
    return number_from(expected, lambda text: parse_duration_ms(text, 1), lowest_ms, highest_ms)


def switch(node: Node) -> bool:
    if node.kind is not Kind.SWITCH or (value := _SWITCH.get(node.text.lower())) is None:
        raise unexpected(node, "true or false")
    return value


def sync_interval_ms(node: Node) -> int | None:
    """`true` is 0, `false` None, a number the ms between syncs."""
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
    """The path with its ~ expanded. Raises ValueError with the reason."""
    if not text or re.search("[\x00-\x1f\x7f\ud800-\udc7f\udd00-\udfff]", text):
        raise ValueError("path must not be empty or contain control characters")
    expanded = posixpath.expanduser(text)
    if expanded.startswith("~"):
        raise ValueError(f"no home directory known for {text.partition('/')[0]}")
    return expanded
