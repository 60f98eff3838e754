"""kestrelctl dump-config"""

from kestrelctl.commands.options import BlocksFormatOption, Remote
from kestrelctl.shell.output import write_blocks


def dump_config(remote: Remote, output: BlocksFormatOption = None) -> None:
    """Print the settings in force forevery queue, in the server's blocks. Kestrel 2 does not have this."""
    write_blocks(remote.client().dump_config(), output)
