"""kestrelctl copy"""

from kestrelctl.commands.options import (
    MatchOption,
    MaxOption,
    RateOption,
    ServerOption,
    SourceArgument,
    TargetArgument,
    TimeoutOption,
    ToOption,
    answer_ms,
    way_to,
)
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import remark


def copy(
    source: SourceArgument,
    target: TargetArgument,
    to: ToOption = "",
    match: MatchOption = None,
    limit: MaxOption = None,
    rate: RateOption = None,
    server: ServerOption = "",
    timeout: TimeoutOption = "",
) -> None:
    """Copy the items of a queue to another queue, with flags and expiry. Nothing is taken.

    It is what is in SRC when the command starts, open reads too, less what is taken meanwhile and what has expired.
    Ids and add times are new. SRC is read by its server's admin port, with the right peek.

    Exit 1 when there was nothing to copy, 77 when the server has no admin port, 80 or 81 when DST refused one.
    """
    from kestrelctl.items.transfers import Transfer, copy_all

    transfer = Transfer(way_to(server), answer_ms(timeout), source, target, to, match, limit, rate or 0.0)
    copied = copy_all(transfer)
    if not copied:
        raise Failure(ExitCode.NEGATIVE, f"nothing to copy in {source}")
    remark(f"copied {copied} item{'' if copied == 1 else 's'}")
