"""What the simulation of a cluster has found and needs whole nodes to show: each as a few commands."""

from tests.simulation.cluster.stage import stage
from tests.support.compiled import interpreted_only
from tests.support.resp import NIL_ARRAY

pytestmark = interpreted_only


def test_a_waitjob_that_has_timed_out_is_answered_once_although_its_job_has_gone_to_another_node() -> None:
    with stage() as nodes:
        job_id = nodes(0, b"ADDJOB", b"q", b"body", 0, b"RETRY", 0, b"REPLICATE", 1)
        asked = nodes.ask(0, b"WAITJOB", job_id, 1000)
        nodes.run(100)
        nodes(1, b"GETJOB", b"TIMEOUT", 500, b"FROM", b"q")
        nodes.run(2000)
        assert nodes(1, b"ACKJOB", job_id) == 1
        nodes.run(1000)
        assert asked.replies == [None]


def test_an_addjob_that_waits_while_its_node_stops_is_refused() -> None:
    with stage() as nodes:
        nodes.kill(2)
        asked = nodes.ask(0, b"ADDJOB", b"q", b"body", 0, b"REPLICATE", 3)
        waiting = nodes.ask(0, b"GETJOB", b"FROM", b"other")
        nodes.run(100)
        nodes.shut_down(0)
        nodes.run(1000)
        assert asked.replies[0].startswith(b"NOREPL")
        assert waiting.replies == [NIL_ARRAY]
