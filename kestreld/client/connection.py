"""Commands of queues on one connection, to a kestreld or an old Kestrel, and the meaning of their replies."""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from kestreld import errors
from kestreld.client.access import Login
from kestreld.client.blocks import QueueBlock, parse_blocks, text
from kestreld.client.items import OpenItem, PutItem, RepairAnswer
from kestreld.client.queue_talks import QueueTalks, checked_key, put_options
from kestreld.client.replies import Reply
from kestreld.client.transport import Transport

WAIT_MS_MAX: Final = 3_600_000  # of one command; longer waits repeat it
REPAIR_MS: Final = 86_400_000  # a repair or an undo reads and writes whole journals
_ESCAPED: Final = re.compile(r"\\x([0-9a-f]{2})")  # in names of queues of jobs


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

    def put(self, queue: bytes, data: bytes, expire_s: int = 0, *, delay_ms: int = 0, item_key: bytes = b"") -> bool:
        """Put an item. False = the queue is full, or the item too large. `expire_s` as on the wire.

        The item is delivered after `delay_ms`. If its `item_key` is known, it counts as stored already.
        """
        return self.carry_out(self.talks.put(queue, data, expire_s, delay_ms=delay_ms, item_key=item_key))

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

    def fetch(self, queue: bytes, options: bytes = b"", wait_ms: int = 0) -> bytes | None:
        """Return the data that `get` of a queue with options returns, waiting on the server. None = nothing.

        Without options the item is taken. If the connection is lost it may be lost, too: to repeat that would hide it.
        """
        item = self.fetch_item(queue, options, wait_ms)
        return None if item is None else item.data

    def fetch_item(
        self, queue: bytes, options: bytes = b"", wait_ms: int = 0, *, with_id: bool = False
    ) -> OpenItem | None:
        """Return an item like `fetch`, with its flags, and on request its id, which an old Kestrel does not know."""
        return self.carry_out(self.talks.fetch_item(queue, options, wait_ms, with_id=with_id))

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

    def need_leases(self, queue: bytes) -> None:
        """Raise LeasesUnknown if the server knows no leases, delays or keys. The server is asked once."""
        self.carry_out(self.talks.need_leases(queue))

    def lease(self, queue: bytes, lease_ms: int, wait_ms: int = 0, by: str = "") -> OpenItem | None:
        """Lease the head item for `lease_ms`; its `id` is the token that confirms it. None if there is none.

        `by` is the holder's name, which a server that does not know holders by name is not told; "" = no name.
        """
        return self.carry_out(self.talks.lease(queue, lease_ms, wait_ms, by))

    def confirm(self, queue: bytes, token: int) -> bool:
        """Confirm a leased item. False = it was confirmed before, or somebody else has it."""
        return self.carry_out(self.talks.confirm(queue, token))

    def extend(self, queue: bytes, token: int, lease_ms: int) -> bool:
        """Let the lease last `lease_ms` from now. False = it was over."""
        return self.carry_out(self.talks.extend(queue, token, lease_ms))

    def give_back(self, queue: bytes, token: int, delay_ms: int = 0) -> bool:
        """Return a leased item, to be delivered now or after `delay_ms`; not a failure. False = the lease was over."""
        return self.carry_out(self.talks.give_back(queue, token, delay_ms))

    def fail(self, queue: bytes, token: int, reason: str = "") -> bool:
        """Return a leased item as failed, with a reason. False = the lease was over."""
        return self.carry_out(self.talks.fail(queue, token, reason))

    def cancel(self, queue: bytes, item_key: bytes) -> bool:
        """Drop the item that was put with a key, if it is not due yet. False = no such item is delayed."""
        return self.carry_out(self.talks.cancel(queue, item_key))

    def keep_alive(self) -> None:
        """Keep an old Kestrel from closing this connection as idle."""
        self.server_version()

    # Queues and the server

    def flush(self, queue: bytes) -> None:
        """Discard the items of a queue."""
        self.carry_out(self.talks.flush(queue))

    def flush_all_queues(self) -> None:
        self._ask(b"flush_all", b"OK", b"Flushed all queues.")

    def flush_expired(self, queue: bytes) -> int:
        """Remove a queue's expired items now. Return how many there were."""
        return int(self._match(b"flush_expired " + self._key(queue), rb"\d+")[0])

    def flush_all_expired(self) -> int:
        return int(self._match(b"flush_all_expired", rb"\d+")[0])

    def delete_queue(self, queue: bytes) -> bool:
        """Delete a queue. False = there was none; an old Kestrel, or `compat: kestrel-1`, does not say."""
        return self.carry_out(self.talks.delete_queue(queue))

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

    def _refusal(self, reply: Reply, verb: bytes) -> errors.ServerRefused:
        if reply == b"ERROR" and verb.startswith(b"dump_stats"):
            return errors.OtherServer(self.address, "it is a cache")
        return super()._refusal(reply, verb)

    def queue_stats(self, queue: bytes) -> dict[str, int | str]:
        """Return a queue's counters, by name; empty if there is no such queue."""
        found = next((one for one in self.all_queue_stats([queue]) if one["queue"] == text(queue)), {})
        return {name: value for name, value in found.items() if name != "queue"}

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

    def dump_config(self) -> bytes:
        """Return the settings of every queue, in the server's own blocks."""
        return self._block(b"dump_config")

    # One command and its reply

    def _key(self, queue: bytes) -> bytes:
        """Return the name, checked: it cannot be mistaken for options or for the end of the command."""
        try:
            return checked_key(queue)
        except errors.BadQueueName as problem:
            raise self.failure_of(problem) from None
