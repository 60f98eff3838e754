"""Execution of a Redis client's commands, and the ways in which commands wait, answer later or in pieces."""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final

from kestreld.jobs.globs import Glob
from kestreld.jobs.job import Job
from kestreld.jobs.job_queue import JobQueue
from kestreld.jobs.store import FOREVER_MS
from kestreld.jobs.waiting import JobWaiter
from kestreld.queues.agenda import TimedWait
from kestreld.queues.reports import Pieces
from kestreld.queues.slices import Work
from kestreld.server.accounts import Account
from kestreld.server.command_handler import Authenticate
from kestreld.server.disque import replies
from kestreld.server.disque.client import DisqueClient
from kestreld.server.disque.commands import DENY_OOM, LOADING, WRITE, Command
from kestreld.server.disque.node import DisqueNode
from kestreld.server.disque.parser import Refusal, RespParser
from kestreld.server.disque.pending_addjob import Adding
from kestreld.server.disque.persistence import Done
from kestreld.server.disque.replies import NIL_ARRAY
from kestreld.server.disque.rights import WITH_SECRETS

WRONG_TRIES_MAX: Final = 3  # of a connection, if users are configured
MONITOR_BYTES_MAX: Final = 1 << 20  # unsent lines of a MONITOR beyond which its client is disconnected
FREE: Final = frozenset({b"auth", b"quit"})
UNSEEN: Final = WITH_SECRETS | {b"quit"}  # by clients with MONITOR
NO_AUTH: Final = b"-NOAUTH Authentication required.\r\n"
NO_PROTOCOL: Final = b"-NOPROTO only RESP2 is spoken here, and HELLO takes no version\r\n"
OUT_OF_MEMORY: Final = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
TOO_MANY_CLIENTS: Final = b"-ERR max number of clients reached\r\n"
HTTP: Final = frozenset({b"post", b"host:"})
ECHOED_BYTES_MAX: Final = 64 * 1024  # of the name of an unknown command
REPLY_ON: Final = 0
REPLY_OFF: Final = 1
REPLY_SKIP: Final = 2  # not to the next command
REPLY_SKIPPED: Final = 3  # not to this command, the one behind a SKIP


class _Resumed:
    """Commands of a client that are postponed until it has logged in."""

    __slots__ = ("commands",)

    def __init__(self, commands: Iterator[Any]) -> None:
        self.commands = commands


