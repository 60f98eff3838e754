"""Whether the files of a server's journal can be read from here."""

import os

from kestreld.errors import JournalCorrupt
from kestreld.files import FileLayer
from kestreld.journal.segment import decode_header, parse_segment_name

HEADER_LOOK_BYTES = 1 << 20  # a name, and the numbers of all the segments it may stand in for


def is_here(folder: str, journal_id: int) -> bool:
    """Whether this machine has this journal in that folder, and we may read it. Another of the same name is none."""
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
            continue  # its server has let it go meanwhile
        except (OSError, JournalCorrupt):
            return False
    return False
