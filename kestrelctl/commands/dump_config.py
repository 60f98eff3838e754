"""kestrelctl dump-config"""

from kestrelctl.commands.options import BlocksFormatOption, ServerOption, TimeoutOption, connect
from kestrelctl.shell.output import write_blocks


def dump_config(output: BlocksFormatOption = None, server: ServerOption = "", timeout: TimeoutOption = "") -> None:
    """Print the settings in force forevery queue, in the server's blocks. Kestrel 2 does not have this."""
    write_blocks(connect(server, timeout).dump_config(), output)
