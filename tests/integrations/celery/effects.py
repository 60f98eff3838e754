"""Celery app for tests with real workers: every beginning and every end of a task is a line of a file.

Run by `celery -A tests.integrations.celery.effects worker`; EFFECTS is the folder, BROKER the URL. Each process has a
file of its own.
"""

import json
import os
import time
from pathlib import Path
from typing import Any, Final

from celery import Celery

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


def write(what: str, number: int) -> None:
    line = f"{what} {number} {os.getpid()} {time.time():.6f}\n".encode()
    descriptor = os.open(FOLDER / f"{os.getpid()}.effects", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, line)
    os.close(descriptor)


@app.task(bind=True, name="effect")
def effect(self: Any, number: int, seconds: float = 0) -> None:
    """An effect that takes some time."""
    write("begin", number)
    if seconds:
        time.sleep(seconds)
    write("end", number)


@app.task(bind=True, name="again", max_retries=3)
def again(self: Any, number: int, retries: int, countdown: float) -> None:
    """An effect that is retried."""
    write("begin", number)
    if self.request.retries < retries:
        raise self.retry(countdown=countdown)
    write("end", number)
