"""Spools of the original Kestrel, 1.x and 2.x: a queue's files, their items, and the ops of an export.

Reads only; the importer moves and removes files. The ops are in `ops`, damaged files in `salvage`.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from kestreld.files import FileLayer
from kestreld.journal.kestrel import ops
from kestreld.journal.kestrel.salvage import KestrelDamage, Stretch, stretches

# <queue>  <queue>.<ms> (rotated)  <queue>.<ms>.pack (replaces those up to <ms>)  <queue>~~<ms> (unfinished)
_FILE_NAME: Final = re.compile(r"([^.]+?)(?:\.([0-9]{1,18})(\.pack)?|~~([0-9]+))?", re.DOTALL)


@dataclass(slots=True)
class KestrelItem:
    data: bytes
    add_at_ms: int
    expire_at_ms: int  # 0 = never


@dataclass(slots=True)
class Unread:
    """A stretch of a file that could not be read."""

    path: str
    offset: int
    size_bytes: int
    reason: str


@dataclass(slots=True)
class KestrelQueue:
    name: str
    files: list[str] = field(default_factory=list)  # replaced ones, then in replay order, then unfinished ones
    items: list[KestrelItem] = field(default_factory=list)  # in delivery order
    unread: list[Unread] = field(default_factory=list)


@dataclass(slots=True)
class _FileName:
    name: str
    queue: str
    at_ms: int | None  # None for the live file and unfinished ones
    pack: bool
    unfinished: bool


def _file_name(name: str) -> _FileName | None:
    """Parse a file name; None = it is not a name that Kestrel gives."""
    match = _FILE_NAME.fullmatch(name)
    if match is None or "~~" in match[1]:
        return None
    return _FileName(
        name,
        match[1],
        None if match[2] is None else int(match[2]),
        match[3] is not None,
        match[4] is not None,
    )


def find_queues(files: FileLayer, folder: str) -> tuple[dict[str, list[str]], list[str]]:
    """Queues of a Kestrel spool with the names of their files, and the names that are not Kestrel's.

    Folders and names that begin with a dot are skipped. An unfinished file alone is not a queue.
    """
    queues: dict[str, list[str]] = {}
    unfinished: list[_FileName] = []
    foreign: list[str] = []
    for name in files.list_dir(folder):
        if name.startswith(".") or files.is_dir(f"{folder}/{name}"):
            continue
        file = _file_name(name)
        if file is None:
            foreign.append(name)
        elif file.unfinished:
            unfinished.append(file)
        else:
            queues.setdefault(file.queue, []).append(name)
    for file in unfinished:
        queues.get(file.queue, foreign).append(file.name)
    return queues, sorted(foreign)


def queue_of(file_name: str) -> str | None:
    """The queue that a file of this name belongs to; None = it is not a name that Kestrel gives."""
    file = _file_name(file_name)
    return None if file is None else file.queue


def read_queue(
    files: FileLayer, folder: str, name: str, now_ms: int, file_names: Sequence[str] | None = None
) -> KestrelQueue:
    """Read a queue as Kestrel would serve it after a restart, and every whole item beyond that.

    Open reads are back at the head; expired items are still there. `now_ms` is the add time of items without one.
    `file_names` are the queue's if they are known, as from `find_queues`.
    """
    before, replayed, after = _in_replay_order(files, folder, name, file_names)
    queue = KestrelQueue(name, [f"{folder}/{file}" for file in (*before, *replayed, *after)])
    replay = _Replay(now_ms)
    for file in replayed:
        path = f"{folder}/{file}"
        buffer = files.read_file(path)
        for stretch in stretches(buffer):
            replay.apply(buffer, stretch)
            if damage := stretch.damage:
                size_bytes = damage.resume_at - damage.at
                queue.unread.append(Unread(path, damage.at, size_bytes, damage.reason))
    queue.items = replay.delivery_order()
    return queue


def replayed_files(files: FileLayer, folder: str, name: str) -> list[str]:
    """Names of the queue's files that count, in order: not those replaced by a pack, nor unfinished ones."""
    return _in_replay_order(files, folder, name, None)[1]


def _in_replay_order(
    files: FileLayer, folder: str, name: str, file_names: Sequence[str] | None
) -> tuple[list[str], list[str], list[str]]:
    """The queue's files: those replaced by a pack, those to replay in order, and unfinished ones."""
    own = [
        file
        for file in map(_file_name, files.list_dir(folder) if file_names is None else file_names)
        if file is not None and file.queue == name and not files.is_dir(f"{folder}/{file.name}")
    ]
    dated = sorted((file.at_ms, file.pack, file.name) for file in own if file.at_ms is not None)
    # Kestrel applies packs oldest first; each replaces all that is not newer, earlier packs among them.
    last_pack = max((at for at, (_, pack, _) in enumerate(dated) if pack), default=0)
    return (
        [file_name for _, _, file_name in dated[:last_pack]],
        [file_name for _, _, file_name in dated[last_pack:]] + [name for file in own if file.name == name],
        [file.name for file in own if file.unfinished],
    )


