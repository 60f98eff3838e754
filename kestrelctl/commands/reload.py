"""`kestrelctl reload`: have the server read its configuration again."""

from kestrelctl.commands.options import Remote
from kestrelctl.shell.output import remark, say


def reload(remote: Remote) -> None:
    """Have the server read its configuration again.

    Exit 78 when it is invalid: the old one stays in force. Settings that need a restart are named on
    stderr.
    """
    fleet = remote.fleet()
    for address, more in fleet.each(lambda client: client.reload()):
        where = "" if fleet.is_one else f"{address}: "
        if more:
            say(f"{where}reloaded. {more}")
        else:
            remark(f"{where}reloaded")
    fleet.end()
