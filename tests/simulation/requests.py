"""Commands of a client as `Request`s."""

from collections.abc import Iterator
from random import Random

from tests.simulation.history import Put, Request


def data_of(number: int, size_bytes: int) -> bytes:
    """The data of the item of that number: it says so itself, and any byte may be in it."""
    mark = b"%d:" % number
    return mark + Random(number).randbytes(max(size_bytes - len(mark), 0))


def put(
    name: str, numbers: Iterator[int], size_bytes: int = 20, *, flags: int = 0, expiry_s: int = 0, more: bytes = b""
) -> Request:
    """A SET of a new item."""
    number = next(numbers)
    data = data_of(number, size_bytes) + more
    text = f"set {name} {flags} {expiry_s} {len(data)}\r\n".encode() + data + b"\r\n"
    return Request("set", name, text, put=Put(number, name, data, flags, expiry_s, 0, None))


def read(name: str, *, wait_ms: int = 0, opens: bool = False, closes: bool = False, aborts: bool = False) -> Request:
    """A GET with its options."""
    options = f"/t={wait_ms}" if wait_ms else ""
    options += "/close" * closes + "/abort" * aborts + "/open" * opens
    takes = opens or not (closes or aborts)
    text = f"get {name}{options}\r\n".encode()
    return Request("read", name, text, takes=takes, opens=opens, closes=closes, aborts=aborts)


def peek(name: str) -> Request:
    return Request("peek", name, f"get {name}/peek\r\n".encode())


def wipe(word: str, name: str) -> Request:
    """`flush` or `delete`."""
    return Request(word, name, f"{word} {name}\r\n".encode())


def undo(name: str) -> Request:
    return Request("undo", name, f"undo {name}\r\n".encode())


def repair(name: str) -> Request:
    return Request("repair", name, f"repair {name}\r\n".encode())


def order(words: str) -> Request:
    """A command whose answer says nothing about items."""
    return Request(words.partition(" ")[0], "", f"{words}\r\n".encode())
