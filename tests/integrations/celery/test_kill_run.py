"""Servers, workers and their pool processes are killed while tasks run: each has its effect, and none runs twice at a
time.

CELERY_TASKS and CELERY_KILLS make it longer.
"""

import os
import signal
import time
from pathlib import Path
from random import Random

import pytest

from tests.integrations.celery.workers import Worker, attempts, ended, repeated_while_alive
from tests.support.daemon import Daemon, running_daemon
from tests.support.waiting import until

pytestmark = pytest.mark.long
TASKS = int(os.environ.get("CELERY_TASKS", "3000"))
KILLS = int(os.environ.get("CELERY_KILLS", "12"))
WORKERS = 4
LEASE_S = 5
OPTIONS = {"lease_s": LEASE_S}


def send(daemon: Daemon, first: int, last: int) -> None:
    from tests.integrations.celery.effects import app

    with app.connection_for_write(f"kestrel://{daemon.address}") as connection:
        producer = app.amqp.Producer(connection)
        for number in range(first, last):
            app.send_task("effect", (number, 0.01), producer=producer)


@pytest.mark.parametrize("kills", [0, KILLS], ids=["without kills", "killed"])
@pytest.mark.timeout(900)
def test_every_effect_happens_and_no_task_begins_again_while_its_process_is_alive(tmp_path: Path, kills: int) -> None:
    chance = Random(17)
    deaths: dict[int, float] = {}
    counts = {"server": 0, "worker": 0, "pool process": 0}
    with running_daemon(tmp_path / "server", "lease_grace=5s") as daemon:
        broker = f"kestrel://{daemon.address}"

        def new_worker(index: int) -> Worker:
            return Worker(tmp_path, broker, name=f"w{index}", options=OPTIONS)

        workers = [new_worker(index) for index in range(WORKERS)]
        try:
            for worker in workers:
                until(worker.is_ready, "a worker")
            sent = 0
            for kill in range(kills + 1):
                done = len(attempts(tmp_path))
                upto = TASKS * (kill + 1) // (kills + 1)
                send(daemon, sent, upto)
                sent = upto
                if kill == kills:
                    break
                until(lambda done=done: len(attempts(tmp_path)) > done, "tasks that run")
                kind = ["server", "worker", "pool process"][kill % 3]
                counts[kind] += 1
                index = chance.randrange(WORKERS)
                until(workers[index].is_ready, "a worker that was started again")
                if kind == "server":
                    daemon.kill()
                    daemon.start()
                elif kind == "worker":
                    children = workers[index].children()
                    deaths.update(dict.fromkeys(children, time.time()))
                    workers[index].kill()
                    workers[index] = new_worker(index)
                else:
                    child = chance.choice(workers[index].children())
                    deaths[child] = time.time()
                    os.kill(child, signal.SIGKILL)
            until(lambda: len(ended(tmp_path)) == TASKS, "all effects")
            time.sleep(1)
        finally:
            for worker in workers:
                worker.end()
    runs = sum(map(len, attempts(tmp_path).values()))
    print(f"{TASKS} tasks, killed: {counts}, {runs - TASKS} executions were repeated")
    assert repeated_while_alive(tmp_path, deaths) == []
    if not kills:
        assert runs == TASKS
