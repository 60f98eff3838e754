"""Tasks for later, which wait in the server: when they begin, also over a restart of it, and the memory of workers.

CELERY_ETAS is how many, CELERY_ETA_SECONDS the time over which they are due, CELERY_LATE_SECONDS how late they may be.
"""

import os
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from tests.integrations.celery.executions import Executions
from tests.integrations.celery.workers import Worker, running_worker
from tests.support.daemon import Daemon, running_daemon
from tests.support.process import resident_bytes

pytestmark = pytest.mark.long
COUNT: Final = int(os.environ.get("CELERY_ETAS", "3000"))
OVER_S: Final = int(os.environ.get("CELERY_ETA_SECONDS", "15"))
LATE_S: Final = float(os.environ.get("CELERY_LATE_SECONDS", "4"))  # on a machine that does other work, too
LATE_AFTER_RESTART_S: Final = LATE_S + 1  # or as long as the server was away: that is how much there is to catch up
AHEAD_S: Final = min(60, COUNT // 500)  # at least, from when the last is sent until the first is due
PROBES: Final = 200  # tasks that are sent to see how long all of them will take, which are never executed
AROUND_S: Final = 10  # how long after a restart what is due counts as due around it
GROWTH_MIB_MAX: Final = 4  # of a worker, over all tasks but the first tenth


def send(daemon: Daemon, due: list[datetime], queue: str = "celery") -> float:
    """Send tasks for these times. Returns how many seconds that took."""
    from tests.integrations.celery.effects import app

    since = time.monotonic()
    with app.connection_for_write(f"kestrel://{daemon.address}") as connection:
        producer = app.amqp.Producer(connection)
        for number, eta in enumerate(due):
            app.send_task("effect", (number,), eta=eta, queue=queue, producer=producer)
    return time.monotonic() - since


def megabytes(workers: list[Worker]) -> list[float]:
    return [round(resident_bytes(worker.process.pid) / 1024**2, 1) for worker in workers]


def spread(late_s: list[float]) -> str:
    """Percentiles, for people."""
    ordered = sorted(late_s)
    p50, p99 = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
    return f"{len(ordered)} tasks: p50 {p50:.3f} s, p99 {p99:.3f} s, at most {ordered[-1]:.3f} s late"


@pytest.mark.timeout(600 + OVER_S + COUNT // 50)
def test_tasks_for_later_are_on_time_also_over_a_restart_of_the_server(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "server") as daemon, ExitStack() as stack:
        now = datetime.now(UTC)
        send_s = 1.5 * send(daemon, [now + timedelta(days=1)] * PROBES, "probes") * COUNT / PROBES
        start = datetime.now(UTC) + timedelta(seconds=send_s + AHEAD_S)
        due = [start + timedelta(seconds=OVER_S * number / COUNT) for number in range(COUNT)]
        send(daemon, due)
        assert time.time() < start.timestamp() - AHEAD_S, "sending took longer than its beginning had promised"
        broker = f"kestrel://{daemon.address}"
        quiet = {"arguments": ["-l", "WARNING"]}
        workers = [
            stack.enter_context(running_worker(tmp_path, broker, name=f"w{index}", **quiet)) for index in range(2)
        ]
        sizes = {"before": megabytes(workers)}
        time.sleep(max(0, start.timestamp() - time.time()))
        executions = Executions(tmp_path)
        executions.await_ended(COUNT // 10)
        sizes["after a tenth"] = megabytes(workers)
        executions.await_ended(COUNT // 2)
        sizes["after half"] = megabytes(workers)
        killed_at = time.time()
        daemon.kill()
        daemon.start()
        back_at = time.time()
        executions.await_ended(COUNT)
        sizes["after all"] = megabytes(workers)
    begun_at = [executions.of(number)[0].began_at for number in range(COUNT)]
    usual, around = [], []
    for eta, began_at in zip((one.timestamp() for one in due), begun_at, strict=True):
        assert began_at >= eta, "early"
        if began_at > killed_at and eta < back_at + AROUND_S:
            around.append(began_at - max(eta, back_at))
        else:
            usual.append(began_at - eta)
    print(f"{spread(usual)}; after a restart of {back_at - killed_at:.1f} s: {spread(around)}")
    print(f"resident memory of the workers in MiB: {sizes}")
    assert executions.attempts_count == COUNT
    assert max(usual) <= LATE_S
    assert max(around) <= max(LATE_AFTER_RESTART_S, back_at - killed_at)
    for later, earlier in zip(sizes["after all"], sizes["after a tenth"], strict=True):
        assert later - earlier < GROWTH_MIB_MAX
