"""kestrelctl version"""

from kestrelctl.commands.options import Remote
from kestrelctl.shell.output import write_data


def version(remote: Remote) -> None:
    """Print the server's version (kestrelctl's own: --version); of several a line with address and version each."""
    cluster = remote.cluster()
    versions = cluster.each(lambda client: client.server_version())
    lines = [version if cluster.is_one else f"{address}\t{version}" for address, version in versions]
    write_data("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
    cluster.end()
