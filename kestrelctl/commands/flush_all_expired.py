"""`kestrelctl flush-all-expired`: remove the expired items of all queues."""

from kestrelctl.commands.options import Answer, Remote


def flush_all_expired(answer: Answer, remote: Remote) -> None:
    """Remove the expired items of all queues now, and print how many there were."""
    cluster = remote.cluster()
    removed = cluster.each(lambda client: client.flush_all_expired())
    answer.write({"items": sum(count for _, count in removed)})
    cluster.end()
