"""Three bad days, as docs/celery.md tells them: a broker that is away for two minutes, a pool process that is killed
because memory is short, and a deploy whose tasks outlast its grace period. They print the figures of the page.
"""

import os
import signal
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from kestreld.client import KestrelCluster
from tests.integrations.celery.executions import attempts, ended
from tests.integrations.celery.workers import running_worker
from tests.support.daemon import Daemon, running_daemon
from tests.support.waiting import until
from tests.support.way import Way

pytestmark = pytest.mark.long
OUTAGE_S = 120
LONG_S = 180  # of a task that stands for one of an hour: longer than the outage


def send(daemon: Daemon, *numbers: int, seconds: float = 0) -> None:
    from tests.integrations.celery.effects import app

    with app.connection_for_write(f"kestrel://{daemon.address}") as connection:
        for number in numbers:
            app.send_task("effect", (number, seconds), connection=connection)


def figures(daemon: Daemon) -> dict[str, int | str]:
    with KestrelCluster([daemon.address]) as cluster:
        return cluster.queue("celery").stats()[daemon.address]


def began_at(folder: Path, number: int, attempt: int = 0) -> float:
    """When an attempt at a task began, waiting for it."""
    until(lambda: len(attempts(folder).get(number, [])) > attempt, f"attempt {attempt} at task {number}")
    return attempts(folder)[number][attempt].began_at


class Scene:
    """A worker that is busy with four long tasks and has four more prefetched, and the server that goes away."""

    def __init__(self, stack: ExitStack, folder: Path, *, is_cut_off: bool, **options: float) -> None:
        self.folder = folder
        self.daemon = stack.enter_context(running_daemon(folder / "server"))
        self.way = stack.enter_context(closing(Way(self.daemon.port)))
        self.is_cut_off = is_cut_off
        address = f"127.0.0.1:{self.way.port}" if is_cut_off else self.daemon.address
        worker = running_worker(folder, f"kestrel://{address}", concurrency=4, options=options)
        self.worker = stack.enter_context(worker)
        send(self.daemon, *range(8), seconds=LONG_S)
        until(lambda: len(attempts(folder)) == 4, "tasks that run")
        until(lambda: figures(self.daemon)["leased"] == 8, "tasks that are prefetched")
        if is_cut_off:  # and another worker is not
            stack.enter_context(running_worker(folder, f"kestrel://{self.daemon.address}", concurrency=8, name="other"))

    def leave(self) -> None:
        self.left_at = time.time()
        if self.is_cut_off:
            self.way.is_silent = True
        else:
            self.daemon.kill()

    def come_back(self) -> None:
        if self.is_cut_off:
            self.way.is_silent = False
        else:
            self.daemon.start()
        self.back_at = time.time()

    def attempts_at_what_ran(self) -> list[int]:
        return [len(attempts(self.folder)[number]) for number in range(4)]


@pytest.mark.timeout(420)
def test_a_broker_that_is_away_for_two_minutes(tmp_path: Path) -> None:
    with ExitStack() as stack:
        down = Scene(stack, tmp_path / "down", is_cut_off=False)
        patient = Scene(stack, tmp_path / "patient", is_cut_off=False, outage_s=600)
        cut_off = Scene(stack, tmp_path / "cut-off", is_cut_off=True)
        kept = Scene(stack, tmp_path / "kept", is_cut_off=True, outage_s=600, lease_s=300)
        scenes = [down, patient, cut_off, kept]
        for one in scenes:
            one.leave()
        time.sleep(OUTAGE_S)
        elsewhere_s = [began_at(cut_off.folder, number, 1) - cut_off.left_at for number in range(4)]
        print(f"cut off: tasks that ran began elsewhere {min(elsewhere_s):.0f} to {max(elsewhere_s):.0f} s later")
        for one in scenes:
            one.come_back()
        for one, name in ((down, "down"), (patient, "down, with a longer outage_s")):
            send(one.daemon, 8)
            until(lambda one=one: figures(one.daemon)["items"] == 0, "the worker to consume again")
            print(f"{name}: consumed again {time.time() - one.back_at:.1f} s later")
        for one in scenes:
            until(
                lambda one=one: len(ended(one.folder)) >= 4,
                "the long tasks",
            )
        time.sleep(3)
        assert [one.attempts_at_what_ran() for one in (down, patient, kept)] == [[1] * 4] * 3
        assert cut_off.attempts_at_what_ran() == [2] * 4
        assert all(figures(one.daemon)["leases_expired"] == 0 for one in (down, patient, kept))


