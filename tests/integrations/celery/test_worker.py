"""Real workers of Celery: how long their tasks keep their leases, and what happens when something is away."""

import os
import signal
import socket
import time
from itertools import pairwise
from pathlib import Path

import celery
import pytest
from celery import Celery

from kestreld.client import KestrelCluster
from tests.integrations.celery.executions import Executions, attempts, ended
from tests.integrations.celery.workers import is_running, running_worker
from tests.support.daemon import Daemon, running_daemon
from tests.support.waiting import until
from tests.support.way import Way

pytestmark = pytest.mark.long


def send(daemon: Daemon, *numbers: int, seconds: float = 0, **options: object) -> None:
    from tests.integrations.celery.effects import app

    with app.connection_for_write(f"kestrel://{daemon.address}") as connection:
        for number in numbers:
            app.send_task("effect", (number, seconds), connection=connection, **options)


def send_task(daemon: Daemon, name: str, number: int) -> None:
    from tests.integrations.celery.effects import app

    with app.connection_for_write(f"kestrel://{daemon.address}") as connection:
        app.send_task(name, (number,), connection=connection)


def figures(daemon: Daemon, queue: str = "celery") -> dict[str, int | str]:
    with KestrelCluster([daemon.address]) as cluster:
        return cluster.queue(queue).stats()[daemon.address]


def is_done(daemon: Daemon) -> bool:
    return figures(daemon)["items"] == figures(daemon)["open_transactions"] == 0


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads", "gevent"])
def test_a_task_of_twenty_leases_runs_once(tmp_path: Path, pool: str) -> None:
    options = {"lease_s": 0.6}
    with running_daemon(tmp_path / "server") as daemon:
        broker = f"kestrel://{daemon.address}"
        with running_worker(tmp_path, broker, pool, 1, options=options), running_worker(tmp_path, broker, name="other"):
            send(daemon, 1, seconds=12)
            until(lambda: ended(tmp_path) == {1}, "the task")
            until(lambda: is_done(daemon), "the acknowledgement")
            assert figures(daemon)["leases_expired"] == 0
    assert len(attempts(tmp_path)[1]) == 1


def test_a_task_is_told_how_often_it_was_delivered_to_workers_that_died(tmp_path: Path) -> None:
    """Also by a server that was killed since. Its retry is a task of its own."""
    with running_daemon(tmp_path / "server") as daemon:
        broker = f"kestrel://{daemon.address}"
        send_task(daemon, "deadly", 2)
        for death in range(2):
            with running_worker(tmp_path, broker, concurrency=1, options={"lease_s": 1}) as worker:
                assert worker.process.wait(60) == -signal.SIGKILL
            if not death:
                daemon.kill()
                daemon.start()
        with running_worker(tmp_path, broker, concurrency=1, options={"lease_s": 1}):
            until(lambda: ended(tmp_path) == {2, 100}, "the task and its retry")
            until(lambda: is_done(daemon), "the acknowledgements")
    assert sorted(attempts(tmp_path)) == [0, 1, 2, 100]


@pytest.mark.parametrize("deduplicates", [True, False])
def test_a_task_that_had_ended_when_its_worker_died_is_recognized_by_its_result(
    tmp_path: Path, deduplicates: bool
) -> None:
    with running_daemon(tmp_path / "server") as daemon:
        broker, options = f"kestrel://{daemon.address}", {"lease_s": 1}
        results = tmp_path / "results"
        results.mkdir()
        conf = {"worker_deduplicate_successful_tasks": deduplicates, "result_backend": f"file://{results}"}
        send_task(daemon, "unacknowledged", 1)
        with running_worker(tmp_path, broker, concurrency=1, options=options, **conf) as worker:
            assert worker.process.wait(60) == -signal.SIGKILL
        with running_worker(tmp_path, broker, concurrency=1, options=options, name="other", **conf) as worker:
            if deduplicates:
                until(lambda: is_done(daemon), "the acknowledgement")
                assert "Task already completed successfully." in worker.log.read_text()
            else:
                assert worker.process.wait(60) == -signal.SIGKILL
    assert len(attempts(tmp_path)[1]) == 2 - deduplicates


