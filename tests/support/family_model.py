"""What a queue family should do, in plain lists: the measure for the engine's state machine test.

It knows no files, windows or commits; `FamilyModel.copy` is what a commit keeps and a crash brings back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kestreld.config.config import QueueConfig


@dataclass(frozen=True, slots=True)
class ModelItem:
    item_id: int
    data: bytes
    add_at_ms: int
    expire_at_ms: int
    flags: int
    only: int  # number of the one reader it is for; 0 = all


@dataclass(slots=True)
class ModelReader:
    config: QueueConfig
    number: int
    waiting: list[ModelItem] = field(default_factory=list)  # in the order of delivery
    open: dict[int, ModelItem] = field(default_factory=dict)

    def data_bytes(self) -> int:
        return sum(len(item.data) for item in self.waiting)

    def is_limited(self) -> bool:
        config = self.config
        return (config.max_items, config.max_size_bytes, config.max_item_size_bytes) != (None, None, None)

    def is_full(self) -> bool:
        config = self.config
        full = config.max_items is not None and len(self.waiting) >= config.max_items
        return full or (config.max_size_bytes is not None and self.data_bytes() >= config.max_size_bytes)

    def expire(self, now_ms: int, down_to: int = 0) -> int:
        """Drop expired heads, as long as more than `down_to` items wait; how many."""
        count = 0
        while len(self.waiting) > down_to and self._is_expired(self.waiting[0], now_ms):
            del self.waiting[0]
            count += 1
        return count

    def _is_expired(self, item: ModelItem, now_ms: int) -> bool:
        ends = [item.expire_at_ms] if item.expire_at_ms else []
        if self.config.max_age_ms:
            ends.append(item.add_at_ms + self.config.max_age_ms)
        return bool(ends) and min(ends) < now_ms

    def take(self, now_ms: int) -> ModelItem | None:
        self.expire(now_ms)
        return self.waiting.pop(0) if self.waiting else None

    def peek(self, now_ms: int) -> ModelItem | None:
        self.expire(now_ms)
        return self.waiting[0] if self.waiting else None

    def open_read(self, now_ms: int) -> ModelItem | None:
        item = self.take(now_ms)
        if item is not None:
            self.open[item.item_id] = item
        return item

    def abort(self, item_id: int) -> None:
        self.waiting.insert(0, self.open.pop(item_id))

    def undone(self) -> list[ModelItem]:
        return sorted([*self.waiting, *self.open.values()], key=lambda item: item.item_id)


@dataclass(slots=True)
class FamilyModel:
    readers: dict[str, ModelReader] = field(default_factory=dict)  # by label
    streams: dict[str, int] = field(default_factory=dict)  # name -> head
    streams_since: dict[str, int] = field(default_factory=dict)  # name -> next id when it was added
    history: list[ModelItem] = field(default_factory=list)  # every item ever put
    next_id: int = 1
    next_reader: int = 1

    def copy(self) -> "FamilyModel":
        readers = {
            label: ModelReader(one.config, one.number, list(one.waiting), dict(one.open))
            for label, one in self.readers.items()
        }
        streams = dict(self.streams), dict(self.streams_since)
        return FamilyModel(readers, *streams, list(self.history), self.next_id, self.next_reader)

    def add_reader(self, label: str, config: QueueConfig) -> ModelReader:
        reader = self.readers[label] = ModelReader(config, self.next_reader)
        self.next_reader += 1
        return reader

    def put(self, data: bytes, now_ms: int, expire_at_ms: int, flags: int, only: str | None) -> bool:
        targets = list(self.readers.values()) if only is None else [self.readers[only]]
        for reader in targets:
            if reader.is_limited():
                reader.expire(now_ms)
        for reader in targets:
            limit = reader.config.max_item_size_bytes
            if limit is not None and len(data) > limit:
                return False
            if reader.is_full() and not reader.config.discard_old_when_full:
                return False
        for reader in targets:
            while reader.is_full():
                del reader.waiting[0]
        number = self.readers[only].number if only is not None else 0
        item = ModelItem(self.next_id, data, now_ms, expire_at_ms, flags, number)
        self.next_id += 1
        self.history.append(item)
        for reader in targets:
            reader.waiting.append(item)
        return True

    def add_stream(self, name: str, at_id: int) -> None:
        self.streams[name] = at_id
        self.streams_since[name] = self.next_id
        self.next_reader += 1

    def advance_stream(self, name: str, through: int) -> None:
        self.streams[name] = max(self.streams[name], min(through, self.next_id - 1) + 1)

    def needed_ids(self) -> set[int]:
        """Ids that some reader or stream has yet to finish; what a stream came too late for may be gone."""
        ids = {item.item_id for reader in self.readers.values() for item in reader.undone()}
        for name, head in self.streams.items():
            ids.update(range(max(head, self.streams_since[name]), self.next_id))
        return ids

    def restarted(self, configs: Mapping[str, QueueConfig]) -> "FamilyModel":
        """What a start makes of this: open reads are back in order, and the configuration is today's."""
        fresh = self.copy()
        for label, reader in fresh.readers.items():
            reader.waiting, reader.open = reader.undone(), {}
            reader.config = configs[label]
        return fresh
