"""Names of queues: which are valid, and the names of their files."""

import re
from typing import Final

QUEUE_FILE_NAME_BYTES_MAX: Final = 200  # leaves room for our suffixes in the 255 a file system allows
_PLAIN: Final = re.compile("[A-Za-z0-9_-]+")  # a queue's name that is its file name as it stands


def queue_name_problem(name: str) -> str | None:
    """Return the reason why no queue can have this name (latin-1 text), or None if it is valid."""
    if _PLAIN.fullmatch(name) and len(name) <= QUEUE_FILE_NAME_BYTES_MAX:
        return None
    if not name:
        return "queue name must not be empty"
    if bad := re.search("[/~.]", name):
        return f"queue name must not contain {bad[0]!r}"
    if re.search("[\x00-\x20\x7f]", name):
        return "queue name must not contain spaces or control characters"
    if re.search("[^\x00-\xff]", name):
        return "queue name must consist of characters up to U+00FF"
    if name.startswith("+") or name.endswith("+"):
        return "queue name must not begin or end with '+', which separates parent and child"
    if (size_bytes := len(encode_queue_name(name))) > QUEUE_FILE_NAME_BYTES_MAX:
        longest = QUEUE_FILE_NAME_BYTES_MAX
        return f"queue name too long: its file name would have {size_bytes} bytes, the maximum is {longest}"
    return None


def encode_queue_name(name: str) -> str:
    """Encode a name as a file name: all bytes but A-Za-z0-9_- as %XX. Raises UnicodeEncodeError if not latin-1."""
    if _PLAIN.fullmatch(name):
        return name
    quoted = re.sub(rb"[^A-Za-z0-9_-]", lambda byte: b"%%%02X" % byte[0][0], name.encode("latin-1"))
    return quoted.decode("ascii")


def decode_queue_name(encoded: str) -> str:
    """Decode a file name. A foreign file gives an invalid queue name, or one that does not encode back."""
    if "%" not in encoded:
        return encoded
    return re.sub("%([0-9A-F]{2})", lambda code: chr(int(code[1], 16)), encoded)
