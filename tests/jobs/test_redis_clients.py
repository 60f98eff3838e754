"""Redis's own clients drive the server: redis-cli, and redis-py."""

import shutil
import subprocess

import pytest
from redis import Redis, ResponseError

from tests.support.daemon import Daemon


@pytest.fixture
def cli(server: Daemon) -> list[str]:
    program = shutil.which("redis-cli")
    if program is None:
        pytest.skip("redis-cli is not installed")
    return [program, "-p", server.disque.rpartition(":")[2]]


def told(command: list[str], *words: str) -> list[str]:
    return subprocess.run([*command, *words], capture_output=True, text=True, timeout=60).stdout.splitlines()


def test_redis_cli_adds_fetches_and_acknowledges(cli: list[str]) -> None:
    (job_id,) = told(cli, "ADDJOB", "mail", "hello there", "0")
    assert told(cli, "GETJOB", "FROM", "mail") == ["mail", job_id, "hello there"]
    assert told(cli, "ACKJOB", job_id) == ["1"]
    assert told(cli, "SHOW", job_id) == [""]
    assert told(cli, "GETJOB", "NOHANG", "FROM", "mail") == [""]
    assert "registered_jobs:0" in told(cli, "INFO", "jobs")
    assert told(cli, "FOO") == ["ERR unknown command 'FOO'", ""]


def test_redis_py_drives_every_command_on_jobs(server: Daemon) -> None:
    redis = Redis(port=int(server.disque.rpartition(":")[2]), protocol=2)
    assert redis.ping() is True
    job_id = redis.execute_command("ADDJOB", "mail", b"\x00\r\n", 0, "RETRY", 60)
    assert redis.execute_command("GETJOB", "FROM", "mail") == [[b"mail", job_id, b"\x00\r\n"]]
    for command, reply in (("WORKING", 60), ("NACK", 1), ("DEQUEUE", 1), ("ENQUEUE", 1), ("DEADJOB", 1)):
        assert redis.execute_command(command, job_id) == reply, command
    assert redis.execute_command("REDRIVE", "mail.dead") == 1
    assert redis.execute_command("QLEN", "mail") == 1
    assert redis.execute_command("QPEEK", "mail", -1)[0][1] == job_id
    assert dict(zip(*[iter(redis.execute_command("QSTAT", "mail"))] * 2, strict=True))[b"len"] == 1
    assert sorted(redis.execute_command("QSCAN")[1]) == [b"mail", b"mail.dead"]
    assert redis.execute_command("JSCAN", "QUEUE", "mail") == [b"0", [job_id]]
    assert redis.execute_command("SHOW", job_id)[:4] == [b"id", job_id, b"queue", b"mail"]
    assert redis.execute_command("PAUSE", "mail", "all") == b"all"
    with pytest.raises(ResponseError, match="PAUSED Queue paused in input, try later"):
        redis.execute_command("ADDJOB", "mail", "x", 0)
    assert redis.execute_command("FASTACK", job_id) == 1
    assert redis.execute_command("HELLO")[0] == 1
    assert redis.info("server")["tcp_port"] == int(server.disque.rpartition(":")[2])
    assert redis.config_get("maxmemory") == {"maxmemory": "1073741824"}
    assert redis.client_setname("worker")
    assert [client["name"] for client in redis.client_list()].count("worker") == 1
    assert redis.slowlog_len() >= 0
    assert len(redis.time()) == 2
    pipeline = redis.pipeline(transaction=False)
    for number in range(100):
        pipeline.execute_command("ADDJOB", "many", number, 0)
    ids = pipeline.execute()
    assert [job[1] for job in redis.execute_command("GETJOB", "COUNT", 100, "FROM", "many")] == ids
    assert redis.execute_command("ACKJOB", *ids) == 100