class DisqueHandler(DisqueClient):
    """Executor of one client's commands, with its login, its options and its wait."""

    def __init__(self, node: DisqueNode, parser: RespParser, account: Account | None, number: int) -> None:
        super().__init__(node.state, parser, number)
        self.node = node
        self.jobs = node.jobs
        self.account = account
        self.has_entered = account is not None  # by a login
        self._wrong_tries = 0  # passwords
        self.reply_mode = REPLY_ON
        self._written: Callable[[Job, bytes], bytes] = replies.fetched  # makes the reply when a wait brings a job
        self._nothing = NIL_ARRAY  # reply if a wait ends without a result
        self._needs_care = self._must_look()

    def _must_look(self) -> bool:
        """Return True if something about this client must be checked before each command."""
        return self.authenticate is not None or self.account is not None or self.reply_mode != REPLY_ON

    @property
    def is_known(self) -> bool:
        """True if the client may send commands: it has logged in, or no login is required."""
        return self.has_entered or (self.authenticate is None and not self.node.password)

    def expect_login(self, authenticate: Authenticate) -> None:
        super().expect_login(authenticate)
        self.parser.distrust()
        self._needs_care = True

    # Commands

    def execute(self, commands: Iterator[Any]) -> bool:
        node, table = self.node, self.node.table
        self.active_at_ms = node.clock.monotonic_ms
        stopwatch_us = node.clock.stopwatch_us
        started_us = stopwatch_us()
        for words in commands:
            command = table.get(words[0]) if words.__class__ is list else None
            if (
                command is None
                or self._needs_care
                or node.needs_care
                or not command.words_min <= len(words) <= command.words_max
            ):
                command = self._with_care(words)
                if self.put_off is not None:
                    return True
                if command is None:
                    if self.blocked:
                        return True
                    continue
            else:
                command.run(self, words)
            command.calls += 1
            ended_us = stopwatch_us()
            spent_us = ended_us - started_us
            command.spent_us += spent_us
            if spent_us >= node.noted_us:
                node.note_slow(words, command, spent_us)
            started_us = ended_us
            self.last_command = command.name
            if self.waiter is not None or self.held or self.closing or self.room_bytes < 0:
                return True
        return False

    def _with_care(self, words: Any) -> Command | None:
        """Execute a command if it is allowed now, else return None. Its reply may be suppressed."""
        if self.reply_mode >= REPLY_SKIP:
            self.set_reply_mode(REPLY_SKIPPED if self.reply_mode == REPLY_SKIP else REPLY_ON)
        mode, answered = self.reply_mode, len(self.out)
        command = self._checked(words)
        if mode == REPLY_SKIPPED or mode == self.reply_mode == REPLY_OFF:
            del self.out[answered:]
        return command

    def _checked(self, words: Any) -> Command | None:
        """`_with_care` for a command whose reply is sent, with Disque's order of checks."""
        if isinstance(words, _Resumed):
            self._resume(words.commands)
            return None
        if isinstance(words, Refusal):
            if words.is_of_unknown and self.is_known:
                self._resume(iter(self.parser.trust()))
            else:
                self.out.append(replies.error(words.reason))
                self.closing = True
            return None
        command = self.node.find(words[0])
        if command is None:
            if words[0].lower() in HTTP:
                self.closing = True
            self.out.append(replies.error(b"ERR unknown command '%b'" % words[0][:ECHOED_BYTES_MAX]))
            return None
        if not command.words_min <= len(words) <= command.words_max:
            is_of_protocol = command.name == b"hello" and words[1].isdigit()  # such as HELLO 3, also before a login
            self.out.append(NO_PROTOCOL if is_of_protocol else replies.wrong_count(command.name))
            return None
        problem = self._problem(command, words)
        if problem:
            self.out.append(problem)
            return None
        if self.node.is_paused and command.name != b"client":
            self.put_off = words
            self.held = True
            self.node.when_paused_no_more(self, self._let_go)
            return None
        if self.node.monitors and command.name not in UNSEEN:
            self.node.tell_monitors(self, words)
        command.run(self, words)
        return command

    def _problem(self, command: Command, words: list[bytes]) -> bytes:
        if not self.is_known and command.name not in FREE:
            return NO_AUTH
        if self.account is not None and (reason := self.node.forbidden(self.account, command, words)):
            return replies.error(b"NOPERM this user " + reason)
        node = self.node
        if node.jobs.memory.is_full and not node.make_room() and command.flags & DENY_OOM:
            return OUT_OF_MEMORY
        if (command.flags & WRITE or command.name == b"ping") and (refusal := node.persistence.refusal):
            return refusal
        return node.persistence.obstacle if not command.flags & LOADING else b""

    def _resume(self, commands: Iterator[Any]) -> None:
        if self.execute(commands):
            if self.put_off is not None:
                commands = chain((self.put_off,), commands)
            self.put_off = _Resumed(commands)

    # Functions for commands

    def depend_on_log(self) -> None:
        """Make replies wait until the changes so far are on disk."""
        log = self.node.persistence.committed
        if log is not None and self.last_queue is not log:
            self._depend_on(log)

    def answer_in_pieces(self, pieces: Pieces) -> None:
        """Send a long reply; of a command executed in slices, this is the last step."""
        if self.reply_mode != REPLY_ON:
            pieces = self._unanswered(pieces)
        if self.is_at_work:
            self.telling = pieces
        else:
            self._tell(pieces)

    def carry_out(self, work: Work, *, is_short: bool) -> None:
        """Run long work in slices, or at once if it is short. Further commands wait."""
        if is_short:
            for _ in work:
                pass
            return
        self.begin_slices()
        self.state.control.take_on(self._slices(work if self.reply_mode == REPLY_ON else self._unanswered(work)))

    def _unanswered(self, steps: Iterator[int | bytes | None]) -> Iterator[None]:
        """Run these steps and discard their replies."""
        while True:
            answered = len(self.out)
            is_over = next(steps, steps) is steps
            del self.out[answered:]
            if is_over:
                return
            yield None

    def begin_slices(self) -> None:
        """Answer later: further commands wait until `finish_slices`."""
        self.held = self.is_at_work = True

    def finish_slices(self, reply: bytes) -> None:
        """Send the reply that `begin_slices` has postponed."""
        if not self.gone:
            if self.reply_mode == REPLY_ON:
                self.out.append(reply)
            self._let_go()

    def until_done(self, begin: Callable[[Done], None]) -> None:
        """Answer +OK once the work is done, or the error."""
        self.begin_slices()
        begin(lambda problem: self.finish_slices(replies.error(b"ERR " + problem.encode()) if problem else replies.OK))

    def _slices(self, work: Work) -> Work:
        yield from work
        if self.telling is not None:
            self.tell_on()
        else:
            self._let_go()

    def wait_for_job(
        self, queues: list[JobQueue], globs: list[Glob], wait_ms: int, written: Callable[[Job, bytes], bytes]
    ) -> None:
        """Answer with the first job of these queues."""
        self._written, self._nothing = written, NIL_ARRAY
        self.waiter = self.jobs.wait(self, queues, globs, wait_ms)

    def wait(self, wait: TimedWait, nothing: bytes) -> None:
        """Answer when this wait is over or falls due; `nothing` is the reply if the node ends it."""
        self.waiter, self._nothing = wait, nothing
        if wait.due_at_ms != FOREVER_MS:
            self.state.collection.agenda.add(wait)

    def hand_out(self, job: Job) -> None:
        """Note that the reply has this job. If it is delivered at most once, the reply waits for the log."""
        if not job.terms.retry_ms:
            self.depend_on_log()

    def served(self, waiter: JobWaiter, job: Job | None) -> None:
        """End the wait for a job."""
        if job is not None:
            self.hand_out(job)
        self.wait_is_over(NIL_ARRAY if job is None else b"*1\r\n" + self._written(job, job.body))

    def added(self, adding: Adding, reply: bytes) -> None:
        """Answer an ADDJOB, at once or at the end of its wait."""
        self.depend_on_log()
        if self.waiter is adding:
            self.wait_is_over(reply)
        else:
            self.out.append(reply)

    def wait_is_over(self, reply: bytes) -> None:
        """Answer a command that had to wait, and continue with the next."""
        self.waiter = None
        if self.reply_mode == REPLY_ON:
            self.out.append(reply)
        self.ready()

    def send_away(self, reply: bytes) -> None:
        if self.waiter is not None:
            self.waiter.leave()
            self.wait_is_over(reply or self._nothing)

    def set_reply_mode(self, mode: int) -> None:
        """Execute CLIENT REPLY."""
        self.reply_mode = mode
        self._needs_care = self._must_look()

    def enter(self, account: Account | None, *, has_entered: bool) -> None:
        """Note the result of AUTH: the account, and True if the client is now logged in."""
        self.account, self.has_entered = account, has_entered
        self._needs_care = self._must_look()

    def refuse_login(self, reply: bytes) -> None:
        """Answer that the password of a user is wrong; the client may not try often."""
        self._wrong_tries += 1
        self.closing = self._wrong_tries >= WRONG_TRIES_MAX
        self.finish_slices(reply)

    def tell(self, line: bytes) -> None:
        self.out.append(line)
        self.ready()

    def piled_up(self, unsent_bytes: int) -> None:
        if unsent_bytes > MONITOR_BYTES_MAX and self in self.node.monitors:
            self.node.remove_monitor(self)
            self.closing = True  # once it has read that

    def turn_away(self) -> None:
        """Refuse the client, because there are too many."""
        self.out.append(TOO_MANY_CLIENTS)
        self.hang_up()

    def hang_up(self) -> None:
        self.closing = True
        if self.waiter is not None:
            self.waiter.leave()
            self.waiter = None
        self.ready()

    def commit_failure(self, reason: str) -> bytes:
        return replies.error(b"MISCONF Errors writing to the AOF file: " + reason.encode("utf-8", "replace"))

    def disconnect(self) -> None:
        super().disconnect()
        self.node.remove(self)
