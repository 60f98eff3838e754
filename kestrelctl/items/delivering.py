"""Reliable gets: an item is confirmed only after it is written or its command has succeeded.

If anything fails before that, the item returns to the head of its queue.
"""

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from kestrelctl.items.framing import Framing, frame
from kestrelctl.shell.exit_codes import ExitCode, Failure, Interrupted
from kestrelctl.shell.output import STDOUT, is_terminal, say, wait_until_read, write_data
from kestrelctl.shell.signals import signals_held

if TYPE_CHECKING:
    from kestrelctl.remote.client import KestrelClient
    from kestrelctl.remote.fleet import Fleet

# Kestrel 1.3 closes a connection that is idle for 60 s.
KEEP_ALIVE_S: Final = 20
# Time an interrupted command gets to exit before it is killed.
LEAVE_S: Final = 5
# Items taken from one of several servers before the next one is asked.
TURN_ITEMS: Final = 100

Give = Callable[[bytes], None]


def take(client: "KestrelClient", queue: bytes, give: Give, *, limit: int | None, wait_ms: int) -> int:
    """Take items one by one, pass each to `give`, and return their number. `limit` None = all there are.

    Waiting goes on over a restart of the server.
    """
    taken = 0
    item = client.over_restarts(lambda client, left_ms: client.open_read(queue, left_ms), wait_ms)
    while item is not None:
        try:
            give(item)
        except (Failure, Interrupted):
            with suppress(Failure):
                client.abort_read(queue)
            raise
        taken += 1
        if taken == limit:
            client.close_read(queue)
            break
        item = client.close_and_open(queue)
        if item is None and wait_ms:  # the last one is confirmed now, whatever becomes of the connection
            item = client.over_restarts(lambda client, left_ms: client.open_read(queue, left_ms), wait_ms)
    return taken


def take_from_any(
    fleet: "Fleet", queue: bytes, give_of: "Callable[[KestrelClient], Give]", *, limit: int | None, wait_ms: int
) -> int:
    """Take items as `take` does, from any server that has some."""
    if fleet.is_one:
        (client,) = fleet.clients
        return take(client, queue, give_of(client), limit=limit, wait_ms=wait_ms)
    taken = 0
    while limit is None or taken < limit:
        turn = TURN_ITEMS if limit is None else min(limit - taken, TURN_ITEMS)

        def take_turn(client: "KestrelClient", turn_ms: int, turn: int = turn) -> int | None:
            if not turn_ms:
                return take(client, queue, give_of(client), limit=turn, wait_ms=0) or None
            give, given = give_of(client), list[bytes]()

            def give_and_note(item: bytes) -> None:
                give(item)
                given.append(item)

            try:
                return take(client, queue, give_and_note, limit=1, wait_ms=turn_ms) or None
            except Failure as failure:
                if given and failure.code == ExitCode.UNREACHABLE:  # the fleet waits until it is back
                    say(f"{failure.words}; the last item from there may be delivered again")
                raise

        found = fleet.first(take_turn, wait_ms)
        if found is None:
            break
        taken += found[1]
    return taken


def how_it_ended(status: int) -> str:
    """Describe a command's exit status in words."""
    return f"the command {f'was killed by signal {-status}' if status < 0 else f'exited with {status}'}"


def no_item(queue: str, *, waited: bool) -> Failure:
    """The Failure for a queue that was empty; `waited`: until the time-out of --wait."""
    if waited:
        return Failure(ExitCode.WAIT_EXPIRED, f"no item in {queue} before the time-out")
    return Failure(ExitCode.NEGATIVE, f"{queue} is empty")


def give_to_stdout(framing: Framing, *, several: bool, server: str = "") -> Give:
    """Return a function that writes an item to stdout.

    With `several`, it returns only once the reader of a pipe has the item. `server`: address to print with each item,
    "" = none.
    """

    def give(item: bytes) -> None:
        data = frame(item, framing, {"server": server} if server else None)
        if framing == Framing.RAW and is_terminal(STDOUT) and not item.endswith(b"\n"):
            data += b"\n"
        write_data(data)
        if several:
            wait_until_read()

    return give


def give_to_command(command: str, client: "KestrelClient") -> Give:
    """Return a function that runs `command` in /bin/sh with an item as its standard input."""

    def give(item: bytes) -> None:
        lost: list[Failure] = []

        def ping() -> None:
            if not lost:
                try:
                    client.keep_alive()
                except Failure as failure:
                    lost.append(failure)

        status = run_command(command, item, ping, KEEP_ALIVE_S)
        for failure in lost:
            raise Failure(failure.code, f"{failure.words}; the command ended, but its item will be delivered again")
        if status != 0:
            raise Failure(ExitCode.COMMAND_FAILED, f"{how_it_ended(status)}; its item is back at the head of the queue")

    return give


def run_command(command: str, item: bytes, keep: Callable[[], object], every_s: float | None) -> int:
    """Run a command and return its exit status, negative for a signal.

    While it runs, `keep` is called every `every_s` seconds to keep the item; None = never.
    """
    unsent: bytes | None = item
    child: subprocess.Popen[bytes] | None = None
    try:
        with signals_held():
            child = _start(command)
        while child.returncode is None:
            try:
                child.communicate(unsent, timeout=every_s)
            except subprocess.TimeoutExpired:
                unsent = None
                keep()
    except Interrupted as interrupted:
        if child is not None:
            _stop(child, interrupted.signal_number)
        raise
    return child.returncode


def _start(command: str) -> "subprocess.Popen[bytes]":
    # A process group of its own: an interrupt of kestrelctl has to stop everything that the shell started.
    try:
        return subprocess.Popen(["/bin/sh", "-c", command], stdin=subprocess.PIPE, process_group=0)
    except OSError as error:
        raise Failure(ExitCode.COMMAND_FAILED, f"cannot run /bin/sh: {error.strerror}") from error


def _stop(child: subprocess.Popen[bytes], signal_number: int) -> None:
    """Stop the command and all its children: the item is about to be given to another consumer."""
    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(child.pid, signal_number)
        child.wait(LEAVE_S)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
