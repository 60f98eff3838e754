"""What the watch of a cluster says of a start that knows less of a job's moves than the node did before."""

from types import SimpleNamespace
from typing import Any

import pytest

from kestreld.jobs.job import ACTIVE
from kestreld.jobs.store import DELETED
from tests.simulation.cluster.watching import Watch
from tests.simulation.history import KILLED, POWER_CUT
from tests.simulation.schedule import Schedule
from tests.support.compiled import interpreted_only

pytestmark = interpreted_only

JOB_ID = b"D-a831e891-FYFbGmJsl+VOj6UZLsWNq2M3-003d"
A_WHILE_US = 5_000_000


class Node:
    """A node with a log that is not synced, and one job, which it knows by two moves."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.schedule = Schedule()
        self.watch = Watch(self.schedule, self.problems.append)
        self.watch.keeps = lambda host, how: how == KILLED
        self.store: Any = SimpleNamespace(host="10.0.0.1", node_id=b"", now_ms=0)
        self.watch.begins(self.store.host, self.store, 1)
        self.watch.held(self.store, self.job(2))
        self.watch.place(self.store, self.job(2))
        self.schedule.run(A_WHILE_US)

    def job(self, moves: int) -> Any:
        terms = SimpleNamespace(moves=moves, owners=3)
        return SimpleNamespace(id=JOB_ID, state=ACTIVE, requeue_at_ms=0, terms=terms)

    def starts_again(self, how: str, *moves: int) -> None:
        self.watch.ends(self.store.host, how)
        self.watch.begins(self.store.host, self.store, 2)
        self.watch.restored(self.store, [self.job(number) for number in moves])  # type: ignore[arg-type]
        self.schedule.run(self.schedule.now_us + A_WHILE_US)


@pytest.mark.parametrize("is_done", [False, True])
def test_a_kill_may_not_forget_a_move(is_done: bool) -> None:
    node = Node()
    if is_done:
        node.watch.dropped(node.store, JOB_ID, DELETED)
    node.starts_again(KILLED, 1)
    assert node.problems == [f"10.0.0.1 knew 2 moves of {JOB_ID!r}, and 1 after its start"]


def test_a_job_that_was_done_may_be_back_with_fewer_moves_after_a_power_cut_and_has_them_from_then_on() -> None:
    node = Node()
    node.watch.dropped(node.store, JOB_ID, DELETED)
    node.starts_again(KILLED)
    node.starts_again(POWER_CUT, 1)
    node.starts_again(KILLED, 1)
    assert node.problems == []
    node.starts_again(KILLED, 0)
    assert len(node.problems) == 1
