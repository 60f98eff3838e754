"""What docs/celery.md shows, run as it is printed."""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kestreld.integrations.celery.aliases import ALIASES
from kestreld.integrations.celery.settings import OPTIONS
from kestreld.integrations.celery.transport import Transport
from tests.support.daemon import ROOT, running_daemon
from tests.support.waiting import until

PAGE = (ROOT / "docs" / "celery.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def code(title: str, language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", section(title), re.DOTALL)
    assert found is not None
    return found[1]


@contextmanager
def running(command: list[str], folder: Path, log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, start_new_session=True)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_every_option_is_on_the_page() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", section("Options"), re.MULTILINE)
    assert sorted(rows) == sorted(OPTIONS)


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs patch(1)")
def test_the_patch_for_kombu_and_celery_applies_and_says_what_the_transport_adds(tmp_path: Path) -> None:
    patch = code("In Kombu and Celery", "diff")
    for name in re.findall(r"^--- a/(.*)", patch, re.MULTILINE):
        module = importlib.util.find_spec(name.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        assert module is not None
        assert module.origin is not None
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copy(module.origin, tmp_path / name)
    done = subprocess.run(["patch", "-p1"], input=patch, text=True, capture_output=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert dict(re.findall(r"^\+    '(\S+)': '(\S+)',", patch, re.MULTILINE)) == ALIASES
    assert f"'{Transport.driver_type}'}}" in (tmp_path / "celery/worker/consumer/mingle.py").read_text()


@pytest.mark.long
def test_the_test_on_the_page_passes(tmp_path: Path) -> None:
    (tmp_path / "test_page_example.py").write_text(code("Tests", "python"))
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert "1 passed" in done.stdout, done.stdout


@pytest.mark.long
def test_the_first_worker_does_its_task(tmp_path: Path) -> None:
    assert code("A worker in three commands", "sh").splitlines()[1:] == ["kestreld &", "celery -A shop worker"]
    with running_daemon(tmp_path / "server") as daemon:
        program = code("A worker in three commands", "python")
        assert "127.0.0.1:22133" in program
        (tmp_path / "shop.py").write_text(program.replace("127.0.0.1:22133", daemon.address))
        log = tmp_path / "worker.log"
        with running([sys.executable, "-m", "celery", "-A", "shop", "worker", "-l", "INFO"], tmp_path, log):
            send = "import shop; shop.add.delay(2, 3)"
            subprocess.run([sys.executable, "-c", send], cwd=tmp_path, check=True)
            until(lambda: re.search(r"Task shop\.add\[.*\] succeeded in .*: 5", log.read_text()), "the task")


@pytest.mark.long
def test_results_and_a_chord_in_the_cache(tmp_path: Path) -> None:
    if not (importlib.util.find_spec("memcache") or importlib.util.find_spec("pylibmc")):
        pytest.skip("needs a memcached client that Celery knows: pip install python-memcached")
    program = """
from celery import Celery
app = Celery("sums", broker="kestrel://{broker}", backend="cache+memcached://{cache}/")

@app.task
def add(x, y):
    return x + y

@app.task
def total(numbers):
    return sum(numbers)
"""
    with running_daemon(tmp_path / "server", "listen.cache=127.0.0.1:0") as daemon:
        (tmp_path / "sums.py").write_text(program.format(broker=daemon.address, cache=daemon.cache))
        with running([sys.executable, "-m", "celery", "-A", "sums", "worker"], tmp_path, tmp_path / "worker.log"):
            send = "from celery import chord; from sums import add, total; "
            send += "print(chord([add.s(i, i) for i in range(10)])(total.s()).get(timeout=60))"
            done = subprocess.run([sys.executable, "-c", send], cwd=tmp_path, capture_output=True, text=True)
            assert done.stdout == "90\n", done.stderr


@pytest.mark.long
def test_what_is_queued_in_redis_is_moved(tmp_path: Path, redis_port: int) -> None:
    from celery import Celery

    with running_daemon(tmp_path / "server") as daemon:
        old = Celery(broker=f"redis://127.0.0.1:{redis_port}/0")
        for number in range(5):
            old.send_task("effect", (number,))
        program = code("From Redis", "python").replace("127.0.0.1:22133", daemon.address)
        program = program.replace("redis.Redis()", f"redis.Redis(port={redis_port})")
        subprocess.run([sys.executable, "-c", program], check=True)
        with Celery(broker=f"kestrel://{daemon.address}").connection_for_read() as connection:
            queue = connection.SimpleQueue("celery")
            moved = [queue.get(timeout=5) for _ in range(5)]
            assert [message.payload[0] for message in moved] == [[number] for number in range(5)]
            for message in moved:
                message.ack()
