"""Lists of queues that a connection has made, to wait for an item of any of them without naming them each time."""

from collections import Counter
from typing import Final

from kestreld.server.memcache.commands import GET, Command

LISTED_MAX: Final = 512  # queues in all lists of a connection: each lease from a list looks at all of it


class QueueList:
    """Queues in the order in which they were given, each as a command that names it."""

    __slots__ = ("_first", "_parts")

    def __init__(self) -> None:
        self._parts: dict[str, Command] = {}
        self._first = 0  # place of the queue that is first if they take turns

    def __len__(self) -> int:
        return len(self._parts)

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def add(self, parts: list[Command]) -> None:
        """Add queues that are not in it."""
        for part in parts:
            command = Command(GET)  # those of lines are shared
            command.name, command.may_create = part.name, part.may_create
            self._parts.setdefault(part.name, command)

    def parts(self, turns: bool) -> list[Command]:
        """The queues, in the order in which they are looked at."""
        parts = list(self._parts.values())
        return parts[self._first :] + parts[: self._first] if turns else parts

    def after(self, name: str) -> None:
        """Have the queue behind this one be the first, as an item was leased from this one."""
        self._first = (list(self._parts).index(name) + 1) % len(self._parts)


class QueueLists:
    """The lists of a connection, by name. `listed` counts the lists that each queue is on, of all connections."""

    def __init__(self, listed: Counter[str]) -> None:
        self._lists: dict[str, QueueList] = {}
        self._listed = listed

    def get(self, name: str) -> QueueList | None:
        return self._lists.get(name)

    def has_room(self, name: str, parts: list[Command]) -> bool:
        """False if a list cannot be extended by so many queues."""
        known = self._lists.get(name, ())
        fresh = {part.name for part in parts if part.name not in known}
        return sum(map(len, self._lists.values())) + len(fresh) <= LISTED_MAX

    def extend(self, name: str, parts: list[Command]) -> None:
        """Add queues to a list, which is made if need be."""
        known = self._lists.setdefault(name, QueueList())
        self._listed.update({part.name for part in parts if part.name not in known})
        known.add(parts)

    def drop(self, name: str) -> None:
        """Forget a list, if there is one."""
        for part in self._lists.pop(name, QueueList()).parts(turns=False):
            if self._listed[part.name] > 1:
                self._listed[part.name] -= 1
            else:
                del self._listed[part.name]

    def close(self) -> None:
        """Forget all lists."""
        for name in list(self._lists):
            self.drop(name)
