"""What docs/cluster.md shows is run, and what it names is there."""

import re
from pathlib import Path

from kestreld.cluster import frames
from kestreld.cluster.frames import HEAD_BYTES
from kestreld.server.bus.bus import HANDSHAKE_MS, HANDSHAKES_MAX
from kestreld.server.bus.link import PART_BYTES, QUEUED_BYTES_MAX
from kestreld.server.disque.cluster_commands import _OF_CLUSTER
from tests.support.cluster_nodes import ClusterNode
from tests.support.daemon import ROOT
from tests.support.ports import free_port
from tests.support.waiting import until

PAGE = (ROOT / "docs" / "cluster.md").read_text()


def test_the_commands_of_the_page_make_a_cluster_of_three(tmp_path: Path) -> None:
    block = next(block for block in re.findall(r"^```\n(.*?)^```$", PAGE, re.M | re.S) if "CLUSTER MEET" in block)
    for place, port in enumerate(sorted(set(re.findall(r"\b77\d\d\b", block)))):
        block = block.replace(port, str(free_port()))
        block = block.replace(f"/tmp/n{place + 1}", str(tmp_path / f"node{place}" / "spool"))
    nodes: dict[str, ClusterNode] = {}
    try:
        for line in block.splitlines():
            words = line.split()
            if words[0] == "kestreld":
                settings = dict(word.split("=", 1) for word in words[1:] if word != "--set")
                assert set(settings) == {"listen.disque", "queue_path", "listen.memcache", "listen.admin"}
                port = settings["listen.disque"].rpartition(":")[2]
                node = nodes[port] = ClusterNode(Path(settings["queue_path"]).parent, f"listen.disque=127.0.0.1:{port}")
                node.start()
            else:
                assert words[:2] == ["redis-cli", "-p"]
                if words[3:] == ["CLUSTER", "NODES"]:
                    asked = nodes[words[2]]
                    until(lambda: asked.sees([node for node in nodes.values() if node is not asked]), "a cluster")  # noqa: B023
                else:
                    assert nodes[words[2]](*words[3:]) == b"OK"
        assert len(nodes) == 3
        shown = re.findall(r"^    [0-9a-f]{40} (.*)$", PAGE, re.M)
        form = re.compile(r"127\.0\.0\.1:\d+ (noflags|myself) \d+ \d+ connected")
        lines = [line.partition(" ")[2] for line in asked("CLUSTER", "NODES").decode().splitlines()]
        assert all(form.fullmatch(line) for line in [*shown, *lines])
        assert len(shown) == len(lines) == 3
    finally:
        for node in nodes.values():
            node.end()


def test_the_page_names_every_subcommand_and_the_numbers_are_true() -> None:
    assert [word for word in _OF_CLUSTER if f"CLUSTER {word.decode().upper()}" not in PAGE] == []
    kinds = dict(re.findall(r"(\d) (HELLO|READY|REFUSED|MESSAGES)\b", PAGE))
    assert {name: int(number) for number, name in kinds.items()} == {
        name: getattr(frames, name) for name in ("HELLO", "READY", "REFUSED", "MESSAGES")
    }
    sizes = [int(size) for size in re.findall(r"^\| (\d+) \|", PAGE.partition("of a frame")[2], re.M)]
    assert sum(sizes) == HEAD_BYTES
    assert "at most 1 MiB, before the handshake is over 1 KiB" in PAGE
    assert (frames.FRAME_BYTES_MAX, frames.HELLO_BYTES_MAX) == (1 << 20, 1 << 10)
    assert "more than 64 MiB" in PAGE
    assert QUEUED_BYTES_MAX == 64 << 20
    security = (ROOT / "docs" / "security.md").read_text()
    assert f"{HANDSHAKES_MAX} connections that have not proved who they are, for {HANDSHAKE_MS // 1000} s" in security
    assert f"parts** of {PART_BYTES >> 10} KiB" in (ROOT / "docs" / "design.md").read_text()
