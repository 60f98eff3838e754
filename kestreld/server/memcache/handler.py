"""Execution of a session's memcache commands on the queues.

It never waits. A GET that has to becomes a `Waiter`; the commands behind it stay where they are until it is served.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, Final

from kestreld import __version__
from kestreld.errors import (
    BadQueueName,
    DeclarationRefused,
    JournalCorrupt,
    JournalFailed,
    KestrelError,
    LedgerFull,
    QueueNotMade,
    TooManyQueues,
)
from kestreld.journal.ledger import Done
from kestreld.journal.records import item_flags, item_id
from kestreld.journal.repair import RepairReport
from kestreld.queues import leases
from kestreld.queues.commit import Tally
from kestreld.queues.declared import read_option
from kestreld.queues.everywhere import Steps, everywhere
from kestreld.queues.item import ITEM_HEADER_BYTES, client_expiry_ms
from kestreld.queues.reader import Reader
from kestreld.queues.repairing import Undone
from kestreld.queues.reports import (
    bindings_report,
    dump_config_report,
    dump_job_queues_report,
    dump_stats_report,
    leases_report,
    stats_report,
)
from kestreld.queues.slices import Work
from kestreld.queues.waiters import OPEN, PEEK, TAKE, Waiter
from kestreld.server.command_handler import OUTPUT_BYTES_MAX, CommandHandler, NextTurn, Unsettled
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
    TOUCHED,
    Command,
)
from kestreld.server.memcache.lists import LISTED_MAX, QueueLists
from kestreld.server.state import Reloaded, ServerState

_READS: Final = frozenset((wire.READ, GET))
_ABOUT_BINDINGS: Final = frozenset((wire.BIND, wire.UNBIND, wire.UNBIND_ALL, wire.BINDINGS))
_DATA_AT: Final = ITEM_HEADER_BYTES
_KEYS_AT_ONCE: Final = 32  # of a GET, between looks at the clock
_LISTED_COST_BYTES: Final = OUTPUT_BYTES_MAX // LISTED_MAX + 1  # of output, for each queue of a list
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


def _error(word: bytes, reason: str) -> bytes:
    return word + b" " + reason.encode("latin-1", "replace") + b"\r\n"


class Handler(CommandHandler):
    """Executor of one session's commands: the only class that knows both the protocol's words and the engine's."""

    def __init__(self, state: ServerState, *, strict: bool) -> None:
        super().__init__(state)
        self.strict = strict  # `compat: kestrel-1`
        self.open_reads: list[tuple[Reader, int, int]] = []  # see `reads_held`
        self.asked: Command | None = None  # the command that waits
        self.keys: deque[Command] | None = None  # of a GET of several, those still to be answered
        self.lists: QueueLists | None = None  # of queues, that the client has made
        self.late_data: bytes | None = None  # of the SET that is `put_off`
        self.was_late = False  # a command was put off as the turn was long: it is executed however long the next is
        self.named = (b"", "")  # name by which the client leased last, and what its leases have as their holder

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
                self.late_data = data if kind <= SET_WITH else None
                return True

    def go_on(self, commands: Iterator[Any]) -> bool:
        if self.late_data is not None:
            commands, self.late_data = chain((self.late_data,), commands), None
        return super().go_on(commands)

    def _take_a_while(self) -> None:
        """Raise NextTurn if a command that takes a while must wait for it."""
        if self.was_late:
            self.was_late = False
        elif self.is_turn_long:
            self.was_late = True
            raise NextTurn

    def _target(self, command: Command) -> Reader:
        """Return the queue that a command names, created if need be, and remember it in the cached command."""
        command.target = reader = self._named(command)
        return reader

    def _named(self, command: Command) -> Reader:
        found = self.state.collection.look_for(command.name)
        if found is not None:
            return found
        if not command.may_create:
            raise QueueNotMade(f"not allowed: create on {command.name!r}")
        self._take_a_while()
        return self.state.collection.reader(command.name)

    def _answer_problem(self, problem: KestrelError) -> None:
        if isinstance(problem, JournalFailed):
            self._answer_error(b"SERVER_ERROR", f"journal {problem.reason}")
        elif isinstance(problem, JournalCorrupt):
            self._answer_error(b"SERVER_ERROR", problem.with_remedy(f"corrupt {problem}"))
        elif isinstance(problem, (TooManyQueues, LedgerFull)):
            self._answer_error(b"SERVER_ERROR", str(problem))
        else:
            self._answer_error(b"CLIENT_ERROR", str(problem))

    def _answer_error(self, word: bytes, reason: str) -> None:
        self.out.append(_error(word, reason))

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

    # Leases

    def _lease(self, command: Command) -> None:
        """Lease the head item and answer with it and its token, or wait for one, or answer END."""
        reader: Reader = command.target or self._target(command)
        if not self._lease_head(command, reader):
            self._await_lease(command, reader)

    def _lease_by(self, command: Command) -> None:
        """`_lease` for a command that names the holder: others must not pay for it."""
        reader: Reader = command.target or self._target(command)
        if not self._lease_head_by(command, reader):
            self._await_lease(command, reader)

    def _await_lease(self, command: Command, reader: Reader, *others: Reader) -> None:
        if command.wait_ms > 0 and not self.state.collection.stopping:
            waiter = self._wait(command, reader, OPEN)
            for other in others:
                other.wait_queue.add(waiter)
        else:
            self.stats.missed_gets += 1
            self.out.append(END)

    def _lease_head_by(self, command: Command, reader: Reader) -> bool:
        """`_lease_head` for such a command."""
        name, address = command.item_key, self.holder
        if self.named[0] != name:
            self.named = name, f"{name.decode()}/{address}"
        self._holder = self.named[1]
        try:
            return self._lease_head(command, reader)
        finally:
            self._holder = address

    def _lease_head(self, command: Command, reader: Reader) -> bool:
        queue = reader.queue
        if reader.window and not reader.slow:
            token, record = leases.lease_head(reader, command.lease_ms, self._holder or self.holder)
            head = b"%b%d %d\r\n" % (command.prefix, len(record) - _DATA_AT, token)
        else:
            if queue.stopped is not None:
                raise queue.stopped
            leased = leases.lease(reader, self.state.clock.wall_ms, command.lease_ms, self.holder)
            if leased is None:
                return False
            token, record = leased
            numbers = (command.key, item_flags(record), len(record) - _DATA_AT, token)
            head = b"VALUE %b %d %d %d\r\n" % numbers
        if self.last_queue is not queue:
            self._depend_on(queue)
        if self.promised is None:
            self.promised = []
        self.promised.append((len(self.out), reader, token))
        self.room_bytes -= len(record)
        self.out.append(_join((head, record[_DATA_AT:], _VALUE_END)))
        return True

    def _lease_first(self, command: Command, has_one: Reader | None = None) -> None:
        """Lease the head item of the first queue that has one, or wait for one of any. `has_one` ended the wait."""
        parts = [part for part in command.parts if has_one is None or part.name == has_one.name]
        readers: list[Reader] = [part.target or self._target(part) for part in parts]
        for part, reader in zip(parts, readers, strict=True):
            if (self._lease_head_by if part.item_key else self._lease_head)(part, reader):
                return
        if has_one is not None:
            self.put_off = command
            return
        if self.state.collection.stopping:
            self.out.append(END)
            return
        first, *others = dict.fromkeys(readers)
        waiter = self._wait(command, first, OPEN)
        for reader in others:
            reader.wait_queue.add(waiter)

    def _list_queues(self, command: Command) -> None:
        """Create the queues that are missing, and add all to a list; or drop it."""
        if self.lists is None:
            self.lists = QueueLists()
        if not command.parts:
            self.lists.drop(command.name)
            self.out.append(wire.OK)
        elif not self.lists.has_room(command.name, command.parts):
            self._answer_error(b"CLIENT_ERROR", f"the lists of a connection have at most {LISTED_MAX} queues")
        else:
            for part in command.parts:
                if self.state.collection.problem_of(part.name) is None:
                    self._named(part)
            self.lists.extend(command.name, command.parts)
            self.out.append(wire.OK)

    def _lease_listed(self, command: Command, has_one: Reader | None = None) -> None:
        """`_lease_first` for a list of queues, without those that are stopped. `has_one` ended the wait."""
        listed = self.lists.get(command.name) if self.lists is not None else None
        if listed is None:
            self._answer_error(b"CLIENT_ERROR", f"no list {command.name}: wait {command.name} and queues makes one")
            return
        readers = self._listed(command, listed.parts(b"turn" in command.words)) if has_one is None else [has_one]
        part = Command(LEASE)
        part.lease_ms, part.item_key = command.lease_ms, command.item_key
        lease_head = self._lease_head_by if part.item_key else self._lease_head
        for reader in readers:
            part.key = reader.name.encode("latin-1") + command.key
            part.prefix = b"VALUE " + part.key + b" 0 "
            if lease_head(part, reader):
                listed.after(reader.name)
                return
        if has_one is not None:
            self.put_off = command
        elif readers:
            self._await_lease(command, *readers)

    def _listed(self, command: Command, parts: list[Command]) -> list[Reader]:
        """The queues of a list that can be leased from. If there are none the reason is raised."""
        problem: KestrelError | None = None
        readers = list[Reader]()
        self.room_bytes -= _LISTED_COST_BYTES * len(parts)  # who repeats it must not keep others waiting
        for part in parts:
            try:
                reader = self._may_lease(command, part)
            except (JournalFailed, JournalCorrupt) as reason:
                problem = problem or reason
            else:
                readers.append(reader)
        if problem is not None and not readers:
            raise problem
        return readers

    def _may_lease(self, command: Command, part: Command) -> Reader:
        """The queue of a list. Raises the reason if it cannot be leased from, or not for so long."""
        if command.sees is not None and not command.sees(part.name):
            raise QueueNotMade(f"not allowed: get on {part.name!r}")
        reader = self._named(part)
        if reader.queue.stopped is not None:
            raise reader.queue.stopped
        if command.lease_ms > reader.config.max_lease_ms:
            raise QueueNotMade(f"lease= allows at most {reader.config.max_lease_ms} (max_lease) from {part.name}")
        return reader

    def _end_lease(self, command: Command, token: int) -> None:
        """Execute a command with a token: confirm, extend or give back the lease, or report a failure."""
        is_done = False
        try:
            reader: Reader | None = command.target or self._looked_at(command)
            if reader is not None:
                if self.last_queue is not reader.queue:
                    self._depend_on(reader.queue)
                if command.kind == CONFIRM:
                    is_done = leases.confirm(reader, token)
                else:
                    is_done = self._change_lease(command, reader, token)
                if not is_done and reader.queue.stopped is not None:
                    raise reader.queue.stopped
        except (JournalFailed, JournalCorrupt):
            if command.noreply:
                return
            raise
        if not command.noreply:
            done = wire.DELETED if command.kind == CONFIRM else TOUCHED
            self.out.append(done if is_done else NOT_FOUND)

    def _change_lease(self, command: Command, reader: Reader, token: int) -> bool:
        kind, now_ms = command.kind, self.state.clock.wall_ms
        if kind == wire.EXTEND:
            return leases.extend(reader, token, command.lease_ms, self._holder or self.holder)
        if kind == wire.GIVE_BACK:
            return leases.give_back(reader, token, now_ms, command.delay_ms)
        return leases.fail(reader, token, now_ms, command.item_key.decode())

    def _list_leases(self, command: Command) -> None:
        collection = self.state.collection
        readers = list(collection.readers.values())
        if command.name:
            reader = collection.look_for(command.name)
            if reader is not None and reader.queue.stopped is not None:
                raise reader.queue.stopped
            readers = [reader] if reader is not None else []
        self._tell(leases_report(collection.clock, readers, command.item_key.decode(), command.sees))

    def undelivered(self, reader: Reader, token: int) -> None:
        """Give back the item of a lease whose reply never left the server."""
        with suppress(JournalCorrupt):  # the queue has stopped
            leases.give_back(reader, token, self.state.clock.wall_ms)

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
            (self._lease_by if command.item_key else self._lease)(command)
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

    def _looked_at(self, command: Command) -> Reader | None:
        """Return the queue of a peek or of a token, without creating it, except in the dialect of Kestrel 1.x."""
        if self.strict:
            return self._target(command)
        command.target = reader = self.state.collection.look_for(command.name)
        return reader

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
                if not len(keys) % _KEYS_AT_ONCE and not self.was_late:
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

    def _wait(self, command: Command, reader: Reader | None, want: int) -> Waiter:
        waiter = Waiter(self, reader, want, self.state.clock.monotonic_ms + command.wait_ms)
        self.waiter, self.asked = waiter, command
        if reader is not None:
            reader.wait_queue.add(waiter)
        else:
            self.state.collection.await_queue(command.name, waiter)
        self.state.collection.agenda.add(waiter)
        return waiter

    def served(self, waiter: Waiter, record: bytes | None) -> None:
        """End the wait, with an item to fetch or with none."""
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
        """End the wait: the queue has stopped."""
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

    # Bindings: replies wait until they are on disk

    def _about_bindings(self, command: Command) -> None:
        collection = self.state.collection
        bindings = collection.bindings
        if (damage := bindings.ledger.problem) is not None:
            self._answer_no_bindings(damage)
            return
        if command.kind == wire.BINDINGS:
            self._tell(bindings_report(collection, command.item_key))
            return
        if command.kind == wire.UNBIND_ALL:
            self._unbind_all(command, wire.OK)
            return
        if command.kind == wire.BIND and not command.may_create and collection.look_for(command.name) is None:
            raise QueueNotMade(f"not allowed: create on {command.name!r}")

        def settled(problem: KestrelError | None) -> None:
            if problem is None:
                self.out.append(wire.OK)
            else:
                self._answer_no_bindings(problem)

        change = bindings.bind if command.kind == wire.BIND else bindings.unbind
        self._await_ledger(partial(change, command.item_key), settled)

    def _answer_no_bindings(self, problem: KestrelError) -> None:
        is_full = isinstance(problem, LedgerFull)
        self._answer_error(b"SERVER_ERROR", "too many bindings" if is_full else f"bindings {problem}")

    def _unbind_all(self, command: Command, reply: bytes | None) -> None:
        """Remove bindings of a queue and reply, or execute the command that was put off for it; in slices."""
        self.held = self.is_at_work = True
        self.state.control.take_on(self._carry_out_unbind(command, reply))

    def _carry_out_unbind(self, command: Command, reply: bytes | None) -> Work:
        exchange = command.item_key or None  # a `delete` has none
        problem = yield from self.state.collection.bindings.unbind_all(command.key, exchange)
        if problem is not None:
            self.put_off = None
            self._answer_no_bindings(problem)
        elif reply is not None:
            self.out.append(reply)
        self._let_go()

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

    def _answer_when_forgotten(self, command: Command, reply: bytes) -> None:
        """Answer a DELETE once no start finds the declaration of the queue any more."""

        def forgotten(failure: KestrelError | None) -> None:
            if failure is not None:
                self._answer_problem(failure)
            else:
                self._unless_quiet(command, reply)

        self._await_ledger(partial(self.state.collection.declared.forgotten, command.name), forgotten)

    def _await_ledger(self, begin: Callable[[Done], object], settled: Callable[[KestrelError | None], None]) -> None:
        """Begin a change of a ledger, and have the commands behind wait until `settled` has answered."""
        is_late = False

        def end(failure: KestrelError | None) -> None:
            settled(failure)
            self.held = self.is_at_work = False
            if is_late:
                self.ready()
                self.state.collection.commit.wake()

        self.held = self.is_at_work = True
        try:
            begin(end)
        except (BadQueueName, DeclarationRefused, JournalFailed, JournalCorrupt, LedgerFull, QueueNotMade) as problem:
            end(problem)
        is_late = True

    def _declare(self, command: Command) -> None:
        """Set a queue's settings, which are answered for once they are on disk."""
        collection = self.state.collection

        def begin(done: Done) -> None:
            words = [word.decode("latin-1").partition("=") for word in command.words]
            options = {name: read_option(name, value) for name, _, value in words}
            by = f"{command.prefix.decode()}/{self.holder}" if command.prefix else self.holder
            collection.declare(command.name, options, by, done, may_delete=command.may_delete)

        def settled(failure: KestrelError | None) -> None:
            if failure is not None:
                self._answer_problem(failure)
                return
            if (reader := collection.find(command.name)) is not None:
                self._depend_on(reader.queue)  # its journal says that it was created
            self.out.append(wire.DECLARED)

        self._await_ledger(begin, settled)

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
            self._answer_late(_error(b"SERVER_ERROR", f"corrupt {outcome}"))
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

    def _unless_quiet(self, command: Command, reply: bytes) -> None:
        if not command.noreply:
            self.out.append(reply)

    def _depend_on_name(self, name: str) -> None:
        reader = self.state.collection.find(name)
        if reader is not None:
            self._depend_on(reader.queue)

    # The end

    def commit_failure(self, reason: str) -> bytes:
        return _error(b"SERVER_ERROR", f"journal {reason}")

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
