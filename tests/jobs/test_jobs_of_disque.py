"""Jobs that an original Disque has left: its append-only file, and IMPORTJOB."""

import time
from pathlib import Path

from tests.support.daemon import running_daemon
from tests.support.disque_aof import job_id, load, saved_job
from tests.support.disque_server import DisqueServer
from tests.support.ports import free_port
from tests.support.resp import NIL_ARRAY, RespClient, resp_client
from tests.support.waiting import until


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_file_in_the_spool_is_imported_once(tmp_path: Path) -> None:
    path = tmp_path / "spool" / "disque.aof"
    path.parent.mkdir(mode=0o700)
    jobs = [saved_job(1, body=b"first", created_ms=now_ms(), retry_s=1), saved_job(2, created_ms=now_ms())]
    path.write_bytes(b"".join(map(load, jobs)) + b"*2\r\n$7\r\nLOAD")
    with running_daemon(tmp_path, "listen.disque=127.0.0.1:0", "jobs.journal=true") as daemon:
        daemon.logged("cut short; the last 12 bytes are left out")
        daemon.logged("imported 2 jobs of Disque's; the file is now")
        with resp_client(daemon.disque) as client:
            assert client("GETJOB", "FROM", "mail") == [[b"mail", job_id(1), b"first"]]
            assert client("ACKJOB", job_id(1)) == 1
            assert client.fields("SHOW", job_id(2))["state"] == b"active"
        daemon.restart()
        with resp_client(daemon.disque) as client:
            assert client("JSCAN")[1] == [job_id(2)]
            assert client("QDEL", "mail") == 1, "jobs that no ADDJOB of this process has added, too"
        assert not path.exists()


NODES = [b"%040x" % number for number in (1, 2, 3)]


def left_by_a_cluster(folder: Path, ports: list[int], number: int, jobs: int) -> None:
    """What one of three Disques has in its `dir`: the nodes, and its copies of all jobs."""
    folder.mkdir()
    lines = [
        b"%b 127.0.0.1:%d %b 0 0 connected\n" % (node, port, b"myself" if number == place else b"noflags")
        for place, (node, port) in enumerate(zip(NODES, ports, strict=True))
    ]
    (folder / "nodes.conf").write_bytes(b"".join(lines))
    blobs = [saved_job(one, created_ms=now_ms(), retry_s=2, replicas=3, node_ids=NODES) for one in range(jobs)]
    (folder / "disque.aof").write_bytes(b"".join(map(load, blobs)))


def test_the_nodes_of_a_cluster_deliver_each_job_once_where_each_of_them_is_replaced(tmp_path: Path) -> None:
    ports = [free_port() for _ in NODES]
    servers = []
    for number, port in enumerate(ports):
        left_by_a_cluster(tmp_path / str(number), ports, number, 5)
        options = ("--port", str(port), "--appendonly", "yes", "--cluster-node-timeout", "2000")
        servers.append(DisqueServer(tmp_path / str(number), *options))
    try:
        clients = [server.start().client() for server in servers]
        assert [client("CLUSTER", "MYID") for client in clients] == NODES
        came: list[bytes] = []

        def all_have_come() -> bool:
            for client in clients:
                found = client("GETJOB", "NOHANG", "COUNT", 9, "FROM", "mail")
                for _, one, _ in found if found != NIL_ARRAY else ():
                    came.append(one)
            return len(came) >= 5

        until(all_have_come, "all jobs")
        assert sorted(came) == [job_id(number) for number in range(5)]
        assert sum(clients[0]("ACKJOB", one) for one in came) == 5
        until(lambda: all(client("JSCAN")[1] == [] for client in clients), "all nodes to know that they are done")
        assert all(client("QLEN", "mail") == 0 for client in clients)
    finally:
        for server in servers:
            if server.process is not None:
                server.kill()


def test_copies_of_a_cluster_are_refused_where_nothing_says_who_their_node_was(tmp_path: Path) -> None:
    left_by_a_cluster(tmp_path / "dir", [1, 2, 3], 0, 1)
    (tmp_path / "dir" / "nodes.conf").unlink()
    code, said = DisqueServer(tmp_path / "dir", "--port", str(free_port()), "--appendonly", "yes").fail()
    assert code == 1
    assert "each would deliver them: keep the nodes.conf of this Disque beside the file" in said
    assert (tmp_path / "dir" / "disque.aof").exists()


def test_a_corrupt_file_stops_the_jobs_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "spool" / "disque.aof"
    path.parent.mkdir(mode=0o700)
    path.write_bytes(load(saved_job(1)) + b"garbage")
    with running_daemon(tmp_path, "listen.disque=127.0.0.1:0") as daemon:
        daemon.logged(f"jobs: {path}: byte")
        with resp_client(daemon.disque) as client:
            refusal = client("ADDJOB", "q", "x", 0)
            assert refusal.startswith(b"MISCONF The job log cannot be read")
            assert b"--repair" not in refusal, "which is for the log"
    assert path.exists()


def test_a_file_in_the_spool_of_a_server_without_jobs_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "spool" / "disque.aof"
    path.parent.mkdir(mode=0o700)
    path.write_bytes(load(saved_job(1)))
    with running_daemon(tmp_path) as daemon:
        daemon.logged(f"{path}: jobs of Disque's, which are imported where listen.disque is set; left alone")
    assert path.exists()


def test_importjob_takes_over_a_saved_job_once(client: RespClient) -> None:
    blob = saved_job(1, body=b"by hand", created_ms=now_ms(), nacks=3)
    assert client("IMPORTJOB", blob) == 1
    assert client("IMPORTJOB", blob) == 0
    shown = client.fields("SHOW", job_id(1))
    assert (shown["body"], shown["state"], shown["nacks"]) == (b"by hand", b"active", 3)
    assert client("GETJOB", "NOHANG", "FROM", "mail") == NIL_ARRAY
    assert client("ENQUEUE", job_id(1)) == 1
    assert client("GETJOB", "FROM", "mail") == [[b"mail", job_id(1), b"by hand"]]
    assert client("IMPORTJOB", saved_job(2, created_ms=now_ms() - 90_000, ttl_s=60)) == 0
    assert client("IMPORTJOB", blob[:-1]) == b"ERR the job's lengths are inconsistent"
    assert client("LOADJOB", blob) == b"ERR LOADJOB is a special command only processed from AOF"
