"""`kestrelctl lease confirm, extend, give-back`: finish or prolong a lease, by its token or the item's id."""

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


TokenOrIdArgument = Annotated[
    int,
    argument(
        metavar="TOKEN|ID",
        min=1,
        max=(1 << 63) - 1,
        help="The token that get --lease --json printed, or with --id the item's id.",
        show_default=False,
    ),
]
IsIdOption = Annotated[bool, option("--id", help="It is an item's id, not a token: act on another client's lease.")]


def lease_confirm(queue: QueueArgument, token: TokenArgument, remote: Remote) -> None:
    """The leased item is done: it leaves the queue. It may be confirmed over any connection, and from any machine.

    A lease that is over can be confirmed as long as nobody else has got the item.

    Of a context with several servers they are asked one after the other, until one knows the token. If there is no
    answer it is asked again for --timeout; "done, or lost" says that the outcome is unknown.

    Exit 1 when nobody holds the item by this token, 77 when the server knows no leases.
    """
    _change(remote, queue, token, lambda client: client.confirm(os.fsencode(queue), token), "done")
    remark(f"confirmed {token} of {queue}")


def lease_extend(
    queue: QueueArgument,
    token: TokenOrIdArgument,
    remote: Remote,
    lease: Annotated[
        int | None,
        option(metavar="SPAN", parser=span_ms, help="It ends this long from now (default 30s).", show_default=False),
    ] = None,
    is_id: IsIdOption = False,
) -> None:
    """Extend a lease. It is counted from now on, even if the lease ends sooner so.

    With --id an operator extends the lease of whoever holds the item, by the server's admin port, with the right get.

    Exit 1 when nobody holds the item, 77 when the server knows no leases or allows none so long, when the item with
    this id is delayed or retrying, or when there is no admin port.
    """
    lease_ms = lease or EXTENSION_MS
    if is_id:
        remote.reader_api().act(queue, token, f"extend?lease_ms={lease_ms}")
        remark(f"the lease of item {token} of {queue} ends in {lease_ms / 1000:g} s")
        return
    _change(remote, queue, token, lambda client: client.extend(os.fsencode(queue), token, lease_ms))
    remark(f"the lease {token} of {queue} ends in {lease_ms / 1000:g} s")


def lease_give_back(
    queue: QueueArgument,
    token: TokenOrIdArgument,
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
    is_id: IsIdOption = False,
) -> None:
    """Give a leased item back: it is delivered again, before waiting items.

    With --id an operator ends the lease of whoever holds the item: the holder's token is not valid any more, whatever
    it is used for. `kestrelctl items QUEUE --state leased` shows the ids. It is done by the server's admin port, with
    the right get.

    Exit 1 when nobody holds the item, 77 when the server knows no leases, when the item with this id is delayed or
    retrying, or when there is no admin port.
    """
    if failed and delay:
        raise Failure(ExitCode.USAGE, "--failed and --delay are mutually exclusive: retry_delays of the queue say when")
    if failed and is_id:
        raise Failure(ExitCode.USAGE, "--failed and --id are mutually exclusive: only the holder reports a failure")
    if reason and not failed:
        raise Failure(ExitCode.USAGE, "--reason is the reason of a failure: it requires --failed")
    if reason and (problem := reason_problem(reason)):
        raise Failure(ExitCode.USAGE, f"--reason needs a text that {problem}")

    if is_id:
        remote.reader_api().act(queue, token, f"give-back?delay_ms={delay or 0}")
        remark(f"ended the lease of item {token} of {queue}")
        return

    def give_back(client: "KestrelClient") -> bool:
        name = os.fsencode(queue)
        return client.fail(name, token, reason) if failed else client.give_back(name, token, delay or 0)

    _change(remote, queue, token, give_back, "failed" if failed else "given back")
    remark(f"{token} of {queue} has failed" if failed else f"gave back {token} of {queue}")


def _change(remote: Remote, queue: str, token: int, change: "Callable[[KestrelClient], bool]", ended: str = "") -> None:
    """Apply a change at the server that knows the token, again if it is not answered. Raises Failure if none does.

    `ended`: what an item is whose lease the change has ended; "" = it goes on.
    """
    unanswered: list[Failure] = []

    def once(client: "KestrelClient", _: int) -> bool | None:
        # A server that knows no tokens would take a confirmation for the name of a queue, and delete that.
        client.need_leases(os.fsencode(queue))
        try:
            return change(client) or None
        except Failure as failure:
            if failure.code in (ExitCode.UNREACHABLE, ExitCode.TRY_AGAIN):
                unanswered.append(failure)
            raise

    def at(client: "KestrelClient", _: int) -> bool | None:
        try:
            return client.over_restarts(once, client.answer_ms)
        except Failure as failure:
            if unanswered and ended:
                failure.words = f"{ended}, or lost: {failure.words}"
            raise

    if remote.fleet().first(at, 0) is None:
        if unanswered and ended:
            words = f"{ended}, or lost: a request was not answered, and then {queue} had no item leased with {token}"
            raise Failure(ExitCode.NEGATIVE, words, is_quiet=False)
        words = f"{queue} has no item leased with the token {token}: it was confirmed, or its lease has ended"
        raise Failure(ExitCode.NEGATIVE, words)
