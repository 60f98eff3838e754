"""What has failed in a task, found in the pages that Spark says about it."""

import re
from typing import Final

from kestrelctl.shell.exit_codes import ExitCode, Failure

CODES: Final = {
    "FileNotFoundError": ExitCode.TRY_AGAIN,
    "JournalCorrupt": ExitCode.CORRUPT,
    "ServerTrouble": ExitCode.UNREACHABLE,
    "ItemsLost": ExitCode.IO,
    "BadOption": ExitCode.USAGE,
    "BadState": ExitCode.IO,
    "OSError": ExitCode.IO,
    "PermissionError": ExitCode.IO,
}
_RAISED: Final = re.compile(rf"^(?:.*: )?(?:[\w.]+\.)?({'|'.join(CODES)}): (.+)$", re.MULTILINE)


def failure_in(said: str) -> Failure:
    """In words of ours where it is one of ours, else in the first of Spark's."""
    found = _RAISED.search(said)
    if found is None:
        line = next((line.strip() for line in said.splitlines() if line.strip()), "")
        return Failure(ExitCode.INTERNAL, f"Spark failed: {line}")
    words = found[2].strip()
    if found[1] == "FileNotFoundError":
        words = f"{words}: its server has let it go meanwhile; try again"
    return Failure(CODES[found[1]], words)
