"""Every verb that prints rows prints them in every format, with the fields and in the order that are asked for."""

import csv
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from kestrelctl.shell.output import OutputFormat
from kestreld.client import KestrelCluster
from tests.kestrelctl.test_every_command import COMMANDS
from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient
from tests.support.resp import resp_client
from tests.support.shell import Kestrelctl

# S is the spool, F a folder that is new each time, K a journal file of Kestrel's, O the spool of a stopped server, J a
# job's id.
LINES: Final = {
    "stats": "stats",
    "stats-server-wide": "stats --server-wide",
    "ls": "ls",
    "items": "items a",
    "history": "history a --spool S --step 1h",
    "doctor": "doctor",
    "consumers": "consumers a",
    "leases": "leases --by worker-7",
    "bindings": "bindings",
    "readers-ls": "readers ls a",
    "repair": "repair a",
    "dead": "dead dead",
    "redrive": "redrive b --to c --dry-run",
    "cache-stats": "cache stats",
    "cluster-nodes": "cluster nodes",
    "jobs-get": "jobs get many",
    "jobs-peek": "jobs peek j",
    "jobs-dead": "jobs dead poison.dead",
    "jobs-scan": "jobs scan --in j",
    "jobs-ls": "jobs ls",
    "jobs-stat": "jobs stat j",
    "jobs-count": "jobs count j",
    "jobs-show": "jobs show J",
    "context-ls": "context ls",
    "context-show": "context show",
    "dump-stats": "dump-stats",
    "dump-config": "dump-config",
    "journal-verify": "journal-verify S",
    "journal-dump": "journal dump a --spool S",
    "journal-diff": "journal diff S O",
    "journal-explain-space": "journal explain-space a --spool S",
    "journal-replay": "journal replay a --spool S --to T --queue c --speed max",
    "journal-import": "journal import K --queue c",
    "journal-export": "journal export O --to F",
    "retention-simulate": "retention simulate a --spool S --max-age 1h",
}
RECORDS: Final = (
    *("cache-stats", "stats-server-wide", "context-show", "retention-simulate"),
    *("jobs-stat", "jobs-count", "jobs-show"),
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, dict[str, str]]]:
    folder = tmp_path_factory.mktemp("world")
    with running_daemon(folder / "stopped") as stopped, QueueClient(stopped.port) as client:
        client.put("a", b"only there")
        client.put("x", b"only there")
    (folder / "k").write_bytes(struct.pack("<BIQQ", 2, 17, 1_700_000_000_000, 0) + b"x")
    settings = ("listen.cache=127.0.0.1:0", "listen.disque=127.0.0.1:0")
    settings += ("queues.frail.max_retries=1", "queues.frail.move_failed_to=dead")
    with running_daemon(folder / "daemon", *settings, admin="127.0.0.1:0") as daemon:
        with QueueClient(daemon.port) as client:
            client.put("a", b"one", b'a\ttab, a "quote"\nand a line', "ünd \U0001f40d".encode(), b"\xff")
            client.put("b+child", b"two")
            client.put("b", b"two")
            for data in (b"poison", b"a\ttab"):
                client.put("frail", data)
                for _ in range(2):
                    client.get("frail/open")
                    client.get("frail/abort")
        with KestrelCluster([daemon.address]) as cluster:
            cluster.queue("held").put(b"held")
            cluster.queue("held").lease(3600, by="worker-7")
        with resp_client(daemon.disque) as jobs:
            job_id, *_ = [jobs.job("j", body).decode() for body in (b"one", b"a\ttab\n", b"\xff")]
            for _ in range(20):
                jobs.job("many")
            jobs("DEADJOB", *[jobs.job("poison", body) for body in (b"one", b"a\ttab\n")])
        words = {"S": str(daemon.spool), "O": str(stopped.spool), "K": str(folder / "k"), "T": daemon.address}
        yield daemon, {**words, "J": job_id}


