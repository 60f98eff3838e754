"""Which nodes a node remembers as wanting jobs, although what they say is lost now and then."""

from kestreld.jobs.job import NEVER, Job
from tests.support.job_net import JobNet, Q


def test_a_job_stays_where_it_is_if_nobody_waits_elsewhere_any_longer_be_that_lost_with_its_link() -> None:
    net = JobNet(2)
    here, there = net.nodes
    there.wait(3000)
    net.run(1000)
    net.partition(0)
    net.run(5000)  # the wait ends, and nobody learns of that
    net.heal()
    net.run(2000)
    job_id = here.add(1)
    net.run(1000)
    assert net.queued_at(job_id) == [0]


def test_who_still_waits_says_so_again_on_a_new_link() -> None:
    net = JobNet(2)
    here, there = net.nodes
    there.wait(60_000)
    net.run(1000)
    net.lose(1, 0)
    net.run(100)
    job_id = here.add(1)
    net.run(100)
    assert there.fetched == [job_id]


def test_nodes_that_ask_each_other_often_do_not_send_a_job_to_and_fro() -> None:
    net = JobNet(2)
    here, there = net.nodes
    for _ in range(3):
        for giver, taker in ((here, there), (there, here)):
            taker.wait(1000)
            net.run(50)
            giver.add(1)
            net.run(300)
    assert len(here.fetched) == len(there.fetched) == 3
    net.sent.clear()
    here.add(1)
    net.run(500)
    assert net.counted()["YourJobs"] <= 2


def test_those_who_began_to_wait_behind_others_get_jobs_at_once_too() -> None:
    for retry_ms in (10_000, 0):
        net = JobNet(2)
        here, there = net.nodes
        there.wait()
        net.run(40_000)  # all are asked only now and then by now
        there.wait()
        there.wait()
        for number in range(3):
            here.add(1, retry_ms=retry_ms)
            net.run(100)
            assert len(there.fetched) == number + 1
            net.run(7000)


def test_who_began_to_wait_while_there_was_no_other_node_gets_jobs_of_those_that_come() -> None:
    net = JobNet(2)
    here, there = net.nodes
    there.table.remove(there.entry(here))
    there.wait()
    net.run(5000)
    there.know([here])
    there.link(here)
    there.run()
    net.run(100)
    job_id = here.add(1)
    net.run(100)
    assert there.fetched == [job_id]


def test_where_all_jobs_are_thrown_away_nobody_waits_any_longer() -> None:
    net = JobNet(2)
    here, there = net.nodes
    there.wait()
    net.run(100)
    for _ in there.jobs.clear():
        pass
    net.run(100)
    job_id = here.add(1)
    net.run(100)
    assert net.queued_at(job_id) == [0]


def test_each_record_of_a_copy_says_when_it_is_queued_again() -> None:
    net = JobNet(2)
    here, there = net.nodes
    there.keep_log()
    disk = there.disk
    assert disk is not None
    times = []
    added = disk.added

    def note(job: Job) -> None:
        times.append(job.requeue_at_ms)
        added(job)

    disk.added = disk.changed = note  # type: ignore[method-assign]
    there.wait()
    net.run(50)
    here.add(1)
    net.run(50)
    assert len(times) >= 2
    assert NEVER not in times


def test_who_waits_for_a_queue_that_was_collected_and_made_anew_gets_jobs() -> None:
    net = JobNet(2)
    here, there = net.nodes
    there.wait(2000)
    net.run(2500)
    there.jobs.unlist(there.queue)
    assert there.jobs.queues.get(Q) is None
    there.wait()
    net.run(5000)
    job_id = here.add(1)
    net.run(100)
    assert there.fetched == [job_id]
