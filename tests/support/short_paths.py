"""Folders for Unix sockets, whose paths may have 107 bytes, however long that of the folder for temporary files is."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

ROOT_CHARACTERS_MAX: Final = 60
_VARIABLE: Final = "KESTRELD_TESTS_SHORT"  # tells a run's workers, and what they start


def configure() -> None:
    """Choose where they are to be, for a run."""
    folder = tempfile.gettempdir()
    is_short = len(folder) <= ROOT_CHARACTERS_MAX
    os.environ[_VARIABLE] = folder if is_short else tempfile.mkdtemp(prefix="kestreld-", dir="/tmp")


def remove() -> None:
    """At the end of the run."""
    shutil.rmtree(os.environ[_VARIABLE], ignore_errors=True)


def new_folder() -> Path:
    """One of its own for whoever asks; it goes with the run."""
    return Path(tempfile.mkdtemp(dir=os.environ.get(_VARIABLE)))
