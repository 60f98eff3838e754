"""`kestrelctl dump-config`: print the settings in force for every queue."""

from kestrelctl.commands.options import Blocks, Remote


def dump_config(output: Blocks, remote: Remote) -> None:
    """Print the settings in force for every queue, in the server's blocks. Kestrel 2 does not have this."""
    output.write(remote.client().dump_config())
