"""`kestrelctl flush-all-expired`: remove the expired items of all queues."""

from kestrelctl.commands.options import Answer, Remote


def flush_all_expired(answer: Answer, remote: Remote) -> None:
    """Remove the expired items of all queues now, and print how many there were."""
    fleet = remote.fleet()
    removed = fleet.each(lambda client: client.flush_all_expired())
    answer.write({"items": sum(count for _, count in removed)})
    fleet.end()
