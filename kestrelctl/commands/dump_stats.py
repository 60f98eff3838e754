"""`kestrelctl dump-stats`: print the counters of every queue."""

from kestrelctl.commands.options import Blocks, PerServerOption, Remote
from kestreld.client.blocks import render_blocks


def dump_stats(output: Blocks, remote: Remote, per_server: PerServerOption = False) -> None:
    """Print the counters of every queue in the server's blocks. `stats` prints the main ones as a table.

    Of several servers a queue's counters are added up; exit 69 when one of them does not answer.
    """
    fleet = remote.fleet()
    if fleet.is_one and not per_server:
        output.write(fleet.clients[0].dump_stats())
    else:
        output.write(render_blocks(fleet.queue_rows(per_server=per_server)))
    fleet.end()
