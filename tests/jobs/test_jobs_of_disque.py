"""Jobs that an original Disque has left: its append-only file, and IMPORTJOB."""

import time
from pathlib import Path

from tests.support.daemon import running_daemon
from tests.support.disque_aof import job_id, load, saved_job
from tests.support.resp import NIL_ARRAY, RespClient, resp_client


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
    assert client("IMPORTJOB", blob[:-1]) == b"ERR the lengths in the job contradict each other"
    assert client("LOADJOB", blob) == b"ERR LOADJOB is a special command only processed from AOF"
