"""The benchmark of jobs with few of them: that it runs, notices wrong answers, and says what is above its limit."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import jobs
from benchmarks.errors import Unusable
from benchmarks.load import Load, LoadResult, run
from benchmarks.waits import Prober
from tests.support.daemon import Daemon, running_daemon
from tests.support.tampering import tampering_proxy

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="cc is not installed")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    settings = ["listen.disque=127.0.0.1:0", "jobs.journal=true"]
    with running_daemon(tmp_path_factory.mktemp("daemon"), *settings) as daemon:
        yield daemon


def loaded(address: str, load: Load, queue: str) -> LoadResult:
    port = int(address.rpartition(":")[2])
    return run(replace(load, at_least=20), protocol="disque", port=port, pid=0, queue=queue, seconds=0.05)


@pytest.mark.parametrize(
    "load",
    [Load(clients=2), Load(clients=2, depth=8, size="16-4096"), Load(work="put", queues=3, fill=100)],
    ids=["one at a time", "many on the way", "several queues"],
)
def test_each_job_comes_once_and_is_acknowledged(daemon: Daemon, load: Load) -> None:
    result = loaded(daemon.disque, load, f"q{abs(hash(load))}")
    assert (result.faults, result.first_fault) == (0, "")
    assert result.operations == result.puts + result.takes + result.acks > 10
    assert (result.acks > 0) == (load.work == "put+take")


@pytest.mark.parametrize(
    ("begin", "change", "fault"),
    [
        (b"00000000", lambda line: b"1" + line[1:], "an item is damaged, or not ours"),
        (b":1", lambda line: b":0\r\n", "refused: :0"),
        (b"+D", lambda line: b"-PAUSED\r\n", "refused: -PAUSED"),
    ],
    ids=["damaged", "not acknowledged", "refused"],
)
def test_a_wrong_answer_is_noticed(
    daemon: Daemon, begin: bytes, change: Callable[[bytes], bytes], fault: str, request: pytest.FixtureRequest
) -> None:
    def tampered(line: bytes) -> bytes:
        return change(line) if line.startswith(begin) else line

    with tampering_proxy(int(daemon.disque.rpartition(":")[2]), tampered) as address:
        assert loaded(address, Load(), request.node.callspec.id).first_fault == fault


def test_a_probing_client_uses_jobs_and_notices_a_refusal(daemon: Daemon) -> None:
    port = int(daemon.disque.rpartition(":")[2])
    prober = Prober(port, daemon.pid, jobs.add_and_acknowledge)
    prober.start()
    loaded(daemon.disque, Load(clients=2), "beside")
    assert prober.stop().longest_ms > 0
    with tampering_proxy(port, lambda reply: b"-PAUSED\r\n") as address:
        prober = Prober(int(address.rpartition(":")[2]), daemon.pid, jobs.add_and_acknowledge)
        prober.start()
        prober.join(60)
        with pytest.raises(Unusable, match="-PAUSED"):
            prober.stop()


@pytest.mark.long
def test_all_parts_run_and_leave_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    assert jobs.main(["--quick", "--folder", str(tmp_path)]) in (0, 1)  # so short a run may be above
    said = capsys.readouterr().out
    for words in ("CPU, 16 clients x 32", "RSS of a job", "start with 5,000 jobs", "5,000 timers", "5,000 expire"):
        assert words in said, said
    assert not list(tmp_path.iterdir())
