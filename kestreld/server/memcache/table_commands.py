"""Commands about bindings and declarations, whose replies wait until these are on disk."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

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
from kestreld.server.memcache.replies import Replies, error_reply

BINDS: Final = frozenset((wire.BIND, wire.UNBIND))
_BOUND_AT_ONCE: Final = 200


def _no_bindings(problem: KestrelError) -> bytes:
    """The reply to a command about bindings that cannot be carried out."""
    if isinstance(problem, QueueNotMade):
        return error_reply(b"CLIENT_ERROR", str(problem))
    is_full = isinstance(problem, LedgerFull)
    return error_reply(b"SERVER_ERROR", "too many bindings" if is_full else f"bindings {problem}")


class TableCommands(Replies):
    """Execution of `bind`, `unbind`, `bindings` and `declare`."""

    def _about_bindings(self, command: Command) -> None:
        collection = self.state.collection
        if (damage := collection.bindings.ledger.problem) is not None:
            self.out.append(_no_bindings(damage))
        elif command.kind == wire.BINDINGS:
            self._tell(bindings_report(collection, command.item_key))
        else:
            self._unbind_all(command, wire.OK)

    def _bind(self, command: Command, commands: Iterator[Any]) -> None:
        """Execute a BIND or UNBIND and those right behind it, which share syncs; other commands wait for them."""
        batch = [command]
        for each in commands:
            following: Command = each
            if following.kind not in BINDS or len(batch) >= _BOUND_AT_ONCE:
                self.put_off = following
                break
            batch.append(following)
        replies = dict.fromkeys(range(len(batch)), b"")
        missing = len(batch)
        is_late = False

        def settled(place: int, problem: KestrelError | None) -> None:
            nonlocal missing
            replies[place] = wire.OK if problem is None else _no_bindings(problem)
            missing -= 1
            if not missing:
                self.out += replies.values()
                self.held = self.is_at_work = False
                if is_late:
                    self.ready()
                    self.state.collection.commit.wake()

        self.held = self.is_at_work = True
        for place, one in enumerate(batch):
            self._begin_bind(one, partial(settled, place))
        is_late = True

    def _begin_bind(self, command: Command, done: Callable[[KestrelError | None], None]) -> None:
        collection = self.state.collection
        is_bind = command.kind == wire.BIND
        try:
            is_there = command.name in collection.readers or collection.problem_of(command.name) is not None
            if is_bind and not command.may_create and not is_there:
                raise QueueNotMade(f"not allowed: create on {command.name!r}")
            (collection.bindings.bind if is_bind else collection.bindings.unbind)(command.item_key, done)
        except (JournalCorrupt, LedgerFull, QueueNotMade) as problem:
            done(problem)

    def _unbind_all(self, command: Command, reply: bytes | None) -> None:
        """Remove bindings of a queue and reply, or execute the command that was put off for it; in slices."""
        self.held = self.is_at_work = True
        self.state.control.take_on(self._carry_out_unbind(command, reply))

    def _carry_out_unbind(self, command: Command, reply: bytes | None) -> Work:
        exchange = command.item_key or None  # a `delete` has none
        problem = yield from self.state.collection.bindings.unbind_all(command.key, exchange)
        if problem is not None:
            self.put_off = None
            self.out.append(_no_bindings(problem))
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
