"""Archives in object storage: shipped there, deleted here, and read, verified and replayed from there."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark installs it")
pytest.importorskip("moto", reason="moto is not installed: make test-spark installs it")

from kestreld.journal.discovery import discover
from kestrelspark.options import BadOption
from kestrelspark.storage import Storage
from tests.support.daemon import ROOT, running_daemon
from tests.support.object_storage import BUCKET, REGION, SECRET, ObjectStorage, credentials_file, object_storage
from tests.support.process import environment
from tests.support.queue_client import QueueClient
from tests.support.segments import JOURNAL_ID, got, puts, write_segment
from tests.support.spark_cluster import Cluster, running_cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
EACH: Final = 20
PATIENCE_S: Final = 300
FOLDER: Final = f"wo%3Ark/{JOURNAL_ID}"


@pytest.fixture(scope="module")
def storage() -> Iterator[ObjectStorage]:
    with object_storage() as running:
        yield running


def write_archive(folder: Path, count: int, data: bytes = b"x" * 64) -> dict[str, bytes]:
    """Of two servers; the first item of each segment has been got. What is in it, by path below the folder."""
    for server in ("a", "b"):
        for number in range(1, count + 1):
            first = number * EACH
            records = [*puts(first, EACH, data), got(first, first, 1_800_000_000_000)]
            write_segment(folder / f"server={server}" / FOLDER, number, first, records, queue="wo:rk")
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.seg")}


def ship_command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "kestrelctl", "journal", "ship", *map(str, words)]


def ship(storage: ObjectStorage, *words: str | Path) -> "subprocess.CompletedProcess[str]":
    run = subprocess.run(
        ship_command(*words), env=environment() | storage.environment, cwd=ROOT, capture_output=True, text=True
    )
    assert SECRET not in run.stdout + run.stderr
    return run


def results(run: "subprocess.CompletedProcess[str]") -> Counter[str]:
    return Counter(row["result"] for row in json.loads(run.stdout))


def chapter() -> list[str]:
    """The blocks of commands in the page's chapter about object storage."""
    text = (ROOT / "docs" / "spark.md").read_text()
    found = text.partition("\n## Object storage and HDFS\n")[2].partition("\n## ")[0]
    return re.findall(r"```sh\n(.*?)```", found, re.DOTALL)


