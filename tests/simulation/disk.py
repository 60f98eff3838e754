"""A disk as the power cut finds it: a page cache over what is durable, and what may or may not have got there.

A write lasts once its file was synced, a name once its folder was. Before that a power cut may keep all, none or some
of it: a write in part, a later one without an earlier one. What a failed sync covered may be gone although later
syncs of the file succeed, for the kernel reports it once.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Final, TypeAlias

SECTOR_BYTES: Final = 512
Pieces = list[tuple[int, int]]  # what of a write reaches the disk: stretches of its data


@dataclass(slots=True)
class Change:
    """A write of `data` at `offset`, or with no data a truncation there."""

    offset: int
    data: bytes | None
    settled: bool = False  # on disk
    doomed: bool = False  # a failed sync covered it: no later one makes it settled

    def apply(self, content: bytearray, pieces: Pieces) -> None:
        if self.data is None:
            del content[self.offset :]
            return
        for start, end in pieces:
            at = self.offset + start
            if at > len(content):
                content.extend(bytes(at - len(content)))  # a hole reads as zeros
            content[at : at + end - start] = self.data[start:end]

    @property
    def whole(self) -> Pieces:
        return [(0, len(self.data))] if self.data is not None else []


@dataclass(slots=True, eq=False)
class File:
    data: bytearray = field(default_factory=bytearray)  # as processes see it
    durable: bytearray = field(default_factory=bytearray)
    changes: list[Change] = field(default_factory=list)  # since then, in order

    def write(self, offset: int, data: bytes) -> None:
        change = Change(offset, data)
        change.apply(self.data, change.whole)
        self.changes.append(change)

    def truncate(self, size_bytes: int) -> None:
        if size_bytes < len(self.data):
            change = Change(size_bytes, None)
            change.apply(self.data, [])
            self.changes.append(change)

    def flip(self, bit: int) -> None:
        """A bit goes bad, in the page cache and on disk."""
        at, mask = bit // 8, 1 << bit % 8
        self.data[at] ^= mask
        if at < len(self.durable):
            self.durable[at] ^= mask

    def sync(self) -> None:
        for change in self.changes:
            change.settled = not change.doomed
        while self.changes and self.changes[0].settled:
            change = self.changes.pop(0)
            change.apply(self.durable, change.whole)

    def fail_sync(self) -> None:
        for change in self.changes:
            change.doomed = not change.settled

    def loose(self) -> list[Change]:
        return [change for change in self.changes if not change.settled]


@dataclass(slots=True, eq=False)
class Folder:
    names: dict[str, "Node"] = field(default_factory=dict)  # as processes see it
    durable: dict[str, "Node"] = field(default_factory=dict)


Node: TypeAlias = File | Folder
Place = tuple[Folder, str]


@dataclass(slots=True, eq=False)
class NameChange:
    """Names that go and come in one step: a creation, a removal or a renaming."""

    gone: list[Place]
    come: list[tuple[Folder, str, Node]]

    def folders(self) -> list[Folder]:
        return [*(folder for folder, _ in self.gone), *(folder for folder, _, _ in self.come)]

    def places(self) -> list[Place]:
        return [*self.gone, *((folder, name) for folder, name, _ in self.come)]

    def apply(self, names_of: Callable[[Folder], dict[str, Node]]) -> None:
        for folder, name in self.gone:
            names_of(folder).pop(name, None)
        for folder, name, node in self.come:
            names_of(folder)[name] = node


class Disk:
    """Folders and files. `capacity_bytes` None: it never gets full."""

    def __init__(self) -> None:
        self.root = Folder()
        self.name_changes: list[NameChange] = []  # not on disk yet, in order
        self.capacity_bytes: int | None = None
        self.locked: set[File] = set()  # by the one process there is

    # Names

    def find(self, path: str) -> Node | None:
        node: Node | None = self.root
        for name in filter(None, path.split("/")):
            if not isinstance(node, Folder):
                return None
            node = node.names.get(name)
        return node

    def place(self, path: str) -> Place:
        """The folder a path's last name is in. FileNotFoundError when there is none."""
        above, _, name = path.rpartition("/")
        folder = self.find(above) if above else self.root
        if not isinstance(folder, Folder):
            raise FileNotFoundError(2, "No such file or directory", path)
        return folder, name

    def change_names(self, gone: list[Place], come: list[tuple[Folder, str, Node]]) -> None:
        change = NameChange(gone, come)
        change.apply(lambda folder: folder.names)
        self.name_changes.append(change)

    def sync_folder(self, folder: Folder) -> None:
        """Put what became of its names on disk, and all that has to be there for it."""
        needed = {folder}
        settled = []
        for change in reversed(self.name_changes):
            if not needed.isdisjoint(change.folders()):
                needed.update(change.folders())
                settled.append(change)
        for change in reversed(settled):
            change.apply(lambda one: one.durable)
            self.name_changes.remove(change)

    def sync_all_names(self) -> None:
        for change in self.name_changes:
            change.apply(lambda one: one.durable)
        self.name_changes.clear()

    # Contents

    def walk(self) -> Iterator[tuple[str, File]]:
        """Every file by its path, as processes see them."""
        folders = [("", self.root)]
        while folders:
            path, folder = folders.pop(0)
            for name in sorted(folder.names):
                node = folder.names[name]
                if isinstance(node, Folder):
                    folders.append((f"{path}/{name}", node))
                else:
                    yield f"{path}/{name}", node

    def used_bytes(self) -> int:
        return sum(len(file.data) for file in {id(file): file for _, file in self.walk()}.values())

    def content(self) -> dict[str, bytes]:
        """Every file, and every folder as its path with a slash, as processes see them: to tell disks apart."""
        found = {path: bytes(file.data) for path, file in self.walk()}
        for path in self._folders("", self.root):
            found[path] = b""
        return found

    def _folders(self, path: str, folder: Folder) -> Iterator[str]:
        for name, node in folder.names.items():
            if isinstance(node, Folder):
                yield f"{path}/{name}/"
                yield from self._folders(f"{path}/{name}", node)

    def loose_files(self) -> list[File]:
        """Every file with unsynced changes, under whatever name a power cut now may leave it."""
        nodes: list[Node] = [self.root, *(node for change in self.name_changes for _, _, node in change.come)]
        met: dict[int, Node] = {}
        while nodes:
            node = nodes.pop()
            if id(node) not in met:
                met[id(node)] = node
                if isinstance(node, Folder):
                    nodes += [*node.names.values(), *node.durable.values()]
        return [node for node in met.values() if isinstance(node, File) and node.loose()]

    # The power cut

    def after_power_cut(self, names: Iterable[NameChange], pieces: Callable[[File, Change], Pieces | None]) -> "Disk":
        """The disk that the next start finds, everything on it durable.

        `names` are the changes of names that had got there; `pieces` says what of a change to a file had, None that
        it is as if it had not been tried.
        """
        contents: dict[Folder, dict[str, Node]] = {}

        def names_of(folder: Folder) -> dict[str, Node]:
            return contents.setdefault(folder, dict(folder.durable))

        for change in names:
            change.apply(names_of)
        disk = Disk()
        copies: dict[File, File] = {}

        def copied(file: File) -> File:
            if file not in copies:
                data = bytearray(file.durable)
                for change in file.changes:
                    kept = change.whole if change.settled else pieces(file, change)
                    if kept is not None:
                        change.apply(data, kept)
                copies[file] = File(data, bytearray(data))
            return copies[file]

        def build(old: Folder, new: Folder) -> None:
            for name, node in names_of(old).items():
                made: Node
                if isinstance(node, Folder):
                    made = Folder()
                    build(node, made)
                else:
                    made = copied(node)
                new.names[name] = new.durable[name] = made

        build(self.root, disk.root)
        return disk

    def copy(self) -> "Disk":
        """As it is, page cache and all: what a killed process leaves."""
        memo: dict[Node, Node] = {}

        def copied(node: Node) -> Node:
            if node not in memo:
                if isinstance(node, File):
                    changes = [Change(one.offset, one.data, one.settled, one.doomed) for one in node.changes]
                    memo[node] = File(bytearray(node.data), bytearray(node.durable), changes)
                else:
                    folder = memo[node] = Folder()
                    folder.names = {name: copied(one) for name, one in node.names.items()}
                    folder.durable = {name: copied(one) for name, one in node.durable.items()}
            return memo[node]

        def copied_folder(folder: Folder) -> Folder:
            made = copied(folder)
            assert isinstance(made, Folder)
            return made

        disk = Disk()
        disk.root = copied_folder(self.root)
        for change in self.name_changes:
            gone = [(copied_folder(folder), name) for folder, name in change.gone]
            come = [(copied_folder(folder), name, copied(node)) for folder, name, node in change.come]
            disk.name_changes.append(NameChange(gone, come))
        return disk


