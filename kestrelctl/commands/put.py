"""`kestrelctl put`: add items to a queue."""

import os
from typing import Annotated

from kestrelctl.commands.declared import argument, option
from kestrelctl.commands.options import (
    LengthOption,
    NullOption,
    QueueArgument,
    Remote,
    data_is_literal,
    duration_ms,
    span_ms,
)
from kestrelctl.items.framing import Framing, choose
from kestrelctl.items.putting import expiry_s, explain, open_source, to_batches
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import counted, remark


def put(
    queue: QueueArgument,
    remote: Remote,
    data: Annotated[
        str | None,
        argument(metavar="DATA|-|@FILE", help="The item. - or nothing: stdin. @FILE: the contents of FILE."),
    ] = None,
    lines: Annotated[bool, option("--lines", help="Each line is an item; an empty line is an empty item.")] = False,
    null: NullOption = False,
    length_prefixed: LengthOption = False,
    expire: Annotated[
        int | None,
        option(metavar="SPAN", parser=duration_ms, help="The item expires after this: 10m, 2h; 90 = seconds."),
    ] = None,
    delay: Annotated[
        int | None,
        option(metavar="SPAN", parser=span_ms, help="Deliver the item after this, and not before: 5s, 10m."),
    ] = None,
    key: Annotated[
        str,
        option("--key", metavar="KEY", help="Store the item once, even if it is put again with this key."),
    ] = "",
) -> None:
    """Add an item to a queue, or many with --lines.

    Bytes are stored as they are: `echo hello | kestrelctl put work` stores "hello" and its newline.
    DATA alone behind -- is the item, whatever it begins with: `kestrelctl put work -- @home`.

    With --lines, --null or --length-prefixed the items are stored in order until one is refused. Exit 81 means
    that some are stored, stderr says how many.

    The server remembers a --key for the queue's key_time, and while the item is not due, `kestrelctl cancel QUEUE KEY`
    drops it. Servers that know no delays and keys refuse them, exit 77, and nothing is stored.

    Of a context with several servers one is picked at random, another one if that cannot be reached; the same key
    goes to the same server, as long as that can be reached.
    """
    if key and (lines or null or length_prefixed):
        raise Failure(ExitCode.USAGE, "--key is for one item: it cannot be used with --lines or another framing")
    framing = choose(Framing.RAW, lines=lines, null=null, length_prefixed=length_prefixed)
    batches = to_batches(open_source(data, is_literal=data_is_literal()), framing)
    report = remote.fleet().put_many(os.fsencode(queue), batches, expiry_s(expire), delay or 0, os.fsencode(key))
    if report.failure is not None:
        raise explain(report, report.failure)
    remark(f"stored {counted(report.stored, 'item')}")
