"""`kestrelctl repair`: rebuild a queue's damaged journal on its server."""

import os

from kestrelctl.commands.options import Output, QueueArgument, Remote
from kestrelctl.journals.repairs import REPAIR_COLUMNS, report_repair
from kestrelctl.shell.exit_codes import Ended, ExitCode, Failure


def repair(queue: QueueArgument, output: Output, remote: Remote) -> None:
    """Check a queue's journal on the server, rebuild it if it is damaged, and reopen the queue.

    The new journal has every item that can be read, in order; the damaged one is kept in the spool's .damaged folder.
    stderr has the damage, its place, and the lost items. Other queues are not affected, and open reads stay
    open. Parent and children are one journal. With the server stopped, use `kestrelctl journal-verify --repair`.

    Exit 0 the journal is intact and nothing is lost, 1 items are lost or there is no such queue, 74 a disk error,
    84 it cannot be repaired and the queue stays stopped.
    """
    answer = remote.client().repair_queue(os.fsencode(queue))
    if answer is None:
        raise Failure(ExitCode.NEGATIVE, f"no such queue: {queue}")
    row, code = report_repair(queue, answer)
    output.write_rows([row], REPAIR_COLUMNS)
    raise Ended(code)