def in_order(changes: list[NameChange], survives: Callable[[], bool], *, loosely: bool) -> list[NameChange]:
    """Changes of names that a power cut leaves: in each folder, or `loosely` of each name, none after a lost one."""
    lost: set[object] = set()
    kept = []
    for change in changes:
        keys: list[object] = list(change.places()) if loosely else list(change.folders())
        if lost.isdisjoint(keys) and survives():
            kept.append(change)
        else:
            lost.update(keys)
    return kept


def random_power_cut(disk: Disk, chance: Random) -> Disk:
    """One of the disks that a power cut may leave."""
    names_kept = chance.choice([0.0, 0.5, 0.9, 1.0])
    names = in_order(disk.name_changes, lambda: chance.random() < names_kept, loosely=chance.random() < 0.5)
    writes_kept = chance.choice([0.0, 0.3, 0.7, 1.0])
    torn = chance.random() < 0.7

    def pieces(file: File, change: Change) -> Pieces | None:
        if change.data is not None and torn and chance.random() < 0.6:
            return torn_pieces(change, chance)
        return change.whole if chance.random() < writes_kept else None

    return disk.after_power_cut(names, pieces)


def torn_pieces(change: Change, chance: Random) -> Pieces:
    """A part of a write: up to some byte, or some sectors of it, or nothing but its length."""
    assert change.data is not None
    size = len(change.data)
    kind = chance.random()
    if kind < 0.35:
        return [(0, chance.randint(0, size))]
    if kind < 0.45:
        return [(size, size)]
    made = []
    for start, end in sectors(change):
        if chance.random() < 0.7:
            made.append((start, end))
    return [*made, (size, size)] if chance.random() < 0.5 else made


def sectors(change: Change) -> Pieces:
    """The stretches of a write that reach the disk as one."""
    assert change.data is not None
    cuts = [0, *range(SECTOR_BYTES - change.offset % SECTOR_BYTES, len(change.data), SECTOR_BYTES), len(change.data)]
    return list(pairwise(cuts))
