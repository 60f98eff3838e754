"""File of the spool with the node's id, which the node keeps across restarts."""

import re
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from kestreld.files import FileLayer, must_be_the_systems
from kestreld.jobs.jobs import Jobs
from kestreld.server.disque.persistence import Done
from kestreld.server.disque.saved_settings import replace_file

FILE_NAME: Final = ".jobs.node"
_NODE_ID: Final = re.compile(rb"[0-9a-f]{40}\n")


class NodeIdFile:
    """Keeps the id of `jobs` on disk, soon after the start, or once the disk accepts it."""

    def __init__(
        self,
        files: FileLayer,
        spool: str,
        jobs: Jobs,
        report: Callable[[str], None],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`changed` is called when the node has another id."""
        self._files = files
        self.path = f"{spool}/{FILE_NAME}"
        self._jobs = jobs
        self._report = report
        self._changed = changed
        self._recorded = b""  # b"" = the content on disk is unknown
        self._is_busy = self._was_refused = False
        self._waiting: deque[tuple[bytes, Done]] = deque()  # changes behind the one that is under way

    def begin(self) -> None:
        """Take the id in the file; without a file the node keeps its new id."""
        try:
            content = self._files.read_file(self.path) if self._files.exists(self.path) else b""
        except OSError as error:
            must_be_the_systems(error)
            self._report(f"{self.path}: cannot be read: {error.strerror}; the node has a new id")
            return
        if _NODE_ID.fullmatch(content):
            self._recorded = content[:-1]
            self._jobs.use_node_id(self._recorded)
            self._changed()
        elif content:
            self._report(f"{self.path}: expected 40 hexadecimal digits; the node has a new id")

    def look_after(self) -> None:
        """Record the node's id if it is not on disk yet; called once a second."""
        if self._recorded != self._jobs.node_id and not self._is_busy:
            self._record(self._jobs.node_id, self._looked_after)

    def _looked_after(self, problem: str) -> None:
        if problem and not self._was_refused:
            self._report(f"{self.path}: {problem}; the node will have a new id after a restart")
        self._was_refused = bool(problem)

    def change(self, node_id: bytes, done: Done) -> None:
        """Give the node another id, once that is on disk."""
        if self._is_busy:
            self._waiting.append((node_id, done))
            return

        def recorded(problem: str) -> None:
            if not problem:
                self._jobs.use_node_id(node_id)
                self._changed()
            done(problem)

        self._record(node_id, recorded)

    def _record(self, node_id: bytes, done: Done) -> None:
        self._is_busy = True
        self._recorded = b""

        def finished(error: OSError | None) -> None:
            self._is_busy = False
            if error is not None:
                must_be_the_systems(error)
            else:
                self._recorded = node_id
            done("" if error is None else error.strerror or str(error))
            if self._waiting:
                self.change(*self._waiting.popleft())

        self._files.in_background(partial(replace_file, self._files, self.path, node_id + b"\n"), finished)
