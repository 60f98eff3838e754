"""CLIENT: who is connected, by which name, and what is answered."""

from collections.abc import Iterator

from kestreld.jobs.waiting import JobWaiter
from kestreld.server.disque import replies
from kestreld.server.disque.client import DisqueClient
from kestreld.server.disque.handler import REPLY_OFF, REPLY_ON, REPLY_SKIP, DisqueHandler
from kestreld.server.disque.node import Nap
from kestreld.server.disque.numbers import integer
from kestreld.server.disque.replies import NIL, OK, SYNTAX_ERROR, bulk

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
    elif word == b"kill" and count >= 3:
        _kill(handler, words)
    elif word == b"pause" and count == 3:
        _pause(handler, words[2])
    else:
        handler.out.append(USAGE)


def _listed(handler: DisqueHandler) -> Iterator[None]:
    lines = []
    for one in list(handler.node.clients.values()):
        if not one.gone:
            lines.append(_described(one))
        yield
    handler.out.append(bulk(b"".join(lines)))


def _described(one: DisqueClient) -> bytes:
    now_ms = one.state.clock.monotonic_ms
    flags = "O" if one.is_monitor else "b" if isinstance(one.waiter, JobWaiter) else "c" if one.closing else "N"
    fields = {
        "id": one.number,
        "addr": one.address,
        "fd": one.fd,
        "name": one.label.decode("latin-1"),
        "age": (now_ms - one.since_ms) // 1000,
        "idle": (now_ms - one.active_at_ms) // 1000,
        "flags": flags,
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


def _kill(handler: DisqueHandler, words: list[bytes]) -> None:
    """By its address alone, +OK or an error; by filters, how many were."""
    filters = {b"addr": words[2]} if len(words) == 3 else {}
    for word, value in zip(words[2::2], words[3::2], strict=False):
        filters[word.lower()] = value
    number = integer(filters.get(b"id", b"0"))
    if len(words) > 3 and (len(words) % 2 or not filters.keys() <= {b"id", b"type", b"addr", b"skipme"}):
        handler.out.append(SYNTAX_ERROR)
    elif number is None:
        handler.out.append(b"-ERR client-id should be greater than 0\r\n")
    elif filters.get(b"type", b"normal").lower() not in (b"normal", b"slave", b"pubsub"):
        handler.out.append(replies.error(b"ERR Unknown client type '%b'" % filters[b"type"]))
    elif filters.get(b"skipme", b"yes").lower() not in (b"yes", b"no"):
        handler.out.append(SYNTAX_ERROR)
    else:
        killed = _killed(handler, filters, number, skips_me=len(words) > 3)
        if len(words) > 3:
            handler.out.append(replies.integer(killed))
        else:
            handler.out.append(OK if killed else b"-ERR No such client\r\n")


def _killed(handler: DisqueHandler, filters: dict[bytes, bytes], number: int, *, skips_me: bool) -> int:
    skips_me = skips_me and filters.get(b"skipme", b"yes").lower() == b"yes"
    killed = 0
    for one in list(handler.node.clients.values()):
        if (b"addr" in filters and one.address.encode() != filters[b"addr"]) or (number and one.number != number):
            continue
        if filters.get(b"type", b"normal").lower() != b"normal" or (one is handler and skips_me):
            continue
        one.hang_up()
        killed += 1
    return killed


def _pause(handler: DisqueHandler, word: bytes) -> None:
    span_ms, node = integer(word), handler.node
    if span_ms is None or not 0 <= span_ms <= PAUSE_MS_MAX:
        handler.out.append(b"-ERR timeout is not an integer or out of range\r\n")
        return
    node.pause()
    nap = Nap(node.clock.monotonic_ms + span_ms, node.resume)
    node.state.collection.agenda.add(nap)
    handler.out.append(OK)
