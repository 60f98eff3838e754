"""Progress of a replay by queue, saved in a folder so that the next run continues there."""

import json
import os
from dataclasses import dataclass
from urllib.parse import quote

from kestreld.errors import KestrelError


class BadState(KestrelError):
    """A progress file cannot be read."""


@dataclass(slots=True, frozen=True, order=True)
class ItemPosition:
    """The last item of a queue that is done, with all before it. Ids start again with each journal."""

    journal_id: int
    item_id: int


class ReplayProgress:
    """Progress files in a folder; `folder` "" = nothing is loaded or saved."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def of(self, server: str, queue: str) -> ItemPosition | None:
        """Position of a queue. None = nothing is done yet. Raises BadState."""
        if not self._folder:
            return None
        path = self._path(server, queue)
        try:
            with open(path, encoding="utf-8") as file:
                saved = json.load(file)
            return ItemPosition(int(saved["journal_id"]), int(saved["id"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise BadState(f"cannot read {path}: {problem}; remove it to replay the whole queue") from problem

    def save(self, server: str, queue: str, position: ItemPosition) -> None:
        """Replace a queue's progress file. Raises OSError."""
        if not self._folder:
            return
        path = self._path(server, queue)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = f"{path}.{os.getpid()}"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump({"journal_id": position.journal_id, "id": position.item_id}, file)
        os.replace(temporary, path)

    def _path(self, server: str, queue: str) -> str:
        return f"{self._folder}/server={quote(server, safe='')}/{quote(queue, safe='')}.json"
