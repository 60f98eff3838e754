"""`kestrelctl lease confirm, extend, give-back`: finish or prolong a lease by its token."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

from kestrelctl.commands.declared import argument, option
from kestrelctl.commands.options import QueueArgument, Remote, duration_ms, span_ms
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import remark
from kestreld.checks import reason_problem

if TYPE_CHECKING:
    from kestrelctl.remote.client import KestrelClient

EXTENSION_MS: Final = 30_000

TokenArgument = Annotated[
    int,
    argument(
        metavar="TOKEN", min=1, max=(1 << 63) - 1, help="The token that get --lease --json printed.", show_default=False
    ),
]


def lease_confirm(queue: QueueArgument, token: TokenArgument, remote: Remote) -> None:
    """The leased item is done: it leaves the queue. It may be confirmed over any connection, and from any machine.

    A lease that is over can be confirmed as long as nobody else has got the item.

    Of a context with several servers they are asked one after the other, until one knows the token.

    Exit 1 when nobody holds the item by this token, 77 when the server knows no leases.
    """
    _change(remote, queue, token, lambda client: client.confirm(os.fsencode(queue), token))
    remark(f"confirmed {token} of {queue}")


def lease_extend(
    queue: QueueArgument,
    token: TokenArgument,
    remote: Remote,
    lease: Annotated[
        int | None,
        option(metavar="SPAN", parser=span_ms, help="It ends this long from now (default 30s).", show_default=False),
    ] = None,
) -> None:
    """Extend a lease. It is counted from now on, even if the lease ends sooner so.

    Exit 1 when nobody holds the item by this token, 77 when the server knows no leases or allows none so long.
    """
    lease_ms = lease or EXTENSION_MS
    _change(remote, queue, token, lambda client: client.extend(os.fsencode(queue), token, lease_ms))
    remark(f"the lease {token} of {queue} ends in {lease_ms / 1000:g} s")


def lease_give_back(
    queue: QueueArgument,
    token: TokenArgument,
    remote: Remote,
    delay: Annotated[
        int | None, option(metavar="SPAN", parser=duration_ms, help="Deliver it after this, and not before: 5s, 10m.")
    ] = None,
    failed: Annotated[
        bool, option("--failed", help="Count a failure; the item waits as set by the queue's retry_delays.")
    ] = False,
    reason: Annotated[
        str, option(metavar="TEXT", help="With --failed: the reason (at most 200 bytes), shown by `items` and `dead`.")
    ] = "",
) -> None:
    """Give a leased item back: it is delivered again, before waiting items.

    Exit 1 when nobody holds the item by this token, 77 when the server knows no leases.
    """
    if failed and delay:
        raise Failure(ExitCode.USAGE, "--failed and --delay are mutually exclusive: retry_delays of the queue say when")

    if reason and not failed:
        raise Failure(ExitCode.USAGE, "--reason is the reason of a failure: it requires --failed")
    if reason and (problem := reason_problem(reason)):
        raise Failure(ExitCode.USAGE, f"--reason needs a text that {problem}")

    def give_back(client: "KestrelClient") -> bool:
        name = os.fsencode(queue)
        return client.fail(name, token, reason) if failed else client.give_back(name, token, delay or 0)

    _change(remote, queue, token, give_back)
    remark(f"{token} of {queue} has failed" if failed else f"gave back {token} of {queue}")


def _change(remote: Remote, queue: str, token: int, change: "Callable[[KestrelClient], bool]") -> None:
    """Apply a change at the server that knows the token. Raises Failure if none does."""

    def at(client: "KestrelClient", _: int) -> bool | None:
        # A server that knows no tokens would take a confirmation for the name of a queue, and delete that.
        client.need_leases(os.fsencode(queue))
        return change(client) or None

    if remote.fleet().first(at, 0) is None:
        words = f"{queue} has no item leased with the token {token}: it was confirmed, or its lease has ended"
        raise Failure(ExitCode.NEGATIVE, words)
