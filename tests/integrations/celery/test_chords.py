"""Chords: the body is executed once, whatever becomes of the tasks of the header."""

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from celery import Celery

from kestreld.client import KestrelCluster
from tests.integrations.celery.executions import Attempt, attempts, ended
from tests.integrations.celery.workers import running_worker
from tests.support.daemon import ROOT, Daemon, running_daemon
from tests.support.process import environment
from tests.support.waiting import until

pytestmark = pytest.mark.long
HEADER, RETRIED, BODY = 20, 7, 100
LEASE_S = 3
# In a process of its own: results that are deleted after their Redis has ended wait for it.
SEND = f"""
from celery import chord
from tests.integrations.celery.effects import again, effect, gather
header = [effect.s(number, 1.0) for number in range({HEADER})]
header[{RETRIED}] = again.s({RETRIED}, 2, 1.0)
print(chord(header)(gather.s({BODY})).id)
"""


@pytest.fixture(params=["redis", "cache"])
def results(request: pytest.FixtureRequest) -> Callable[[Daemon], str]:
    """The URL of a result backend: Redis, or the cache of a server."""
    if request.param == "redis":
        port: int = request.getfixturevalue("redis_port")
        return lambda daemon: f"redis://127.0.0.1:{port}/0"
    if not (importlib.util.find_spec("memcache") or importlib.util.find_spec("pylibmc")):
        pytest.skip("needs a memcached client that Celery knows: pip install python-memcached")
    return lambda daemon: f"cache+memcached://{daemon.cache}/"


def is_empty(daemon: Daemon) -> bool:
    with KestrelCluster([daemon.address]) as cluster:
        figures = cluster.queue("celery").stats()[daemon.address]
    return figures["items"] == figures["open_transactions"] == 0


def send(daemon: Daemon, backend: str) -> str:
    """Send the chord. Returns the id of its body."""
    conf = json.dumps({"result_backend": backend, "task_ignore_result": False})
    variables = environment() | {"BROKER": f"kestrel://{daemon.address}", "CONF": conf}
    done = subprocess.run(
        [sys.executable, "-c", SEND], cwd=ROOT, env=variables, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_body_is_executed_once_though_a_task_is_retried_and_a_worker_killed(
    tmp_path: Path, results: Callable[[Daemon], str]
) -> None:
    with running_daemon(tmp_path / "server", "listen.cache=127.0.0.1:0") as daemon:
        broker, backend = f"kestrel://{daemon.address}", results(daemon)
        app = Celery(broker=broker, backend=backend, set_as_current=False)
        conf = {"result_backend": backend, "task_ignore_result": False, "options": {"lease_s": LEASE_S}}
        with (
            running_worker(tmp_path, broker, concurrency=1, name="killed", **conf) as killed,
            running_worker(tmp_path, broker, name="other", **conf),
        ):
            victim = killed.children()[0]
            body_id = send(daemon, backend)

            def executed_by_victim() -> list[Attempt]:
                """What it is in the middle of; else a task may be done already, and not yet acknowledged."""
                those = [one for some in attempts(tmp_path).values() for one in some if one.pid == victim]
                return [one for one in those if not one.ended_at and 0.2 < time.time() - one.began_at < 0.6]

            until(lambda: len(ended(tmp_path)) > HEADER // 4 and executed_by_victim(), "the middle of the header")
            killed.kill()
            assert BODY not in attempts(tmp_path)
            until(lambda: app.backend.get_state(body_id) == "SUCCESS", "the body")
            assert app.backend.get_result(body_id) == list(range(HEADER))
            until(lambda: is_empty(daemon), "the last acknowledgement")
    executed = attempts(tmp_path)
    assert len(executed[BODY]) == 1
    assert len(executed[RETRIED]) == 3
    repeated = [number for number in range(HEADER) if number != RETRIED and len(executed[number]) > 1]
    assert len(repeated) == 1, "what the worker that was killed was executing"
