"""kestrelctl dump-stats"""

from kestrelctl.commands.options import BlocksFormatOption, PerServerOption, Remote
from kestrelctl.shell.output import write_blocks
from kestreld.client.blocks import render_blocks


def dump_stats(remote: Remote, output: BlocksFormatOption = None, per_server: PerServerOption = False) -> None:
    """Print the counters of every queue in the server's blocks. `stats` prints the main ones as a table.

    Of several servers a queue's counters are added up; exit 69 when one of them does not answer.
    """
    cluster = remote.cluster()
    if cluster.is_one and not per_server:
        write_blocks(cluster.clients[0].dump_stats(), output)
    else:
        write_blocks(render_blocks(cluster.queue_rows(per_server=per_server)), output)
    cluster.end()
