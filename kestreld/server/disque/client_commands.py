"""CLIENT: lists, names, kills and pauses clients, and turns replies on and off."""

from collections.abc import Iterator
from dataclasses import dataclass

from kestreld.jobs.waiting import JobWaiter
from kestreld.server.disque import replies
from kestreld.server.disque.client import DisqueClient
from kestreld.server.disque.handler import REPLY_OFF, REPLY_ON, REPLY_SKIP, DisqueHandler
from kestreld.server.disque.node import DisqueNode
from kestreld.server.disque.numbers import integer
from kestreld.server.disque.replies import NIL, NOT_AN_INTEGER, OK, SYNTAX_ERROR, bulk

USAGE = b"-ERR Syntax error, try CLIENT (LIST | KILL ip:port | GETNAME | SETNAME connection-name)\r\n"
PAUSE_MS_MAX = 86_400_000


def client(handler: DisqueHandler, words: list[bytes]) -> None:
    word, count = words[1].lower(), len(words)
    if word == b"list" and count == 2:
        handler.carry_out(_listed(handler), is_short=len(handler.node.clients) <= 64)
    elif word == b"getname" and count == 2:
        handler.out.append(bulk(handler.label) if handler.label else NIL)
    elif word == b"setname" and count == 3:
        _set_name(handler, words[2])
    elif word == b"reply" and count == 3:
        _reply(handler, words[2].lower())
    elif word == b"kill":
        _kill(handler, words)
    elif word == b"pause" and count == 3:
        _pause(handler, words[2])
    else:
        handler.out.append(USAGE)


def _listed(handler: DisqueHandler) -> Iterator[None]:
    lines, node = [], handler.node
    for one in list(node.clients.values()):
        if not one.gone:
            lines.append(_described(one, node))
        yield
    handler.out.append(bulk(b"".join(lines)))


def _described(one: DisqueClient, node: DisqueNode) -> bytes:
    now_ms = node.clock.monotonic_ms
    is_so = {
        "O": one in node.monitors,
        "b": isinstance(one.waiter, JobWaiter),
        "c": one.closing,
        "U": one.address.startswith("unix"),
    }
    fields = {
        "id": one.number,
        "addr": one.address,
        "fd": one.fd,
        "name": one.label.decode("latin-1"),
        "age": (now_ms - one.since_ms) // 1000,
        "idle": (now_ms - one.active_at_ms) // 1000,
        "flags": "".join([flag for flag in is_so if is_so[flag]]) or "N",
        "qbuf": one.parser.held_bytes,
        "qbuf-free": 0,
        "obl": sum(map(len, one.out)),
        "oll": 0,
        "omem": 0,
        "events": "r",
        "cmd": one.last_command.decode("latin-1"),
    }
    return (" ".join([f"{key}={value}" for key, value in fields.items()]) + "\n").encode("latin-1", "replace")


def _set_name(handler: DisqueHandler, name: bytes) -> None:
    if all(33 <= byte <= 126 for byte in name):
        handler.take_label(name)
        handler.out.append(OK)
    else:
        handler.out.append(b"-ERR Client names cannot contain spaces, newlines or special characters.\r\n")


def _reply(handler: DisqueHandler, word: bytes) -> None:
    if word == b"on":
        handler.set_reply_mode(REPLY_ON)
        handler.out.append(OK)
    elif word == b"off":
        handler.set_reply_mode(REPLY_OFF)
    elif word == b"skip":
        if handler.reply_mode != REPLY_OFF:
            handler.set_reply_mode(REPLY_SKIP)
    else:
        handler.out.append(SYNTAX_ERROR)


@dataclass(slots=True)
class _Filters:
    """Selection of the clients that CLIENT KILL closes. `client_id` 0 = any."""

    address: bytes | None = None
    client_id: int = 0
    skips_me: bool = True
    error: bytes = b""  # reply to a mistake in them


def _filters(words: list[bytes]) -> _Filters:
    """Parse the filters; `error` is set by the first mistake in them."""
    filters = _Filters()
    for place in range(0, len(words), 2):
        word, value = words[place].lower(), words[place + 1] if place + 1 < len(words) else None
        if value is None or word not in (b"id", b"type", b"addr", b"skipme"):
            filters.error = SYNTAX_ERROR
        elif word == b"addr":
            filters.address = value
        elif word == b"id":
            number = integer(value)
            filters.client_id, filters.error = number or 0, NOT_AN_INTEGER if number is None else b""
        elif word == b"type" and value.lower() != b"normal":
            filters.error = replies.error(b"ERR Unknown client type '%b'" % value)
        elif word == b"skipme":
            filters.skips_me = value.lower() == b"yes"
            filters.error = SYNTAX_ERROR if value.lower() not in (b"yes", b"no") else b""
        if filters.error:
            break
    return filters


def _kill(handler: DisqueHandler, words: list[bytes]) -> None:
    """Close clients: one by its address, answered with +OK or an error, or all that filters match, counted."""
    is_by_address = len(words) == 3
    filters = _Filters(address=words[2], skips_me=False) if is_by_address else _filters(words[2:])
    if len(words) == 2 or filters.error:
        handler.out.append(filters.error or SYNTAX_ERROR)
        return
    killed = 0
    for one in list(handler.node.clients.values()):
        if (
            filters.address in (None, one.address.encode())
            and filters.client_id in (0, one.number)
            and not (one is handler and filters.skips_me)
        ):
            one.hang_up()
            killed += 1
    if not is_by_address:
        handler.out.append(replies.integer(killed))
    else:
        handler.out.append(OK if killed else b"-ERR No such client\r\n")


def _pause(handler: DisqueHandler, word: bytes) -> None:
    span_ms = integer(word)
    if span_ms is None or span_ms > PAUSE_MS_MAX:
        handler.out.append(b"-ERR timeout is not an integer or out of range\r\n")
    elif span_ms < 0:
        handler.out.append(b"-ERR timeout is negative\r\n")
    else:
        handler.node.pause(span_ms)
        handler.out.append(OK)
