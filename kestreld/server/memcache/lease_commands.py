"""Commands about leases: taken from a queue, from the first of several, or from a list; changed and listed."""

from contextlib import suppress
from typing import Final

from kestreld import net
from kestreld.errors import JournalCorrupt, JournalFailed, KestrelError, QueueNotMade
from kestreld.journal.records import item_flags
from kestreld.queues import leases
from kestreld.queues.item import ITEM_HEADER_BYTES
from kestreld.queues.presence import Present
from kestreld.queues.reader import Reader
from kestreld.queues.reports import leases_report
from kestreld.queues.waiters import OPEN
from kestreld.server.command_handler import OUTPUT_BYTES_MAX
from kestreld.server.memcache import commands as wire
from kestreld.server.memcache.commands import CONFIRM, END, LEASE, LEASE_BY, NOT_FOUND, TOUCHED, Command
from kestreld.server.memcache.lists import LISTED_MAX, QueueLists
from kestreld.server.memcache.table_commands import TableCommands
from kestreld.server.state import ServerState

_DATA_AT: Final = ITEM_HEADER_BYTES
_LISTED_COST_BYTES: Final = OUTPUT_BYTES_MAX // LISTED_MAX + 1  # of output, for each queue of a list
PROBED_AFTER_S: Final = 10
_VALUE_END: Final = b"\r\nEND\r\n"
_join: Final = b"".join


class LeaseCommands(TableCommands):
    """Execution of commands that lease items, or are about leases."""

    present: Present | None = None  # who is present through the connection; few sessions set this, as `late`

    def __init__(self, state: ServerState, *, strict: bool) -> None:
        super().__init__(state, strict=strict)
        self.lists: QueueLists | None = None  # of queues, that the client has made
        self.named = (b"", "")  # name by which the client leased last, and what its leases have as their holder

    def _lease(self, command: Command) -> None:
        """Lease the head item and answer with it and its token, or wait for one, or answer END."""
        reader: Reader = command.target or self._target(command)
        if not self._lease_head(command, reader):
            self._await_lease(command, reader)

    def _lease_by(self, command: Command) -> None:
        """`_lease` for a command that names the holder, or asks for deliveries: others must not pay for it."""
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
        if name:
            if self.named[0] != name:
                self.named = name, f"{name.decode()}/{address}"
            self._holder = self.named[1]
        try:
            is_leased = self._lease_head(command, reader)
        finally:
            self._holder = address
        if is_leased and command.counts and self.promised is not None:
            at, _, token = self.promised[-1]
            line, _, rest = self.out[at].partition(b"\r\n")
            self.out[at] = b"%b %d\r\n%b" % (line, leases.deliveries_before(reader, token), rest)
        return is_leased

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
            if (self._lease_head_by if part.kind == LEASE_BY else self._lease_head)(part, reader):
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
            self.lists = QueueLists(self.state.collection.listed)
            net.probe(self.fd, PROBED_AFTER_S)  # as for `present`: a queue counts as read while it is on a list
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
        part.lease_ms, part.item_key, part.counts = command.lease_ms, command.item_key, command.counts
        lease_head = self._lease_head_by if part.item_key or part.counts else self._lease_head
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

    def _be_present(self, command: Command) -> None:
        """Have a holder be present through this connection, in place of any other; without a time, nobody."""
        presence, before = self.state.presence, self.present
        self.present = None
        if command.delay_ms:
            self.present = Present(command.item_key.decode(), command.delay_ms, command.sees)
            presence.enter(self.present)
            if before is None and self.fd >= 0:
                net.probe(self.fd, PROBED_AFTER_S)  # one that is gone without a word must not count forever
        if before is not None:
            presence.leave(before if command.delay_ms else before._replace(absence_ms=0))
        self.out.append(wire.OK)

    def lose_sight(self) -> None:
        if self.present is not None:
            self.present = self.present._replace(absence_ms=0)

    def disconnect(self) -> None:
        super().disconnect()
        if self.lists is not None:
            self.lists.close()
        if self.present is not None:
            present, self.present = self.present, None
            self.state.presence.leave(present)

    def undelivered(self, reader: Reader, token: int) -> None:
        """Give back the item of a lease whose reply never left the server."""
        with suppress(JournalCorrupt):  # the queue has stopped
            leases.give_back(reader, token, self.state.clock.wall_ms, was_delivered=False)
