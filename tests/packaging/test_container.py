"""packaging/docker: the commands of the image run as it says they do. No image is built here."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from tests.support.cluster_nodes import cluster_of
from tests.support.daemon import READY, ROOT, STOP_S
from tests.support.queue_client import QueueClient

FOLDER: Final = ROOT / "packaging" / "docker"
BIN: Final = Path(sys.executable).parent
VOLUME: Final = "/var/lib/kestreld"
ACCOUNT: Final = ("setpriv", "--reuid=10001", "--regid=10001", "--clear-groups")
# A process of its own world: first of its processes, all of the disk read-only but for one folder.
WORLD: Final = ("unshare", "--mount", "--pid", "--fork", "sh", "-euc")
READ_ONLY: Final = 'mount --bind "$0" "$0"; mount -o remount,bind,ro /; exec "$@"'


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's, in order: word and what stands behind it."""
    text = re.sub(r"^#.*\n", "", (FOLDER / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def last(word: str) -> str:
    return [rest for found, rest in instructions() if found == word][-1]


def installed(name: str, *words: str) -> list[str]:
    """By the Python of the tests itself: pip starts a program in a folder with a blank by way of a shell, and only root
    gets from there to a Python in a home of root's.
    """
    return [sys.executable, str(BIN / name), *words]


def health_check(admin: str) -> list[str]:
    """The image's, of a server whose admin port is there."""
    python, *words = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    assert python == "python"
    return [sys.executable, *(word.replace(":2223/", f":{admin.rpartition(':')[2]}/") for word in words)]


def entrypoint(config: Path) -> list[str]:
    words: list[str] = json.loads(last("ENTRYPOINT"))
    return installed(*(word.replace("/etc/kestreld/kestreld.yaml", str(config)) for word in words))


def variables(volume: Path) -> dict[str, str]:
    """Those of the image, and nothing else."""
    image = dict(re.findall(r"(\w+)=(\S+)", last("ENV")))
    image["PATH"] = f"{BIN}:/usr/bin:/bin"
    return {name: value.replace(VOLUME, str(volume)) for name, value in image.items()}


def world_can_be_made() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("setpriv") is None:
        return False
    tried = subprocess.run([*WORLD, READ_ONLY, "/tmp", *ACCOUNT, sys.executable, "-c", ""], capture_output=True)
    return tried.returncode == 0


@pytest.fixture
def image() -> Iterator[tuple[Path, Path]]:
    """The configuration of the image, and a folder for its volume; ports are any that are free.

    Not in `tmp_path`: each pytest that starts closes the folder above those to other accounts.
    """
    with tempfile.TemporaryDirectory() as folder:
        config, volume = Path(folder, "kestreld.yaml"), Path(folder, "volume")
        volume.mkdir(mode=0o700)
        text = re.sub(r"0\.0\.0\.0:\d+", "0.0.0.0:0", (FOLDER / "kestreld.yaml").read_text())
        config.write_text(text.replace(VOLUME, str(volume)))
        yield config, volume


@contextmanager
def container(config: Path, volume: Path) -> Iterator[tuple["subprocess.Popen[str]", int, str]]:
    """`docker run --read-only -v VOLUME … --insecure`: what runs it, its process 1 seen from here, its first line."""
    for path in [config, volume, *volume.parents]:
        if path.owner() == "root" and path not in (Path("/"), Path("/tmp")):
            path.chmod(path.stat().st_mode | 0o055)
    volume.chmod(0o700)
    os.chown(volume, 10001, 10001)
    command = [*WORLD, READ_ONLY, str(volume), *ACCOUNT, *entrypoint(config), "--insecure"]
    with subprocess.Popen(command, env=variables(volume), cwd="/", stderr=subprocess.PIPE, text=True) as outer:
        assert outer.stderr is not None
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        try:
            said = outer.stderr.readline()
            assert READY.search(said), said
            (first,) = children.read_text().split()
            yield outer, int(first), said
        finally:
            if outer.poll() is None:  # --kill-child would not outlast the change of account
                for child in children.read_text().split():
                    with suppress(ProcessLookupError):  # it ends by itself
                        os.kill(int(child), signal.SIGKILL)


@pytest.mark.skipif(
    "not world_can_be_made()",  # a text: asked where the test is run, not by each process that reads it
    reason="needs root, mount namespaces and a Python that all accounts can run",
)
def test_it_is_process_1_without_rights_on_a_read_only_disk_with_one_volume(image: tuple[Path, Path]) -> None:
    config, volume = image
    with container(config, volume) as (outer, pid, said):
        status = Path(f"/proc/{pid}/status").read_text()
        assert re.search(r"^NSpid:\t\d+\t1$", status, re.MULTILINE), status
        assert re.search(r"^Uid:\t10001\t10001\t", status, re.MULTILINE), status
        found = READY.search(said)
        assert found is not None, said
        tcp, own = found[1].split(",")
        with QueueClient(tcp.replace("0.0.0.0", "127.0.0.1")) as client:
            client.put("work", b"x")
        assert found[2] is not None
        checked = subprocess.run([*ACCOUNT, *health_check(found[2])], env=variables(volume), capture_output=True)
        assert checked.returncode == 0, checked
        with QueueClient(own) as client:  # root is let in as well
            client.get("work/open")
            os.kill(pid, getattr(signal, last("STOPSIGNAL")))
        assert outer.stderr is not None
        assert outer.stderr.read().endswith("kestreld: stopped\n")
        assert outer.wait(STOP_S) == 0
    assert list(volume.glob("spool/work.journal/*.seg"))


def test_the_health_check_of_a_server_that_does_not_answer_fails(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        port = nobody.getsockname()[1]
        checked = subprocess.run(health_check(f":{port}"), env=variables(tmp_path), capture_output=True)
    assert checked.returncode == 1


def test_a_node_is_healthy_while_another_one_of_its_cluster_is_down(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 2, "cluster.node_timeout=100ms", admin="127.0.0.1:0") as (node, other):
        other.kill()
        node.logged("is down")
        assert subprocess.run(health_check(node.admin), env=variables(tmp_path), capture_output=True).returncode == 0


def test_it_does_not_start_while_everybody_could_connect(image: tuple[Path, Path]) -> None:
    config, volume = image
    started = subprocess.run(entrypoint(config), env=variables(volume), capture_output=True, text=True, timeout=STOP_S)
    assert started.returncode == 78
    assert "0.0.0.0:0 is reachable from other machines without authentication" in started.stderr
    assert list(volume.iterdir()) == []


@pytest.mark.skipif(not (ROOT / "kestreld").exists(), reason="needs the sources beside it")
def test_the_dockerfile_names_what_there_is_and_no_root() -> None:
    copied = [rest.split()[0] for word, rest in instructions() if word == "COPY" and not rest.startswith("--from")]
    assert [source for source in copied if not (ROOT / source).exists()] == []
    kept = {line[1:] for line in (FOLDER / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"}
    assert [name for name in kept if not (ROOT / name).exists()] == []
    assert last("USER").partition(":")[0] not in ("0", "root")
    assert last("VOLUME") == VOLUME
    assert set(last("EXPOSE").split()) == set(re.findall(r"0\.0\.0\.0:(\d+)", (FOLDER / "kestreld.yaml").read_text()))
