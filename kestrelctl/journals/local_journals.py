"""Check that a server's journal can be read on this machine."""

import os

from kestreld.errors import JournalCorrupt
from kestreld.files import FileLayer
from kestreld.journal.segment import decode_header, parse_segment_name

HEADER_LOOK_BYTES = 1 << 20  # enough for a name and the numbers of all segments that it may replace


def is_here(folder: str, journal_id: int) -> bool:
    """True if the folder is on this machine, can be read, and holds the journal of that id."""
    try:
        names = [name for name in FileLayer().list_dir(folder) if parse_segment_name(name)]
    except OSError:
        return False
    for name in names:
        path = os.path.join(folder, name)
        try:
            with open(path, "rb") as file:
                return decode_header(file.read(HEADER_LOOK_BYTES), path)[0].journal_id == journal_id
        except FileNotFoundError:
            continue  # deleted by its server
        except (OSError, JournalCorrupt):
            return False
    return False
