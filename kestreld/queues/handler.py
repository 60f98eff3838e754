"""Commands of one session carried out on the queues: the one room that knows the protocol's words and the engine's.

It never waits. A GET that has to is a `Waiter`; the commands behind it stay where they are until it is served.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from kestreld import __version__
from kestreld.config import Compat
from kestreld.errors import BadQueueName, JournalCorrupt, JournalFailed, KestrelError
from kestreld.journal.records import item_flags, item_id
from kestreld.journal.repair import RepairReport
from kestreld.protocol import memcache as wire
from kestreld.protocol.memcache import END, GET, NEXT, NOT_STORED, SET, SET_WITH, STORED, Command
from kestreld.queues.collection import QueueCollection
from kestreld.queues.commit import Ticket
from kestreld.queues.figures import all_queue_figures, config_figures, server_figures
from kestreld.queues.item import ITEM_HEADER_BYTES, client_expiry_ms
from kestreld.queues.mending import RepairDone, UndoDone, Undone
from kestreld.queues.queue import Queue
from kestreld.queues.reader import Reader
from kestreld.queues.waiters import OPEN, PEEK, TAKE, Deadlines, Waiter
from kestreld.stats import Figures, ServerStats, blocks, stat_lines

OUTPUT_BYTES_MAX: Final = 1 << 20  # answers a session may have waiting before its commands wait too
_READS: Final = frozenset((wire.READ, GET))
_DATA_AT: Final = ITEM_HEADER_BYTES
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


class ServerControl(Protocol):
    """What a session can ask of the server itself."""

    def shutdown(self) -> None: ...

    def reload(self, done: Callable[[bytes], None]) -> None: ...

    def repair(self, name: str, done: RepairDone) -> None: ...

    def undo(self, name: str, done: UndoDone) -> None: ...


class Shop:
    """What all sessions share: the queues, the counters, the deadlines and the server's own switches."""

    def __init__(
        self, collection: QueueCollection, stats: ServerStats, deadlines: Deadlines, control: ServerControl
    ) -> None:
        self.collection = collection
        self.stats = stats
        self.deadlines = deadlines
        self.control = control
        self.clock = collection.clock
        self.strict = collection.config.compat is Compat.KESTREL_1
        self.max_open_reads = collection.config.max_open_reads