def test_tasks_that_wait_behind_a_long_one_keep_their_leases(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "server") as daemon:
        send(daemon, *range(4), seconds=4)
        with running_worker(tmp_path, f"kestrel://{daemon.address}", "solo", 1, options={"lease_s": 2}):
            until(lambda: len(ended(tmp_path)) == 4, "the tasks")
            until(lambda: is_done(daemon), "the acknowledgements")
        assert figures(daemon)["leases_expired"] == 0
    assert [len(those) for those in attempts(tmp_path).values()] == [1] * 4


def test_the_tasks_of_a_frozen_worker_run_elsewhere(tmp_path: Path) -> None:
    lease_s = 2
    with running_daemon(tmp_path / "server") as daemon:
        broker = f"kestrel://{daemon.address}"
        with running_worker(tmp_path, broker, "prefork", 2, options={"lease_s": lease_s}) as frozen:
            send(daemon, *range(8), seconds=0.3)
            until(lambda: attempts(tmp_path), "tasks that run")
            os.killpg(frozen.process.pid, signal.SIGSTOP)
            since = time.monotonic()
            with running_worker(tmp_path, broker, name="other"):
                until(lambda: len(ended(tmp_path)) == 8, "the tasks elsewhere")
            assert time.monotonic() - since < lease_s + 2 + 8 * 0.3 + 3  # and for the start of the other one


@pytest.mark.parametrize(("pool", "leased"), [("prefork", 4), ("solo", 1), ("threads", 4), ("gevent", 3)])
def test_the_tasks_of_a_killed_worker_are_with_another_one_within_five_seconds(
    tmp_path: Path, pool: str, leased: int
) -> None:
    """Those that ran, and those that were prefetched. Its pool processes are gone before their tasks run again."""
    with running_daemon(tmp_path / "server") as daemon:
        broker = f"kestrel://{daemon.address}"
        with running_worker(tmp_path, broker, pool, 1 if pool == "solo" else 2, name="doomed") as doomed:
            send(daemon, *range(4), seconds=20)
            until(lambda: len(attempts(tmp_path)) == min(leased, 2), "tasks that run")
            until(lambda: figures(daemon)["leased"] == leased, "tasks that are prefetched")
            before, children = attempts(tmp_path), doomed.children()
            with running_worker(tmp_path, broker, "threads", 4, name="other") as other:
                doomed.kill()
                killed_at = time.time()
                until(lambda: not any(map(is_running, children)), "the end of the pool")
                died_at = time.time()
                deaths = {pid: [(died_at, died_at)] for pid in [doomed.process.pid, *children]}
                until(lambda: sum(len(those) for those in attempts(tmp_path).values()) == 4 + len(before), "all tasks")
                assert all(one.pid == other.process.pid for those in attempts(tmp_path).values() for one in those[-1:])
                last_at = max(those[-1].began_at for those in attempts(tmp_path).values())
                print(f"{pool}: all tasks began elsewhere within {last_at - killed_at:.2f} s")
                assert last_at - killed_at < 5
                assert Executions(tmp_path).read().repeated_while_alive(deaths) == []


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads"])
def test_resets_of_all_connections_repeat_no_running_task(tmp_path: Path, pool: str) -> None:
    with running_daemon(tmp_path / "server") as daemon:
        way = Way(daemon.port)
        broker, options = f"kestrel://127.0.0.1:{way.port}", {"missing_s": 2}
        with running_worker(tmp_path, broker, pool, 1 if pool == "solo" else 2, options=options):
            send(daemon, *range(4), seconds=6)
            until(lambda: figures(daemon).get("leased") == (1 if pool == "solo" else 4), "tasks")
            for _ in range(3):
                way.reset()
                time.sleep(2)
            until(lambda: len(ended(tmp_path)) == 4, "all tasks")
            until(lambda: is_done(daemon), "the acknowledgements")
        way.close()
        assert figures(daemon)["leases_expired"] == 0
    assert [len(those) for those in attempts(tmp_path).values()] == [1] * 4


def test_after_an_outage_that_celery_sees_running_tasks_end_where_they_run_and_others_come_again(
    tmp_path: Path,
) -> None:
    with running_daemon(tmp_path / "server") as daemon:
        broker = f"kestrel://{daemon.address}"
        with running_worker(tmp_path, broker, "prefork", 4, options={"outage_s": 0.5}) as worker:
            send(daemon, *range(16), seconds=5)
            until(lambda: len(attempts(tmp_path)) == 4, "tasks that run")
            until(lambda: figures(daemon)["leased"] == 16, "tasks that are prefetched")
            daemon.kill()
            until(lambda: "Connection to broker lost" in worker.log.read_text(), "Celery to notice")
            daemon.start()
            until(lambda: len(ended(tmp_path)) == 16, "all tasks")
            if celery.VERSION[:2] >= (5, 7):  # 5.5 acknowledges none that ran when its connection was closed
                until(lambda: is_done(daemon), "the acknowledgements")
    assert [len(those) for those in attempts(tmp_path).values()] == [1] * 16


