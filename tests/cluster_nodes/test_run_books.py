"""The run-books of docs/operations.md, command by command, on real nodes with jobs: nothing is lost on the way."""

import re
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from kestreld.figures import OF_JOB_QUEUES, OF_JOBS, OF_NODES
from tests.support.cluster_nodes import ClusterNode
from tests.support.daemon import ROOT
from tests.support.shell import Kestrelctl
from tests.support.waiting import until

PAGE: Final = (
    (ROOT / "docs" / "operations.md").read_text().partition("\n## A cluster of jobs\n")[2].partition("\n## ")[0]
)
BOOKS: Final = dict(re.findall(r"^### ([^\n]*)\n(.*?)(?=^### |\Z)", PAGE, re.M | re.S))
LOG: Final = "jobs.journal=true"
JOBS: Final = 30


class Site:
    """Machines by the names that the run-books give them, each with a node; the first three are a cluster."""

    def __init__(self, folder: Path) -> None:
        self.nodes = {f"q{number}": ClusterNode(folder / f"q{number}", LOG) for number in range(1, 5)}
        for node in self.nodes.values():
            node.start()
        self.ctl = Kestrelctl("127.0.0.1:1", folder, jobs=self.nodes["q1"].disque)
        self.added: list[bytes] = []
        assert self.ctl("cluster", "meet", self.nodes["q2"].disque, self.nodes["q3"].disque).code == 0
        self.nodes["q4"].stop()

    def add(self, name: str, *options: str) -> None:
        self.added += [self.nodes[name]("ADDJOB", "mail", f"{name} {n}", 0, *options) for n in range(JOBS)]

    def follow(self, book: str) -> None:
        """Do what it says."""
        lines = re.findall(r"^    (.*)$", BOOKS[book], re.M)
        assert lines, book
        if loop := re.fullmatch(r"for node in (.*); do", lines[0]):
            assert lines[-1] == "done"
            lines = [line.strip().replace("$node", name) for name in loop[1].split() for line in lines[1:-1]]
        for line in lines:
            self.run(line)

    def run(self, line: str) -> None:
        command, _, comment = line.partition("#")
        if command.startswith("until "):
            words = shlex.split(command.removeprefix("until ").partition(";")[0])
            until(lambda: self.kestrelctl(words) == 0, line)
            return
        words = shlex.split(command)
        if words[0] == "systemctl":
            found = re.search(r"on (q\d)", comment)
            assert found, line
            node = self.nodes[found[1]]
            assert words[-1] == "kestreld"
            if words[1] == "stop":
                node.stop()
            else:
                node.start()
        elif words[0] == "sleep":
            time.sleep(float(words[1]))
        elif words[0] == "redis-cli":
            assert words[1] == "-h"
            assert self.nodes[words[2]](*words[3:]) == b"OK"
        else:
            assert self.kestrelctl(words) == 0, line
            if words[:3] == ["kestrelctl", "jobs", "restart"]:
                self.nodes[words[-1].partition(":")[0]].wait()

    def kestrelctl(self, words: list[str]) -> int:
        assert words[0] == "kestrelctl"
        assert "cluster" in words or "jobs" in words
        places = {f"{name}:7711": node.disque for name, node in self.nodes.items()}
        return self.ctl(*[places.get(word, word) for word in words[1:]]).code

    def take_all(self, name: str) -> Counter[bytes]:
        """All jobs, fetched and acknowledged at one node; how often each has come."""
        found = Counter[bytes]()
        while set(self.added) - set(found):
            for _, job_id, _ in self.nodes[name]("GETJOB", "TIMEOUT", 20_000, "COUNT", 100, "FROM", "mail"):
                found[job_id] += 1
                self.nodes[name]("ACKJOB", job_id)
        return found


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    try:
        yield site
    finally:
        for node in site.nodes.values():
            node.end()


@pytest.mark.long
def test_a_node_is_added_and_removed(site: Site) -> None:
    site.add("q1")
    site.follow("Add a node")
    site.add("q4")
    site.add("q4", "REPLICATE", "1", "RETRY", "0")
    site.follow("Remove a node")
    assert site.take_all("q2") == Counter(site.added)


def test_a_node_is_lost(site: Site) -> None:
    site.follow("Add a node")
    site.add("q4", "RETRY", "1")
    site.nodes["q4"].kill()
    until(lambda: "fail" in site.nodes["q1"].flags_of(site.nodes["q4"]), "a flag")
    until(lambda: site.kestrelctl(["kestrelctl", "cluster", "status"]) == 1, "a node that is down")
    site.follow("Remove a node that is lost")
    assert set(site.take_all("q2")) == set(site.added)
    shutil.rmtree(site.nodes["q4"].spool)
    site.follow("Add a node")


def test_all_nodes_are_upgraded_one_by_one(site: Site) -> None:
    for name in ("q1", "q2", "q3"):
        site.add(name)
    site.follow("Upgrade node by node")
    assert site.take_all("q2") == Counter(site.added)


@pytest.mark.long
def test_the_copy_of_a_spool_becomes_a_node_of_its_own(site: Site) -> None:
    site.add("q3")
    copy = site.nodes["q4"]
    assert site.nodes["q3"]("CLUSTER", "SAVECONFIG") == b"OK"
    shutil.rmtree(copy.spool)
    shutil.copytree(site.nodes["q3"].spool, copy.spool)
    copy.start()
    until(lambda: site.kestrelctl(["kestrelctl", "cluster", "status"]) == 2, "a copied spool")
    site.follow("A copied spool")
    assert len(site.nodes["q1"].nodes()) == 4
    assert site.take_all("q2") == Counter(site.added)


def test_what_is_to_be_watched_is_there() -> None:
    known = {one.metric for one in (*OF_JOBS, *OF_JOB_QUEUES, *OF_NODES)}
    metrics = set(re.findall(r"`(?:rate\()?kestrel_jobs_(\w+)", BOOKS["What to watch"]))
    assert len(metrics) > 8
    assert [name for name in sorted(metrics) if name.removeprefix("node_") not in known] == []
