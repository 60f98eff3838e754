"""What tasks have done, read from the files in which `effects.py` notes it."""

import time
from array import array
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.waiting import until

PAUSE_S: Final = 0.05  # between two looks at all files


class Attempt(NamedTuple):
    """One execution of a task; `ended_at` 0 = it did not end."""

    pid: int
    began_at: float
    ended_at: float


class Executions:
    """Executions of the tasks whose effects are in a folder. `read` takes in what is new; a task takes 20 bytes.

    `begun` and `ended` count tasks, `attempts_count` executions.
    """

    def __init__(self, folder: Path) -> None:
        self.begun = 0
        self.ended = 0
        self.attempts_count = 0
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self._pids = array("i")  # of what was read first of each task; 0 = nothing was
        self._began_at = array("d")
        self._ended_at = array("d")
        self._more: dict[int, list[Attempt]] = {}  # further attempts, of tasks that were repeated
        self._has_ended = bytearray()

    def read(self) -> "Executions":
        for path in self._folder.glob("*.effects"):
            offset = self._offsets.get(path, 0)
            if path.stat().st_size == offset:
                continue
            with path.open("rb") as file:
                file.seek(offset)
                lines, newline, _ = file.read().rpartition(b"\n")
            self._offsets[path] = offset + len(lines) + len(newline)
            for line in lines.splitlines():
                what, number, pid, at = line.split()
                (self._begin if what == b"begin" else self._end)(int(number), int(pid), float(at))
        return self

    def await_ended(self, count: int) -> None:
        """Wait until so many tasks have ended. Fails where none does for long."""
        while self.read().ended < count:
            before = self.ended
            until(lambda before=before: self.read().ended > before, f"task {before + 1} of {count} to end")
            time.sleep(PAUSE_S)

    def _begin(self, number: int, pid: int, at: float) -> None:
        missing = number + 1 - len(self._pids)
        if missing > 0:
            self._pids.frombytes(bytes(missing * self._pids.itemsize))
            self._began_at.frombytes(bytes(missing * self._began_at.itemsize))
            self._ended_at.frombytes(bytes(missing * self._ended_at.itemsize))
            self._has_ended.extend(bytes(missing))
        self.attempts_count += 1
        if self._pids[number]:
            self._more.setdefault(number, []).append(Attempt(pid, at, 0))
        else:
            self.begun += 1
            self._pids[number], self._began_at[number] = pid, at

    def _end(self, number: int, pid: int, at: float) -> None:
        if not self._has_ended[number]:
            self.ended += 1
            self._has_ended[number] = 1
        more = self._more.get(number, [])
        for index in reversed(range(len(more))):
            if more[index].pid == pid and not more[index].ended_at:
                more[index] = more[index]._replace(ended_at=at)
                return
        assert self._pids[number] == pid, f"task {number} has ended in process {pid}, and not begun there"
        self._ended_at[number] = at

    def of(self, number: int) -> list[Attempt]:
        """The attempts of one task, in order of time."""
        if number >= len(self._pids) or not self._pids[number]:
            return []
        first = Attempt(self._pids[number], self._began_at[number], self._ended_at[number])
        return sorted([first, *self._more.get(number, [])], key=lambda one: one.began_at)

    def __iter__(self) -> Iterator[int]:
        """The numbers of the tasks that have begun."""
        return (number for number, pid in enumerate(self._pids) if pid)

    def is_ended(self, number: int) -> bool:
        return number < len(self._has_ended) and bool(self._has_ended[number])

    def cut_short(self) -> int:
        """How many executions did not end."""
        return sum(not one.ended_at for number in self for one in self.of(number))

    def repeated_while_alive(self, deaths: Mapping[int, list[tuple[float, float]]]) -> list[str]:
        """The tasks that began again while the process that had begun them was alive, or had ended them.

        `deaths` has, for each process, a time before it was killed and one at which it was gone; several where the
        system has used a number again.
        """
        wrong = []
        for number in self._more:
            for earlier, later in pairwise(self.of(number)):
                death = min((one for one in deaths.get(earlier.pid, []) if one[1] >= earlier.began_at), default=None)
                if death is None or death[0] > later.began_at:
                    wrong.append(f"task {number}: {earlier} then {later}, death {death}")
        return wrong


def attempts(folder: Path) -> dict[int, list[Attempt]]:
    """What was executed, by the number of the task, in order of time."""
    executions = Executions(folder).read()
    return {number: executions.of(number) for number in executions}


def ended(folder: Path) -> set[int]:
    executions = Executions(folder).read()
    return {number for number in executions if executions.is_ended(number)}
