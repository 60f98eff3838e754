"""QueueTalks: the commands of queues as talks, which do no I/O: what to send, and what the replies mean.

A talk yields each request and is sent the answer, or has the error thrown into it for which there is none. There are
QueueTalks for each connection, as they remember what its server knows.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeVar
from urllib.parse import unquote_to_bytes

from kestreld import checks, errors
from kestreld.client.blocks import parse_blocks, text
from kestreld.client.calls import Call
from kestreld.client.items import HeldLease, OpenItem
from kestreld.client.replies import Reply

T = TypeVar("T")
QUEUE_BYTES_MAX: Final = 250
_UNSENDABLE: Final = re.compile(rb"[\s\0/]")
_BLANK: Final = re.compile(rb"[\s\0]")
_ENCODED_IN_KEYS: Final = re.compile(rb"[^!-$&-.0-~]")  # blanks, %, / and all beyond ASCII
UNAUTHENTICATED: Final = b"CLIENT_ERROR unauthenticated"
ERRORS: Final = (b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR")
_NOT_ALLOWED: Final = b"CLIENT_ERROR not allowed"


class Request(NamedTuple):
    """A step: send this, and wait for the reply. The server may take `wait_ms` beyond the time-out."""

    data: bytes
    wait_ms: int = 0


class Answer(NamedTuple):
    """The outcome of a Request. `header` is of the last item."""

    reply: Reply
    header: bytes


NEXT: Final = Request(b"")  # nothing is sent: the server has more to say
Talk = Call[Request, T]


def refusal(address: str, reply: Reply, verb: bytes, header: bytes = b"") -> errors.ServerRefused:
    """Return the error that a reply means which is none of those expected."""
    if isinstance(reply, tuple):
        return errors.UnexpectedReply(address, text(header) if reply else "END")
    reason = text(reply.partition(b" ")[2] or reply)
    if reply.startswith(b"CLIENT_ERROR"):
        return errors.ServerRefused(address, reason)
    if reply.startswith(b"SERVER_ERROR"):
        return errors.ServerUnfit(address, reason)
    if reply.startswith(b"ERROR"):
        if verb.startswith(b"dump_stats"):
            return errors.OtherServer(address, "it is a cache")
        return errors.UnknownCommand(address, text(verb))
    return errors.UnexpectedReply(address, text(reply))


def checked_key(queue: bytes) -> bytes:
    """Return a name that cannot be mistaken for options or for the end of the command. Raises BadQueueName."""
    if not queue or len(queue) > QUEUE_BYTES_MAX or _UNSENDABLE.search(queue):
        words = f"it is empty, longer than {QUEUE_BYTES_MAX} bytes, or has a blank or a / in it"
        raise errors.BadQueueName(f"{text(queue)!r} is not a queue name: {words}")
    return queue


def put_options(queue: bytes, delay_ms: int = 0, item_key: bytes = b"") -> bytes:
    """Return the options after the name of the queue. Raises InvalidValue for a key that cannot be sent."""
    options = b"/delay=%d" % delay_ms if delay_ms else b""
    if item_key:
        options += b"/key=" + item_key
        if _BLANK.search(item_key) or len(queue + options) > QUEUE_BYTES_MAX:
            expected = f"without blanks, with queue and options {QUEUE_BYTES_MAX} bytes at most"
            raise errors.InvalidValue("key", expected, text(item_key))
    return options


def _encoded(word: bytes) -> bytes:
    return _ENCODED_IN_KEYS.sub(lambda found: b"%%%02X" % found[0][0], word)


def _word(word: bytes) -> bytes:
    """Encode an exchange, a routing key or a pattern, which may be empty."""
    return _encoded(word) or b"%"


def _meaning(word: bytes) -> bytes:
    return b"" if word == b"%" else unquote_to_bytes(word)


class QueueTalks:
    """Talks about queues with one server."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.start_over()

    def start_over(self) -> None:
        """Forget what the server knows: it may be another one."""
        self._knows_leases = False  # as far as it has been asked
        self._knows_holders: bool | None = None  # None = not asked yet
        self._counts_deliveries = False  # as far as it has been asked

    def enter(self, user: str, secret: Callable[[], bytes]) -> Talk[None]:
        """Log in on a new connection, with memcached's text command, if the server requires that.

        The server is asked first: without a required login the password would be stored as an item, and with one an
        item would be taken for the password.
        """
        if (yield Request(b"version\r\n")).reply != UNAUTHENTICATED:
            return
        if not user:
            raise errors.LoginRefused(self.address, "unauthenticated")
        token = b"%b %b" % (user.encode("utf-8", "surrogateescape"), secret())
        answer = (yield Request(b"set login 0 0 %d\r\n%b\r\n" % (len(token), token))).reply
        if answer != b"STORED":
            words = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else "an item"
            raise errors.LoginRefused(self.address, f"{user}: {words.removeprefix('CLIENT_ERROR ')}")

    def is_stored(self, reply: Reply) -> bool:
        """Return the result of a put. Raises the refusal that it may be."""
        if reply == b"STORED":
            return True
        if reply == b"NOT_STORED":
            return False
        raise refusal(self.address, reply, b"set")

    def put(
        self, queue: bytes, data: bytes, expire_s: int = 0, *, delay_ms: int = 0, item_key: bytes = b""
    ) -> Talk[bool]:
        """Put an item. False = the queue is full, or the item too large. `expire_s` as on the wire.

        The item is delivered after `delay_ms`. If its `item_key` is known, it counts as stored already.
        """
        key = checked_key(queue) + put_options(queue, delay_ms, item_key)
        if (delay_ms or item_key) and not self._knows_leases:
            yield from self.need_leases(queue)
        reply = (yield Request(b"set %b 0 %d %d\r\n%b\r\n" % (key, expire_s, len(data), data))).reply
        if isinstance(reply, bytes) and reply.startswith(b"SERVER_ERROR journal "):
            try:
                yield Request(b"version\r\n")
            except errors.KestrelError:
                # The item may or may not be stored, so it must not go to another server.
                raise errors.ServerRefused(self.address, text(reply.partition(b" ")[2])) from None
        return self.is_stored(reply)

    def fetch_item(
        self,
        queue: bytes,
        options: bytes = b"",
        wait_ms: int = 0,
        *,
        with_id: bool = False,
        with_deliveries: bool = False,
    ) -> Talk[OpenItem | None]:
        """Return the item that `get` of a queue with options returns, waiting on the server; None if there is none.

        Its id is there on request: an old Kestrel does not know it. `with_deliveries`: the options ask for them.
        """
        key = checked_key(queue) + (b"/t=%d" % wait_ms if wait_ms > 0 else b"") + options
        reply, last_header = yield Request(b"%b %b\r\n" % (b"gets" if with_id else b"get", key), wait_ms)
        if isinstance(reply, bytes):
            raise refusal(self.address, reply, b"get")
        if not reply:
            return None
        header = last_header.split(b" ")
        # An old Kestrel, or `compat: kestrel-1`, echoes the queue without the options of the request.
        is_ours = header[1].split(b"/")[0] == queue
        numbers = header[2:]
        is_whole = len(numbers) == 2 + with_id + with_deliveries and all(map(bytes.isdigit, numbers))
        if len(reply) > 1 or not is_ours or not is_whole:
            raise errors.UnexpectedReply(self.address, text(last_header))
        deliveries = int(header[5]) if with_deliveries else None
        return OpenItem(reply[0], int(header[2]), int(header[4]) if with_id else 0, deliveries)

    def fetch(self, queue: bytes, options: bytes = b"", wait_ms: int = 0) -> Talk[bytes | None]:
        """Return the data of `fetch_item`."""
        item = yield from self.fetch_item(queue, options, wait_ms)
        return None if item is None else item.data

    # Items with a time or an owner of their own

    def need_leases(self, queue: bytes) -> Talk[None]:
        """Raise LeasesUnknown if the server knows no leases, delays or keys. The server is asked once."""
        key = checked_key(queue)
        if self._knows_leases:
            return
        reply = (yield Request(b"touch %b/0 0\r\n" % key)).reply
        # A user with the put right only is refused, by a server that knows leases.
        if reply != b"NOT_FOUND" and not (isinstance(reply, bytes) and reply.startswith(_NOT_ALLOWED)):
            if reply in (b"ERROR", b"CLIENT_ERROR"):
                raise errors.LeasesUnknown(self.address)
            raise refusal(self.address, reply, b"touch")
        self._knows_leases = True

    def lease(self, queue: bytes, lease_ms: int, wait_ms: int = 0, by: str = "") -> Talk[OpenItem | None]:
        """Lease the head item for `lease_ms`; its `id` is the token that confirms it. None if there is none.

        `by` is the holder's name, which a server that does not know holders by name is not told; "" = no name. The
        item has its `deliveries` if the server counts them.
        """
        yield from self.need_leases(queue)
        counts = self._counts_deliveries
        if self._knows_holders is None:
            # Any server that knows leases refuses this.
            reply = (yield Request(b"gets %b/by=a/deliveries\r\n" % checked_key(queue))).reply
            self._counts_deliveries = counts = reply == b"CLIENT_ERROR deliveries needs lease="
            self._knows_holders = counts or reply == b"CLIENT_ERROR by= needs lease="
        options = b"/open/lease=%d" % lease_ms
        if by and self._knows_holders:
            options += b"/by=" + by.encode()
        if counts:
            options += b"/deliveries"
        return (yield from self.fetch_item(queue, options, wait_ms, with_id=True, with_deliveries=counts))

    def confirm(self, queue: bytes, token: int) -> Talk[bool]:
        """Confirm a leased item. False = it was confirmed before, or somebody else has it."""
        command = b"delete %b/%d" % (checked_key(queue), token)
        return (yield from self.ask(command, b"DELETED", b"NOT_FOUND")) == b"DELETED"

    def extend(self, queue: bytes, token: int, lease_ms: int) -> Talk[bool]:
        """Let the lease last `lease_ms` from now. False = it was over."""
        return self._change_lease(queue, token, b"/lease=%d" % lease_ms)

    def give_back(self, queue: bytes, token: int, delay_ms: int = 0) -> Talk[bool]:
        """Return a leased item, to be delivered now or after `delay_ms`; not a failure. False = the lease was over."""
        return self._change_lease(queue, token, b"/delay=%d" % delay_ms if delay_ms else b"")

    def fail(self, queue: bytes, token: int, reason: str = "") -> Talk[bool]:
        """Return a leased item as failed, with a reason. False = the lease was over."""
        option = b"/failed/reason=" + _encoded(reason.encode()) if reason else b"/failed"
        return self._change_lease(queue, token, option)

    def _change_lease(self, queue: bytes, token: int, option: bytes) -> Talk[bool]:
        command = b"touch %b/%d%b 0" % (checked_key(queue), token, option)
        return (yield from self.ask(command, b"TOUCHED", b"NOT_FOUND")) == b"TOUCHED"

    def leases(self, by: str, queue: bytes = b"") -> Talk[list[HeldLease]]:
        """Return what the holder of that name has leased, from one queue or all that the user may get from."""
        lines = yield from self._lines(b"leases by=" + by.encode() + (b" " + checked_key(queue) if queue else b""))
        found = [line.split(b" ") for line in lines]
        return [HeldLease(text(words[1]), *map(int, words[2:6])) for words in found]

    def present(self, name: str, absence_ms: int) -> Talk[bool]:
        """Say that the holder of that name is there through this connection, 0 = no longer.

        `absence_ms` after the last connection its leases end, as do those by names that begin with the name and a dot.
        False = the server is too old to know the command.
        """
        try:
            yield from self.ask(b"present %b %d" % (name.encode(), absence_ms), b"OK")
        except errors.UnknownCommand:
            return False
        return True

    def cancel(self, queue: bytes, item_key: bytes) -> Talk[bool]:
        """Drop the item that was put with a key, if it is not due yet. False = no such item is delayed."""
        word = checked_key(queue) + put_options(queue, item_key=item_key)
        yield from self.need_leases(queue)
        return (yield from self.ask(b"delete " + word, b"DELETED", b"NOT_FOUND")) == b"DELETED"

    # Queues and the server

    def server_stats(self) -> Talk[dict[str, int | str]]:
        """Return the server's own counters, by name."""
        counters: dict[str, int | str] = {}
        for line in (yield from self._lines(b"stats")):
            _, name, value = (line + b"  ").split(b" ", 2)
            value = value[:-2]
            is_number = name != b"version" and value.isdigit()
            counters[text(name)] = int(value) if is_number else text(value)
        return {name: value for name, value in counters.items() if name and not name.startswith("queue_")}

    def queue_stats(self, queue: bytes) -> Talk[dict[str, int | str]]:
        """Return a queue's counters, by name; empty if there is no such queue."""
        lines = yield from self._lines(b"dump_stats " + checked_key(queue))
        blocks = parse_blocks(b"\n".join(lines) + b"\n")  # an old Kestrel's are all queues
        found = next((one for one in blocks if one["queue"] == text(queue)), {})
        return {name: value for name, value in found.items() if name != "queue"}

    def flush(self, queue: bytes) -> Talk[None]:
        """Discard the items of a queue."""
        yield from self.ask(b"flush " + checked_key(queue), b"END")

    def flush_counted(self, queue: bytes) -> Talk[int]:
        """Discard the items of a queue. Return how many there were.

        Raises LeasesUnknown or UnknownCommand, with nothing discarded, if the server is too old to say.
        """
        yield from self.need_leases(queue)  # an old Kestrel would create a queue of that name
        reply = (yield Request(b"flush %b/count\r\n" % checked_key(queue))).reply
        if reply == ():
            raise errors.UnknownCommand(self.address, "flush QUEUE/count")
        if isinstance(reply, tuple) or not reply.isdigit():
            raise refusal(self.address, reply, b"flush")
        return int(reply)

    def declare(self, queue: bytes, options: Iterable[bytes]) -> Talk[None]:
        """Declare settings of a queue, `name=value` each, and create it if there is none."""
        yield from self.ask(b" ".join([b"declare", checked_key(queue), *options]), b"DECLARED")

    def delete_queue(self, queue: bytes) -> Talk[bool]:
        """Delete a queue. False = there was none; an old Kestrel, or `compat: kestrel-1`, does not say."""
        answers = (b"DELETED", b"NOT_FOUND", b"END")
        return (yield from self.ask(b"delete " + checked_key(queue), *answers)) != b"NOT_FOUND"

    # Bindings

    def bind(self, exchange: bytes, queue: bytes, routing_key: bytes = b"", pattern: bytes = b"") -> Talk[None]:
        """Bind a queue to an exchange; nothing changes if it is bound so already."""
        words = (_word(exchange), checked_key(queue), _word(routing_key), _word(pattern))
        yield from self.ask(b"bind %b %b %b %b" % words, b"OK")

    def unbind(
        self, exchange: bytes, queue: bytes, routing_key: bytes | None = None, pattern: bytes = b""
    ) -> Talk[None]:
        """Remove a binding, or all of the queue to the exchange if no routing key is given; there need be none."""
        words = b"" if routing_key is None else b" %b %b" % (_word(routing_key), _word(pattern))
        yield from self.ask(b"unbind %b %b%b" % (_word(exchange), checked_key(queue), words), b"OK")

    def bindings(self, exchange: bytes | None = None) -> Talk[list[tuple[bytes, bytes, bytes, bytes]]]:
        """Return exchange, queue, routing key and pattern of each binding of an exchange, None = of all."""
        found = []
        for line in (yield from self._lines(b"bindings" if exchange is None else b"bindings " + _word(exchange))):
            _, name, queue, routing_key, pattern = line.split(b" ")
            found.append((_meaning(name), queue, _meaning(routing_key), _meaning(pattern)))
        return found

    def _lines(self, command: bytes) -> Talk[list[bytes]]:
        """Send a command and return the lines up to END."""
        lines: list[bytes] = []
        reply = (yield Request(command + b"\r\n")).reply
        while reply != ():
            if isinstance(reply, tuple) or reply.startswith(ERRORS):
                raise refusal(self.address, reply, command.split()[0])
            lines.append(reply)
            reply = (yield NEXT).reply
        return lines

    def ask(self, command: bytes, *answers: bytes) -> Talk[bytes]:
        """Send a command and return its one-line reply, which is one of `answers`."""
        reply = (yield Request(command + b"\r\n")).reply
        line = b"END" if reply == () else reply
        if isinstance(line, tuple) or line not in answers:
            raise refusal(self.address, reply, command.split()[0])
        return line


def token_of(header: bytes) -> int:
    """Return the token of a leased item from its header."""
    return int(header.split(b" ")[4])


def sendable(data: bytes, expiry: int) -> bytes:
    """Return an item as bytes to send. Raises InvalidType for anything but bytes."""
    checks.data(data, "item")
    checks.whole(expiry, "expiry", -checks.FAR_MS)  # a time in the past is allowed
    return bytes(data)


def queue_key(name: str) -> bytes:
    """Return a queue's name as a command has it. Raises BadQueueName for one that would mean something else there."""
    key = checks.text(name, "queue name", may_be_empty=True).encode("utf-8", "surrogateescape")
    if not key or any(byte <= 32 or byte in b"/~.\x7f" for byte in key):
        raise errors.BadQueueName(f"{name!r} is not a queue name: it is empty or has a blank or one of / ~ . in it")
    return key
