"""File of the spool in which CONFIG REWRITE saves settings without a disque.conf.

It is read after the configuration.
"""

from typing import Final

from kestreld.files import FileLayer, must_be_the_systems
from kestreld.server.disque.parser import split_line
from kestreld.server.disque.replies import quoted
from kestreld.server.disque.settings import DisqueSettings

FILE_NAME: Final = ".jobs.conf"
_HEAD: Final = b"# What was changed by CONFIG SET, as CONFIG REWRITE saves it. Read at the start.\n"


class SavedSettings:
    """The file with the saved settings."""

    def __init__(self, files: FileLayer, spool: str) -> None:
        self._files = files
        self._spool = spool
        self.path = f"{spool}/{FILE_NAME}"

    def read(self, settings: DisqueSettings) -> tuple[list[tuple[bytes, bytes]], list[str]]:
        """Return the parameters with their values, and the mistakes in other lines. Raises OSError."""
        if not self._files.exists(self.path):
            return [], []
        found, problems = [], []
        for number, line in enumerate(self._files.read_file(self.path).split(b"\n"), 1):
            words = split_line(line)
            if words is not None and (not words or words[0].startswith(b"#")):
                continue
            value = settings.check_settable(words[0], words[1]) if words is not None and len(words) == 2 else None
            if words is None or value is None:
                problems.append(f"{self.path}:{number}: expected a parameter and its value; the line is left out")
            else:
                found.append((words[0].lower(), value))
        return found, problems

    def write(self, settings: DisqueSettings) -> str:
        """Replace the file by the current settings; returns the reason for a failure, "" if it is done."""
        lines = [b"%b %b\n" % (name, quoted(value)) for name, value in settings.changed()]
        try:
            replace_file(self._files, self.path, _HEAD + b"".join(lines))
        except OSError as error:
            must_be_the_systems(error)
            return f"Rewriting config file: {error.strerror}"
        return ""


def replace_file(files: FileLayer, path: str, data: bytes) -> None:
    """Replace or create a file; owner and mode are kept.

    Raises OSError; the file is the old one or the new one, also after a power cut.
    """
    temporary = f"{path}.new"
    if files.exists(temporary):
        files.unlink(temporary)
    fd = files.create(temporary)
    try:
        if files.exists(path):
            files.make_like(fd, path)
        while data:
            data = data[files.write(fd, data) :]
        files.sync(fd)
    finally:
        files.close(fd)
    files.rename(temporary, path)
    files.sync_dir(path.rpartition("/")[0])
