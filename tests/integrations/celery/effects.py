"""Celery app for tests with real workers: every beginning and every end of a task is a line of a file.

Run by `celery -A tests.integrations.celery.effects worker`; EFFECTS is the folder, BROKER the URL, READY a file that is
made once the worker is ready. Each process has a file of its own.
"""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any, Final

from celery import Celery
from celery.signals import task_success, worker_ready

FOLDER: Final = Path(os.environ.get("EFFECTS", "."))

app = Celery("effects", broker=os.environ.get("BROKER", "kestrel://127.0.0.1:22133"))
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    worker_hijack_root_logger=False,
    broker_transport_options=json.loads(os.environ.get("OPTIONS", "{}")),
)
app.conf.update(json.loads(os.environ.get("CONF", "{}")))


_files: dict[int, int] = {}  # the descriptor of the file of each process, of which a child inherits others


def write(what: str, number: int) -> None:
    pid = os.getpid()
    if pid not in _files:
        _files[pid] = os.open(FOLDER / f"{pid}.effects", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(_files[pid], b"%b %d %d %f\n" % (what.encode(), number, pid, time.time()))


@worker_ready.connect
def note_ready(**_: Any) -> None:
    if "READY" in os.environ:
        Path(os.environ["READY"]).touch()


@app.task(bind=True, name="effect")
def effect(self: Any, number: int, seconds: float = 0) -> int:
    """An effect that takes some time."""
    write("begin", number)
    if seconds:
        time.sleep(seconds)
    write("end", number)
    return number


@app.task(bind=True, name="again", max_retries=3)
def again(self: Any, number: int, retries: int, countdown: float) -> int:
    """An effect that is retried."""
    write("begin", number)
    if self.request.retries < retries:
        raise self.retry(countdown=countdown)
    write("end", number)
    return number


@app.task(bind=True, name="deadly", max_retries=1)
def deadly(self: Any, deaths: int) -> None:
    """Kills its worker as often as it is told to, and is then retried once. The number in its effects is that of its
    deliveries before, 100 more in the retry.
    """
    deliveries = self.request.get("x-delivery-count", 0)
    assert self.request.delivery_info["redelivered"] == (deliveries > 0)
    write("begin", deliveries + 100 * self.request.retries)
    if deliveries < deaths and not self.request.retries:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    write("end", deliveries + 100 * self.request.retries)
    if not self.request.retries:
        raise self.retry(countdown=0)


@app.task(name="unacknowledged", ignore_result=False)
def unacknowledged(number: int) -> None:
    """An effect whose worker dies once its result is stored, before it is acknowledged."""
    write("begin", number)
    write("end", number)


@task_success.connect(sender=unacknowledged)
def die(**_: Any) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


@app.task(name="gather")
def gather(numbers: list[int], number: int) -> list[int]:
    """An effect with the results of others, as the body of a chord has."""
    write("begin", number)
    write("end", number)
    return numbers