class Handler:
    """One session's side of the engine. `out` is what to send once the turn's commit is written."""

    def __init__(self, shop: Shop, ready: Callable[[], None]) -> None:
        self.shop = shop
        self.stats = shop.stats
        self.ready = ready  # told when a wait ends and there may be commands to go on with
        self.out: list[bytes] = []
        self.room_bytes = OUTPUT_BYTES_MAX
        self.closing = False  # hang up once `out` is sent
        self.open_reads: list[tuple[Reader, int]] = []
        self.waiter: Waiter | None = None
        self.asked: Command | None = None  # the command that waits
        self.held = False  # waits for the server itself (reload, room on the disk)
        self.crowded = shop.collection.crowded
        self.keys: deque[Command] = deque()  # of a GET of several, those still to be answered
        self.last_queue: Queue | None = None  # whose commit `out` depends on,
        self.touched: list[Queue] = []  # and those before it
        self.gone = False

    @property
    def blocked(self) -> bool:
        """Whether the next command has to wait."""
        return self.waiter is not None or self.held or self.closing or self.room_bytes < 0

    def execute(self, commands: Iterator[Any]) -> bool:
        """Carry out commands until they end; True when one has to wait first and `commands` holds the rest.

        The loop every command goes through, its commonest written out: most of the server's own time.
        """
        out = self.out
        while True:
            try:
                if self.keys and self._answer_keys():
                    return True
                for each in commands:
                    command: Command = each  # not Any, to which compiled code is slow
                    kind = command.kind
                    target: Reader | None = command.target
                    if kind == SET:
                        data: bytes = next(commands)
                        queue = (target or self._target(command)).queue
                        if self.last_queue is not queue:
                            self._touch(queue)
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
                            record = window.popleft()
                            queue = reader.queue
                            if not queue.dirty:
                                queue.touch()
                            if self.last_queue is not queue:
                                self._touch(queue)
                            reader.taken.append(record)
                            size = len(record)
                            out.append(_join((command.prefix, _lengths[size], record[_DATA_AT:], _VALUE_END)))
                            self.room_bytes -= size
                            if self.room_bytes >= 0:
                                continue
                        else:
                            self._fetch(command, reader)
                    elif kind == SET_WITH:
                        self._set_otherwise(command, next(commands))
                        continue
                    elif kind == NEXT:
                        self._next(command)
                    elif kind in _READS:
                        self._read(command)
                    else:
                        self._other(command)
                    if self.room_bytes < 0 or self.waiter is not None or self.held or self.closing:
                        return True
                if self.crowded:
                    self._hold_back()
                return False
            except (BadQueueName, JournalFailed, JournalCorrupt) as problem:
                self._answer_problem(problem)

    def _target(self, command: Command) -> Reader:
        """The queue a command names, created if need be, remembered with the command's cached line."""
        reader = self.shop.collection.reader(command.name)
        command.target = reader
        return reader

    def _hold_back(self) -> None:
        """Who fills a journal that is being compacted waits: what it has sent meanwhile is carried out afterwards."""
        for queue in self.depends_on():
            if queue in self.crowded and queue.pending and not self.held:
                self.held = True
                self.crowded[queue].append(self._let_go)

    def _touch(self, queue: Queue) -> None:
        """`out` depends on this queue's commit from now on."""
        if self.last_queue is not None:
            self.touched.append(self.last_queue)
        self.last_queue = queue

    def depends_on(self) -> list[Queue]:
        """The queues whose commits `out` depends on."""
        return self.touched if self.last_queue is None else [*self.touched, self.last_queue]

    def _answer_problem(self, problem: KestrelError) -> None:
        if isinstance(problem, JournalFailed):
            self._answer_error(b"SERVER_ERROR", f"journal {problem.reason}")
        elif isinstance(problem, JournalCorrupt):
            self._answer_error(b"SERVER_ERROR", f"corrupt {problem}")
        else:
            self._answer_error(b"CLIENT_ERROR", str(problem))

    def _answer_error(self, word: bytes, reason: str) -> None:
        self.out.append(word + b" " + reason.encode("latin-1", "replace") + b"\r\n")

    # SET

    def _set_otherwise(self, command: Command, data: bytes) -> None:
        """A SET with expiry or flags, to a child, or without a reply."""
        reader: Reader = command.target or self._target(command)
        if self.last_queue is not reader.queue:
            self._touch(reader.queue)
        only = reader if reader.label else None
        expire_at_ms = client_expiry_ms(command.expiry_s, self.shop.clock.wall_ms)
        try:
            stored = reader.queue.put_with(data, expire_at_ms, command.flags, only)
        except (JournalFailed, JournalCorrupt):
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

    # GET

    def _next(self, command: Command) -> None:
        """`/close/open`: confirm the open read and open the next. The common case is written out."""
        reads = self.open_reads
        reader: Reader = command.target or self._target(command)
        if reader.slow or len(reads) > 1 or not reader.window or (reads and reads[0][0] is not reader):
            self._read(command)
            return
        queue = reader.queue
        if self.last_queue is not queue:
            self._touch(queue)
        if reads:
            reader.close(reads.pop()[1])
        opened, record = reader.open_head()
        reads.append((reader, opened))
        size = len(record)
        self.out.append(_join((command.prefix, _lengths[size], record[_DATA_AT:], _VALUE_END)))
        self.room_bytes -= size

    def _read(self, command: Command) -> None:
        """A GET with options, or one on a session that holds open reads."""
        if command.peeks:
            self._peek(command)
            return
        if self.open_reads and not self._settle_open(command):
            return
        if command.aborts or (command.closes and not command.opens):
            self.out.append(END)
            return
        if command.opens and len(self.open_reads) >= self.shop.max_open_reads:
            self._refuse_read("close or abort an open read first")
            return
        reader: Reader = command.target or self._target(command)
        self._fetch(command, reader)

    def _settle_open(self, command: Command) -> bool:
        """Close or abort the oldest open read of the named queue, if asked to. False when the command is refused."""
        strict = self.shop.strict
        if command.closes or command.aborts:
            for index, (reader, opened) in enumerate(self.open_reads):
                if reader.name == command.name:
                    del self.open_reads[index]
                    if self.last_queue is not reader.queue:
                        self._touch(reader.queue)
                    if command.closes:
                        reader.close(opened)
                    else:
                        reader.abort(opened, self.shop.clock.wall_ms)
                    return True
            if strict:
                self._refuse_read("")
                return False
            return True
        if not command.opens and (strict or any(reader.name == command.name for reader, _ in self.open_reads)):
            self._refuse_read("close or abort the open read of this queue first")
            return False
        return True

    def _refuse_read(self, reason: str) -> None:
        if self.shop.strict:
            self.out.append(wire.ERROR)
            self.closing = True
        else:
            self._answer_error(b"CLIENT_ERROR", reason)

    def _fetch(self, command: Command, reader: Reader) -> None:
        """Take or open the head item and answer with it; wait for one, or answer END."""
        now_ms = self.shop.clock.wall_ms
        queue = reader.queue
        if queue.stopped is not None:
            raise queue.stopped
        if self.last_queue is not queue:
            self._touch(queue)
        if command.opens:
            opened = reader.open_read(now_ms)
            record = None
            if opened is not None:
                self.open_reads.append((reader, opened[0]))
                record = opened[1]
        else:
            record = reader.take(now_ms)
        if record is not None:
            self._answer_value(command, record)
        elif command.wait_ms > 0 and not self.shop.collection.stopping:
            self._wait(command, reader, OPEN if command.opens else TAKE)
        else:
            self.stats.missed_gets += 1
            self.out.append(END)

    def _peek(self, command: Command) -> None:
        self.stats.peeks += 1
        reader: Reader = command.target or self._target(command)
        if reader.queue.stopped is not None:
            raise reader.queue.stopped
        record = reader.peek(self.shop.clock.wall_ms)
        if record is not None:
            self._answer_value(command, record)
        elif command.wait_ms > 0 and not self.shop.strict and not self.shop.collection.stopping:
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
        shown = 0 if self.shop.strict else flags
        number = b" %d" % item_id(record) if command.with_id else b""
        return b"VALUE %b %d %d%b\r\n%b\r\n" % (command.key, shown, size, number, record[ITEM_HEADER_BYTES:])

    def _get_many(self, command: Command) -> None:
        """One VALUE for each queue that has an item, then END."""
        self.keys.extend(command.parts)
        self._answer_keys()

    def _answer_keys(self) -> bool:
        """Go on with a GET of several keys; True when the rest has to wait until more answers can be sent."""
        keys, self.keys = self.keys, deque()  # an error is the last answer to it
        while keys:
            if self.room_bytes < 0:
                self.keys = keys
                return True
            self._read(keys.popleft())
            last = self.out.pop()
            if last[:6] == b"CLIENT":
                self.out.append(last)
                return False
            if last != END:
                self.out.append(last[: -len(END)])
        self.out.append(END)
        return self.room_bytes < 0

    # Waiting

    def _wait(self, command: Command, reader: Reader, want: int) -> None:
        waiter = Waiter(self, reader, want, self.shop.clock.monotonic_ms + command.wait_ms)
        self.waiter, self.asked = waiter, command
        reader.line.add(waiter)
        self.shop.deadlines.add(waiter)

    def served(self, waiter: Waiter, record: bytes | None) -> None:
        """The wait is over: with an item to fetch, or with nothing."""
        command, self.waiter, self.asked = self.asked, None, None
        assert command is not None
        if record is None:
            if waiter.want != PEEK:
                self.stats.missed_gets += 1
            self.out.append(END)
        elif waiter.want == PEEK:
            self._answer_value(command, record)
        else:
            self._fetch(command, waiter.reader)
        self.ready()

    def refused(self, waiter: Waiter, reason: str) -> None:
        """The wait is over: the queue has stopped."""
        self.waiter = self.asked = None
        self._answer_error(b"SERVER_ERROR", reason)
        self.ready()

    # Everything else

    def _other(self, command: Command) -> None:
        kind = command.kind
        out, collection = self.out, self.shop.collection
        if kind == wire.REPLY:
            out.append(command.reply)
            self.closing = command.closes
        elif kind == wire.GET_MANY:
            self._get_many(command)
        elif kind == wire.TOO_LARGE:
            self._target(command)
            self.stats.refused_sets += 1
            self._unless_quiet(command, NOT_STORED)
        elif kind == wire.DELETE:
            reader = collection.find(command.name)
            there = collection.delete(command.name)
            if reader is not None and reader.queue.readers:
                self._touch(reader.queue)  # the family lives on, and its journal says that this one does not
            found = wire.DELETED if there else wire.NOT_FOUND
            self._unless_quiet(command, END if self.shop.strict else found)
        elif kind == wire.FLUSH:
            self._name_as_kestrel(command)
            collection.flush(command.name)
            self._depend_on(command.name)
            self._unless_quiet(command, END)
        elif kind == wire.FLUSH_ALL:
            collection.flush_all()
            for queue in collection.families.values():
                self._touch(queue)
            self._unless_quiet(command, b"Flushed all queues.\r\n" if self.shop.strict else wire.OK)
        elif kind == wire.FLUSH_EXPIRED:
            self._name_as_kestrel(command)
            count = collection.flush_expired(command.name)
            self._depend_on(command.name)
            self._unless_quiet(command, b"%d\r\n" % count)
        elif kind == wire.FLUSH_ALL_EXPIRED:
            count = collection.flush_all_expired()
            for queue in collection.families.values():
                self._touch(queue)
            self._unless_quiet(command, b"%d\r\n" % count)
        else:
            self._server_command(command)

    def _server_command(self, command: Command) -> None:
        kind, out, shop = command.kind, self.out, self.shop
        if kind == wire.VERSION:
            out.append(b"VERSION " + __version__.encode() + b"\r\n")
        elif kind == wire.STATS:
            figures = server_figures(shop.collection, shop.stats)
            for name, own in all_queue_figures(shop.collection, sees=command.sees):
                figures.extend([(f"queue_{name}_{key}", value) for key, value in own])
            out.append(stat_lines(figures))
        elif kind == wire.DUMP_STATS:
            names = [word.decode("latin-1") for word in command.words] if command.words and not shop.strict else None
            out.append(self._blocks(all_queue_figures(shop.collection, names, command.sees)))
        elif kind == wire.DUMP_CONFIG:
            out.append(self._blocks(config_figures(shop.collection)))
        elif kind == wire.QUIT:
            self.closing = True
        elif kind == wire.SHUTDOWN:
            self.closing = True
            shop.control.shutdown()
        elif kind == wire.RELOAD:
            self.held = True
            shop.control.reload(self._answer_late)
        elif kind == wire.REPAIR:
            self.held = True
            shop.control.repair(command.name, self._repaired)
        elif kind == wire.UNDO:
            self.held = True
            shop.control.undo(command.name, self._undone)
        self.room_bytes -= len(out[-1]) if out else 0

    def _blocks(self, queues: list[tuple[str, Figures]]) -> bytes:
        # Kestrel puts a line end between what it lists and END, even if it lists nothing.
        return b"\r\nEND\r\n" if self.shop.strict and not queues else blocks(queues)

    def _answer_late(self, reply: bytes) -> None:
        self.out.append(reply)
        self._let_go()

    def _let_go(self) -> None:
        """The server has done what this session was held for."""
        self.held = False
        self.ready()

    def _repaired(self, outcome: RepairReport | KestrelError | None) -> None:
        if isinstance(outcome, RepairReport):
            lines = [f"DAMAGE {damage}" for damage in outcome.damages]
            lines.append(f"REPAIRED {outcome.restored} {outcome.lost} {outcome.kept_at}" if lines else "SOUND")
            reply = "".join([line + "\r\n" for line in lines])
            self._answer_late(reply.encode("utf-8", "surrogateescape"))
        else:
            self._not_mended(outcome)

    def _undone(self, outcome: Undone | KestrelError | None) -> None:
        if isinstance(outcome, tuple):
            self._answer_late(b"UNDONE %d %d\r\n" % outcome)
        else:
            self._not_mended(outcome)

    def _not_mended(self, problem: KestrelError | None) -> None:
        if problem is None:
            self.out.append(wire.NOT_FOUND)
        else:
            self._answer_problem(problem)
        self._let_go()

    def _name_as_kestrel(self, command: Command) -> None:
        """In Kestrel 1.x a queue that is to be flushed comes into being by that."""
        if self.shop.strict:
            self._target(command)

    def _unless_quiet(self, command: Command, reply: bytes) -> None:
        if not command.noreply:
            self.out.append(reply)

    def _depend_on(self, name: str) -> None:
        reader = self.shop.collection.find(name)
        if reader is not None:
            self._touch(reader.queue)

    # The end of a turn, and of the session

    def sent(self) -> None:
        """What was in `out` has left."""
        self.room_bytes = OUTPUT_BYTES_MAX
        self.turn_over()

    def tickets(self) -> list[Ticket]:
        """The commits on their way to the disk that `out` has to wait for."""
        return [queue.ticket for queue in self.depends_on() if queue.ticket is not None and queue.ticket.pending]

    def turn_over(self) -> None:
        """What comes next depends on nothing so far."""
        self.last_queue = None
        if self.touched:
            self.touched = []

    def failed(self, reason: str) -> None:
        """A commit that `out` depends on has failed: the outcome is unknown to the client, who is told just that."""
        self.out.clear()
        self._answer_error(b"SERVER_ERROR", f"journal {reason}")
        self.closing = True

    def disconnect(self) -> None:
        """The client has gone: its wait ends, its open reads return to the head in their order."""
        self.gone = True
        if self.waiter is not None:
            self.waiter.reader.line.leave(self.waiter)
            self.waiter = self.asked = None
        reads, self.open_reads = self.open_reads, []
        for reader in dict.fromkeys([reader for reader, _ in reads]):
            reader.abort_all([opened for one, opened in reads if one is reader], self.shop.clock.wall_ms)
