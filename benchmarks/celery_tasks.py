"""CPU time per task of Celery: kestreld's transport beside others, in one run.

    python -m benchmarks.celery_tasks --tasks 20000 --rounds 4 --pools solo,prefork --brokers kestreld,redis,redis-plus

Measured with the CPU clocks of the processes: publishing, which is the publisher's and the broker's; and the worker's
processes and the broker, from the first task until the last one is acknowledged. The brokers take turns, so that what
else the machine does meets all of them: slices of publishing, and rounds of a worker. Ratios are medians of those
within one turn. `compiled` is a kestreld that `--compiled` names the Python of; the worker is that of this Python.

Needs celery, redis and redis-server; redis-plus needs celery-redis-plus, and with it Python 3.13.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from benchmarks.servers import free_port

TICKS: Final = os.sysconf("SC_CLK_TCK")
ROOT: Final = Path(__file__).parents[1]
SLICE: Final = 250  # tasks that are published to one broker before it is the next one's turn


def cpu_s(pid: int) -> float:
    """User and system time of a process and of its children, those that have ended included."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        own_s = time.clock_gettime(~pid << 3 | 2)  # clock_getcpuclockid(3): in ns, where stat has ticks
    except OSError:
        return 0.0
    return own_s + sum(map(int, fields[13:15])) / TICKS + sum(cpu_s(int(child)) for child in children)


class Broker(NamedTuple):
    """A server that runs."""

    name: str
    url: str
    pid: int


class Cost(NamedTuple):
    """CPU time per task in µs, of the publisher or worker and of the broker."""

    client_us: float
    broker_us: float

    @property
    def us(self) -> float:
        return self.client_us + self.broker_us


@contextmanager
def running(name: str, python: str) -> Iterator[Broker]:
    """Run a broker; `python` runs kestreld."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        if name in ("kestreld", "compiled"):
            sets = [f"listen.memcache=127.0.0.1:{port}", "listen.admin=null", f"queue_path={folder}/spool"]
            # Not in the checkout, whose source would come before what is installed.
            command = [python, "-P", "-m", "kestreld", *(word for one in sets for word in ("--set", one))]
            url = f"kestrel://127.0.0.1:{port}"
        else:
            command = ["redis-server", "--port", str(port), "--dir", folder, "--save", "", "--appendonly", "yes"]
            command += ["--appendfsync", "no"]
            url = f"{'valkey' if name == 'redis-plus' else 'redis'}://127.0.0.1:{port}/0"
        with _process(command, cwd=folder) as process:
            broker = Broker(name, url, process.pid)
            while process.poll() is None:
                try:
                    waiting(url)
                    break
                except Exception:  # noqa: BLE001  # of two clients: not started yet
                    time.sleep(0.1)
            yield broker


@contextmanager
def _process(command: list[str], **options: Any) -> Iterator["subprocess.Popen[bytes]"]:
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True, **options)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def app_for(url: str) -> Any:
    from celery import Celery

    if url.startswith("valkey"):
        import_module("celery_redis_plus")  # makes its URLs known; not for every Python
    app = Celery("tasks", broker=url)
    app.conf.update(task_acks_late=True, task_ignore_result=True, worker_prefetch_multiplier=4)
    return app


app = app_for(os.environ.get("BROKER", "memory://"))


@app.task(name="noop")  # type: ignore[untyped-decorator]
def noop() -> None:
    """Do nothing."""


def waiting(url: str) -> int:
    """Messages that are not acknowledged yet."""
    if not url.startswith("kestrel"):
        import redis

        with redis.Redis.from_url(url.replace("valkey", "redis")) as connection:
            if url.startswith("valkey"):
                return int(connection.zcard("messages_index:celery"))
            return int(connection.llen("celery")) + int(connection.hlen("unacked"))
    from kestreld.client import KestrelCluster

    with KestrelCluster([url.removeprefix("kestrel://")]) as cluster:
        (figures,) = cluster.queue("celery").stats().values()
    return int(figures.get("items", 0)) + int(figures.get("open_transactions", 0))


def publish(broker: Broker, sender: Any, producer: Any, tasks: int) -> Cost:
    before_s, before_broker_s = time.process_time(), cpu_s(broker.pid)
    for _ in range(tasks):
        sender.send_task("noop", producer=producer)
    us = 1_000_000 / tasks
    return Cost((time.process_time() - before_s) * us, (cpu_s(broker.pid) - before_broker_s) * us)


def work(broker: Broker, pool: str, tasks: int) -> Cost:
    arguments = ["-A", "benchmarks.celery_tasks", "worker", "-P", pool, "-c", "4" if pool != "solo" else "1"]
    command = [sys.executable, "-m", "celery", *arguments, "--without-mingle", "--without-gossip", "-l", "WARNING"]
    with _process(command, cwd=ROOT, env=os.environ | {"BROKER": broker.url}) as worker:
        while (left := waiting(broker.url)) == tasks:
            time.sleep(0.02)
        worker_s, broker_s = cpu_s(worker.pid), cpu_s(broker.pid)
        while waiting(broker.url):
            time.sleep(0.2)
        us = 1_000_000 / left
        return Cost((cpu_s(worker.pid) - worker_s) * us, (cpu_s(broker.pid) - broker_s) * us)


def report(what: str, costs: dict[str, list[Cost]]) -> None:
    """Print the figures of each broker, and its ratios to those that are not kestreld."""
    for name, own in costs.items():
        ratios = [
            f"{median(one.us / other.us for one, other in zip(own, costs[beside], strict=True)):5.2f} x {beside}"
            for beside in ("redis", "redis-plus")
            if beside in costs and name != beside
        ]
        client_us, broker_us = (median(one[place] for one in own) for place in (0, 1))
        together_us, least_us = median(one.us for one in own), min(one.us for one in own)
        print(
            f"{what:10} {name:10} {'publisher' if what == 'publishing' else 'worker'} {client_us:6.0f} µs"
            f"  broker {broker_us:5.0f} µs  together {together_us:6.0f} µs, at least {least_us:6.0f} "
            f" {'  '.join(ratios)}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=20_000, help="for each broker and pool, in all rounds together")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--pools", default="solo,prefork")
    parser.add_argument("--brokers", default="kestreld,redis")
    parser.add_argument("--compiled", metavar="PYTHON", help="of the environment with the compiled kestreld")
    options = parser.parse_args()
    tasks = options.tasks // options.rounds
    published: dict[str, list[Cost]] = {}
    with ExitStack() as stack:
        brokers = []
        for name in options.brokers.split(","):
            python = options.compiled if name == "compiled" else sys.executable
            broker = stack.enter_context(running(name, python))
            sender = app_for(broker.url)
            producer = sender.amqp.Producer(stack.enter_context(sender.connection_for_write()))
            brokers.append((broker, sender, producer))
        for pool in options.pools.split(","):
            worked: dict[str, list[Cost]] = {}
            for _ in range(options.rounds):
                for begin in range(0, tasks, SLICE):
                    count = min(SLICE, tasks - begin)
                    for broker, sender, producer in brokers:
                        published.setdefault(broker.name, []).append(publish(broker, sender, producer, count))
                for broker, _, _ in brokers:
                    worked.setdefault(broker.name, []).append(work(broker, pool, tasks))
            report(pool, worked)
    report("publishing", published)


if __name__ == "__main__":
    main()
