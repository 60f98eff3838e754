"""kestrelctl shutdown"""

from kestrelctl.commands.options import ServerOption, TimeoutOption, YesOption, connect
from kestrelctl.shell.output import confirm, remark


def shutdown(yes: YesOption = False, server: ServerOption = "", timeout: TimeoutOption = "") -> None:
    """Shut down the server. Returns when it has closed the connection."""
    client = connect(server, timeout)
    confirm("stop the server?", yes=yes)
    client.shut_down()
    remark("the server has stopped")
