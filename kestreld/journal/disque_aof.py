"""The append-only file of Disque 1.0-rc1, which is read and never written, and the jobs in it.

It has commands as clients send them, of two kinds: LOADJOB with a serialized job, and DELJOB with an id. A job is

    u32 length of what follows | id 40 | state u8, its high half a counter | flags u8 | replicas u16 | expires_at_s u32
    | ctime u64 | delay_s u32 | retry_s u32 | nacks u16 | deliveries u16 | u32 length, queue | u32 length, body
    | u32 count, ids of nodes (40 each)                                                     all little-endian
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kestreld.errors import JournalCorrupt
from kestreld.files import FileLayer
from kestreld.journal.job_records import JobState

AOF_NAME: Final = "disque.aof"
NODE_ID_BYTES: Final = 40
CHUNK_BYTES: Final = 1 << 20
WORD_BYTES_MAX: Final = 1 << 30  # a job has 512 MiB at most
LINE_BYTES_MAX: Final = 16
_FIELDS: Final = struct.Struct("<40sBBHIQIIHH")
_LENGTH: Final = struct.Struct("<I")
_ID: Final = re.compile(rb"D-.{8}-.{24}-.{4}", re.DOTALL)
_LINE: Final = re.compile(rb"([*$])(\d{1,10})\r\n")
_CUT_LINE: Final = re.compile(rb"([*$](\d{1,10}\r?)?)?")


@dataclass(slots=True, frozen=True)
class SavedJob:
    """A job as LOADJOB has it. `ctime` is in units of 10^-6 ms since 1970, `expires_at_s` in seconds since then.

    `nodes` are the ids of the nodes that may hold a copy.
    """

    job_id: bytes
    state: int
    replicas: int
    expires_at_s: int
    ctime: int
    delay_s: int
    retry_s: int
    nacks: int
    deliveries: int
    queue: bytes
    body: bytes
    nodes: tuple[bytes, ...] = ()


def read_saved_job(blob: bytes) -> SavedJob:
    """Read the job of a LOADJOB. Raises ValueError with the reason if it is not a job."""
    try:
        (length,) = _LENGTH.unpack_from(blob)
        job_id, state, _, replicas, expires_at_s, ctime, delay_s, retry_s, nacks, deliveries = _FIELDS.unpack_from(
            blob, _LENGTH.size
        )
        queue, at = _text(blob, _LENGTH.size + _FIELDS.size)
        body, at = _text(blob, at)
        (count,) = _LENGTH.unpack_from(blob, at)
    except struct.error:
        raise ValueError("the job is cut short") from None
    if length != len(blob) - _LENGTH.size or at + _LENGTH.size + count * NODE_ID_BYTES != len(blob):
        raise ValueError("the job's lengths are inconsistent")
    state &= 15
    if state > JobState.ACKED:
        raise ValueError(f"unknown job state {state}")
    if not _ID.fullmatch(job_id):
        raise ValueError("the job has an invalid id")
    nodes = tuple([blob[first : first + NODE_ID_BYTES] for first in range(at + _LENGTH.size, len(blob), NODE_ID_BYTES)])
    return SavedJob(
        job_id, state, replicas, expires_at_s, ctime, delay_s, retry_s, nacks, deliveries, queue, body, nodes
    )


def packed_saved_job(job: SavedJob) -> bytes:
    """Pack a job as `read_saved_job` reads it, without the nodes that have a copy."""
    content = b"".join(
        [
            _FIELDS.pack(
                job.job_id, job.state, 0, job.replicas, job.expires_at_s, job.ctime, job.delay_s, job.retry_s,
                job.nacks, job.deliveries,
            ),
            _LENGTH.pack(len(job.queue)), job.queue, _LENGTH.pack(len(job.body)), job.body, _LENGTH.pack(0),
        ]
    )  # fmt: skip
    return _LENGTH.pack(len(content)) + content


def _text(blob: bytes, at: int) -> tuple[bytes, int]:
    """A text after its length, and its end, which is behind the blob if the text is cut short."""
    (length,) = _LENGTH.unpack_from(blob, at)
    at += _LENGTH.size
    return blob[at : at + length], at + length


class _CutShort(Exception):
    """A command is not complete."""

    def __init__(self, wanted_bytes: int) -> None:
        """`wanted_bytes` are needed from the beginning of the command."""
        super().__init__()
        self.wanted_bytes = wanted_bytes


class AofReader:
    """Reads a file once: each job that was added, and the id of each that was deleted.

    `torn_at` is the offset of the last command if it is cut short, as after a crash.
    """

    def __init__(self, files: FileLayer, path: str) -> None:
        self._files = files
        self.path = path
        self.bytes_total = 0
        self.bytes_read = 0
        self.torn_at: int | None = None

    def __iter__(self) -> Iterator[SavedJob | bytes]:
        """Yield jobs and ids. Raises JournalCorrupt and OSError."""
        fd = self._files.open_operators_file(self.path)
        try:
            self.bytes_total = self._files.size_bytes(self.path)
            yield from self._commands(fd)
        finally:
            self._files.close(fd)

    def _commands(self, fd: int) -> Iterator[SavedJob | bytes]:
        buffer, at, base = b"", 0, 0
        while True:
            try:
                words, end = _command(buffer, at)
                yield _meaning(words)
            except _CutShort as short:
                left, base = buffer[at:], base + at
                known_bytes = base + len(left)
                wanted_bytes = max(CHUNK_BYTES, short.wanted_bytes - len(left))
                more = self._files.read_at(fd, max(min(wanted_bytes, self.bytes_total - known_bytes), 0), known_bytes)
                if not more:
                    self.torn_at = base if left else None
                    return
                buffer, at = left + more, 0
            except ValueError as error:
                raise JournalCorrupt(self.path, base + at, str(error)) from None
            else:
                at = end
                self.bytes_read = base + at


def _command(buffer: bytes, at: int) -> tuple[list[bytes], int]:
    """A command's words, and its end. Raises _CutShort, or ValueError if there is no command."""
    begin = at
    count, at = _number(buffer, at, b"*", begin)
    if count != 2:
        raise ValueError(f"a command of {count} words")
    words = []
    for _ in range(count):
        length, at = _number(buffer, at, b"$", begin)
        if length > WORD_BYTES_MAX:
            raise ValueError(f"a word of {length} bytes")
        end = at + length
        if end + 2 > len(buffer):
            raise _CutShort(end + 2 - begin)
        if buffer[end : end + 2] != b"\r\n":
            raise ValueError("a word is not terminated where its length says")
        words.append(buffer[at:end])
        at = end + 2
    return words, at


def _number(buffer: bytes, at: int, sign: bytes, begin: int) -> tuple[int, int]:
    found = _LINE.match(buffer, at)
    if found is not None and found[1] == sign:
        return int(found[2]), found.end()
    rest = buffer[at : at + LINE_BYTES_MAX]
    if rest[:1] in (b"", sign) and _CUT_LINE.fullmatch(rest):
        raise _CutShort(at + LINE_BYTES_MAX - begin)
    raise ValueError(f"expected {sign.decode()!r} and a number, not {rest!r}")


def _meaning(words: list[bytes]) -> SavedJob | bytes:
    name = words[0].upper()
    if name == b"LOADJOB":
        return read_saved_job(words[1])
    if name != b"DELJOB":
        raise ValueError(f"unknown command {words[0][:40]!r}")
    if not _ID.fullmatch(words[1]):
        raise ValueError("DELJOB of an invalid id")
    return words[1]