@pytest.mark.parametrize("rejects", [True, False], ids=["rejecting", "not rejecting"])
def test_a_pool_process_that_is_killed_in_the_middle_of_a_task(tmp_path: Path, rejects: bool) -> None:
    with running_daemon(tmp_path / "server") as daemon:
        broker, conf = f"kestrel://{daemon.address}", {"task_reject_on_worker_lost": rejects}
        with running_worker(tmp_path, broker, "prefork", 2, **conf):
            send(daemon, 0, 1, seconds=5)
            began_at(tmp_path, 1)
            began_at(tmp_path, 0)
            time.sleep(1)
            killed_at = time.time()
            os.kill(attempts(tmp_path)[0][0].pid, signal.SIGKILL)
            if rejects:
                print(f"killed process: its task began again after {began_at(tmp_path, 0, 1) - killed_at:.2f} s")
            until(lambda: ended(tmp_path) == ({0, 1} if rejects else {1}), "tasks to end")
            until(lambda: figures(daemon)["open_transactions"] == 0, "the acknowledgements")
            assert figures(daemon)["items"] == 0
    assert [len(attempts(tmp_path)[number]) for number in (0, 1)] == [2 if rejects else 1, 1]


GRACE_S = 10


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("soft_s", [0, 6], ids=["warm", "soft"])
def test_a_deploy_whose_tasks_outlast_its_grace_period(tmp_path: Path, soft_s: int) -> None:
    """SIGTERM, then SIGKILL of all processes of the old worker, while a new one is running."""
    environ = {"REMAP_SIGTERM": "SIGQUIT"} if soft_s else {}
    conf = {"worker_soft_shutdown_timeout": soft_s}
    with running_daemon(tmp_path / "server") as daemon:
        broker = f"kestrel://{daemon.address}"
        with running_worker(tmp_path, broker, "prefork", 2, name="old", environ=environ, **conf) as old:
            send(daemon, *range(6), seconds=40)
            until(lambda: len(attempts(tmp_path)) == 2, "tasks that run")
            until(lambda: figures(daemon)["leased"] == 6, "tasks that are prefetched")
            with running_worker(tmp_path, broker, "prefork", 8, name="new"):
                running = [attempts(tmp_path)[number][0].pid for number in range(2)]
                died_at: dict[int, float] = {}
                stopped_at = time.time()
                old.process.send_signal(signal.SIGTERM)
                while old.process.poll() is None and time.time() < stopped_at + GRACE_S:
                    for pid in running:
                        if not is_alive(pid):
                            died_at.setdefault(pid, time.time())
                    time.sleep(0.005)
                exit_code = old.process.returncode
                old.end()
                over_at = time.time()
                prefetched_s = max(began_at(tmp_path, number) - stopped_at for number in range(2, 6))
                again_s = max(began_at(tmp_path, number, 1) - stopped_at for number in range(2))
                print(
                    f"old worker over after {over_at - stopped_at:.1f} s (exit code {exit_code}); the prefetched tasks "
                    f"have begun elsewhere after {prefetched_s:.1f} s, those that ran after {again_s:.1f} s"
                )
                for number, pid in enumerate(running):
                    assert attempts(tmp_path)[number][1].began_at > died_at.get(pid, over_at) - 0.1
