"""A queue that the server has stopped may hold items: it is neither empty nor missing, but 84, and what repairs it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kestreld.client import KestrelCluster, ServerRefused
from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient
from tests.support.shell import Kestrelctl

ITEMS = 100
REMEDY = "run: kestrelctl repair lost"
OK, NEGATIVE, CRITICAL, IS_STOPPED = 0, 1, 2, 84


def damage(folder: Path) -> None:
    """Flip a bit of an item that stands in the middle."""
    for segment in folder.iterdir():
        content = bytearray(segment.read_bytes())
        if (at := content.find(b"item %d " % (ITEMS // 2))) >= 0:
            content[at] ^= 1
            segment.write_bytes(content)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Queues that are stopped: `lost` since the start, `late` since somebody read from it. `sound` is not."""
    folder = tmp_path_factory.mktemp("stopped")
    with running_daemon(folder, "max_memory_size=1KiB", "trash_seconds=1h", admin="127.0.0.1:0") as daemon:
        with QueueClient(daemon.port) as client:
            for queue in ("lost", "late", "sound"):
                client.put(queue, *[b"item %d " % number + b"x" * 90 for number in range(ITEMS)])
        daemon.stop()
        damage(daemon.spool / "lost.journal")
        daemon.start()
        damage(daemon.spool / "late.journal")
        with QueueClient(daemon.port) as client:
            line = b""
            while not line.startswith(b"SERVER_ERROR corrupt "):
                client.ask_for("late/open")
                line = client.read_line()
                if line.startswith(b"VALUE "):
                    client.read(int(line.split(b" ")[3]))
                    client.expect(b"\r\nEND\r\n")
                    client.send(b"get late/close\r\n")
                    client.expect(b"END\r\n")
        yield daemon


