"""`kestrelctl flush-expired`: remove the expired items of a queue."""

import os

from kestrelctl.commands.options import Answer, QueueArgument, Remote


def flush_expired(queue: QueueArgument, answer: Answer, remote: Remote) -> None:
    """Remove the expired items of a queue now, and print how many there were."""
    fleet = remote.fleet()
    removed = fleet.each(lambda client: client.flush_expired(os.fsencode(queue)))
    answer.write({"items": sum(count for _, count in removed), "queue": queue})
    fleet.end()
