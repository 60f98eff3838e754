"""Taking items reliably: an item is confirmed once it is written or its command succeeded, never before.

If anything fails in between, the item goes back to the head of its queue.
"""

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final

from kestrelctl.items.framing import Framing, frame
from kestrelctl.shell.exit_codes import ExitCode, Failure, Interrupted
from kestrelctl.shell.output import STDOUT, is_terminal, wait_until_read, write_data
from kestrelctl.shell.signals import signals_held

if TYPE_CHECKING:
    from kestrelctl.remote.client import KestrelClient
    from kestrelctl.remote.cluster import Cluster
    from kestreld.client.items import OpenItem

# Kestrel 1.3 closes a connection that is idle for 60 s.
KEEP_ALIVE_S: Final = 20
# How long an interrupted command may take to leave before it is killed.
LEAVE_S: Final = 5
# So many from one of several servers, then it is the others' turn.
TURN_ITEMS: Final = 100

Give = Callable[[bytes], None]


def take(client: "KestrelClient", queue: bytes, give: Give, *, limit: int | None, wait_ms: int) -> int:
    """Take items one by one and `give` each away; how many there were. `limit` None = all there are."""
    taken = 0
    item = client.open_read(queue, wait_ms)
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
        item = client.close_and_open(queue, wait_ms)
    return taken


def take_from_any(
    cluster: "Cluster", queue: bytes, give_of: "Callable[[KestrelClient], Give]", *, limit: int | None, wait_ms: int
) -> int:
    """As `take`, from whichever server has items."""
    if cluster.is_one:
        (client,) = cluster.clients
        return take(client, queue, give_of(client), limit=limit, wait_ms=wait_ms)
    taken = 0
    while limit is None or taken < limit:
        turn = TURN_ITEMS if limit is None else min(limit - taken, TURN_ITEMS)

        def take_turn(client: "KestrelClient", turn_ms: int, turn: int = turn) -> int | None:
            at_most = 1 if turn_ms else turn
            return take(client, queue, give_of(client), limit=at_most, wait_ms=turn_ms) or None

        found = cluster.first(take_turn, wait_ms)
        if found is None:
            break
        taken += found[1]
    return taken


def take_leases(
    cluster: "Cluster", queue: bytes, lease_ms: int, command: str | None, *, limit: int | None, wait_ms: int
) -> int:
    """Lease items one by one and run `command` with each, or print it and its token; how many there were."""
    taken = 0
    while limit is None or taken < limit:
        found = cluster.first(lambda client, turn_ms: _lease(client, queue, lease_ms, turn_ms), wait_ms)
        if found is None:
            break
        client, item = found[1]
        if command is None:
            _print_leased(client, queue, item)
        else:
            _run_leased(client, queue, item, lease_ms, command)
        taken += 1
    return taken


def _lease(
    client: "KestrelClient", queue: bytes, lease_ms: int, wait_ms: int
) -> "tuple[KestrelClient, OpenItem] | None":
    item = client.lease(queue, lease_ms, wait_ms)
    return None if item is None else (client, item)


def _print_leased(client: "KestrelClient", queue: bytes, item: "OpenItem") -> None:
    try:
        write_data(frame(item.data, Framing.JSON, {"token": item.id}))
        wait_until_read()
    except (Failure, Interrupted):
        with suppress(Failure):
            client.give_back(queue, item.id)
        raise


def _run_leased(client: "KestrelClient", queue: bytes, item: "OpenItem", lease_ms: int, command: str) -> None:
    """Confirm the item if the command succeeds. Over another connection if that one is lost: the lease is not."""
    extend_s = min(lease_ms / 3000, KEEP_ALIVE_S)

    def extend() -> None:
        with suppress(Failure):  # the next time, or it shows in the end
            _on_any(client, lambda one: one.extend(queue, item.id, lease_ms))

    try:
        status = run_command(command, item.data, extend, extend_s)
    except Interrupted:
        with suppress(Failure):
            _on_any(client, lambda one: one.give_back(queue, item.id))
        raise
    if status != 0:
        _on_any(client, lambda one: one.fail(queue, item.id))
        raise Failure(ExitCode.COMMAND_FAILED, f"{how_it_ended(status)}; its item has failed")
    if not _on_any(client, lambda one: one.confirm(queue, item.id)):
        words = "the command ended, but the lease was over: its item may be delivered again; use a longer --lease"
        raise Failure(ExitCode.COMMAND_FAILED, words)


def _on_any(client: "KestrelClient", do: "Callable[[KestrelClient], bool]") -> bool:
    """Over the connection that there is, or another one to that server. Raises Failure."""
    if client.is_usable:
        with suppress(Failure):
            return do(client)
    with closing(client.again()) as another:
        return do(another)


def how_it_ended(status: int) -> str:
    """A command, in words."""
    return f"the command {f'was killed by signal {-status}' if status < 0 else f'exited with {status}'}"


def no_item(queue: str, *, waited: bool) -> Failure:
    """The queue was empty, and stayed so for as long as `--wait` says."""
    if waited:
        return Failure(ExitCode.WAIT_EXPIRED, f"no item in {queue} before the time-out")
    return Failure(ExitCode.NEGATIVE, f"{queue} is empty")


def give_to_stdout(framing: Framing, *, several: bool, server: str = "") -> Give:
    """Writes an item out. Of several, the next is not taken before the reader of a pipe has this one.

    `server` is where it is from, if that is to be said.
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
    """Runs `command` in /bin/sh with an item as its standard input."""

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
    """The command's exit status, negative for a signal. While it runs, `keep` is called to keep the item.

    `every_s` None = never.
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
    # A process group of its own: what interrupts kestrelctl has to stop everything that the shell started.
    try:
        return subprocess.Popen(["/bin/sh", "-c", command], stdin=subprocess.PIPE, process_group=0)
    except OSError as error:
        raise Failure(ExitCode.COMMAND_FAILED, f"cannot run /bin/sh: {error.strerror}") from error


def _stop(child: subprocess.Popen[bytes], signal_number: int) -> None:
    """Stop the command and all that it started: the item is about to be given to somebody else."""
    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(child.pid, signal_number)
        child.wait(LEAVE_S)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