@pytest.fixture(scope="module")
def ctl(stopped: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Kestrelctl:
    return Kestrelctl(stopped.address, tmp_path_factory.mktemp("bin"))


@pytest.mark.parametrize(
    "line",
    [
        "wait lost --empty",
        "wait lost --items <100",
        "wait lost --empty --missing-ok",
        "stats lost",
        "stats lost sound -o json",
        "stats lost+child",
        "ls lost",
        "flush lost --yes",
        "flush lost --yes --missing-ok",
        "flush lost --dry-run",
        "delete lost --yes",
        "delete lost --yes --missing-ok",
        "delete lost --dry-run --missing-ok",
        "undo lost",
        "flush-expired lost",
        "peek lost",
        "peek lost --json --origin",
        "items lost",
        "items lost --state delayed",
        "get lost --empty-ok",
        "get lost --wait 100ms",
        "get lost --lease 5s --json",
        "put lost x",
        "put lost x --delay 5s",
        "put lost x --key k",
        "cancel lost k",
        "cancel lost 3",
        "run-now lost 3",
        "tail lost",
        "export lost",
        "copy lost sound",
        "move lost sound",
        "copy sound lost --max 1",
        "move sound lost --max 1",
        "dead lost",
        "redrive lost --yes",
        "redrive lost --to sound --dry-run",
        "consumers lost",
        "readers ls lost",
        "readers create lost r",
        "readers move lost r latest",
        "readers drop lost r",
    ],
)
def test_a_verb_that_names_a_stopped_queue_ends_84_and_says_what_repairs_it(
    ctl: Kestrelctl, stopped: Daemon, line: str
) -> None:
    for name in ("lost", "late"):
        words = line.replace("lost", name).split()
        run = ctl(*words)
        if name == "late" and words[:2] in (["readers", "drop"], ["stats", "late+child"]):
            continue  # readers and children are in memory, and those that are not are not there
        assert run.code == IS_STOPPED, run
        assert REMEDY.replace("lost", name) in run.err, run
    assert (stopped.spool / "lost.journal").is_dir()


def test_lists_show_stopped_queues_and_say_so(ctl: Kestrelctl) -> None:
    for line in ("stats", "ls", "stats l*", "ls l*"):
        run = ctl(*line.split())
        assert run.code == OK, run
        assert b"lost" in run.out
        assert "2 queues are stopped, as their journals are damaged: late, lost; run for each: " in run.err
    assert ctl("stats", "sound").err == ""
    assert ctl("stats", "nobodys").code == NEGATIVE


def test_the_log_and_check_say_what_repairs_a_queue(ctl: Kestrelctl, stopped: Daemon) -> None:
    assert stopped.logged("lost: stopped: ").endswith(f"; other queues are not affected; {REMEDY}")
    assert stopped.logged("late: stopped: ").endswith("; run: kestrelctl repair late")
    run = ctl("check", "lost")
    assert run.code == CRITICAL
    assert f"lost: stopped: its journal is corrupt; {REMEDY}" in run.out.decode()


def test_one_server_of_several_that_has_stopped_a_queue_is_named(
    stopped: Daemon, daemon: Daemon, tmp_path: Path
) -> None:
    both = Kestrelctl(stopped.address, tmp_path)
    both.environment["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    del both.environment["KESTRELCTL_SERVER"]

    assert both("context", "add", "both", stopped.address, daemon.address, "--select").code == OK
    where = f"run: kestrelctl -s {stopped.address} repair lost"
    for line in ("wait lost --empty", "stats lost", "flush lost --yes", "delete lost --dry-run"):
        run = both(*line.split())
        assert (run.code, where in run.err) == (IS_STOPPED, True), run
    with QueueClient(daemon.port) as client:
        client.put("lost", b"elsewhere")
    run = both("get", "lost", "--all")
    assert (run.code, run.out) == (IS_STOPPED, b"elsewhere\n"), run
    assert REMEDY in run.err


def test_a_client_is_told_what_repairs_the_queue(
    stopped: Daemon, daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    with KestrelCluster([stopped.address]) as cluster:
        queue = cluster.queue("lost")
        for operation in (queue.get, queue.peek, queue.flush, lambda: queue.put(b"x"), lambda: queue.lease(1)):
            with pytest.raises(ServerRefused, match=REMEDY):
                operation()
        assert queue.stats() == {stopped.address: {"stopped": 1}}
    with KestrelCluster([stopped.address, daemon.address]) as cluster:
        assert cluster.queue("lost").get() is None
    assert [REMEDY in record.getMessage() for record in caplog.records] == [True]


def test_kestrels_own_figures_name_a_queue_only_while_it_is_stopped(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "old", "compat=kestrel-1") as daemon:
        ctl = Kestrelctl(daemon.address, tmp_path)
        with QueueClient(daemon.port) as client:
            client.put("lost", *[b"item %d " % number for number in range(ITEMS)])
        assert ctl("wait", "lost", "--items", str(ITEMS)).code == OK
        assert b"stopped" not in ctl("dump-stats").out
        daemon.kill()
        damage(daemon.spool / "lost.journal")
        daemon.start()
        run = ctl("wait", "lost", "--empty", "--missing-ok")
        assert (run.code, REMEDY in run.err) == (IS_STOPPED, True), run


def test_jobs_whose_log_is_damaged_are_stopped(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "jobs", "jobs.journal=true", "listen.disque=127.0.0.1:0") as daemon:
        ctl = Kestrelctl(daemon.address, tmp_path, jobs=daemon.disque)
        lines = b"".join(b"item %d \n" % number for number in range(ITEMS))
        assert ctl("jobs", "add", "lost", "--lines", stdin=lines).code == OK
        daemon.kill()
        damage(daemon.spool / ".jobs")
        daemon.start()
        for line in ("jobs stat lost", "jobs get lost --empty-ok", "jobs qdel lost --yes", "jobs ls", "stats --jobs"):
            run = ctl(*line.split())
            assert (run.code, "journal-verify" in run.err) == (IS_STOPPED, True), run
        run = ctl("check")
        assert run.code == CRITICAL
        assert b"stopped: their log is corrupt; stop the server and run: kestrelctl journal-verify --repair" in run.out
