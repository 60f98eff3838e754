"""docs/spark.md's way onto a cluster, on a real one of a master and two workers."""

import json
import re
import subprocess
import sys
import sysconfig
import venv
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")

import pyarrow.dataset as arrow

from kestreld.journal.records import put_record
from tests.support.daemon import ROOT, Daemon, running_daemon
from tests.support.http import ask
from tests.support.queue_client import QueueClient
from tests.support.segments import BEGIN_MS, got, write_segment
from tests.support.spark_cluster import Cluster, running_cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
ITEMS: Final = 20_000
PATIENCE_S: Final = 600
ADDRESSES: Final = "a:22133,b:22133"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@dataclass(slots=True, frozen=True)
class Done:
    """What the jobs of cluster_job.py have left behind: files in `folder`, items on servers, words."""

    folder: Path
    fleet: list[Daemon]
    said: str


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two servers: 10 segments each, of 20 items, of which the first has been got."""
    folder = tmp_path_factory.mktemp("archive")
    write_segments(folder, range(1, 11))
    return folder


def write_segments(archive: Path, numbers: Iterable[int], previous_bytes: int | None = None) -> None:
    for server in ("a", "b"):
        folder = archive / f"server={server}" / "work.journal"
        for number in numbers:
            ids = range(number * 20, number * 20 + 20)
            records = [put_record(at, BEGIN_MS + at, 0, 0, 0, b"%s %d" % (server.encode(), at)) for at in ids]
            records.append(got(ids[0], ids[0], BEGIN_MS + ids[0] + 5))
            write_segment(folder, number, ids[0], records, previous_bytes=previous_bytes)


def recipe(number: int) -> str:
    """A block of commands in the page's chapter about clusters, from 0."""
    chapter = (ROOT / "docs" / "spark.md").read_text().partition("\n## On a cluster\n")[2].partition("\n## ")[0]
    return re.findall(r"```sh\n(.*?)```", chapter, re.DOTALL)[number]


def blocks_that_read(name: str) -> str:
    """The page's lines that make the table or the stream of this name."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "spark.md").read_text(), re.DOTALL)
    (block,) = [block for block in blocks if block.startswith(f"{name} = (")]
    assert ADDRESSES in block
    return str(block)


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


@pytest.fixture(scope="module")
def done(cluster: Cluster, archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Done]:
    """Nodes have a venv with what is installed for us, but without our own packages: these go along."""
    folder = tmp_path_factory.mktemp("done")
    node = folder / "node"
    venv.create(node, symlinks=True)
    paths = {"base": str(node), "platbase": str(node)}
    Path(sysconfig.get_path("purelib", "venv", paths), "all.pth").write_text(sysconfig.get_path("purelib") + "\n")
    last = max(archive.glob("server=a/work.journal/*.seg"))
    write_segments(folder / "later", [11], last.stat().st_size)
    with ExitStack() as stack:
        fleet = [stack.enter_context(running_daemon(folder / name, admin="127.0.0.1:0")) for name in ("a", "b")]
        servers = ",".join(daemon.address for daemon in fleet)
        lines = folder / "lines.py"
        lines.write_text("\n".join(blocks_that_read(name) for name in ("waiting", "since")).replace(ADDRESSES, servers))
        job = f"{ROOT}/tests/kestrelspark/cluster_job.py {archive} {folder}/later {folder} {servers} {ITEMS} {lines}"
        commands = recipe(1).replace("/srv/kestreld.zip", f"{folder}/kestreld.zip").replace("my_job.py", job)
        run = submitted(cluster, commands, folder, NODE_VENV=node)
        assert run.returncode == 0, run.stderr
        yield Done(folder, fleet, run.stdout)


def rows_of(folder: Path, *columns: str) -> list[tuple[Any, ...]]:
    """All that is in a folder of Parquet files."""
    table = arrow.dataset(folder, format="parquet", partitioning="hive").to_table(list(columns))
    return list(zip(*(table[column].to_pylist() for column in columns), strict=True))


def test_journals_are_read_by_nodes_to_which_the_packages_go_along(done: Done) -> None:
    assert json.loads((done.folder / "counts.json").read_text()) == {
        f"{server} {event}": count for server in ("a", "b") for event, count in (("put", 220), ("got", 11))
    }


def test_a_second_run_takes_what_is_new_on_a_cluster_too(done: Done) -> None:
    assert "22 files" not in done.said
    assert "2 files, " in done.said
    assert "20 unchanged files skipped" in done.said
    for run, puts in ((1, 200), (2, 220)):
        assert "<svg" in (done.folder / f"report-{run}" / "report.html").read_text()
        rows = rows_of(done.folder / f"report-{run}" / "queues", "server", "reader", "puts")
        assert sorted(rows) == [(server, reader, puts) for server in ("a", "b") for reader in ("", "audit")]
    assert Counter(rows_of(done.folder / "rows", "run", "server", "event")) == {
        (run, server, event): count
        for server in ("a", "b")
        for run, event, count in ((1, "put", 200), (1, "got", 10), (2, "put", 20), (2, "got", 1))
    }


def test_nodes_put_items_of_journals_again_and_the_next_run_goes_on_behind_them(done: Done) -> None:
    came: list[list[bytes]] = []
    for daemon in done.fleet:
        with QueueClient(daemon.port) as client:
            came.append(client.drain("work"))
    for server in (b"a", b"b"):
        items = [item for items in came for item in items if item.startswith(server)]
        assert items == [b"%s %d" % (server, number) for number in range(20, 240)]


def test_a_report_and_a_period_are_put_side_by_side_on_a_cluster(done: Done) -> None:
    rows = rows_of(done.folder / "compared" / "compared", "server", "reader", "puts_before", "puts_after")
    assert sorted(rows) == [(server, reader, 200, 220) for server in ("a", "b") for reader in ("", "audit")]
    assert "a: work" in (done.folder / "compared" / "compare.html").read_text()
    assert "puts\t200\t220\t+10.0 %" in done.said


def test_nodes_put_rows_into_queues_and_read_queues_and_the_servers_are_told(done: Done) -> None:
    wanted = Counter(b"item %d" % number for number in range(ITEMS))
    assert Counter(value for (value,) in rows_of(done.folder / "lake", "value")) == wanted
    assert f"{ITEMS:,} items added to {done.folder}/lake" in done.said
    drained = []
    for daemon in done.fleet:
        family = ask(daemon, "/queues/orders").json
        assert [one["head"] for one in family["readers"] if one["reader"] == "lake"] == [family["next_id"]]
        with QueueClient(daemon.port) as client:
            drained += client.drain("orders")
    assert Counter(drained) == wanted


def test_nodes_read_live_queues_as_a_table_and_as_a_stream_from_a_time_on(done: Done) -> None:
    wanted = Counter(b"item %d" % number for number in range(ITEMS))
    for name in ("waiting", "since"):
        assert Counter(value for (value,) in rows_of(done.folder / name, "value")) == wanted
    for daemon in done.fleet:
        readers = [one["reader"] for one in ask(daemon, "/queues/orders").json["readers"]]
        assert sorted(name for name in readers if name) == ["analysis-of-today", "lake"]
