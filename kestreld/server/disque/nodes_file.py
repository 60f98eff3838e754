"""File of the spool with the nodes that a node knows, by which it rejoins its cluster after a restart.

    <id> <host> <port> <bus port> <flags>          a line for each node, the one with `myself` first; no host: -
    checksum <16 hexadecimal digits>               of all that precedes it

The file is replaced as a whole, so that a crash leaves the old one or the new one.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from xxhash import xxh3_64_hexdigest

from kestreld.cluster.nodes import Flag, Node, NodeTable, checked_address, is_node_id
from kestreld.files import FileLayer, must_be_the_systems
from kestreld.server.disque.persistence import Done
from kestreld.server.disque.saved_settings import replace_file

FILE_NAME: Final = ".jobs.nodes"
FILE_BYTES_MAX: Final = 1 << 20
_FLAGS: Final = {b"myself": Flag.MYSELF, b"fail": Flag.FAILED, b"noaddr": Flag.NO_ADDRESS, b"leaving": Flag.LEAVING}
_CHECKSUM: Final = b"checksum "


def written(nodes: Iterable[Node]) -> bytes:
    """Return the content of a file with these nodes."""
    lines = []
    for node in nodes:
        address = node.address
        words = b",".join([word for word, flag in _FLAGS.items() if node.flags & flag]) or b"-"
        fields = (node.id, address.host.encode() or b"-", address.port, address.bus_port, words)
        lines.append(b"%b %b %d %d %b\n" % fields)
    content = b"".join(lines)
    return content + _CHECKSUM + xxh3_64_hexdigest(content).encode() + b"\n"


def parsed(content: bytes) -> tuple[list[Node], bool]:
    """Return the nodes in a file, as far as they can be read, and True if it is undamaged."""
    body, is_whole, checksum = content.rpartition(_CHECKSUM)
    is_sound = bool(is_whole) and checksum == xxh3_64_hexdigest(body).encode() + b"\n"
    nodes = []
    for line in (body if is_whole else content).splitlines():
        node = _node(line)
        if node is None:
            is_sound = False
        else:
            nodes.append(node)
    return nodes, is_sound


def _node(line: bytes) -> Node | None:
    fields = line.split(b" ")
    if len(fields) != 5 or not (is_node_id(fields[0]) and fields[2].isdigit() and fields[3].isdigit()):
        return None
    words = [] if fields[4] == b"-" else fields[4].split(b",")
    address = checked_address(b"" if fields[1] == b"-" else fields[1], int(fields[2][:6]), int(fields[3][:6]))
    if address is None:
        return None
    flags = Flag(0)
    for word in words:
        flags |= _FLAGS.get(word, Flag(0))
    return Node(fields[0], address, flags, 0)


class NodesFile:
    """Keeps the nodes of `table` on disk, soon after each change, or once the disk accepts it."""

    def __init__(self, files: FileLayer, spool: str, table: NodeTable, report: Callable[[str], None]) -> None:
        self.path = f"{spool}/{FILE_NAME}"
        self._files = files
        self._table = table
        self._report = report
        self._on_disk = b""  # b"" = unknown
        self._is_busy = self._is_refused = False
        self._waiting: list[Done] = []  # called after the next write

    def read(self) -> list[Node]:
        """Return the known nodes, this one with its flags included; none without a file of this node."""
        try:
            if not self._files.exists(self.path):
                return []
            if self._files.size_bytes(self.path) > FILE_BYTES_MAX:
                self._report(f"{self.path}: larger than {FILE_BYTES_MAX} bytes; the node knows no other node")
                return []
            content = self._files.read_file(self.path)
        except OSError as error:
            must_be_the_systems(error)
            self._report(f"{self.path}: cannot be read: {error.strerror}; the node knows no other node")
            return []
        nodes, is_sound = parsed(content)
        if not is_sound:
            advice = "the readable entries are used; add missing nodes with CLUSTER MEET"
            self._report(f"{self.path}: damaged: {advice}")
        if any(node.id != self._table.myself.id for node in nodes if node.flags & Flag.MYSELF):
            # A reset that was interrupted, or the file of another node.
            self._report(f"{self.path}: written by a node with another id; ignored")
            return []
        if is_sound:
            self._on_disk = content
        return nodes

    # Writing

    def changed(self) -> None:
        """Write the file, because the table has changed."""
        if not self._is_busy:
            self._write(self._content())

    def save(self, done: Done) -> None:
        """Call `done` once the current table is on disk, or with the error."""
        self._waiting.append(done)
        self.changed()

    def save_alone(self, done: Done) -> None:
        """Write a file with no other node; then call `done` as `save` does. The table is to follow."""
        alone = written([self._table.myself])
        if self._is_busy:
            self._waiting.append(lambda problem: self.save_alone(done))
        elif alone == self._on_disk:
            done("")
        else:
            self._waiting.append(done)
            self._write(alone)

    def look_after(self) -> None:
        """Retry a write that has failed; called once a second."""
        if self._is_refused:
            self.changed()

    def _content(self) -> bytes:
        myself = self._table.myself
        return written([myself, *[node for node in self._table.members() if node is not myself]])

    def _write(self, content: bytes) -> None:
        waiting, self._waiting = self._waiting, []
        if content == self._on_disk:
            _tell(waiting, "")
            return
        self._is_busy, self._on_disk = True, b""

        def finished(error: OSError | None) -> None:
            problem = ""
            self._is_busy = False
            if error is None:
                self._on_disk = content
            else:
                must_be_the_systems(error)
                problem = error.strerror or str(error)
                if not self._is_refused:
                    self._report(f"{self.path}: {problem}; will be retried")
            self._is_refused = bool(problem)
            _tell(waiting, problem)
            if self._waiting or (not problem and self._content() != content):
                self.changed()

        self._files.in_background(partial(replace_file, self._files, self.path, content), finished)


def _tell(waiting: list[Done], problem: str) -> None:
    for done in waiting:
        done(problem)