class _Replay:
    """A queue while ops are applied to it.

    An entry of the queue may be None: an item that could not be read, but that later ops remove.
    """

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._queue: deque[KestrelItem | None] = deque()
        self._open: dict[int, KestrelItem | None] = {}
        self._displaced: list[KestrelItem | None] = []
        self._xid = 0
        # After unreadable bytes it is unknown which item an op removes. Better delivered twice than never.
        self._takes_are_known = True
        self._rolled: KestrelItem | None = None
        self._rolled_xid = 0
        self._recounted: dict[int, int] = {}
        self._last_tentative: KestrelItem | None = None

    def apply(self, buffer: bytes, stretch: Stretch) -> None:
        """Apply the stretch's ops, and the damage known after them."""
        queue, at, end = self._queue, stretch.start, stretch.end
        takes_are_known = self._takes_are_known
        while at < end:
            opcode = buffer[at]
            if opcode == ops.ADDX:  # and REMOVE: most of every journal, so without the detour through Op
                _, block_bytes, add_at_ms, expire_at_ms = ops.ADDX_HEAD.unpack_from(buffer, at)
                op_end = at + 5 + block_bytes
                queue.append(KestrelItem(buffer[at + 21 : op_end], add_at_ms, expire_at_ms))
                at = op_end
            elif opcode == ops.REMOVE:
                if queue and takes_are_known:
                    queue.popleft()
                at += 1
            else:
                op, at = ops.decode(buffer, at)
                self._apply(op)
        if damage := stretch.damage:
            self._skip(damage)

    def _skip(self, damage: KestrelDamage) -> None:
        if damage.one_item:
            self._queue.append(None)
        else:
            self._takes_are_known = False

    def _apply(self, op: ops.Op) -> None:
        opcode, xid = op.opcode, op.xid
        if opcode == ops.UNREMOVE:
            self._unremove(xid)
        elif opcode == ops.SAVE_XID:
            self._xid = xid
        elif opcode == ops.ADD:
            self._queue.append(KestrelItem(op.data, self._now_ms, op.expire_at_ms))
        elif opcode in (ops.ADD_XID, ops.CONTINUE):
            item = KestrelItem(op.data, op.add_at_ms, op.expire_at_ms)
            self._queue.append(item)
            if opcode == ops.ADD_XID:
                self._rolled, self._rolled_xid = item, xid
            elif self._takes_are_known:
                self._open.pop(xid, None)
        elif not self._takes_are_known:
            return
        elif opcode == ops.REMOVE_TENTATIVE_XID:
            self._xid = xid
            if self._queue:
                self._open_read(xid)
        elif opcode == ops.REMOVE_TENTATIVE:
            if self._queue:
                self._open_counted_read()
        elif opcode == ops.CONFIRM_REMOVE:
            self._open.pop(xid, None)

    def _open_read(self, xid: int) -> None:
        if xid in self._open:
            # Kestrel forgets the item that held the xid.
            self._displaced.append(self._open.pop(xid))
        self._open[xid] = self._queue.popleft()

    def _open_counted_read(self) -> None:
        """REMOVE_TENTATIVE: the read's xid is the next that is free, as 1.x counts them."""
        self._xid = _next_xid(self._xid)
        while self._xid == 0 or self._xid in self._open:
            self._xid = _next_xid(self._xid)
        self._last_tentative = self._queue[0]
        if self._rolled is not None and self._queue[0] is self._rolled:
            # The xid that later ops name. 1.x itself counts anew when it restarts, and may then confirm the
            # wrong item and hands several back in reverse; here they keep their xids and their order.
            self._recounted[self._xid] = self._rolled_xid
            self._open_read(self._rolled_xid)
            self._rolled = None
        else:
            self._open_read(self._xid)

    def _unremove(self, xid: int) -> None:
        if xid not in self._open and xid in self._recounted:
            xid = self._recounted.pop(xid)  # written by a restart of 1.x
        if xid in self._open:
            item = self._open.pop(xid)
            if item is self._last_tentative:
                self._last_tentative = None
        elif xid == 0 and self._last_tentative is not None:
            # Written by 2.x on its first start: it takes every REMOVE_TENTATIVE for xid 0, so the last one's
            # item is in the queue again, confirmed or not, and later ops count on that.
            item, self._last_tentative = self._last_tentative, None
            self._open = {held: other for held, other in self._open.items() if other is not item}
        else:
            return
        self._queue.appendleft(item)

    def delivery_order(self) -> list[KestrelItem]:
        """All items; those of open reads first, in the order of their xids, as after a restart of Kestrel."""
        opened = [self._open[xid] for xid in sorted(self._open)]
        return [item for item in (*self._displaced, *opened, *self._queue) if item is not None]


def _next_xid(xid: int) -> int:
    """The next xid; a signed 32-bit number that wraps around."""
    return xid + 1 if xid < 0x7FFFFFFF else -0x80000000


def export_ops(items: Iterable[KestrelItem], open_items: Sequence[KestrelItem] = ()) -> Iterator[bytes]:
    """A Kestrel 2.x journal, op by op: `open_items` (oldest first) as reads still open, then `items`."""
    for xid in range(len(open_items), 0, -1):  # as Kestrel's own rewrite: the highest xid first
        item = open_items[xid - 1]
        yield ops.encode(ops.Op(ops.ADDX, 0, item.add_at_ms, item.expire_at_ms, item.data))
        yield ops.encode(ops.Op(ops.REMOVE_TENTATIVE_XID, xid))
    for item in items:
        yield ops.encode(ops.Op(ops.ADDX, 0, item.add_at_ms, item.expire_at_ms, item.data))
