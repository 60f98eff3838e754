"""The cause of a failed Spark task, found in Spark's messages."""

import re
from typing import Final

from kestrelctl.shell.exit_codes import ExitCode, Failure

CODES: Final = {
    "FileNotFoundError": ExitCode.TRY_AGAIN,
    "JournalCorrupt": ExitCode.CORRUPT,
    "SegmentsMissing": ExitCode.CORRUPT,
    "ServerTrouble": ExitCode.UNREACHABLE,
    "ItemsLost": ExitCode.IO,
    "BadOption": ExitCode.USAGE,
    "BadState": ExitCode.IO,
    "OSError": ExitCode.IO,
    "PermissionError": ExitCode.IO,
}
CALLING: Final = "An error occurred while calling"  # of py4j, before the error
_RAISED: Final = re.compile(rf"^(?:.*: )?(?:[\w.]+\.)?({'|'.join(CODES)}): (.+)$", re.MULTILINE)


def failure_in(message: str) -> Failure:
    """The Failure for the error of ours that the message contains, else for its first line."""
    found = _RAISED.search(message)
    if found is None:
        lines = [line.strip(" :") for line in message.splitlines() if not line.startswith(CALLING)]
        line = next((line for line in lines if line), "")
        return Failure(ExitCode.INTERNAL, f"Spark failed: {line}")
    words = found[2].strip()
    if found[1] == "FileNotFoundError":
        words = f"{words}: removed by its server in the meantime; try again"
    return Failure(CODES[found[1]], words)
