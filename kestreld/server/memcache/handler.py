"""Execution of a session's memcache commands on the queues.

It never waits. A GET that has to becomes a `Waiter`; the commands behind it stay where they are until it is served.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from kestreld import __version__
from kestreld.errors import (
    BadQueueName,
    JournalCorrupt,
    JournalFailed,
    KestrelError,
    QueueNotMade,
)
from kestreld.journal.records import item_flags, item_id
from kestreld.journal.repair import RepairReport
from kestreld.queues.commit import Tally
from kestreld.queues.everywhere import Steps, everywhere
from kestreld.queues.item import ITEM_HEADER_BYTES, client_expiry_ms
from kestreld.queues.reader import Reader
from kestreld.queues.repairing import Undone
from kestreld.queues.reports import (
    dump_config_report,
    dump_job_queues_report,
    dump_stats_report,
    stats_report,
)
from kestreld.queues.slices import Work
from kestreld.queues.waiters import OPEN, PEEK, TAKE, Waiter
from kestreld.server.command_handler import NextTurn, Unsettled
from kestreld.server.memcache import commands as wire
from kestreld.server.memcache.commands import (
    CONFIRM,
    END,
    GET,
    LEASE,
    NEXT,
    NOT_FOUND,
    NOT_STORED,
    SET,
    SET_WITH,
    STORED,
    Command,
)
from kestreld.server.memcache.lease_commands import LeaseCommands
from kestreld.server.memcache.replies import error_reply
from kestreld.server.memcache.table_commands import BINDS
from kestreld.server.state import Reloaded, ServerState

_READS: Final = frozenset((wire.READ, GET))
_ABOUT_BINDINGS: Final = frozenset((wire.UNBIND_ALL, wire.BINDINGS))
_DATA_AT: Final = ITEM_HEADER_BYTES
_KEYS_AT_ONCE: Final = 32  # of a GET, between looks at the clock
_VALUE_END: Final = b"\r\nEND\r\n"
_join: Final = b"".join


class _Lengths(dict[int, bytes]):
    """Record length -> the length of its data as the end of a VALUE line. Small ones are kept."""

    def __missing__(self, record_bytes: int) -> bytes:
        text = b"%d\r\n" % (record_bytes - ITEM_HEADER_BYTES)
        if record_bytes < 16384:
            self[record_bytes] = text
        return text


_lengths: Final = _Lengths()


class Handler(LeaseCommands):
    """Executor of one session's commands: the only class that knows both the protocol's words and the engine's."""

    keys: deque[Command] | None = None  # of a GET of several, those still to be answered

    def __init__(self, state: ServerState, *, strict: bool) -> None:
        super().__init__(state, strict=strict)
        self.open_reads: list[tuple[Reader, int, int]] = []  # see `reads_held`

    @property
    def is_busy(self) -> bool:
        return self.waiter is not None or self.held or bool(self.open_reads)

    def waits_since_ms(self) -> int | None:
        if self.waiter is None or self.asked is None:
            return None
        return self.waiter.due_at_ms - self.asked.wait_ms

    def reads_held(self) -> Sequence[tuple[Reader, int, int]]:
        return self.open_reads

    def execute(self, commands: Iterator[Any]) -> bool:
        """Execute commands until they end; returns True if one has to wait and `commands` has the rest.

        Every command goes through this loop, which takes most of the server's own time; its commonest ones are written
        out.
        """
        out = self.out
        while True:
            try:
                if self.keys is not None and self._answer_keys(self.keys):
                    return True
                for each in commands:
                    command: Command = each  # not Any, to which compiled code is slow
                    kind = command.kind
                    target: Reader | None = command.target
                    if kind == SET:
                        data: bytes = next(commands)
                        queue = (target or self._target(command)).queue
                        if self.last_queue is not queue:
                            if self.last_queue is None and not self.unsettled:
                                self.last_queue = self.take_queue = queue
                            else:
                                self._depend_on(queue)
                        if queue.put(data):
                            out.append(STORED)
                        else:
                            self.stats.refused_sets += 1
                            out.append(NOT_STORED)
                        continue
                    if kind == GET and not self.open_reads:
                        reader = target or self._target(command)
                        window = reader.window
                        if window and not reader.slow:
                            queue = reader.queue
                            if self.take_queue is not queue:
                                if self.last_queue is None and not self.unsettled:
                                    self.last_queue = self.take_queue = queue
                                else:
                                    self._may_take(queue)
                            record = window.popleft()
                            if not queue.dirty:
                                queue.mark_dirty()
                            reader.taken.append(record)
                            size = len(record)
                            out.append(_join((command.prefix, _lengths[size], record[_DATA_AT:], _VALUE_END)))
                            self.room_bytes -= size
                            if self.room_bytes >= 0:
                                continue
                        else:
                            self._may_take(reader.queue)
                            self._fetch(command, reader)
                    elif kind == SET_WITH:
                        data = next(commands)
                        self._set_otherwise(command, data)
                        continue
                    elif kind == NEXT:
                        self._next(command)
                    elif kind in _READS:
                        self._read(command)
                    elif kind >= CONFIRM:
                        self._end_lease(command, next(commands))
                        continue
                    elif kind == LEASE:
                        self._lease(command)
                    elif kind in BINDS:
                        self._bind(command, commands)
                        if self.put_off is not None:
                            return True
                    else:
                        self._other(command)
                    if self.room_bytes < 0 or self.waiter is not None or self.held or self.closing:
                        return True
                if self.crowded:
                    self._hold_back()
                return False
            except (BadQueueName, JournalFailed, JournalCorrupt, QueueNotMade) as problem:
                self._answer_problem(problem)
            except Unsettled:
                self.put_off = command
                return True
            except NextTurn as late:
                self.put_off = late.rest or command
                self.late = data if kind <= SET_WITH else True
                return True

    # SET

    def _set_otherwise(self, command: Command, data: bytes) -> None:
        """Execute a SET with expiry, flags, a delay or a key, to a child, or without a reply."""
        expire_at_ms = client_expiry_ms(command.expiry_s, self.state.clock.wall_ms)
        try:
            reader: Reader = command.target or self._target(command)
            if self.last_queue is not reader.queue:
                self._depend_on(reader.queue)
            only = reader if reader.label else None
            if command.item_key:
                stored = self._put_once(command, reader, data, expire_at_ms)
            elif command.delay_ms:
                stored = reader.queue.put_later(data, expire_at_ms, command.flags, only, command.delay_ms)
            else:
                stored = reader.queue.put_with(data, expire_at_ms, command.flags, only)
        except (JournalFailed, JournalCorrupt, QueueNotMade):
            if command.noreply:
                self.stats.refused_sets += 1
                return
            raise
        if not stored:
            self.stats.refused_sets += 1
        elif only is not None:
            self.stats.child_sets += 1
        if not command.noreply:
            self.out.append(STORED if stored else NOT_STORED)

    def _put_once(self, command: Command, reader: Reader, data: bytes, expire_at_ms: int) -> bool:
        """Put an item unless its key is known.

        Returns True if the item is there afterwards or, for an add, if it was put now.
        """
        if reader.find_key(command.item_key) and reader.keys is not None:
            reader.keys.refuse()
            return not command.adds
        only = reader if reader.label else None
        return reader.queue.put_keyed(
            command.item_key, reader, data, expire_at_ms, command.flags, only, command.delay_ms
        )

    def _cancel(self, command: Command) -> None:
        """Drop the item of a key, if it is not due yet."""
        reader = self.state.collection.look_for(command.name)
        found = False
        if reader is not None:
            if reader.queue.stopped is not None:
                raise reader.queue.stopped
            self._depend_on(reader.queue)
            found = reader.cancel(command.item_key)
        self._unless_quiet(command, wire.DELETED if found else NOT_FOUND)

    def _limit_open(self, reader: Reader, opened: int, limit_ms: int) -> None:
        """Limit the time of an open read; when it ends by itself, this session forgets it."""
        reader.limit_open(opened, limit_ms, self.holder, partial(self._lose, reader, opened))

    def _lose(self, reader: Reader, opened: int) -> None:
        self.open_reads = [one for one in self.open_reads if one[0] is not reader or one[1] != opened]

    # GET

    def _next(self, command: Command) -> None:
        """Execute `/close/open`: confirm the open read and open the next. The common case is written out."""
        reads = self.open_reads
        reader: Reader = command.target or self._target(command)
        if reader.slow or len(reads) > 1 or not reader.window or (reads and reads[0][0] is not reader):
            self._read(command)
            return
        queue = reader.queue
        if self.last_queue is not queue:
            self._depend_on(queue)
        if reads:
            reader.close(reads.pop()[1])
        opened, record = reader.open_head()
        reads.append((reader, opened, self.state.clock.monotonic_ms))
        size = len(record)
        self.out.append(_join((command.prefix, _lengths[size], record[_DATA_AT:], _VALUE_END)))
        self.room_bytes -= size

    def _read(self, command: Command, *, is_part: bool = False) -> None:
        """Execute a GET with options, or of a session with open reads; `is_part`: one key of several."""
        if command.peeks:
            self._peek(command)
            return
        if command.lease_ms:
            (self._lease_by if command.kind == wire.LEASE_BY else self._lease)(command)
            return
        if self.open_reads and not self._settle_open(command):
            return
        if command.aborts or (command.closes and not command.opens):
            self.out.append(END)
            return
        if command.opens and len(self.open_reads) >= self.state.max_open_reads:
            self._refuse_read("close or abort an open read first")
            return
        reader: Reader = command.target or self._target(command)
        if not command.opens and not is_part:
            self._may_take(reader.queue)
        self._fetch(command, reader)

    def _settle_open(self, command: Command) -> bool:
        """Close or abort the oldest open read of the named queue, if requested. False if the command is refused."""
        strict = self.strict
        if command.closes or command.aborts:
            for index, (reader, opened, _) in enumerate(self.open_reads):
                if reader.name == command.name:
                    del self.open_reads[index]
                    if self.last_queue is not reader.queue:
                        self._depend_on(reader.queue)
                    if command.closes:
                        reader.close(opened)
                    else:
                        reader.abort(opened, self.state.clock.wall_ms)
                    return True
            if strict:
                self._refuse_read("")
                return False
            return True
        if not command.opens and (strict or any(reader.name == command.name for reader, _, _ in self.open_reads)):
            self._refuse_read("close or abort the open read of this queue first")
            return False
        return True

    def _refuse_read(self, reason: str) -> None:
        if self.strict:
            self.out.append(wire.ERROR)
            self.closing = True
        else:
            self._answer_error(b"CLIENT_ERROR", reason)

    def _fetch(self, command: Command, reader: Reader) -> None:
        """Take or open the head item and answer with it, or wait for one, or answer END."""
        now_ms = self.state.clock.wall_ms
        queue = reader.queue
        if queue.stopped is not None:
            raise queue.stopped
        if self.last_queue is not queue:
            self._depend_on(queue)
        if command.opens:
            opened = reader.open_read(now_ms)
            record = None
            if opened is not None:
                self.open_reads.append((reader, opened[0], self.state.clock.monotonic_ms))
                record = opened[1]
                if limit_ms := reader.config.open_transaction_timeout_ms:
                    self._limit_open(reader, opened[0], limit_ms)
        else:
            record = reader.take(now_ms)
        if record is not None:
            self._answer_value(command, record)
        elif command.wait_ms > 0 and not self.state.collection.stopping:
            self._wait(command, reader, OPEN if command.opens else TAKE)
        else:
            self.stats.missed_gets += 1
            self.out.append(END)

    def _peek(self, command: Command) -> None:
        self.stats.peeks += 1
        reader: Reader | None = command.target or self._looked_at(command)
        record: bytes | None = None
        if reader is not None:
            if reader.queue.stopped is not None:
                raise reader.queue.stopped
            record = reader.peek(self.state.clock.wall_ms)
        if record is not None:
            self._answer_value(command, record)
        elif command.wait_ms > 0 and not self.strict and not self.state.collection.stopping:
            self._wait(command, reader, PEEK)
        else:
            self.out.append(END)

    def _answer_value(self, command: Command, record: bytes) -> None:
        self.out.append(self._value(command, record) + b"END\r\n")

    def _value(self, command: Command, record: bytes) -> bytes:
        self.room_bytes -= len(record)
        flags = item_flags(record)
        if not flags and not command.with_id:
            return command.prefix + _lengths[len(record)] + record[ITEM_HEADER_BYTES:] + b"\r\n"
        size = len(record) - ITEM_HEADER_BYTES
        shown = 0 if self.strict else flags
        number = b" %d" % item_id(record) if command.with_id else b""
        return b"VALUE %b %d %d%b\r\n%b\r\n" % (command.key, shown, size, number, record[ITEM_HEADER_BYTES:])

    def _get_many(self, command: Command) -> None:
        """Answer with one VALUE for each queue that has an item, then END."""
        if any(not part.opens and not part.peeks for part in command.parts):
            self._may_take(None)
        self._answer_keys(deque(command.parts))

    def _answer_keys(self, keys: deque[Command]) -> bool:
        """Continue a GET of several keys; returns True if the rest waits until more can be sent."""
        self.keys = None  # an error is the last answer to it
        while keys:
            if self.room_bytes < 0:
                self.keys = keys
                return True
            part = keys.popleft()
            try:
                if not len(keys) % _KEYS_AT_ONCE and not self.late:
                    self._take_a_while()
                self._read(part, is_part=True)
            except NextTurn as late:
                rest = Command(wire.GET_MANY)
                rest.parts = [part, *keys]
                raise NextTurn(rest) from late
            last = self.out.pop()
            if last[:6] == b"CLIENT":
                self.out.append(last)
                return False
            if last != END:
                self.out.append(last[: -len(END)])
        self.out.append(END)
        return self.room_bytes < 0

    # Waiting

    def served(self, waiter: Waiter, record: bytes | None) -> None:
        command, self.waiter, self.asked = self.asked, None, None
        assert command is not None
        if record is None:
            if waiter.want != PEEK:
                self.stats.missed_gets += 1
            self.out.append(END)
        elif waiter.want == PEEK:
            self._answer_value(command, record)
        elif command.kind == LEASE:
            self._lease(command)
        elif command.kind == wire.LEASE_BY:
            self._lease_by(command)
        elif command.kind == wire.LEASE_FIRST:
            assert isinstance(waiter.reader, Reader)
            self._lease_first(command, waiter.reader)
        elif command.kind == wire.LEASE_LISTED:
            assert isinstance(waiter.reader, Reader)
            try:
                self._lease_listed(command, waiter.reader)
            except (JournalFailed, JournalCorrupt, QueueNotMade) as problem:
                self._answer_problem(problem)
        else:
            assert isinstance(waiter.reader, Reader)
            self._fetch(command, waiter.reader)
        self.ready()

    def refused(self, waiter: Waiter, reason: str) -> None:
        self.waiter = self.asked = None
        self._answer_error(b"SERVER_ERROR", reason)
        self.ready()

    # Everything else

    def _other(self, command: Command) -> None:
        kind = command.kind
        out, collection = self.out, self.state.collection
        if kind == wire.REPLY:
            out.append(command.reply)
            self.closing = command.closes
        elif kind == wire.GET_MANY:
            self._get_many(command)
        elif kind == wire.LEASE_FIRST:
            self._lease_first(command)
        elif kind == wire.LEASE_BY:
            self._lease_by(command)
        elif kind == wire.LEASE_LISTED:
            self._lease_listed(command)
        elif kind == wire.LIST_QUEUES:
            self._list_queues(command)
        elif kind == wire.CANCEL:
            self._cancel(command)
        elif kind == wire.TOO_LARGE:
            self._target(command)
            self.stats.refused_sets += 1
            self._unless_quiet(command, NOT_STORED)
        elif kind == wire.DELETE:
            self._delete(command)
        elif kind in (wire.FLUSH, wire.FLUSH_COUNTED):
            self._take_a_while()
            self._name_as_kestrel(command)
            count = collection.flush(command.name)
            self._depend_on_name(command.name)
            self._unless_quiet(command, END if kind == wire.FLUSH else b"%d\r\n" % count)
        elif kind == wire.FLUSH_ALL:
            self._everywhere(command, collection.flush_all())
        elif kind == wire.FLUSH_EXPIRED:
            self._take_a_while()
            self._name_as_kestrel(command)
            count = collection.flush_expired(command.name)
            self._depend_on_name(command.name)
            self._unless_quiet(command, b"%d\r\n" % count)
        elif kind == wire.FLUSH_ALL_EXPIRED:
            self._everywhere(command, collection.flush_all_expired())
        else:
            self._server_command(command)

    def _delete(self, command: Command) -> None:
        """Delete a queue, once it has no bindings any more."""
        collection = self.state.collection
        if collection.bindings.has(command.key):
            self.put_off = command
            self._unbind_all(command, None)
            return
        self._take_a_while()
        reader, is_declared = collection.find(command.name), collection.declared.of(command.name) is not None
        there = collection.delete(command.name)
        if reader is not None and reader.queue.readers:
            self._depend_on(reader.queue)  # the family lives on, and its journal says that this one does not
        found = wire.DELETED if there else wire.NOT_FOUND
        reply = END if self.strict else found
        if is_declared:
            self._answer_when_forgotten(command, reply)
        else:
            self._unless_quiet(command, reply)

    def _server_command(self, command: Command) -> None:
        kind, out, state = command.kind, self.out, self.state
        if kind == wire.VERSION:
            out.append(b"VERSION " + __version__.encode() + b"\r\n")
        elif kind == wire.STATS:
            self._tell(stats_report(state.collection, state.stats, command.sees))
        elif kind == wire.DUMP_STATS:
            names = [word.decode("latin-1") for word in command.words] if command.words and not self.strict else None
            self._tell(dump_stats_report(state.collection, names, command.sees))
        elif kind == wire.DUMP_JOB_QUEUES:
            self._tell(dump_job_queues_report(state.stats, command.sees))
        elif kind in _ABOUT_BINDINGS:
            self._about_bindings(command)
        elif kind == wire.DECLARE:
            self._declare(command)
        elif kind == wire.DUMP_CONFIG:
            has_origins = command.words == [b"origins"] and not self.strict
            self._tell(dump_config_report(state.collection, has_origins=has_origins))
        elif kind == wire.LEASES:
            self._list_leases(command)
        elif kind == wire.PRESENT:
            self._be_present(command)
        elif kind == wire.QUIT:
            self.quit()
        elif kind == wire.SHUTDOWN:
            self.closing = True
            state.control.shutdown()
        elif kind == wire.RELOAD:
            self.held = True
            state.control.reload(self._reloaded)
        elif kind == wire.REPAIR:
            self.held = True
            state.control.repair(command.name, self._repaired)
        elif kind == wire.UNDO:
            self.held = True
            state.control.undo(command.name, self._undone)

    # Long work, done between turns while the commands behind it wait

    def _everywhere(self, command: Command, steps: Steps) -> None:
        """Execute a command on all queues, in slices."""
        self.held = self.is_at_work = True
        self.state.control.take_on(self._carry_out(command, steps))

    def _carry_out(self, command: Command, steps: Steps) -> Work:
        state, tally = self.state, Tally(lambda: None)
        count = yield from everywhere(state.collection.commit, state.control.finish_turn, steps, tally)
        if tally.failure is not None:
            self.failed(tally.failure.reason)
            self.disconnect()
        elif command.kind == wire.FLUSH_ALL_EXPIRED:
            self._unless_quiet(command, b"%d\r\n" % count)
        else:
            self._unless_quiet(command, b"Flushed all queues.\r\n" if self.strict else wire.OK)
        self._let_go()

    def _reloaded(self, outcome: Reloaded) -> None:
        if outcome.problems:
            more = f" (and {len(outcome.problems) - 1} more)" if len(outcome.problems) > 1 else ""
            reply = f"SERVER_ERROR config {outcome.problems[0]}{more}\r\n"
        else:
            names = ", ".join(outcome.needs_restart)
            more = f" Needs a restart: {names}" if names and not self.strict else ""
            reply = f"Reloaded config.{more}\r\n"
        self._answer_late(reply.encode("latin-1", "replace"))

    def _answer_late(self, reply: bytes) -> None:
        self.out.append(reply)
        self._let_go()

    def _repaired(self, outcome: RepairReport | KestrelError | None) -> None:
        if isinstance(outcome, RepairReport):
            lines = [f"DAMAGE {damage}" for damage in outcome.damages]
            lines.append(f"REPAIRED {outcome.restored} {outcome.lost} {outcome.kept_at}" if lines else "SOUND")
            reply = "".join([line + "\r\n" for line in lines])
            self._answer_late(reply.encode("utf-8", "surrogateescape"))
        elif isinstance(outcome, JournalCorrupt):  # another repair would not help
            self._answer_late(error_reply(b"SERVER_ERROR", f"corrupt {outcome}"))
        else:
            self._not_repaired(outcome)

    def _undone(self, outcome: Undone | KestrelError | None) -> None:
        if isinstance(outcome, tuple):
            self._answer_late(b"UNDONE %d %d\r\n" % outcome)
        else:
            self._not_repaired(outcome)

    def _not_repaired(self, problem: KestrelError | None) -> None:
        if problem is None:
            self.out.append(wire.NOT_FOUND)
        else:
            self._answer_problem(problem)
        self._let_go()

    def _name_as_kestrel(self, command: Command) -> None:
        """Create the named queue in the dialect of Kestrel 1.x, in which a flush creates it."""
        if self.strict:
            self._target(command)

    # The end

    def disconnect(self) -> None:
        """End the client's wait, and return its open reads to the head in their order.

        That counts as a failure of the items, unless the server is stopping.
        """
        super().disconnect()
        self.asked = None
        reads, self.open_reads = self.open_reads, []
        is_counted = not self.state.collection.stopping
        for reader in dict.fromkeys([reader for reader, _, _ in reads]):
            opened = [opened for one, opened, _ in reads if one is reader]
            reader.abort_all(opened, self.state.clock.wall_ms, is_counted=is_counted)