def test_a_short_outage_is_not_noticed(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "server") as daemon:
        broker = f"kestrel://{daemon.address}"
        with running_worker(tmp_path, broker, "prefork", 2) as worker:
            send(daemon, *range(6), seconds=1)
            until(lambda: attempts(tmp_path), "tasks that run")
            daemon.kill()
            time.sleep(3)
            daemon.start()
            back_at = time.time()
            until(lambda: len(ended(tmp_path)) == 6, "all tasks")
            send(daemon, 6)
            until(lambda: 6 in ended(tmp_path), "a new task")
            assert attempts(tmp_path)[6][0].began_at - back_at < 10
            until(lambda: is_done(daemon), "the acknowledgements")
            assert "Connection to broker lost" not in worker.log.read_text()
    assert [len(those) for those in attempts(tmp_path).values()] == [1] * 7


@pytest.mark.parametrize("outage_s", [1, 600], ids=["seen by Celery", "not seen"])
def test_a_worker_that_was_cut_off_until_its_control_queue_was_deleted_consumes_again(
    tmp_path: Path, outage_s: int
) -> None:
    with running_daemon(tmp_path / "server") as daemon:
        way = Way(daemon.port)
        options = {"outage_s": outage_s}
        with running_worker(tmp_path, f"kestrel://127.0.0.1:{way.port}", options=options) as worker:
            pidbox = f"w@{socket.gethostname()}.celery.pidbox".replace(".", "%2E")
            until(lambda: figures(daemon, pidbox), "the queue for commands")
            way.is_silent = True
            until(lambda: not figures(daemon, pidbox), "the end of the queue for commands")
            app = Celery(broker=f"kestrel://{daemon.address}")
            assert not app.control.inspect(timeout=1).ping()
            if outage_s == 1:
                until(lambda: "Connection to broker lost" in worker.log.read_text(), "Celery to notice")
            way.is_silent = False
            send(daemon, 1)
            until(lambda: ended(tmp_path) == {1}, "the task")
            until(lambda: len(app.control.inspect(timeout=3, limit=1).ping() or ()) == 1, "an answer of the worker")
        way.close()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_that_is_stopped_gives_back_what_it_has_not_begun(tmp_path: Path, pool: str) -> None:
    with running_daemon(tmp_path / "server") as daemon:
        with running_worker(tmp_path, f"kestrel://{daemon.address}", pool, 2, options={"lease_s": 2}) as worker:
            send(daemon, *range(8), seconds=5)
            until(lambda: len(attempts(tmp_path)) == 2, "tasks that run")
            until(lambda: figures(daemon)["leased"] == 8, "tasks that are prefetched")
            assert worker.stop() == 0
        assert figures(daemon)["items"] == 8 - len(ended(tmp_path))
        assert figures(daemon)["open_transactions"] == 0
        assert figures(daemon)["leases_expired"] == 0
        assert ended(tmp_path) == set(attempts(tmp_path))


def test_a_cold_shutdown_gives_back_what_it_has_interrupted(tmp_path: Path) -> None:
    """So does a soft shutdown once its time is over."""
    with running_daemon(tmp_path / "server") as daemon:
        broker, conf = f"kestrel://{daemon.address}", {"worker_soft_shutdown_timeout": 1}
        with running_worker(tmp_path, broker, "prefork", 2, **conf) as worker:
            send(daemon, *range(6), seconds=20)
            until(lambda: len(attempts(tmp_path)) == 2, "tasks that run")
            until(lambda: figures(daemon)["leased"] == 6, "tasks that are prefetched")
            worker.process.send_signal(signal.SIGQUIT)
            worker.process.wait(60)  # now and then Celery's pool waits for its tasks nevertheless
        assert figures(daemon)["items"] == 6 - len(ended(tmp_path))
        assert figures(daemon)["open_transactions"] == 0


