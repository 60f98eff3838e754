"""Commands of queues on one connection, to a kestreld or an old Kestrel, and the meaning of their replies."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Concatenate, Final, ParamSpec, TypeVar

from kestreld import errors
from kestreld.client.access import Login
from kestreld.client.blocks import QueueBlock, parse_blocks, text
from kestreld.client.calls import documented
from kestreld.client.items import OpenItem, PutItem, RepairAnswer
from kestreld.client.queue_talks import QueueTalks, Talk, checked_key, put_options
from kestreld.client.transport import Transport

P = ParamSpec("P")
T = TypeVar("T")
WAIT_MS_MAX: Final = 3_600_000  # of one command; longer waits repeat it
REPAIR_MS: Final = 86_400_000  # a repair or an undo reads and writes whole journals
_ESCAPED: Final = re.compile(r"\\x([0-9a-f]{2})")  # in names of queues of jobs


def _by_talk(talk: Callable[Concatenate[QueueTalks, P], Talk[T]]) -> "Callable[Concatenate[ClientConnection, P], T]":
    """Make a talk a method, which carries it out."""

    def method(self: "ClientConnection", /, *args: P.args, **options: P.kwargs) -> T:
        return self.carry_out(talk(self.talks, *args, **options))

    return documented(method, talk)


class ClientConnection(Transport):
    """Connection that connects only once: after a reconnect, closing a lost open read would look like success.

    Whoever has none may `start_over`. Any failure, except a reply to a put, ends the connection.
    """

    def __init__(self, address: str, login: Login, timeout_ms: int) -> None:
        """Does not connect: `connect` does, or the first command."""
        super().__init__(address, login, timeout_ms)
        self.talks = QueueTalks(address)

    def start_over(self) -> None:
        super().start_over()
        self.talks.start_over()

    # Items

    put = _by_talk(QueueTalks.put)

    def put_each(
        self, queue: bytes, items: Sequence[PutItem], *, item_key: bytes = b""
    ) -> Iterator[bool | errors.KestrelError]:
        """Send all items, then yield the result of each: as of `put`, or the refusal, which later items do not share.

        The replies have to fit into the socket's buffers: otherwise both sides would wait for the other to read.
        """
        key = self._key(queue)
        if item_key or any(item.delay_ms for item in items):
            self.need_leases(queue)
        try:
            sets = [
                b"set %b%b %d %d %d\r\n%b\r\n"
                % (key, put_options(queue, delay_ms, item_key), flags, age, len(data), data)
                for data, age, flags, delay_ms in items
            ]
        except errors.InvalidValue as problem:
            raise self.failure_of(problem) from None
        with self._talking():
            self._send(b"".join(sets))
        for _ in items:
            with self._talking():
                reply = self._reply()
            try:
                is_stored: bool | errors.KestrelError = self.talks.is_stored(reply)
            except errors.KestrelError as refusal:
                is_stored = refusal
            yield is_stored

    fetch = _by_talk(QueueTalks.fetch)
    fetch_item = _by_talk(QueueTalks.fetch_item)

    def open_item(self, queue: bytes, *, close: bool = False, with_id: bool = False) -> OpenItem | None:
        """Take the head item and hold it open; with `close`, confirm the open item first. None if there is none."""
        return self.fetch_item(queue, b"/close/open" if close else b"/open", with_id=with_id)

    def open_read(self, queue: bytes, wait_ms: int = 0) -> bytes | None:
        """Take the head item and hold it open. None if there is none."""
        return self.fetch(queue, b"/open", wait_ms)

    def close_and_open(self, queue: bytes, wait_ms: int = 0) -> bytes | None:
        """Confirm the open item and open the next. None if there is none."""
        return self.fetch(queue, b"/close/open", wait_ms)

    def close_read(self, queue: bytes) -> None:
        """Confirm the open item: it is removed for good."""
        self.fetch(queue, b"/close")

    def abort_read(self, queue: bytes) -> None:
        """Return the open item to the head of the queue; a lost connection has done so by itself."""
        if self.is_connected:
            self.fetch(queue, b"/abort")

    def peek(self, queue: bytes, wait_ms: int = 0) -> bytes | None:
        """Return the head item without taking it. None if there is none."""
        return self.fetch(queue, b"/peek", wait_ms)

    # Items with a time or an owner of their own

    need_leases = _by_talk(QueueTalks.need_leases)
    lease = _by_talk(QueueTalks.lease)
    confirm = _by_talk(QueueTalks.confirm)
    extend = _by_talk(QueueTalks.extend)
    give_back = _by_talk(QueueTalks.give_back)
    fail = _by_talk(QueueTalks.fail)
    leases = _by_talk(QueueTalks.leases)
    cancel = _by_talk(QueueTalks.cancel)

    def keep_alive(self) -> None:
        """Keep an old Kestrel from closing this connection as idle."""
        self.server_version()

    # Queues

    flush = _by_talk(QueueTalks.flush)
    flush_counted = _by_talk(QueueTalks.flush_counted)

    def flush_all_queues(self) -> None:
        self._ask(b"flush_all", b"OK", b"Flushed all queues.")

    def flush_expired(self, queue: bytes) -> int:
        """Remove a queue's expired items now. Return how many there were."""
        return int(self._match(b"flush_expired " + self._key(queue), rb"\d+")[0])

    def flush_all_expired(self) -> int:
        return int(self._match(b"flush_all_expired", rb"\d+")[0])

    declare = _by_talk(QueueTalks.declare)
    delete_queue = _by_talk(QueueTalks.delete_queue)

    def undo(self, queue: bytes) -> tuple[int, int] | None:
        """Restore the items of the latest flush or delete. Return counts restored and left, None = nothing to undo."""
        counts = self._match(b"undo " + self._key(queue), rb"NOT_FOUND|UNDONE (\d+) (\d+)", REPAIR_MS)
        return None if counts[1] is None else (int(counts[1]), int(counts[2]))

    def repair_queue(self, queue: bytes) -> RepairAnswer | None:
        """Check the journal of a queue on the server, and rebuild it if it is damaged. None = no such queue."""
        answer, key = RepairAnswer(), self._key(queue)
        with self._talking(REPAIR_MS):
            self._send(b"repair %b\r\n" % key)
            while (line := self._line(b"repair")).startswith(b"DAMAGE "):
                answer.damages.append(text(line.removeprefix(b"DAMAGE ")))
            if line == b"NOT_FOUND":
                return None
            if done := re.fullmatch(rb"REPAIRED (\d+) (\d+) (.*)", line):
                answer.items, answer.lost, answer.kept_at = int(done[1]), int(done[2]), text(done[3])
            elif line != b"SOUND":
                raise errors.UnexpectedReply(self.address, text(line))
        return answer

    # Bindings

    bind = _by_talk(QueueTalks.bind)
    unbind = _by_talk(QueueTalks.unbind)
    bindings = _by_talk(QueueTalks.bindings)

    # The server

    def reload(self) -> str:
        """Have the server reload its configuration. Return its remark, or ""."""
        return text(self._match(b"reload", rb"Reloaded config\.(.*)")[1].strip())

    def server_version(self) -> str:
        return text(self._match(b"version", rb"VERSION (.*)")[1])

    def shut_down(self) -> None:
        """Stop the server; returns once the server has closed the connection."""
        with self._talking():
            self._send(b"shutdown\r\n")
            with suppress(errors.ConnectionLost, ConnectionResetError):
                raise errors.UnexpectedReply(self.address, text(self._line(b"shutdown")))

    # Figures

    def server_stats(self) -> dict[str, int | str]:
        """Return the server's own counters, by name."""
        return {name: value for name, value in self._counters(b"stats").items() if not name.startswith("queue_")}

    def dump_stats(self, queues: Iterable[bytes] = ()) -> bytes:
        """Return the counters of these queues, or of all if none are given, in the server's own blocks.

        An old Kestrel, or `compat: kestrel-1`, always returns all.
        """
        return self._block(b" ".join([b"dump_stats", *queues]))

    queue_stats = _by_talk(QueueTalks.queue_stats)

    def all_queue_stats(self, queues: Iterable[bytes] = (), keys: Collection[str] = ()) -> list[QueueBlock]:
        """Return the counters of these queues, or of all if none are given; for many, maybe only these `keys`."""
        # Not from `stats`: the end of the name in `queue_a_total_items` is ambiguous.
        return parse_blocks(self.dump_stats(queues), keys)

    def job_queue_stats(self) -> list[QueueBlock]:
        """Return the counters of every queue of jobs; empty if there are no jobs."""
        blocks = parse_blocks(self._block(b"dump_job_queues"))
        for block in blocks:
            block["queue"] = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), str(block["queue"]))
        return blocks

    def dump_config(self, *, origins: bool = False) -> bytes:
        """Return the settings of every queue, in the server's own blocks.

        With `origins`, `<name>_from` says where each is from; older servers do not tell.
        """
        return self._block(b"dump_config origins" if origins else b"dump_config")

    # One command and its reply

    def _key(self, queue: bytes) -> bytes:
        """Return the name, checked: it cannot be mistaken for options or for the end of the command."""
        try:
            return checked_key(queue)
        except errors.BadQueueName as problem:
            raise self.failure_of(problem) from None
