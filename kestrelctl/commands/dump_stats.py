"""kestrelctl dump-stats"""

from kestrelctl.commands.options import BlocksFormatOption, ServerOption, TimeoutOption, connect
from kestrelctl.output import write_blocks


def dump_stats(output: BlocksFormatOption = None, server: ServerOption = "", timeout: TimeoutOption = "") -> None:
    """Print the counters of every queue in the server's blocks. `stats` prints the main ones as a table."""
    write_blocks(connect(server, timeout).dump_stats(), output)
