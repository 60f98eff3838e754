"""The id of a node, over restarts."""

from pathlib import Path

from tests.support.daemon import running_daemon
from tests.support.resp import resp_client


def test_a_node_is_the_same_after_a_restart_and_another_one_after_a_hard_reset(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "listen.disque=127.0.0.1:0") as daemon:
        with resp_client(daemon.disque) as client:
            assert client("CLUSTER", "RESET", "HARD") == b"OK"
            first_id = client("CLUSTER", "MYID")
        daemon.kill()
        daemon.start()
        with resp_client(daemon.disque) as client:
            assert client("CLUSTER", "MYID") == client("HELLO")[1] == first_id
            client("ADDJOB", "q", "body", 0)
            client.send("CLUSTER", "RESET", "HARD")
            client.send("CLUSTER", "MYID")
            assert client.reply() == b"OK"
            second_id = client.reply()
            assert second_id != first_id
            assert client("QLEN", "q") == 0
        daemon.kill()
        daemon.start()
        with resp_client(daemon.disque) as client:
            assert client("CLUSTER", "MYID") == second_id