def test_tasks_that_run_during_a_soft_shutdown_keep_their_leases(tmp_path: Path) -> None:
    """Celery's event loop stands still for as long."""
    with running_daemon(tmp_path / "server") as daemon:
        broker, conf = f"kestrel://{daemon.address}", {"worker_soft_shutdown_timeout": 9}
        with running_worker(tmp_path, broker, "prefork", 2, options={"lease_s": 2}, **conf) as worker:
            send(daemon, *range(2), seconds=7)
            until(lambda: len(attempts(tmp_path)) == 2, "tasks that run")
            worker.process.send_signal(signal.SIGQUIT)
            with running_worker(tmp_path, broker, name="other"):
                worker.process.wait(60)
                until(lambda: is_done(daemon), "the acknowledgements")
        assert figures(daemon)["leases_expired"] == 0
    assert [len(those) for those in attempts(tmp_path).values()] == [1, 1]


def test_retries_wait_in_the_server(tmp_path: Path) -> None:
    from tests.integrations.celery.effects import app

    with running_daemon(tmp_path / "server") as daemon, running_worker(tmp_path, f"kestrel://{daemon.address}"):
        with app.connection_for_write(f"kestrel://{daemon.address}") as connection:
            app.send_task("again", (1, 2, 1.0), connection=connection)
        until(lambda: figures(daemon).get("delayed") == 1, "a retry")
        until(lambda: ended(tmp_path) == {1}, "the task")
    times = [one.began_at for one in attempts(tmp_path)[1]]
    assert len(times) == 3
    assert all(1 <= later - earlier < 2.5 for earlier, later in pairwise(times))


def test_workers_are_inspected_and_controlled(tmp_path: Path) -> None:
    with (
        running_daemon(tmp_path / "server") as daemon,
        running_worker(tmp_path, f"kestrel://{daemon.address}", name="one"),
        running_worker(tmp_path, f"kestrel://{daemon.address}", name="two"),
    ):
        app = Celery(broker=f"kestrel://{daemon.address}")
        inspect = app.control.inspect(timeout=3, limit=2)
        assert len(inspect.ping()) == 2
        assert all("effect" in tasks for tasks in inspect.registered().values())
        app.control.rate_limit("effect", "100/s")
        app.control.cancel_consumer("celery", reply=True, timeout=3, limit=2)
        send(daemon, 1)
        assert figures(daemon)["items"] == 1
        app.control.add_consumer("celery", reply=True, timeout=3, limit=2)
        until(lambda: ended(tmp_path) == {1}, "the task")
        result = app.send_task("effect", (2,), countdown=2)
        app.control.revoke(result.id, reply=True, timeout=3, limit=2)
        until(lambda: figures(daemon).get("delayed") == 0, "the time of the task")
        until(lambda: is_done(daemon), "the task")
        assert 2 not in attempts(tmp_path)


def test_a_worker_without_prefetch_leaves_a_task_to_whoever_is_free(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "server") as daemon:
        conf = {"options": {"disable_prefetch": True}, "worker_prefetch_multiplier": 1, "task_acks_late": False}
        send(daemon, 0, seconds=4)
        send(daemon, *range(1, 4))
        with running_worker(tmp_path, f"kestrel://{daemon.address}", concurrency=1, name="busy", **conf):
            until(lambda: attempts(tmp_path), "the long task")
            with running_worker(tmp_path, f"kestrel://{daemon.address}", concurrency=1, name="other", **conf):
                until(lambda: len(ended(tmp_path)) == 4, "all tasks")
    long = attempts(tmp_path)[0][0]
    assert all(attempts(tmp_path)[number][0].ended_at < long.ended_at for number in range(1, 4))


def test_a_worker_that_starts_later_knows_what_was_revoked(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "server") as daemon:
        broker = f"kestrel://{daemon.address}"
        app = Celery(broker=broker)
        with running_worker(tmp_path, broker, "solo", name="one") as first:
            waiting = [app.send_task("effect", (number,), queue="later") for number in (1, 2)]
            app.control.revoke(waiting[0].id, reply=True, timeout=3, limit=1)
            arguments = ["-Q", "celery,later"]
            with running_worker(tmp_path, broker, "solo", name="two", arguments=arguments) as second:
                assert "sync with 1 nodes" in second.log.read_text()
                first.kill()
                until(lambda: figures(daemon, "later")["items"] == 0, "both tasks")
                until(lambda: ended(tmp_path) == {2}, "the task that was not revoked")
                assert f"Discarding revoked task: effect[{waiting[0].id}]" in second.log.read_text()
    assert set(attempts(tmp_path)) == {2}
