"""Commands on all queues, a few queues at a time: each batch is committed at once, and the reply waits for all."""

from collections.abc import Callable, Generator, Iterator
from typing import Final

from kestreld.queues.commit import Committed, GroupCommit, Tally
from kestreld.queues.queue import Queue
from kestreld.queues.slices import WAITS

QUEUES_AT_ONCE: Final = 32
AT_ONCE_US: Final = 500  # time limit of a batch
ON_THE_WAY_MAX: Final = 32  # pending syncs, so that those of other clients get their turn

Steps = Iterator[tuple[Queue, int]]  # a queue that is done, and its count


def everywhere(
    commit: GroupCommit, finish_turn: Callable[[], None], steps: Steps, tally: Tally
) -> Generator[int | None, None, int]:
    """Take all steps, and wait until their changes are written and, if asked for, on disk.

    Returns the sum of the steps' counts. A failed commit is recorded in `tally`, and the other queues go on.
    """
    total, is_over = 0, False
    while not is_over:
        is_over = True
        until_us = commit.clock.stopwatch_us() + AT_ONCE_US
        changed: set[Committed] = set()
        for queue, count in steps:
            total += count
            changed.add(queue)
            if queue.moving:
                changed.update([move.destination for reader in queue.readers.values() for move in reader.moving])
            if len(changed) >= QUEUES_AT_ONCE or commit.clock.stopwatch_us() >= until_us:
                is_over = False
                break
        _write(commit, finish_turn, changed, tally)
        yield None
        while tally.pending >= ON_THE_WAY_MAX:
            yield WAITS
    while tally.pending:
        yield WAITS
    return total


def _write(commit: GroupCommit, finish_turn: Callable[[], None], changed: set[Committed], tally: Tally) -> None:
    dirty = [queue for queue in changed if queue.dirty]
    finish_turn()
    for queue in dirty:
        if queue in commit.failed:
            tally.failure = tally.failure or commit.failed[queue]
    for queue in changed:
        if queue.pending_commit is not None and queue.pending_commit.pending:
            tally.wait_for(queue.pending_commit)
