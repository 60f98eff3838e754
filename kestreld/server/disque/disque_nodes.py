"""The nodes.conf of an original Disque, by which a new server takes over that node's id and known nodes."""

from collections.abc import Callable
from typing import Final

from kestreld.cluster.nodes import Flag, Node, checked_address, is_node_id
from kestreld.files import FileLayer, must_be_the_systems
from kestreld.server.disque import node_id
from kestreld.server.disque.nodes_file import FILE_BYTES_MAX, FILE_NAME, written
from kestreld.server.disque.saved_settings import replace_file

NODES_NAME: Final = "nodes.conf"
BUS_PORT_OFFSET: Final = 10_000
_LEFT_OUT: Final = frozenset({b"handshake", b"noaddr"})


def nodes_of(content: bytes) -> list[Node]:
    """Return the nodes of a nodes.conf, its own first; none if it does not name its own."""
    nodes = []
    for line in content.splitlines():
        fields = line.split(b" ")
        if len(fields) < 3 or not is_node_id(fields[0]):
            continue
        host, _, port = fields[1].rpartition(b":")
        words = fields[2].split(b",")
        if not port.isdigit() or _LEFT_OUT.intersection(words):
            continue
        number = int(port[:6])
        address = checked_address(host, number, number + BUS_PORT_OFFSET)
        if address is not None:
            nodes.append(Node(fields[0], address, Flag.MYSELF if b"myself" in words else Flag(0), 0))
    nodes.sort(key=lambda node: not node.flags & Flag.MYSELF)
    return nodes if nodes and nodes[0].flags & Flag.MYSELF else []


def take_over_nodes(files: FileLayer, spool: str, path: str, report: Callable[[str], None]) -> None:
    """Take id and known nodes from nodes.conf at the first start in a spool; an existing id is kept."""
    own, others = f"{spool}/{node_id.FILE_NAME}", f"{spool}/{FILE_NAME}"
    try:
        if files.exists(own) or files.exists(others) or not files.is_file(path):
            return
        nodes = nodes_of(files.read_file(path)) if files.size_bytes(path) <= FILE_BYTES_MAX else []
        if not nodes:
            report(f"{path}: no node is marked `myself`; ignored")
            return
        replace_file(files, others, written(nodes))
        replace_file(files, own, nodes[0].id + b"\n")
    except OSError as error:
        must_be_the_systems(error)
        report(f"{path}: cannot be imported: {error.strerror}")
        return
    report(f"{path}: this node is the Disque {nodes[0].id.decode()}; other nodes that it knows: {len(nodes) - 1}")
