"""Start and end positions of reads of queues, as the options give them: a word, ids, or times."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kestreld.errors import KestrelError
from kestrelspark.options import BadOption, instant_ms, option, spelled
from kestrelspark.readers import Family, Fleet, Position, RemoteQueue

COMMITTED, EARLIEST, LATEST = "committed", "earliest", "latest"
LATEST_ID, EARLIEST_ID = -1, -2  # in place of an id, as of Kafka's offsets
ERROR: Final = "error"
SHOWN: Final = 10  # queues in a message
STARTING_OPTIONS: Final = (
    "startingoffsets", "startingoffsetsbytimestamp", "startingoffsetsbytimestampstrategy", "startingtimestamp"
)  # fmt: skip
ENDING_OPTIONS: Final = ("endingoffsets", "endingoffsetsbytimestamp", "endingtimestamp")


class NoSuchTime(KestrelError):
    """No item was put at that time or later, and the options make this an error."""


@dataclass(slots=True, frozen=True)
class Boundary:
    """A start or end position: by precedence a time for all queues, a queue's time, a queue's id, or the word.

    `side`: starting or ending.
    """

    word: str
    ids: Mapping[str, int] = field(default_factory=dict)  # by SERVER/QUEUE, as in `times_ms`
    at_ms: int | None = None
    times_ms: Mapping[str, int] = field(default_factory=dict)
    needs_item: bool = False  # True = a time without items is an error
    side: str = "starting"

    def position(self, fleet: Fleet, remote: RemoteQueue, family: Family) -> Position:
        """The position in a queue. Raises Failure, NoSuchTime; BadOption for a start at an id that no item has yet."""
        name = f"{remote.server}/{remote.queue}"
        at_ms = self.times_ms.get(name) if self.at_ms is None else self.at_ms
        if at_ms is not None:
            found, is_end = fleet.position_at(remote, at_ms)
            if is_end and self.needs_item:
                raise NoSuchTime(f"{remote}: no item was put at {at_ms} (milliseconds since 1970) or later")
            return found
        item_id = self.ids.get(name)
        if item_id == LATEST_ID or (item_id is None and self.word == LATEST):
            item_id = family.next_id
        elif item_id is None and self.word == COMMITTED and family.head is not None:
            item_id = family.head
        elif item_id is None or item_id == EARLIEST_ID:
            item_id = family.first_id
        elif item_id > family.next_id and self.side == "starting":
            words = f"{remote} has no item {item_id} yet: the next one is {family.next_id}"
            raise BadOption(f"{spelled('startingoffsets')}: {words}")
        return Position(family.journal_id, item_id)

    def names_id(self, remote: RemoteQueue) -> bool:
        """True if the position is an id given in the options, not one found by a server."""
        name = f"{remote.server}/{remote.queue}"
        return self.at_ms is None and name not in self.times_ms and self.ids.get(name, LATEST_ID) >= 0

    def matched(self, fleet: Fleet, families: Mapping[RemoteQueue, Family], *, is_strict: bool = True) -> "Boundary":
        """This boundary with names replaced by those of the queues found. Raises ServerTrouble.

        With `is_strict`, raises BadOption for a name that no queue has. Names at servers that do not answer are kept.
        """
        known = {f"{remote.server}/{remote.queue}" for remote in families}
        found: dict[str, str] = {}
        for option_name, named in (("offsets", self.ids), ("offsetsbytimestamp", self.times_ms)):
            for name in named:
                match = name if name in known else _matched(name, fleet, families)
                if match is None and is_strict:
                    words = f"this query has no queue {name}, but {', '.join(sorted(known)[:SHOWN]) or 'none at all'}"
                    raise BadOption(f"{spelled(self.side + option_name)}: {words}")
                found[name] = match or name
        ids = {found[name]: item_id for name, item_id in self.ids.items()}
        times_ms = {found[name]: at_ms for name, at_ms in self.times_ms.items()}
        return replace(self, ids=ids, times_ms=times_ms)


def _matched(name: str, fleet: Fleet, families: Mapping[RemoteQueue, Family]) -> str | None:
    addresses = fleet.servers.addresses()
    server = max((one for one in addresses if name.startswith(f"{one}/")), key=len, default=name.partition("/")[0])
    remote = RemoteQueue(server, name.removeprefix(f"{server}/"))
    if server in addresses and server not in fleet.answered:
        return name
    other = fleet.elsewhere(remote, families) if remote.queue else None
    return None if other is None else f"{other.server}/{other.queue}"


def start_in(options: Mapping[str, str], words: tuple[str, ...]) -> Boundary:
    """The start position in the options; the first of `words` is the default. Raises BadOption."""
    strategy = option(options, "startingoffsetsbytimestampstrategy", LATEST).lower()
    if strategy not in (LATEST, ERROR):
        raise BadOption(f"startingOffsetsByTimestampStrategy must be {LATEST} or {ERROR}, not {strategy}")
    return _boundary(options, "starting", words, needs_item=strategy == ERROR)


def end_in(options: Mapping[str, str]) -> Boundary:
    """The end position in the options; for a time, it is before the first item put then or later. Raises BadOption."""
    return _boundary(options, "ending", (LATEST,), needs_item=False)


def _boundary(options: Mapping[str, str], side: str, words: tuple[str, ...], *, needs_item: bool) -> Boundary:
    text = option(options, f"{side}offsets", words[0]).strip()
    ids = {} if text in words else _ids(text, f"{side}offsets", words)
    times = option(options, f"{side}offsetsbytimestamp")
    times_ms = _times(times, f"{side}offsetsbytimestamp") if times else {}
    at_ms = instant_ms(option(options, f"{side}timestamp"), f"{side}timestamp")
    return Boundary(text if text in words else words[0], ids, at_ms, times_ms, needs_item, side)


def _ids(text: str, name: str, words: tuple[str, ...]) -> dict[str, int]:
    try:
        found = by_queue(text)
        is_good = all(type(value) is int and value >= EARLIEST_ID and value != 0 for value in found.values())
    except (ValueError, TypeError):
        is_good = False
    if not is_good:
        form = '{"HOST:PORT/QUEUE": ID}, ID being a whole number from 1 on, -1 or -2'
        raise BadOption(f"{spelled(name)} must be {', '.join(words)} or {form}, not {text}")
    return found


def _times(text: str, name: str) -> dict[str, int]:
    try:
        found = by_queue(text)
        is_good = all(type(value) in (int, str) for value in found.values())
    except (ValueError, TypeError):
        is_good = False
    if not is_good:
        form = '{"HOST:PORT/QUEUE": MILLISECONDS}'
        raise BadOption(f"{spelled(name)} must be {form}, not {text}")
    return {queue: instant_ms(str(value), name) or 0 for queue, value in found.items()}


def by_queue(text: str) -> dict[str, Any]:
    """Values by HOST:PORT/QUEUE, also from {"QUEUE": {"HOST:PORT": VALUE}}. Raises ValueError, TypeError."""
    document = json.loads(text)
    if not isinstance(document, dict):
        raise TypeError("not an object")
    found: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, dict):
            found.update({f"{server}/{name}": one for server, one in value.items()})
        else:
            found[name] = value
    return found
