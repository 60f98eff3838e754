"""Commands of a client as `Request`s."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Final, Literal

from tests.simulation.history import Cancel, Delivery, Forgery, LeaseChange, Listed, Presence, Put, Request

Change = Literal["confirm", "extend", "give back", "fail"]


def data_of(number: int, size_bytes: int) -> bytes:
    """The data of the item of that number: it says so itself, and any byte may be in it."""
    mark = b"%d:" % number
    return mark + Random(number).randbytes(max(size_bytes - len(mark), 0))


def put(
    name: str,
    numbers: Iterator[int],
    size_bytes: int = 20,
    *,
    flags: int = 0,
    expiry_s: int = 0,
    more: bytes = b"",
    delay_ms: int = 0,
    key: str = "",
    adds: bool = False,
) -> Request:
    """A SET of a new item, or an ADD of one with a key."""
    number = next(numbers)
    data = data_of(number, size_bytes) + more
    word = name + (f"/delay={delay_ms}" if delay_ms else "") + (f"/key={key}" if key else "")
    text = f"{'add' if adds else 'set'} {word} {flags} {expiry_s} {len(data)}\r\n".encode() + data + b"\r\n"
    item = Put(number, name, data, flags, expiry_s, 0, None, delay_ms=delay_ms, key=key, adds=adds)
    return Request("set", name, text, put=item)


def cancel(name: str, key: str) -> Request:
    return Request("cancel", name, f"delete {name}/key={key}\r\n".encode(), cancel=Cancel(name, key))


def lease(name: str, lease_ms: int, wait_ms: int = 0, by: str = "") -> Request:
    """A GETS that leases an item."""
    options = f"/t={wait_ms}" * bool(wait_ms) + f"/by={by}" * bool(by)
    text = f"gets {name}/open/lease={lease_ms}{options}\r\n".encode()
    return Request("read", name, text, takes=True, opens=True, lease_ms=lease_ms, by=by)


def be_present(name: str, absence_ms: int) -> Request:
    """Say that a holder is there through the connection."""
    text = f"present {name} {absence_ms}\r\n".encode()
    return Request("present", "", text, presence=Presence(name, absence_ms))


LIST: Final = "~all"  # of a connection
ASKS_MS: Final = (40, 200, 3000)  # leases so long ask how often their item was delivered before


def enlist(names: list[str], told: Callable[[bytes], None]) -> Request:
    """Add queues to the connection's list, or drop it without any."""
    return Request("wait", "", " ".join(["wait", LIST, *names]).encode() + b"\r\n", told=told)


def lease_listed(lease_ms: int, wait_ms: int = 0, *, takes_turns: bool, by: str = "") -> Request:
    """A GETS that leases an item from a queue of the connection's list; some ask how often it was delivered before."""
    options = f"/t={wait_ms}" * bool(wait_ms) + "/turn" * takes_turns + f"/by={by}" * bool(by)
    options += "/deliveries" * (lease_ms in ASKS_MS)
    text = f"gets {LIST}/open/lease={lease_ms}{options}\r\n".encode()
    listed = Listed(takes_turns, wait_ms)
    return Request("read", "", text, takes=True, opens=True, lease_ms=lease_ms, listed=listed)


def change(leased: Delivery, kind: Change, ms: int = 0, *, says_why: bool = False) -> Request:
    """Show the token of a lease."""
    word = "confirm" if kind == "confirm" else "change"
    line = _line(leased.reader, leased.token, kind, ms)
    if says_why:
        line = line.replace(b"/failed ", b"/failed/reason=%b " % reason_of(leased.put).replace(" ", "%20").encode())
    return Request(word, leased.reader, line, lease=leased, change=LeaseChange(kind, ms, says_why))


def reason_of(put: Put) -> str:
    """Why anybody fails with an item."""
    return f"cannot do {put.number}"


def forge(reader: str, token: int, kind: Change, ms: int = 0) -> Request:
    """Show a token that nobody was given."""
    return Request("forge", reader, _line(reader, token, kind, ms), forgery=Forgery(reader, token))


def _line(reader: str, token: int, kind: Change, ms: int) -> bytes:
    word = f"{reader}/{token}"
    if kind == "confirm":
        line = f"delete {word}"
    elif kind == "fail":
        line = f"touch {word}/failed 0"
    elif kind == "extend":
        line = f"touch {word} {ms // 1000}" if ms and ms % 1000 == 0 else f"touch {word}/lease={ms} 0"
    else:
        line = f"touch {word}/delay={ms} 0" if ms else f"touch {word} 0"
    return f"{line}\r\n".encode()


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
