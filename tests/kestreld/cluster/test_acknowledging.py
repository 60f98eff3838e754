"""Acknowledgements between nodes: who learns of them, and that they end."""

from tests.support.job_net import JobNet


def test_a_job_that_was_deleted_at_one_node_can_be_acknowledged_there() -> None:
    net = JobNet(3)
    here, there, _ = net.nodes
    job_id = here.add(3)
    net.run(10)
    job = there.jobs.find(job_id)
    assert job is not None
    there.jobs.remove(job)  # DELJOB, which other nodes are not told of
    there.ack(job_id)
    net.run(2000)
    assert [node.state_of(job_id) for node in net.nodes] == [-1] * 3
