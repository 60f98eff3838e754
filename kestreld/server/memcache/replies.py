"""The queue that a command names, waits, and replies: the common part of all memcache commands of a session."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from kestreld.errors import JournalCorrupt, JournalFailed, KestrelError, LedgerFull, QueueNotMade, TooManyQueues
from kestreld.queues.collection import MANY_READERS
from kestreld.queues.reader import Reader
from kestreld.queues.waiters import Waiter
from kestreld.server.command_handler import CommandHandler, NextTurn
from kestreld.server.memcache.commands import Command
from kestreld.server.state import ServerState


def error_reply(word: bytes, reason: str) -> bytes:
    """A line of an error."""
    return word + b" " + reason.encode("latin-1", "replace") + b"\r\n"


class Replies(CommandHandler):
    """Base class of the executor of one session's commands."""

    # A command was put off as the turn was long: it is executed however long the next is. Of a SET, its data. Few
    # sessions set this: with more than 30 attributes of its own, an object takes 1 KiB more.
    late: bool | bytes = False

    def __init__(self, state: ServerState, *, strict: bool) -> None:
        super().__init__(state)
        self.strict = strict  # `compat: kestrel-1`
        self.asked: Command | None = None  # the command that waits

    # Commands that are put off

    def go_on(self, commands: Iterator[Any]) -> bool:
        if isinstance(self.late, bytes):
            commands, self.late = chain((self.late,), commands), True
        return super().go_on(commands)

    def _take_a_while(self) -> None:
        """Raise NextTurn if a command that takes a while must wait for it."""
        if self.late:
            self.late = False
        elif self.is_turn_long:
            raise NextTurn

    def _target(self, command: Command) -> Reader:
        """Return the queue that a command names, created if need be, and remember it in the cached command.

        A parent of many is not remembered, so that each put on it may have to wait for the next turn.
        """
        reader = self._named(command)
        if not reader.label and len(reader.queue.readers) >= MANY_READERS:
            self._take_a_while()
        else:
            command.target = reader
        return reader

    def _named(self, command: Command) -> Reader:
        found = self.state.collection.look_for(command.name)
        if found is not None:
            return found
        if not command.may_create:
            raise QueueNotMade(f"not allowed: create on {command.name!r}")
        self._take_a_while()
        return self.state.collection.reader(command.name)

    def _looked_at(self, command: Command) -> Reader | None:
        """Return the queue of a peek or of a token, without creating it, except in the dialect of Kestrel 1.x."""
        if self.strict:
            return self._target(command)
        command.target = reader = self.state.collection.look_for(command.name)
        return reader

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
        self.out.append(error_reply(word, reason))

    def _unless_quiet(self, command: Command, reply: bytes) -> None:
        if not command.noreply:
            self.out.append(reply)

    def _depend_on_name(self, name: str) -> None:
        reader = self.state.collection.find(name)
        if reader is not None:
            self._depend_on(reader.queue)

    def commit_failure(self, reason: str) -> bytes:
        return error_reply(b"SERVER_ERROR", f"journal {reason}")

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
        raise NotImplementedError

    def refused(self, waiter: Waiter, reason: str) -> None:
        """End the wait: the queue has stopped."""
        raise NotImplementedError
