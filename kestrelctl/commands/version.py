"""kestrelctl version"""

from kestrelctl.commands.options import ServerOption, TimeoutOption, connect
from kestrelctl.output import write_data


def version(server: ServerOption = "", timeout: TimeoutOption = "") -> None:
    """Print the server's version (kestrelctl's own: --version)."""
    write_data(connect(server, timeout).server_version().encode() + b"\n")
