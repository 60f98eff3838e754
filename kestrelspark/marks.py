"""How far a replay has come with each queue, in a folder: what its tasks note there, its next run goes on behind."""

import json
import os
from dataclasses import dataclass
from urllib.parse import quote

from kestreld.errors import KestrelError


class BadState(KestrelError):
    """A file that should say how far earlier runs came does not."""


@dataclass(slots=True, frozen=True, order=True)
class Mark:
    """Everything up to this item of a queue is done; ids begin anew with each journal."""

    journal_id: int
    item_id: int


class Marks:
    """`folder` "" = nothing is known and nothing kept."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def of(self, server: str, queue: str) -> Mark | None:
        """None: nothing of it is done. Raises BadState."""
        if not self._folder:
            return None
        path = self._path(server, queue)
        try:
            with open(path, encoding="utf-8") as file:
                said = json.load(file)
            return Mark(int(said["journal_id"]), int(said["id"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise BadState(f"{path}: cannot be read ({problem}); remove it to put its queue again whole") from problem

    def note(self, server: str, queue: str, mark: Mark) -> None:
        """Raises OSError."""
        if not self._folder:
            return
        path = self._path(server, queue)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = f"{path}.{os.getpid()}"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump({"journal_id": mark.journal_id, "id": mark.item_id}, file)
        os.replace(temporary, path)

    def _path(self, server: str, queue: str) -> str:
        return f"{self._folder}/server={quote(server, safe='')}/{quote(queue, safe='')}.json"
