"""CPU time per task of Celery: kestreld's transport beside Kombu's of Redis, in one run.

    python -m benchmarks.celery_tasks --tasks 20000 --pools solo,prefork

Measured with /proc: the user and system time of the worker's processes and of the broker, from the first task until the
last one is acknowledged, and that of the publisher. Needs celery, redis and redis-server.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

TICKS: Final = os.sysconf("SC_CLK_TCK")
ROOT: Final = Path(__file__).parents[1]


def cpu_s(pid: int) -> float:
    """User and system time of a process and of its children, those that have ended included."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS + sum(cpu_s(int(child)) for child in children)


@contextmanager
def kestreld(folder: Path, port: int) -> Iterator[tuple[str, int]]:
    sets = [f"listen.memcache=127.0.0.1:{port}", "listen.admin=null", f"queue_path={folder}/spool"]
    command = [sys.executable, "-m", "kestreld", *(word for one in sets for word in ("--set", one))]
    with _process(command) as process:
        yield f"kestrel://127.0.0.1:{port}", process.pid


@contextmanager
def redis(folder: Path, port: int) -> Iterator[tuple[str, int]]:
    command = ["redis-server", "--port", str(port), "--dir", str(folder), "--save", "", "--appendonly", "yes"]
    with _process([*command, "--appendfsync", "no"]) as process:
        yield f"redis://127.0.0.1:{port}/0", process.pid


@contextmanager
def _process(command: list[str], **options: Any) -> Iterator["subprocess.Popen[bytes]"]:
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet, cwd=ROOT, start_new_session=True, **options)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def app_for(url: str) -> Any:
    from celery import Celery

    app = Celery("tasks", broker=url)
    app.conf.update(task_acks_late=True, task_ignore_result=True, worker_prefetch_multiplier=4)
    return app


app = app_for(os.environ.get("BROKER", "memory://"))


@app.task(name="noop")  # type: ignore[untyped-decorator]
def noop() -> None:
    """Do nothing."""


def waiting(url: str) -> int:
    """Messages that are not acknowledged yet."""
    if url.startswith("redis"):
        import redis as client

        with client.Redis.from_url(url) as connection:
            return int(connection.llen("celery")) + int(connection.hlen("unacked"))
    from kestreld.client import KestrelCluster

    with KestrelCluster([url.removeprefix("kestrel://")]) as cluster:
        (figures,) = cluster.queue("celery").stats().values()
    return int(figures.get("items", 0)) + int(figures.get("open_transactions", 0))


def measure(name: str, url: str, broker_pid: int, pool: str, tasks: int) -> None:
    sender = app_for(url)
    before, before_broker = time.process_time(), cpu_s(broker_pid)
    with sender.connection_for_write() as connection:
        producer = sender.amqp.Producer(connection)
        for _ in range(tasks):
            sender.send_task("noop", producer=producer)
    publisher_s, published_s = time.process_time() - before, cpu_s(broker_pid) - before_broker
    arguments = ["-A", "benchmarks.celery_tasks", "worker", "-P", pool, "-c", "4" if pool != "solo" else "1"]
    command = [sys.executable, "-m", "celery", *arguments, "--without-mingle", "--without-gossip", "-l", "WARNING"]
    with _process(command, env=os.environ | {"BROKER": url}) as worker:
        while (left := waiting(url)) == tasks:
            time.sleep(0.02)
        began_at, worker_s, broker_s = time.monotonic(), cpu_s(worker.pid), cpu_s(broker_pid)
        while waiting(url):
            time.sleep(0.2)
        took_s = time.monotonic() - began_at
        worker_s, broker_s = cpu_s(worker.pid) - worker_s, cpu_s(broker_pid) - broker_s
    us = 1_000_000 / left
    print(
        f"{name:10} {pool:8} worker {worker_s * us:6.0f} µs  broker {broker_s * us:5.0f} µs"
        f"  together {(worker_s + broker_s) * us:6.0f} µs a task  {left / took_s:6.0f} tasks/s"
        f"   publishing {publisher_s / tasks * 1e6:5.0f} + {published_s / tasks * 1e6:4.0f} µs",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--pools", default="solo,prefork")
    parser.add_argument("--brokers", default="kestreld,redis")
    options = parser.parse_args()
    for pool in options.pools.split(","):
        for name in options.brokers.split(","):
            if name == "redis" and shutil.which("redis-server") is None:
                print("redis: skipped, redis-server is not installed")
                continue
            start = {"kestreld": kestreld, "redis": redis}[name]
            with tempfile.TemporaryDirectory() as folder, start(Path(folder), 22_999) as (url, pid):
                while True:
                    try:
                        waiting(url)
                        break
                    except Exception:  # noqa: BLE001  # of two clients: not started yet
                        time.sleep(0.1)
                measure(name, url, pid, pool, options.tasks)


if __name__ == "__main__":
    main()
