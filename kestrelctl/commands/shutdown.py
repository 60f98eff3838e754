"""`kestrelctl shutdown`: shut down the server."""

from kestrelctl.commands.options import Remote, YesOption
from kestrelctl.shell.output import confirm, remark


def shutdown(remote: Remote, yes: YesOption = False) -> None:
    """Shut down the server. Returns when it has closed the connection."""
    client = remote.client()
    confirm("stop the server?", yes=yes)
    client.shut_down()
    remark("the server has stopped")
