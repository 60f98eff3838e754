"""kestrelctl reload"""

from kestrelctl.commands.options import ServerOption, TimeoutOption, connect
from kestrelctl.output import remark, say


def reload(server: ServerOption = "", timeout: TimeoutOption = "") -> None:
    """Have the server read its configuration again.

    Exit 78 when it is bad: then the old one stays in force, whole. Settings that need a restart are named on
    stderr.
    """
    more = connect(server, timeout).reload()
    if more:
        say(f"reloaded. {more}")
    else:
        remark("reloaded")
