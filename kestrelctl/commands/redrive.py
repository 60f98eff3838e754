"""`kestrelctl redrive`: send dead letters back to their queues."""

from collections import Counter
from typing import Annotated, Final

from kestrelctl.commands.declared import option
from kestrelctl.commands.options import Output, QueueArgument, Remote, YesOption, queue_name
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import confirm, counted, remark, say
from kestreld.client.blocks import Cell

COLUMNS: Final = ["queue", "items"]


def redrive(
    dead: QueueArgument,
    output: Output,
    remote: Remote,
    to: Annotated[
        str,
        option(metavar="QUEUE", help="Send all waiting items there, wherever they come from.", show_default=False),
    ] = "",
    dry_run: Annotated[bool, option("--dry-run", help="Print how many would go where, and change nothing.")] = False,
    yes: YesOption = False,
) -> None:
    """Send the items of a dead-letter queue back to the queues they come from, and print how many went where.

    Items of which the server does not know where they come from stay, unless --to names a queue. So do leased items
    and those that are not due yet. Items that arrive there meanwhile are left alone. Items begin anew
    there: their attempts are not counted, and they do not expire. If it is killed, no item is lost; one may be in both
    queues. It is done by the server's admin port, with the rights get, and put on those queues.

    Exit 1 when there was nothing to send, 80 when a queue took none, 81 when one did not take all of them.
    """
    api = remote.reader_api()
    if to:
        queue_name(to)
    asked: dict[str, int | str] = {"to": to} if to else {}
    last = int(api.describe(dead)["next_id"]) - 1
    if not dry_run:
        confirm(f"send the items of {dead} {'to ' + to if to else 'back where they come from'}?", yes=yes)
    sent, refused, stays, after = Counter[str](), dict[str, str](), 0, 0
    while after is not None:
        found = api.redrive(dead, asked | {"after": after, "through": last, "dry_run": int(dry_run)})
        sent.update(found["to"])
        refused |= found["refused"]
        stays += found["without_origin"]
        after = found["next"]
    rows: list[dict[str, Cell]] = [{"queue": queue, "items": count} for queue, count in sorted(sent.items())]
    output.write_rows(rows, COLUMNS)
    if stays:
        remark(f"stays in {dead}: {counted(stays, 'item')} of unknown origin; use --to QUEUE")
    for queue, reason in refused.items():
        say(f"{queue}: {reason}")
    if refused:
        raise Failure(ExitCode.PARTLY_STORED if sent else ExitCode.FULL, "")
    if not sent:
        raise Failure(ExitCode.NEGATIVE, f"nothing of {dead} can be sent back")
