"""Runs that add to a folder of Parquet files what is new in journals, each row exactly once, however a run ends.

A run's rows and what has been read then become run=N in one renaming. Spark passes over names that begin with "_".
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelspark.newness import Seen

VERSION: Final = 1
PENDING: Final = "_pending"
INSIDE: Final = "_state.json"


class Runs:
    """`folder` is for the rows, `state` the file that says what has been read; `what` must be equal in all runs.

    Raises Failure for a state that cannot be read or is of other runs.
    """

    def __init__(self, folder: str, state: str, what: dict[str, Any]) -> None:
        self._folder, self._state = folder, state
        self._document: dict[str, Any] = {"version": VERSION, "run": 0, "what": what, "journals": [], "more": []}
        self._load(state)
        # A run that was killed behind the renaming is done all the same.
        while os.path.exists(inside := f"{folder}/run={self.run + 1}/{INSIDE}"):
            self._load(inside)
        self.seen = Seen(self._document["journals"])

    @property
    def run(self) -> int:
        """The number of the last one, 0 = there was none."""
        return int(self._document["run"])

    @property
    def more(self) -> list[Any]:
        """What a job keeps beside the rows, as JSON."""
        return list(self._document["more"])

    @property
    def pending(self) -> str:
        """Where the rows of this run are to be written before `commit`."""
        return f"{self._folder}/{PENDING}"

    def commit(self, more: list[Any], *, has_rows: bool) -> None:
        """What is in `pending` belongs to the folder now, and what has been read is known. Raises Failure."""
        self._document |= {"journals": self.seen.as_json(), "more": more}
        with _writing(self._state):
            if has_rows:
                self._document["run"] = self.run + 1
                _write(f"{self.pending}/{INSIDE}", self._document)
                os.rename(self.pending, f"{self._folder}/run={self.run}")
            else:
                shutil.rmtree(self.pending, ignore_errors=True)
            os.makedirs(os.path.dirname(os.path.abspath(self._state)), exist_ok=True)
            _write(f"{self._state}.new", self._document)
            os.replace(f"{self._state}.new", self._state)

    def _load(self, path: str) -> None:
        try:
            with open(path, encoding="utf-8") as file:
                document = json.load(file)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as problem:
            raise Failure(ExitCode.IO, f"{path}: cannot be read ({problem})") from problem
        if not isinstance(document, dict) or document.get("version") != VERSION:
            raise Failure(ExitCode.USAGE, f"{path}: not a state of this job; give --state another name")
        if document["what"] != self._document["what"]:
            was = ", ".join(f"{name} {value}" for name, value in document["what"].items())
            raise Failure(ExitCode.USAGE, f"{path}: is of runs with other options ({was}); give --state another name")
        self._document = document


@contextmanager
def alone(folder: str) -> Iterator[None]:
    """No other run works on the folder meanwhile. Raises Failure."""
    with _writing(folder):
        os.makedirs(folder, exist_ok=True)
        lock = os.open(f"{folder}/_lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as problem:
        raise Failure(ExitCode.TRY_AGAIN, f"{folder}: another run is at it; try again when that is done") from problem
    finally:
        os.close(lock)


@contextmanager
def _writing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        words = (problem.strerror or str(problem)).lower()
        raise Failure(ExitCode.IO, f"cannot write {problem.filename or path}: {words}") from problem


def _write(path: str, document: dict[str, Any]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
