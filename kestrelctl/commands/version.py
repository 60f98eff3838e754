"""`kestrelctl version`: print the server's version."""

from kestrelctl.commands.options import Answer, Remote
from kestrelctl.shell.output import encoded, write_data


def version(answer: Answer, remote: Remote) -> None:
    """Print the server's version (kestrelctl's own: --version); of several a line with address and version each."""
    fleet = remote.fleet()
    versions = fleet.each(lambda client: client.server_version())
    if fleet.is_one or answer.form is not None:
        answer.write(*[{"version": version, "server": address} for address, version in versions])
    else:
        write_data(encoded("".join(f"{address}\t{version}\n" for address, version in versions)))
    fleet.end()
