"""kestrelctl reload"""

from kestrelctl.commands.options import ServerOption, TimeoutOption, connect_all
from kestrelctl.shell.output import remark, say


def reload(server: ServerOption = "", timeout: TimeoutOption = "") -> None:
    """Have the server read its configuration again.

    Exit 78 when it is invalid: the old one stays in force. Settings that need a restart are named on
    stderr.
    """
    cluster = connect_all(server, timeout)
    for address, more in cluster.each(lambda client: client.reload()):
        where = "" if cluster.is_one else f"{address}: "
        if more:
            say(f"{where}reloaded. {more}")
        else:
            remark(f"{where}reloaded")
    cluster.end()
