"""kestrelctl flush-all-expired"""

from kestrelctl.commands.options import Remote
from kestrelctl.shell.output import write_data


def flush_all_expired(remote: Remote) -> None:
    """Remove the expired items of all queues now, and print how many there were."""
    cluster = remote.cluster()
    removed = cluster.each(lambda client: client.flush_all_expired())
    write_data(b"%d\n" % sum(count for _, count in removed))
    cluster.end()
