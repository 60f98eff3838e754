"""The file of a ledger, with bytes of any kind in it."""

import struct
from typing import Final

from xxhash import xxh3_64_intdigest

from kestreld.journal.ledger import HEADER_BYTES
from kestreld.journal.records import FRAME, FRAME_BYTES
from kestreld.queues.bindings import FILE_NAME, Bindings
from tests.support.memory_files import MemoryFiles

SPOOL: Final = "/spool"
PATH: Final = f"{SPOOL}/{FILE_NAME}"
KEY: Final = b"e q % %"
_NUMBER: Final = struct.Struct("<I")


def bindings_file(data: bytes) -> None:
    """A file has bindings of whose bytes it consists, or is left as it is and refuses changes.

    A second start finds what the first one did, and what was changed since. With an odd first byte all checksums are
    made right.
    """
    content = _with_true_checksums(data[1:]) if data[:1] and data[0] & 1 else data[1:]
    disk = MemoryFiles()
    disk.make_dir(SPOOL)
    disk.files[PATH] = bytearray(content)
    first = _started(disk)
    if first.ledger.problem is not None:
        assert (len(first), disk.files[PATH]) == (0, content)
        return
    found = dict(first.ledger.items())
    assert all(key in content and value in content for key, value in found.items())
    assert {key for keys in first.of(None) for key in keys} == found.keys()
    second = _started(disk)
    assert dict(second.ledger.items()) == found
    ends: list[object] = []
    second.bind(KEY, ends.append)
    second.ledger.close()
    assert ends == [None]
    assert dict(_started(disk).ledger.items()) == {**found, KEY: b""}


def _started(disk: MemoryFiles) -> Bindings:
    log: list[str] = []
    bindings = Bindings(disk, SPOOL, 1_000_000, log.append)
    bindings.read()
    assert bindings.ledger.problem is None or str(bindings.ledger.problem) in log
    return bindings


def _with_true_checksums(content: bytes) -> bytes:
    """A file whose header and records, as far as their lengths lead, have the checksums of what is in them."""
    made, at = bytearray(content), HEADER_BYTES
    if len(made) < at:
        return content
    _NUMBER.pack_into(made, at - 4, xxh3_64_intdigest(bytes(made[: at - 4])) & 0xFFFFFFFF)
    while at + FRAME_BYTES <= len(made):
        body_bytes, _, record_type = FRAME.unpack_from(made, at)
        end = at + FRAME_BYTES + body_bytes
        if end > len(made) or not body_bytes:
            break
        body = bytes(made[at + FRAME_BYTES : end])
        _NUMBER.pack_into(made, at + 4, xxh3_64_intdigest(body, body_bytes + (record_type << 56)) & 0xFFFFFFFF)
        at = end
    return bytes(made)