@pytest.fixture
def kestrelctl(world: tuple[Daemon, dict[str, str]], tmp_path: Path) -> Kestrelctl:
    ctl = Kestrelctl(world[0].address, tmp_path, world[0].cache, world[0].disque)
    ctl.environment["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    ctl("context", "add", "here", world[0].address)
    ctl("context", "add", "there", "h:1", "h:2")
    ctl("bind", "events", "a", "order.\t#", "topic")
    return ctl


def line_of(verb: str, world: tuple[Daemon, dict[str, str]], tmp_path: Path) -> list[str]:
    return [world[1].get(word, str(tmp_path) if word == "F" else word) for word in LINES[verb].split()]


def rows_of(form: OutputFormat, out: str) -> list[Any]:
    """Objects, or the cells of the lines below the headings."""
    match form:
        case OutputFormat.JSON:
            loaded = json.loads(out)
        case OutputFormat.YAML:
            loaded = yaml.safe_load(out)
        case OutputFormat.NDJSON:
            loaded = [json.loads(line) for line in out.splitlines()]
        case OutputFormat.CSV:
            loaded = list(csv.reader(io.StringIO(out)))[1:]
        case OutputFormat.TSV:
            loaded = [line.split("\t") for line in out.splitlines()[1:]]
        case OutputFormat.NAME:
            loaded = out.splitlines()
        case OutputFormat.TABLE:
            loaded = [line.split() for line in out[out.index(out.split()[0]) :].splitlines()[1:]]
    return loaded if isinstance(loaded, list) else [loaded]


def test_all_of_them_are_here() -> None:
    # `journal ship` prints what object storage answers: tests/kestrelspark/test_object_storage.py.
    printing = {command.words for command in COMMANDS if any("--fields" in option.names for option in command.options)}
    printing -= {"journal ship"}
    assert printing == {line for verb in LINES for line in (verb, verb.replace("-", " ", 1)) if line in printing}


@pytest.mark.exhaustive("stats", "items", "journal-dump")
@pytest.mark.parametrize("verb", LINES)
def test_a_verb_prints_the_same_rows_in_every_format(
    kestrelctl: Kestrelctl, world: tuple[Daemon, dict[str, str]], tmp_path: Path, verb: str
) -> None:
    counts = {}
    for form in OutputFormat:
        line = line_of(verb, world, tmp_path / form)
        run = kestrelctl(*line, "-o", form)
        assert run.code in ((0, 1, 88) if verb == "doctor" else (1,) if verb == "journal-diff" else (0,)), run.err
        rows = rows_of(form, run.out.decode())
        if verb in RECORDS and form in ("json", "yaml", "ndjson"):
            rows = list(rows[0])
        if verb == "stats":  # queues of jobs have columns of their own, which a table of queues has not
            rows = [row for row in rows if "job_queue" not in row]
        if verb != "history" or form != "table":  # above its table is a curve
            counts[form] = len(rows)
        assert rows, form
    assert len(set(counts.values())) == 1, counts


@pytest.mark.exhaustive("stats", "items", "journal-dump")
@pytest.mark.parametrize("verb", LINES)
def test_fields_choose_and_sort_orders(
    kestrelctl: Kestrelctl, world: tuple[Daemon, dict[str, str]], tmp_path: Path, verb: str
) -> None:
    plain = kestrelctl(*line_of(verb, world, tmp_path / "1"), "-o", "csv").out.decode()
    first, second = next(csv.reader(io.StringIO(plain)))[:2]
    line = line_of(verb, world, tmp_path / "2")
    if verb in RECORDS:
        names = [row[0] for row in rows_of(OutputFormat.CSV, plain)]
        chosen = json.loads(kestrelctl(*line, "-o", "json", "--fields", f"{names[1]},{names[0]}").out)
        assert list(chosen) == [names[1], names[0]]
        by_name = kestrelctl(*line_of(verb, world, tmp_path / "3"), "-o", "csv", "--sort", "-name").out.decode()
        assert [row[0] for row in rows_of(OutputFormat.CSV, by_name)] == sorted(names, reverse=True)
        return
    options = ["-o", "csv", "--fields", f"{second},{first}", "--sort", f"-{first}"]
    header, *rows = list(csv.reader(io.StringIO(kestrelctl(*line, *options).out.decode())))
    assert header == [second, first]
    cells = [row[1] for row in rows]
    assert cells == sorted(cells, key=lambda cell: (0, int(cell), "") if cell.isdigit() else (1, 0, cell), reverse=True)
    assert cells
    wrong = kestrelctl(*line_of(verb, world, tmp_path / "4"), "--fields", "nonsense")
    assert wrong.code == 2
    assert wrong.err.startswith("kestrelctl: no field 'nonsense'; fields are ")


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("flush-expired a", ["items", "queue"]),
        ("flush-all-expired", ["items"]),
        ("version", ["version", "server"]),
        ("cache incr n --by 0", ["value", "key"]),
        ("jobs working J", ["seconds", "id"]),
        ("jobs pause j state", ["state", "queue"]),
        ("jobs redrive j", ["jobs", "queue"]),
        ("jobs qdel nothing", ["jobs", "queue"]),
        ("jobs import F", ["jobs", "file"]),
        ("cluster leaving", ["state", "node"]),
    ],
)
def test_a_verb_that_prints_one_value_prints_it_in_every_format(
    kestrelctl: Kestrelctl, world: tuple[Daemon, dict[str, str]], tmp_path: Path, line: str, names: list[str]
) -> None:
    (tmp_path / "disque.aof").write_bytes(b"")
    words = {**world[1], "F": str(tmp_path / "disque.aof")}
    full = [words.get(word, word) for word in line.split()]
    kestrelctl("cache", "set", "n", "5")
    plain = kestrelctl(*full)
    assert plain.out.count(b"\n") == 1
    assert kestrelctl(*full, "-o", "name") == plain
    for form in OutputFormat:
        run = kestrelctl(*full, "-o", form)
        assert run.code == plain.code
        if form in ("json", "yaml", "ndjson"):
            (row,) = rows_of(form, run.out.decode())
            assert list(row) == names
            assert str(row[names[0]]) == plain.out.decode().strip()


