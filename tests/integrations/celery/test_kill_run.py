"""Servers, workers and their pool processes are killed while tasks run: each has its effect, and none runs twice at a
time.

CELERY_TASKS and CELERY_KILLS make it longer.
"""

import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from threading import Event
from typing import Final

import pytest

from tests.integrations.celery.executions import Executions
from tests.integrations.celery.workers import Worker, is_running
from tests.support.daemon import Daemon, running_daemon
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.long
TASKS: Final = int(os.environ.get("CELERY_TASKS", "3000"))
KILLS: Final = int(os.environ.get("CELERY_KILLS", "12"))
UNDISTURBED_MAX: Final = 100_000  # tasks without kills
WORKERS: Final = 4
PROCESSES: Final = 4  # in the pool of each
AHEAD: Final = 1000  # tasks that wait: more than all workers prefetch
BATCH: Final = 100
LEASE_S: Final = 10
GRACE_S: Final = 10
KINDS: Final = ("server", "worker", "pool process")


class Run:
    """A server and workers, and tasks, sent as fast as they are executed. Every second one lasts 10 to 50 ms."""

    def __init__(self, folder: Path, daemon: Daemon, tasks: int) -> None:
        self.executions = Executions(folder)
        self.deaths: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
        self.outage_s_max = 0.0
        self.tasks = tasks
        self.stopped = Event()
        self._folder = folder
        self._daemon = daemon
        self._chance = Random(17)
        self.workers = [self._new_worker(index) for index in range(WORKERS)]

    def _new_worker(self, index: int) -> Worker:
        broker, arguments = f"kestrel://{self._daemon.address}", ["-l", "WARNING"]
        options = {"lease_s": LEASE_S}
        return Worker(
            self._folder, broker, concurrency=PROCESSES, name=f"w{index}", options=options, arguments=arguments
        )

    def send(self) -> None:
        from tests.integrations.celery.effects import app

        chance = Random(18)
        patient = {"publish_outage_s": PATIENCE_S}
        with app.connection_for_write(f"kestrel://{self._daemon.address}", transport_options=patient) as connection:
            producer = app.amqp.Producer(connection)
            for number in range(self.tasks):
                while number % BATCH == 0 and number - self.executions.ended > AHEAD:
                    if self.stopped.wait(0.02):
                        return
                app.send_task("effect", (number, number % 2 and chance.uniform(0.01, 0.05)), producer=producer)

    def kill(self, kind: str) -> None:
        index = self._chance.randrange(WORKERS)
        worker = self.workers[index]
        until(worker.is_ready, "a worker that was started again")
        if kind == "server":
            since = time.monotonic()
            self._daemon.kill()
            self._daemon.start()
            self.outage_s_max = max(self.outage_s_max, time.monotonic() - since)
            return
        children = worker.children()
        killed = children if kind == "worker" else [self._chance.choice(children)]
        killed_at = time.time()
        if kind == "worker":
            worker.kill()
        else:
            os.kill(killed[0], signal.SIGKILL)
        until(lambda: not any(map(is_running, killed)), "the end of pool processes")
        for child in killed:
            self.deaths[child].append((killed_at, time.time()))
        if kind == "worker":
            self.workers[index] = self._new_worker(index)


@contextmanager
def running(folder: Path, tasks: int) -> Iterator[Run]:
    with running_daemon(folder / "server", f"lease_grace={GRACE_S}s") as daemon, ThreadPoolExecutor(1) as pool:
        run = Run(folder, daemon, tasks)
        try:
            for worker in run.workers:
                until(worker.is_ready, "a worker")
            sending = pool.submit(run.send)
            yield run
            sending.result(PATIENCE_S)
        finally:
            run.stopped.set()
            for worker in run.workers:
                worker.end()


@pytest.mark.timeout(600 + TASKS // 50)
def test_every_effect_happens_and_no_task_begins_again_while_its_process_is_alive(tmp_path: Path) -> None:
    kills = dict.fromkeys(KINDS, 0)
    with running(tmp_path, TASKS) as run:
        since = time.monotonic()
        for kill in range(KILLS):
            run.executions.await_ended(TASKS * (kill + 1) // (KILLS + 1))
            kind = KINDS[kill % len(KINDS)]
            run.kill(kind)
            kills[kind] += 1
        run.executions.await_ended(TASKS)
        took_s = time.monotonic() - since
        time.sleep(LEASE_S + GRACE_S)  # what is still to come would come by then
    executions = run.executions.read()
    print(
        f"{TASKS} tasks, {TASKS / took_s:.0f}/s; killed: {kills}, which cut {executions.cut_short()} executions short; "
        f"{executions.attempts_count - TASKS} were repeated; the server was away for {run.outage_s_max:.1f} s at most"
    )
    assert run.outage_s_max < LEASE_S + GRACE_S, "leases may have ended while tasks were running"
    assert executions.begun == executions.ended == TASKS
    assert executions.repeated_while_alive(run.deaths) == []


@pytest.mark.timeout(600 + TASKS // 50)
def test_every_task_runs_once_where_nothing_is_killed(tmp_path: Path) -> None:
    tasks = min(TASKS, UNDISTURBED_MAX)
    with running(tmp_path, tasks) as run:
        since = time.monotonic()
        run.executions.await_ended(tasks)
        took_s = time.monotonic() - since
        time.sleep(LEASE_S)
    executions = run.executions.read()
    print(f"{tasks} tasks, {tasks / took_s:.0f}/s")
    assert executions.begun == executions.ended == executions.attempts_count == tasks
