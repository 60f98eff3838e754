"""Which of several owners queues a job again."""

from itertools import permutations
from random import Random

import pytest

from kestreld.cluster.requeueing import REACTIONS, Do, Word, is_greater
from kestreld.jobs.job import ACKED, ACTIVE, DELAYED, QUEUED, WAIT_REPL

JOB_ID = b"D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1"


@pytest.mark.parametrize("word", Word)
def test_there_is_a_reaction_in_every_state_a_job_can_be_in(word: Word) -> None:
    assert set(REACTIONS[word]) == {WAIT_REPL, ACTIVE, DELAYED, QUEUED, ACKED}


@pytest.mark.parametrize("word", Word)
def test_whatever_is_said_of_an_acknowledged_job_is_answered_with_that(word: Word) -> None:
    assert REACTIONS[word][ACKED] is Do.SAY_ACKED


@pytest.mark.parametrize("word", [Word.HAS_QUEUED, Word.WORKING])
def test_a_job_that_another_node_sees_to_is_put_off_here(word: Word) -> None:
    assert REACTIONS[word][ACTIVE] is REACTIONS[word][DELAYED] is Do.PUT_OFF


def test_of_two_nodes_one_is_the_greater_whoever_asks() -> None:
    random = Random(1)
    for _ in range(100):
        one, other = (random.randbytes(20).hex().encode() for _ in range(2))
        assert is_greater(one, other, JOB_ID) != is_greater(other, one, JOB_ID)
        assert not is_greater(one, one, JOB_ID)


def test_it_is_a_different_node_for_different_jobs() -> None:
    one, other = b"0" * 40, b"f" * 40
    winners = {is_greater(one, other, JOB_ID[:11] + letter * 24 + JOB_ID[35:]) for letter in (b"A", b"/", b"z", b"0")}
    assert winners == {True, False}


def test_the_greatest_of_three_is_greater_than_both() -> None:
    random = Random(2)
    for _ in range(50):
        nodes = [random.randbytes(20).hex().encode() for _ in range(3)]
        orders = [
            order
            for order in permutations(nodes)
            if is_greater(order[0], order[1], JOB_ID) and is_greater(order[1], order[2], JOB_ID)
        ]
        assert len(orders) == 1
        assert is_greater(orders[0][0], orders[0][2], JOB_ID)
