"""RedBeat, a beat that keeps its schedule in Redis: of several that run, one has a lock and sends."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kestreld.client import KestrelCluster
from tests.support.daemon import ROOT, Daemon, running_daemon
from tests.support.process import environment
from tests.support.waiting import until

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("redbeat") is None, reason="needs pip install celery-redbeat"),
]


class Beat:
    """A beat in a process."""

    def __init__(self, folder: Path, name: str, daemon: Daemon, redis_port: int) -> None:
        self.log = folder / f"{name}.log"
        conf = {
            "redbeat_redis_url": f"redis://127.0.0.1:{redis_port}/0",
            "redbeat_redis_options": {},
            "redbeat_lock_timeout": 10,
            "beat_max_loop_interval": 1,
            "beat_schedule": {"often": {"task": "effect", "args": [1], "schedule": 1.0, "options": {"queue": "often"}}},
        }
        variables = {"BROKER": f"kestrel://{daemon.address}", "CONF": json.dumps(conf)}
        command = [sys.executable, "-m", "celery", "-A", "tests.integrations.celery.effects", "beat"]
        command += ["-S", "redbeat.RedBeatScheduler", "-l", "INFO", "--pidfile="]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment() | variables, stdout=log, stderr=log)

    def is_started(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return "beat: Starting..." in self.log.read_text()

    def has_lock(self) -> bool:
        return "beat: Acquired lock" in self.log.read_text()

    def sent(self) -> int:
        return self.log.read_text().count("Sending due task often")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def running_beat(folder: Path, name: str, daemon: Daemon, redis_port: int) -> Iterator[Beat]:
    beat = Beat(folder, name, daemon, redis_port)
    try:
        until(beat.is_started, "a beat")
        yield beat
    finally:
        beat.kill()


def test_of_two_beats_one_sends_and_the_other_goes_on_when_it_dies(tmp_path: Path, redis_port: int) -> None:
    with running_daemon(tmp_path / "server") as daemon, KestrelCluster([daemon.address]) as cluster:

        def stored() -> int:
            return int(cluster.queue("often").stats()[daemon.address].get("items", 0))

        with running_beat(tmp_path, "first", daemon, redis_port) as first:
            until(first.has_lock, "the lock")
            with running_beat(tmp_path, "second", daemon, redis_port) as second:
                until(lambda: stored() >= 3, "tasks")
                first.kill()
                assert second.sent() == 0
                so_far = stored()
                until(lambda: stored() >= so_far + 3, "tasks of the other beat")
                second.kill()
        assert second.has_lock()
        assert stored() == first.sent() + second.sent()