def test_a_terminal_shows_times_and_spans_as_people_write_them(kestrelctl: Kestrelctl) -> None:
    terminal, inside = pty.openpty()
    line = [sys.executable, "-m", "kestrelctl", "items", "a", "--limit", "1"]
    subprocess.run(line, stdout=inside, env=kestrelctl.environment, check=True)
    os.close(inside)
    header, row = os.read(terminal, 65_536).decode().splitlines()
    os.close(terminal)
    assert header.split() == ["id", "add", "age", "expire", "bytes", "flags", "is_open", "state", "text"]
    assert re.fullmatch(r"1  \d{4}-\d\d-\d\dT[0-9:.]{12}Z  (\d+[a-z]+)+ +3 +0 +one", row.strip())
    header, row = kestrelctl("items", "a", "--limit", "1", "-o", "table").out.decode().splitlines()
    assert header.split() == ["id", "add_ms", "age_ms", "expire_ms", "bytes", "flags", "is_open", "state", "text"]
    assert row.split()[1].isdecimal()


def test_text_of_any_kind_comes_through_yaml_csv_and_json(kestrelctl: Kestrelctl) -> None:
    texts = ["one", 'a\ttab, a "quote"\nand a line', "ünd \U0001f40d"]
    for form in (OutputFormat.JSON, OutputFormat.YAML, OutputFormat.NDJSON):
        rows = rows_of(form, kestrelctl("items", "a", "-o", form).out.decode())
        assert [row.get("data") for row in rows] == [*texts, None]
        assert rows[3]["data_base64"] == "/w=="
    rows = rows_of(OutputFormat.CSV, kestrelctl("items", "a", "-o", "csv", "--fields", "text").out.decode())
    assert rows == [[text] for text in [*texts, "\\xff"]]


def test_numbers_sort_as_numbers_and_what_is_missing_comes_last(kestrelctl: Kestrelctl) -> None:
    run = kestrelctl("stats", "a", "b", "-o", "name", "--sort", "-items")
    assert run.out == b"a\nb\n"
    children = kestrelctl("dump-stats", "--sort", "children", "-o", "name")
    assert children.out.split()[0] == b"b"  # the only queue that has some


def test_patterns_choose_queues_and_names_mean_themselves(kestrelctl: Kestrelctl) -> None:
    kestrelctl("put", "odd[1]", "x")
    assert kestrelctl("stats", "b*", "-o", "name").out == b"b\nb+child\n"
    assert kestrelctl("stats", "odd[1]", "-o", "name").out == b"odd[1]\n"
    some = kestrelctl("stats", "b", "none*", "-o", "name")
    assert (some.code, some.out) == (1, b"b\n")
    assert kestrelctl("ls", "b", "o*").out == b"b\nodd[1]\n"
    assert b"2 queues with 3 items" in kestrelctl("check", "b*").out
    assert kestrelctl("check", "none*").code == 2