def submitted(cluster: Cluster, storage: ObjectStorage, commands: str, folder: Path) -> str:
    """What a shell says to commands of the page on this cluster, of which the workers do not know our environment."""
    for name, value in {
        "spark://master:7077": cluster.url,
        "https://s3.example.com": storage.endpoint,
        "eu-west-1": REGION,
        "/etc/kestrel/credentials": str(credentials_file(folder)),
        "//lake/kestrel": f"//{BUCKET}/all",
    }.items():
        commands = commands.replace(name, value)
    run = subprocess.run(
        ["sh", "-euc", commands], cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S,
        env=cluster.environment() | {"VENV": sys.prefix, "AWS_EC2_METADATA_DISABLED": "true"},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    logs = "".join(path.read_text(errors="replace") for path in cluster.folder.rglob("*") if path.is_file())
    assert SECRET not in run.stdout + run.stderr + logs
    return run.stdout + run.stderr


def test_an_archive_is_shipped_deleted_here_and_read_verified_and_replayed_from_there(
    spark: Any, storage: ObjectStorage, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "archive"
    content = write_archive(archive, 5)
    (archive / "elsewhere").mkdir()
    plain = spark.read.format("kestrel").option("includeValue", "true").load(str(archive)).collect()

    run = ship(storage, archive, f"s3a://{BUCKET}/all/", "--delete", "-o", "json")
    assert (run.returncode, results(run)) == (0, {"shipped": 10}), run.stderr
    assert storage.objects("all/") == {f"all/{path}": data for path, data in content.items()}
    assert not list(archive.rglob("*.seg"))

    options = {
        "endpoint": storage.endpoint, "region": REGION, "credentialsFile": str(credentials_file(tmp_path)),
        "includeValue": "true",
    }  # fmt: skip
    reader = spark.read.format("kestrel").options(**options)
    frame = reader.load(f"s3a://{BUCKET}/all/server=*")
    assert Counter(frame.collect()) == Counter(plain)
    assert {row.server for row in reader.load(f"s3://{BUCKET}/all/server=a").collect()} == {"a"}
    capfd.readouterr()
    frame.explain(True)
    said = capfd.readouterr()
    query = frame._jdf.queryExecution()
    assert SECRET not in said.out + said.err + query.toString() + query.logical().toJSON() + repr(frame)

    with running_cluster(tmp_path / "cluster") as cluster, running_daemon(tmp_path / "server") as daemon:
        verify, replay = chapter()[1:]
        assert "10 files, " in (said_there := submitted(cluster, storage, verify, tmp_path))
        assert "no problems" in said_there
        submitted(cluster, storage, replay.replace("test:22133", daemon.address), tmp_path)
        with QueueClient(daemon.port) as client:
            assert len(client.drain("wo:rk")) == 2 * 5 * EACH
        assert len(list(cluster.folder.rglob("app-*/*/stderr"))) >= 2


JOBS: Final = """
import sys
from kestrelspark.__main__ import main
paths, folder = sys.argv[1:]
sys.exit(
    main(["report", paths, "--to", folder + "/report"])
    or main(["convert", paths, "--to", folder + "/rows", "--values"])
)
"""


def test_report_and_convert_find_there_what_is_here(spark: Any, storage: ObjectStorage, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    write_archive(archive, 3)
    assert ship(storage, archive, f"s3://{BUCKET}/jobs").returncode == 0
    run = subprocess.run(
        [sys.executable, "-c", JOBS, f"s3a://{BUCKET}/jobs/server=*", str(tmp_path)],
        env=environment() | storage.environment, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    queues = spark.read.parquet(f"{tmp_path}/report/queues").select("server", "queue", "reader", "puts", "got")
    expected = [(server, "wo:rk", *of) for server in "ab" for of in (("", 60, 3), ("audit", 60, 0))]
    assert sorted(map(tuple, queues.collect())) == expected
    rows = spark.read.parquet(f"{tmp_path}/rows").collect()
    here = spark.read.format("kestrel").option("includeValue", "true").load(f"{archive}/server=*").collect()
    assert (len(rows), Counter(rows)) == (2 * 3 * (EACH + 1), Counter(here))


def test_a_run_that_is_killed_is_resumed_by_the_next_one(storage: ObjectStorage, tmp_path: Path) -> None:
    content = write_archive(tmp_path, 50, b"x" * 4000)
    process = subprocess.Popen(
        ship_command(tmp_path, f"s3://{BUCKET}/killed", "--delete"), env=environment() | storage.environment, cwd=ROOT
    )
    end = time.monotonic() + PATIENCE_S
    while storage.count("killed/") < 10:
        assert process.poll() is None
        assert time.monotonic() < end
    process.kill()
    process.wait()
    there = storage.objects("killed/")
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.seg")}
    assert 10 <= len(there) < len(content)
    assert {f"killed/{path}" for path in content.keys() - left} <= there.keys()
    run = ship(storage, tmp_path, f"s3://{BUCKET}/killed", "--delete", "-o", "json")
    assert run.returncode == 0, run.stderr
    assert results(run).total() == len(left)
    assert results(run)["shipped"] == len(content) - len(there)
    assert storage.objects("killed/") == {f"killed/{path}": data for path, data in content.items()}
    assert not list(tmp_path.rglob("*.seg"))


def test_damage_on_the_way_and_an_object_with_other_contents_are_named_and_nothing_is_deleted(
    storage: ObjectStorage, tmp_path: Path
) -> None:
    content = write_archive(tmp_path, 3)
    names = sorted(path.name for path in tmp_path.glob("server=a/**/*.seg"))
    taken = f"other/server=a/{FOLDER}/{names[0]}"
    storage.client().put_object(Bucket=BUCKET, Key=taken, Body=b"something else")
    broken = tmp_path / "server=b" / FOLDER / names[2]
    broken.write_bytes(broken.read_bytes()[:-1])
    storage.damages = f"server=a/{FOLDER}/{names[1]}"
    try:
        run = ship(storage, tmp_path, f"s3://{BUCKET}/other", "--delete", "--quiet", "-o", "json")
    finally:
        storage.damages = ""
    found = {row["object"]: (row["result"], row["problem"]) for row in json.loads(run.stdout)}
    assert run.returncode == 65
    assert {key: result for key, (result, _) in found.items()} == {
        f"s3://{BUCKET}/{taken}": "differs",
        f"s3://{BUCKET}/other/server=a/{FOLDER}/{names[1]}": "differs",
        f"s3://{BUCKET}/other/server=b/{FOLDER}/{names[2]}": "damaged",
    }
    assert "damaged in transit" in found[f"s3://{BUCKET}/other/server=a/{FOLDER}/{names[1]}"][1]
    assert storage.objects(taken)[taken] == b"something else"
    kept = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.seg")}
    assert kept == {one.partition("/other/")[2] for one in found}
    assert content.keys() - kept == {one.partition("/")[2] for one in storage.objects("other/server=")} - kept


def test_of_a_spool_the_closed_segments_are_shipped_and_none_is_deleted(storage: ObjectStorage, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    for number in (1, 2, 3):
        write_segment(spool / "work.journal", number, number * EACH, puts(number * EACH, EACH))
    run = ship(storage, spool, f"s3://{BUCKET}/spool", "--delete")
    assert (run.returncode, storage.count("spool/")) == (2, 0)
    assert "leave out --delete" in run.stderr
    for result in ("shipped", "present"):
        run = ship(storage, spool, f"s3://{BUCKET}/spool", "-o", "json")
        assert (run.returncode, results(run)) == (0, {result: 2})
    assert all(key.startswith(f"spool/work/{JOURNAL_ID}/") for key in storage.objects("spool/"))
    shutil.rmtree(spool)
    assert ship(storage, spool, f"s3://{BUCKET}/spool").returncode == 66


def test_errors_say_what_a_url_is_and_never_what_is_secret(storage: ObjectStorage, tmp_path: Path) -> None:
    files = Storage(storage.endpoint, REGION, str(credentials_file(tmp_path))).files
    for url, words in {
        "s3a://lake/nothing": "no such file or folder",
        "gopher://lake/x": "gopher",
        f"s3://{os.path.basename(tmp_path)}:{SECRET}@lake/x": "must not have credentials in it",
        f"s3a://key:a/{SECRET}@lake/x": "must not have credentials in it",
        "hdfs://name-node/x": "libhdfs",
    }.items():
        with pytest.raises((BadOption, OSError), match=words) as raised:
            discover([url], files=files)
        assert SECRET not in str(raised.value)
    unreadable = tmp_path / "unreadable"
    unreadable.write_text(f"aws_secret_access_key = {SECRET}\n")
    with pytest.raises(BadOption) as bad:
        discover(["s3://lake/x"], files=Storage(storage.endpoint, REGION, str(unreadable)).files)
    assert SECRET not in str(bad.value)
    for key in (SECRET, f"a/{SECRET}"):
        refused = ship(storage, tmp_path, f"s3://key:{key}@lake/x")
        assert (refused.returncode, "must not have credentials" in refused.stderr) == (2, True)
    assert ship(storage, tmp_path, "gs://lake/x").returncode == 2
    write_archive(tmp_path, 1)
    assert ship(storage, tmp_path, "s3://no-such-bucket/x").returncode == 66
