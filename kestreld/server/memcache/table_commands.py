"""Commands about bindings and declarations, whose replies wait until these are on disk."""

from collections.abc import Callable
from functools import partial

from kestreld.errors import (
    BadQueueName,
    DeclarationRefused,
    JournalCorrupt,
    JournalFailed,
    KestrelError,
    LedgerFull,
    QueueNotMade,
)
from kestreld.journal.ledger import Done
from kestreld.queues.declared import read_option
from kestreld.queues.reports import bindings_report
from kestreld.queues.slices import Work
from kestreld.server.memcache import commands as wire
from kestreld.server.memcache.commands import Command
from kestreld.server.memcache.replies import Replies


class TableCommands(Replies):
    """Execution of `bind`, `unbind`, `bindings` and `declare`."""

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
