"""kestrelctl flush-all-expired"""

from kestrelctl.commands.options import ServerOption, TimeoutOption, connect
from kestrelctl.output import write_data


def flush_all_expired(server: ServerOption = "", timeout: TimeoutOption = "") -> None:
    """Remove the expired items of all queues now, and print how many there were."""
    removed = connect(server, timeout).flush_all_expired()
    write_data(b"%d\n" % removed)
