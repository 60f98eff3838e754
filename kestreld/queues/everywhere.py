"""A command on all queues, a few of them at a time: each few are written at once, and the answer waits for all."""

from collections.abc import Callable, Generator, Iterator
from typing import Final

from kestreld.queues.commit import Committed, GroupCommit, Tally
from kestreld.queues.queue import Queue
from kestreld.queues.slices import WAITS

QUEUES_AT_ONCE: Final = 32
AT_ONCE_US: Final = 500  # and no longer than that, before they are written
ON_THE_WAY_MAX: Final = 32  # commits that are on their way to the disk: those of other clients go between

Steps = Iterator[tuple[Queue, int]]  # one queue done, and what that counts


def everywhere(
    commit: GroupCommit, finish_turn: Callable[[], None], steps: Steps, tally: Tally
) -> Generator[int | None, None, int]:
    """Take all steps, and wait until what they changed is written and, where that is asked for, on disk.

    The sum of what they count. A commit that fails is in `tally`, and the others are gone on with.
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
