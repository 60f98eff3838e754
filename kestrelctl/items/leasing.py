"""Leased items: printed with their tokens, or confirmed once a command has succeeded with them."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from kestrelctl.items.delivering import KEEP_ALIVE_S, how_it_ended, run_command
from kestrelctl.items.framing import Framing, frame
from kestrelctl.shell.exit_codes import ExitCode, Failure, Interrupted
from kestrelctl.shell.output import remark, say, wait_until_read, write_data
from kestreld.client.absence import now_ms
from kestreld.client.blocks import text
from kestreld.client.lease import ClusterLease
from kestreld.client.lease_calls import UNSURE, LeaseCalls
from kestreld.client.server import Server
from kestreld.errors import KestrelError

if TYPE_CHECKING:
    from kestrelctl.remote.client import KestrelClient
    from kestrelctl.remote.fleet import Fleet

_log: Final = logging.getLogger("kestreld.client")


def take_leases(
    fleet: "Fleet", queue: bytes, lease_ms: int, command: str | None, *, limit: int | None, wait_ms: int, by: str = ""
) -> int:
    """Lease items one by one, run `command` with each or print it and its token, and return their number.

    `by`: name of the holder; "" = none.
    """
    taken = 0
    with ExitStack() as at_end:
        at_end.enter_context(_remarks())
        servers: dict[str, Server] = {}

        def lease_at(client: "KestrelClient", turn_ms: int) -> "tuple[KestrelClient, ClusterLease] | None":
            if client.address not in servers:
                servers[client.address] = client.server()
                at_end.callback(servers[client.address].close)
            client.need_leases(queue)
            sent_at_ms = now_ms()
            item = client.lease(queue, lease_ms, turn_ms, by)
            if item is None:
                return None
            place = (servers[client.address], queue, text(queue))
            calls = LeaseCalls(*place, item, lease_ms, sent_at_ms, was_waited_for=turn_ms > 0)
            return client, ClusterLease(calls)

        while (limit is None or taken < limit) and (found := fleet.first(lease_at, wait_ms)) is not None:
            client, lease = found[1]
            if command is None:
                _print_leased(lease)
            else:
                begun_at_ms = now_ms()
                _run_leased(lease, command, client.failure_of)
                # It may have been lost meanwhile, also without a sign if nothing was sent for long.
                if not client.is_usable or now_ms() - begun_at_ms > KEEP_ALIVE_S * 1000:
                    client.start_over()
            taken += 1
    return taken


class _Remarks(logging.Handler):
    """Tells a person that a server is away."""

    def emit(self, record: logging.LogRecord) -> None:
        remark(record.getMessage())


@contextmanager
def _remarks() -> Iterator[None]:
    handler = _Remarks()
    _log.addHandler(handler)
    try:
        yield
    finally:
        _log.removeHandler(handler)


def _print_leased(lease: ClusterLease) -> None:
    try:
        write_data(frame(lease.item, Framing.JSON, {"token": lease.token}))
        wait_until_read()
    except (Failure, Interrupted):
        with suppress(KestrelError):
            lease.give_back_once()
        raise


def _run_leased(lease: ClusterLease, command: str, failure_of: Callable[[KestrelError], Failure]) -> None:
    """Confirm the item if the command succeeds, over new connections if the server restarts: the lease lives on."""
    try:
        with lease.beating():
            status = run_command(command, lease.item, _nothing, None)
    except Interrupted:
        with suppress(KestrelError):
            lease.give_back_once()
        raise
    try:
        if status != 0:
            lease.fail()
            raise Failure(ExitCode.COMMAND_FAILED, f"{how_it_ended(status)}; its item has failed")
        is_confirmed = lease.confirm()
    except KestrelError as problem:
        failure = failure_of(problem)
        if status == 0 and lease.is_unsure:
            failure.words = f"done, or lost: {failure.words}"
        raise failure from problem
    except Interrupted:
        if status == 0:
            say("interrupted before the server has confirmed the item: done, or lost")
        raise
    if not is_confirmed:
        words = "the lease expired before the command ended: its item may be delivered again; use a longer --lease"
        raise Failure(ExitCode.COMMAND_FAILED, UNSURE if lease.is_unsure else words)


def _nothing() -> None:
    """Run while a command runs: the heartbeat has a thread of its own."""
