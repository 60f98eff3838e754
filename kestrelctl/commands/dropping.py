"""Options and figures that flush, flush-all and delete share: --dry-run, --missing-ok, items to be discarded."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

from kestrelctl.commands.declared import option
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import write_rows

if TYPE_CHECKING:
    from kestrelctl.remote.fleet import Fleet
    from kestreld.client.blocks import QueueBlock

COLUMNS: Final = ["queue", "items", "bytes", "open_transactions"]
DryRunOption = Annotated[
    bool, option("--dry-run", help="Print a row for each queue with what it holds, and change nothing.")
]


MissingOkOption = Annotated[bool, option("--missing-ok", help="Exit 0 instead of 1 when there is no such queue.")]


def no_such_queue(name: str) -> Failure:
    """The Failure for a missing queue. Never quiet: usually the name is mistyped."""
    return Failure(ExitCode.NEGATIVE, f"no such queue: {name}", is_quiet=False)


def figures_of(fleet: "Fleet", queue: str, *, missing_ok: bool) -> "list[QueueBlock]":
    """Figures of the queue of exactly this name. Raises Failure if it is stopped or, without `missing_ok`, missing."""
    rows = [row for row in fleet.queue_rows([queue]) if row["queue"] == queue]
    fleet.must_be_running([queue])
    if not rows and not missing_ok:
        fleet.end()
        raise no_such_queue(queue)
    return rows


def tell(rows: "Sequence[QueueBlock]") -> None:
    write_rows([{column: row[column] for column in COLUMNS if column in row} for row in rows], COLUMNS)
