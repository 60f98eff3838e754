"""Figures of very many jobs and queues: in steps, none of which holds up a turn."""

import json
from functools import partial
from pathlib import Path

import pytest

from kestreld.config.config import PerQueue
from kestreld.server.admin.job_metrics import render_jobs
from kestreld.server.admin.jobs import JobQuery, listed
from kestreld.server.disque.figures import JobFigures
from tests.support.disque_here import DisqueHere
from tests.support.step_times import timed_steps

JOBS = 100_000
QUEUES = 20_000
STEP_MS_MAX = 5


@pytest.fixture(scope="module", params=[JOBS, pytest.param(1_000_000, marks=pytest.mark.long)])
def figures(request: pytest.FixtureRequest) -> JobFigures:
    here = DisqueHere()
    jobs = here.jobs
    for number in range(request.param):
        queue = jobs.queue(b"queue-%05d" % (number % QUEUES) if number % 2 else b"all")
        assert queue is not None
        jobs.add(b"x", queue.terms_of((86_400_000, 60_000, 3600 if number % 5 == 0 else 0, -1)))
    return JobFigures(here.node)


def test_no_step_of_adding_up_takes_long_and_the_sums_are_those_of_all_queues(figures: JobFigures) -> None:
    _, longest_ms = timed_steps(figures.adding_up)
    assert longest_ms < STEP_MS_MAX
    totals = dict(figures.totals())
    count = figures.jobs.table.count
    assert (totals["jobs_registered"], totals["jobs_delayed"]) == (count, count // 5)
    assert totals["jobs_queued"] == totals["jobs_in"] == count - count // 5


@pytest.mark.parametrize("per_queue", [PerQueue(), PerQueue(most=500), PerQueue(pattern=".*7")])
def test_no_step_of_the_metrics_takes_long(figures: JobFigures, per_queue: PerQueue) -> None:
    pieces, longest_ms = timed_steps(lambda: render_jobs(figures, per_queue, None))
    print(f"{per_queue}: {len(pieces)} steps, the longest {longest_ms:.1f} ms")
    assert longest_ms < STEP_MS_MAX
    assert '"all"' in "".join([piece for piece in pieces if isinstance(piece, str)]) or per_queue.pattern


def test_no_step_of_the_list_of_queues_takes_long(figures: JobFigures) -> None:
    for work in (partial(figures.report, None), partial(figures.largest, 1000), figures.rows):
        given, longest_ms = timed_steps(work)
        assert (longest_ms < STEP_MS_MAX, len(given) > 10) == (True, True)


def test_no_step_of_a_list_of_jobs_takes_long_whatever_they_are_looked_for_by(figures: JobFigures) -> None:
    queues = (frozenset({b"all"}), frozenset({b"nobody's"}), frozenset[bytes]())
    for queue in queues:
        for state in (None, 1, 2, 4):
            place = (0, b"") if state == 2 and queue else None
            query = JobQuery(queue, state, 0, place, 1000, 100, lambda name: True)
            given, longest_ms = timed_steps(partial(listed, figures.jobs, query))
            found = json.loads("".join([piece for piece in given if isinstance(piece, str)]))
            print(f"{queue} in state {state}: {len(given)} steps, the longest {longest_ms:.1f} ms")
            assert longest_ms < STEP_MS_MAX, (queue, state)
            assert len(found["jobs"]) < 1500


def test_an_answer_looks_at_so_many_jobs_and_says_where_to_go_on(
    figures: JobFigures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kestreld.server.admin.jobs.LOOKED_AT_MAX", 10_000)
    part, answers = 0, 0
    while True:
        query = JobQuery(frozenset({b"nobody's"}), None, part, None, 10, 0, lambda name: True)
        found = json.loads("".join([piece for piece in listed(figures.jobs, query) if piece is not None]))
        answers += 1
        assert found["jobs"] == []
        if found["next"] is None:
            break
        part = int(found["next"])
    assert answers >= figures.jobs.table.count // 10_000 - 5


def test_a_list_that_is_read_while_all_jobs_go_ends(tmp_path: Path) -> None:
    here = DisqueHere()
    queue = here.jobs.queue(b"q")
    assert queue is not None
    for _ in range(1000):
        here.jobs.add(b"x", queue.terms_of((86_400_000, 60_000, 0, -1)))
    query = JobQuery(frozenset(), None, 0, None, 1000, 0, lambda name: True)
    pieces = listed(here.jobs, query)
    assert next(pieces) is None
    for _ in here.jobs.clear():
        pass
    assert json.loads("".join([piece for piece in pieces if piece is not None]))["jobs"] == []
