"""docs/spark.md's way onto a cluster, on a real one of a master and two workers."""

import json
import re
import subprocess
import sys
import sysconfig
import venv
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")

import pyarrow.dataset as arrow

from tests.support.daemon import ROOT, Daemon, running_daemon
from tests.support.http import ask
from tests.support.queue_client import QueueClient
from tests.support.segments import BEGIN_MS, got, puts, write_segment
from tests.support.spark_cluster import Cluster, running_cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
ITEMS: Final = 20_000
PATIENCE_S: Final = 600


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[list[Daemon]]:
    """Two servers with the reader API."""
    with ExitStack() as stack:
        yield [stack.enter_context(running_daemon(tmp_path / name, admin="127.0.0.1:0")) for name in ("a", "b")]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Of two servers: 10 segments each, of 20 items, of which the first has been got."""
    for server in ("a", "b"):
        folder = tmp_path / "archive" / f"server={server}" / "work.journal"
        for number in range(1, 11):
            first = number * 20
            write_segment(folder, number, first, [*puts(first, 20), got(first, first, BEGIN_MS + 5)])
    return tmp_path / "archive"


def recipe(number: int) -> str:
    """A block of commands in the page's chapter about clusters, from 0."""
    chapter = (ROOT / "docs" / "spark.md").read_text().partition("\n## On a cluster\n")[2].partition("\n## ")[0]
    return re.findall(r"```sh\n(.*?)```", chapter, re.DOTALL)[number]


def submitted(cluster: Cluster, commands: str, folder: Path, **variables: object) -> "subprocess.CompletedProcess[str]":
    """What a shell says to commands of the page, with this cluster as theirs."""
    return subprocess.run(
        ["sh", "-euc", commands.replace("spark://master:7077", cluster.url)],
        cwd=folder,
        env=cluster.environment() | {"VENV": sys.prefix} | {name: str(value) for name, value in variables.items()},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def test_jobs_run_where_the_venv_is_on_every_node(cluster: Cluster, archive: Path, tmp_path: Path) -> None:
    run = submitted(cluster, recipe(0).replace("/srv/archive", str(archive)), tmp_path)
    assert run.returncode == 0, run.stderr
    assert "20 files" in run.stdout  # where spark-submit puts all of it
    assert all(list(worker.glob("app-*/*/stderr")) for worker in cluster.workers)


def test_packages_go_along_where_the_nodes_have_only_their_dependencies(
    cluster: Cluster, archive: Path, fleet: list[Daemon], tmp_path: Path
) -> None:
    # A venv that finds what is installed for us, but not our own packages.
    node = tmp_path / "node"
    venv.create(node, symlinks=True)
    paths = {"base": str(node), "platbase": str(node)}
    Path(sysconfig.get_path("purelib", "venv", paths), "all.pth").write_text(sysconfig.get_path("purelib") + "\n")
    servers = ",".join(daemon.address for daemon in fleet)
    job = f"{ROOT}/tests/kestrelspark/cluster_job.py {archive} {tmp_path} {servers} {ITEMS}"
    commands = recipe(1).replace("/srv/kestreld.zip", str(tmp_path / "kestreld.zip")).replace("my_job.py", job)
    run = submitted(cluster, commands, tmp_path, NODE_VENV=node)
    assert run.returncode == 0, run.stderr
    assert json.loads((tmp_path / "counts.json").read_text()) == {
        f"{server} {event}": count for server in ("a", "b") for event, count in (("put", 200), ("got", 10))
    }
    assert "<svg" in (tmp_path / "report" / "report.html").read_text()
    wanted = Counter(b"item %d" % number for number in range(ITEMS))
    ingested = arrow.dataset(tmp_path / "lake", format="parquet").to_table(["value"])["value"].to_pylist()
    assert Counter(ingested) == wanted
    drained = []
    for daemon in fleet:
        family = ask(daemon, "/queues/orders").json
        assert [one["head"] for one in family["readers"] if one["reader"] == "lake"] == [family["next_id"]]
        with QueueClient(daemon.port) as client:
            drained += client.drain("orders")
    assert Counter(drained) == wanted
