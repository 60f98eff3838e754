"""Runs that append new rows to a folder of Parquet files, each row exactly once however a run ends.

A run's rows and its state become run=N by one rename. Spark ignores names that begin with "_".
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelspark.incremental import Seen

VERSION: Final = 1
PENDING: Final = "_pending"
INSIDE: Final = "_state.json"


class Runs:
    """`folder`: the rows. `state`: the file that records the bytes read so far. `what`: options, equal in all runs.

    Raises Failure for a state that cannot be read or belongs to other runs.
    """

    def __init__(self, folder: str, state: str, what: dict[str, Any]) -> None:
        self._folder, self._state = folder, state
        self._document: dict[str, Any] = {"version": VERSION, "run": 0, "what": what, "journals": [], "more": []}
        self._load(state)
        # A run that was killed after the rename is complete.
        while os.path.exists(inside := f"{folder}/run={self.run + 1}/{INSIDE}"):
            self._load(inside)
        self.seen = Seen(self._document["journals"])

    @property
    def run(self) -> int:
        """Number of the last run, 0 = none yet."""
        return int(self._document["run"])

    @property
    def more(self) -> list[Any]:
        """Values that a job saves in addition to the rows, as JSON."""
        return list(self._document["more"])

    @property
    def pending(self) -> str:
        """Folder for the rows of this run before `commit`."""
        return f"{self._folder}/{PENDING}"

    def commit(self, more: list[Any], *, has_rows: bool) -> None:
        """Move the rows in `pending` to the folder and save the state. Raises Failure."""
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
            raise Failure(ExitCode.IO, f"cannot read {path}: {problem}") from problem
        if not isinstance(document, dict) or document.get("version") != VERSION:
            raise Failure(ExitCode.USAGE, f"{path} is not a state file of this job; use another --state")
        if document["what"] != self._document["what"]:
            was = ", ".join(f"{name} {value}" for name, value in document["what"].items())
            raise Failure(ExitCode.USAGE, f"{path} was run with different options ({was}); use another --state")
        self._document = document


@contextmanager
def exclusive_run(folder: str) -> Iterator[None]:
    """Lock the folder against other runs. Raises Failure."""
    with _writing(folder):
        os.makedirs(folder, exist_ok=True)
        lock = os.open(f"{folder}/_lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as problem:
        raise Failure(
            ExitCode.TRY_AGAIN, f"{folder}: another run is in progress; try again when it has finished"
        ) from problem
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
