"""Messages of the cluster bus as bytes: numbers in little-endian order, byte strings after their length.

A message of an unknown type is ignored, because nodes are upgraded one by one. One that cannot be read is refused: its
frame is intact, so its sender uses another protocol.
"""

import re
import struct
from collections.abc import Callable, Iterable
from typing import Any, Final

from kestreld.cluster.frames import FIRST_MESSAGE
from kestreld.cluster.job_messages import (
    CaughtUp,
    Death,
    Declined,
    DeleteQueue,
    DelJob,
    FindKey,
    FoundKey,
    GaveUp,
    GotAck,
    GotJob,
    JobCopy,
    JobEnded,
    JobMessage,
    LeftJob,
    LendJob,
    LetGo,
    Moved,
    NeedJobs,
    NeedNothing,
    Notice,
    Owners,
    PauseQueue,
    Released,
    ReplJob,
    SetAck,
    Stored,
    TookBack,
    TookJobs,
    WatchJob,
    YourJobs,
)
from kestreld.cluster.messages import Failed, GossipEntry, Meet, NodeMessage, Ping, Pong, Suspected
from kestreld.cluster.nodes import NODE_ID_BYTES, Flag, checked_address, is_node_id
from kestreld.cluster.reactions import Word
from kestreld.jobs.job import CREATED_UNITS
from kestreld.jobs.job_id import ID_BYTES, is_job_id

Message = NodeMessage | JobMessage

NODES_MAX: Final = 1_000
JOBS_MAX: Final = 10_000
TIME_MS_MAX: Final = 1 << 52  # of spans and instants
TIMES_MAX: Final = 1 << 31  # retries of a job at most: it is counted on from there
_WORD: Final = re.compile(rb"[!-~]{1,100}")  # is shown to clients as it is
_WORDS: Final = (Word.WILL_QUEUE, Word.HAS_QUEUED, Word.WORKING, Word.ENQUEUE)
_SIZE: Final = struct.Struct("<I")
_FLAGS: Final = struct.Struct("<H")
_GOSSIP: Final = struct.Struct(f"<{NODE_ID_BYTES}sHHH")
_COPY: Final = struct.Struct(f"<{ID_BYTES}sQQQQQHIIqB")
_NOTICE: Final = struct.Struct(f"<B{ID_BYTES}sIIQ")
_NUMBER: Final = struct.Struct("<Q")
_COUNT: Final = struct.Struct("<I")
_NEED: Final = struct.Struct("<IB")
_DEATH: Final = struct.Struct("<Q")
_MOVED: Final = struct.Struct(f"<{ID_BYTES}sIIB")
# Bit in the byte with the word or the dead-letter flag: the number of moves comes last in the message.
_HAS_MOVES: Final = 0x80


class Unreadable(ValueError):
    """The bytes are not a message of that type."""


class _Input:
    """Bytes of a message that are left to read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size_bytes: int) -> bytes:
        if size_bytes > len(self._data) - self._at:
            raise Unreadable("the message is cut short")
        self._at += size_bytes
        return self._data[self._at - size_bytes : self._at]

    def fields(self, form: struct.Struct) -> tuple[Any, ...]:
        return form.unpack(self.take(form.size))

    def some(self) -> bytes:
        return self.take(_SIZE.unpack(self.take(_SIZE.size))[0])

    def count(self, most: int) -> int:
        count = int(_COUNT.unpack(self.take(_COUNT.size))[0])
        if count > most:
            raise Unreadable(f"list of {count} entries: the maximum is {most}")
        return count

    def ids(self, size_bytes: int, most: int) -> tuple[bytes, ...]:
        return tuple([self.take(size_bytes) for _ in range(self.count(most))])

    def end(self) -> None:
        if self._at != len(self._data):
            raise Unreadable("bytes after the end of the message")


def _some(data: bytes) -> bytes:
    return _SIZE.pack(len(data)) + data


def _ids(ids: Iterable[bytes]) -> bytes:
    packed = b"".join(ids)
    return _COUNT.pack(len(packed) // NODE_ID_BYTES) + packed  # ids of jobs are as long as those of nodes


def _time(time_ms: int) -> int:
    if time_ms > TIME_MS_MAX:
        raise Unreadable(f"time out of range: {time_ms} ms")
    return time_ms


def _times(times: int) -> int:
    if times > TIMES_MAX:
        raise Unreadable(f"count of deliveries out of range: {times}")
    return times


def _checked_id(job_id: bytes) -> bytes:
    if not is_job_id(job_id):
        raise Unreadable("invalid job id")
    return job_id


def _word(source: _Input) -> bytes:
    word = source.some()
    if _WORD.fullmatch(word) is None:
        raise Unreadable("invalid reason or outcome of a job")
    return word


def _owners(source: _Input) -> tuple[bytes, ...]:
    owners = source.ids(NODE_ID_BYTES, NODES_MAX)
    if not all(map(is_node_id, owners)):
        raise Unreadable("invalid node id")
    return owners


# Messages about nodes


def _pack_gossip(gossip: tuple[GossipEntry, ...]) -> bytes:
    packed = [_COUNT.pack(len(gossip))]
    for entry in gossip:
        address = entry.address
        packed += (
            _GOSSIP.pack(entry.node_id, address.port, address.bus_port, entry.flags),
            _some(address.host.encode()),
        )
    return b"".join(packed)


def _read_gossip_entry(source: _Input) -> GossipEntry:
    node_id, port, bus_port, flags = source.fields(_GOSSIP)
    address = checked_address(source.some(), port, bus_port)
    if address is None or not is_node_id(node_id):
        raise Unreadable("invalid node id or address")
    return GossipEntry(node_id, address, Flag(flags & _TOLD))


_TOLD: Final = int(
    Flag.SUSPECT | Flag.FAILED | Flag.HANDSHAKE | Flag.NO_ADDRESS | Flag.LEAVING | Flag.LOADING | Flag.STRANGER
)


def _pack_ping(message: Ping | Pong) -> bytes:
    return _FLAGS.pack(message.flags) + _pack_gossip(message.gossip)


def _read_flags(source: _Input) -> Flag:
    return Flag(source.fields(_FLAGS)[0] & _TOLD)


def _read_gossip(source: _Input) -> tuple[GossipEntry, ...]:
    return tuple([_read_gossip_entry(source) for _ in range(source.count(NODES_MAX))])


# Messages about jobs


def _pack_death(death: Death | None) -> bytes:
    return b"" if death is None else _DEATH.pack(death.dead_at_ms) + _some(death.origin) + _some(death.reason)


def _read_death(source: _Input, *, is_dead: bool) -> Death | None:
    if not is_dead:
        return None
    dead_at_ms = _time(source.fields(_DEATH)[0])
    origin, reason = source.some(), _word(source)
    return Death(origin, reason, dead_at_ms)


def _moves_bit(moves: int) -> int:
    return _HAS_MOVES if moves else 0


def _pack_moves(moves: int) -> bytes:
    return _COUNT.pack(moves) if moves else b""


def _read_moves(source: _Input, bits: int) -> int:
    return source.count(TIMES_MAX) if bits & _HAS_MOVES else 0


def _pack_copy(copy: JobCopy) -> bytes:
    fields = _COPY.pack(
        copy.job_id, copy.created, copy.ttl_ms, copy.retry_ms, copy.delay_ms, copy.due_at_ms, copy.replicate,
        copy.nacks, copy.deliveries, copy.retries_max, (copy.death is not None) | _moves_bit(copy.moves),
    )  # fmt: skip
    rest = (
        _some(copy.queue), _some(copy.key), _ids(copy.owners), _pack_death(copy.death), _some(copy.body),
        _pack_moves(copy.moves),
    )  # fmt: skip
    return fields + b"".join(rest)


def _read_copy(source: _Input) -> JobCopy:
    (
        job_id, created, ttl_ms, retry_ms, delay_ms, due_at_ms, replicate, nacks, deliveries, retries_max, bits,
    ) = source.fields(_COPY)  # fmt: skip
    for time_ms in (created // CREATED_UNITS, ttl_ms, retry_ms, delay_ms, due_at_ms):
        _time(time_ms)
    queue, key, owners = source.some(), source.some(), _owners(source)
    death = _read_death(source, is_dead=bool(bits & 1))
    return JobCopy(
        _checked_id(job_id), queue, source.some(), created, ttl_ms, retry_ms, delay_ms, due_at_ms, replicate,
        _times(nacks), _times(deliveries), owners, key, retries_max, death, _read_moves(source, bits),
    )  # fmt: skip


def _pack_your_jobs(message: YourJobs) -> bytes:
    head = _NUMBER.pack(message.number) + _COUNT.pack(len(message.copies))
    return head + b"".join(map(_pack_copy, message.copies))


def _read_your_jobs(source: _Input) -> YourJobs:
    number = source.fields(_NUMBER)[0]
    return YourJobs(number, tuple([_read_copy(source) for _ in range(source.count(JOBS_MAX))]))


def _pack_notice(message: Notice) -> bytes:
    word = _WORDS.index(message.word) | _moves_bit(message.moves)
    fields = _NOTICE.pack(word, message.job_id, message.nacks, message.deliveries, message.after_ms)
    return fields + _pack_moves(message.moves)


def _read_notice(source: _Input) -> Notice:
    bits, job_id, nacks, deliveries, after_ms = source.fields(_NOTICE)
    word, moves = bits & ~_HAS_MOVES, _read_moves(source, bits)
    if word >= len(_WORDS):
        raise Unreadable(f"unknown notice about a job: {word}")
    return Notice(_WORDS[word], _checked_id(job_id), _times(nacks), _times(deliveries), _time(after_ms), moves)


def _pack_moved(message: Moved) -> bytes:
    bits = (message.death is not None) | _moves_bit(message.moves)
    fields = _MOVED.pack(message.job_id, message.nacks, message.deliveries, bits)
    return fields + _some(message.queue) + _pack_death(message.death) + _pack_moves(message.moves)


def _read_moved(source: _Input) -> Moved:
    job_id, nacks, deliveries, bits = source.fields(_MOVED)
    queue = source.some()
    death = _read_death(source, is_dead=bool(bits & 1))
    return Moved(_checked_id(job_id), queue, death, _times(nacks), _times(deliveries), _read_moves(source, bits))


def _read_need_jobs(source: _Input) -> NeedJobs:
    count, is_waiting = source.fields(_NEED)
    return NeedJobs(source.some(), count, bool(is_waiting))


def _read_found_key(source: _Input) -> FoundKey:
    job_id, is_pending = _job_id(source), source.take(1) != b"\0"
    known_id = source.some()
    return FoundKey(job_id, _checked_id(known_id) if known_id else b"", is_pending)


def _job_id(source: _Input) -> bytes:
    return _checked_id(source.take(ID_BYTES))


def _pack_id(message: Any) -> bytes:
    job_id: bytes = message.job_id
    return job_id


def _pack_number(message: TookJobs) -> bytes:
    return _NUMBER.pack(message.number)


_Row = tuple[type[Any], Callable[[Any], bytes], Callable[[_Input], Any]]
# In order of their numbers, from FIRST_MESSAGE: new messages are added at the end.
_TYPES: Final[tuple[_Row, ...]] = (
    (Ping, _pack_ping, lambda source: Ping(_read_flags(source), _read_gossip(source))),
    (Pong, _pack_ping, lambda source: Pong(_read_flags(source), _read_gossip(source))),
    (Meet, lambda message: _FLAGS.pack(message.flags), lambda source: Meet(_read_flags(source))),
    (
        Suspected,
        lambda message: message.node_id + bytes((message.is_down,)),
        lambda source: Suspected(source.take(NODE_ID_BYTES), source.take(1) != b"\0"),
    ),
    (Failed, lambda message: message.node_id, lambda source: Failed(source.take(NODE_ID_BYTES))),
    (ReplJob, lambda message: _pack_copy(message.copy), lambda source: ReplJob(_read_copy(source))),
    (GotJob, _pack_id, lambda source: GotJob(_job_id(source))),
    (
        Owners,
        lambda message: message.job_id + _ids(message.owners),
        lambda source: Owners(_job_id(source), _owners(source)),
    ),
    (Notice, _pack_notice, _read_notice),
    (
        SetAck,
        lambda message: message.job_id + _ids(message.owners),
        lambda source: SetAck(_job_id(source), _owners(source)),
    ),
    (
        GotAck,
        lambda message: message.job_id + bytes((message.is_known,)) + _ids(message.owners),
        lambda source: GotAck(_job_id(source), source.take(1) != b"\0", _owners(source)),
    ),
    (DelJob, lambda message: _ids(message.job_ids), lambda source: DelJob(source.ids(ID_BYTES, JOBS_MAX))),
    (
        NeedJobs,
        lambda message: _NEED.pack(message.count, message.is_waiting) + _some(message.queue),
        _read_need_jobs,
    ),
    (YourJobs, _pack_your_jobs, _read_your_jobs),
    (TookJobs, _pack_number, lambda source: TookJobs(source.fields(_NUMBER)[0])),
    (
        LendJob,
        lambda message: bytes((message.is_new,)) + _pack_copy(message.copy),
        lambda source: LendJob(is_new=source.take(1) != b"\0", copy=_read_copy(source)),
    ),
    (Declined, _pack_id, lambda source: Declined(_job_id(source))),
    (Stored, _pack_id, lambda source: Stored(_job_id(source))),
    (LetGo, _pack_id, lambda source: LetGo(_job_id(source))),
    (Released, _pack_id, lambda source: Released(_job_id(source))),
    (TookBack, _pack_id, lambda source: TookBack(_job_id(source))),
    (Moved, _pack_moved, _read_moved),
    (LeftJob, lambda message: _ids(message.job_ids), lambda source: LeftJob(source.ids(ID_BYTES, JOBS_MAX))),
    (CaughtUp, lambda message: b"", lambda source: CaughtUp()),
    (
        PauseQueue,
        lambda message: bytes((message.pause,)) + _some(message.queue),
        lambda source: PauseQueue(pause=source.take(1)[0] & 3, queue=source.some()),
    ),
    (DeleteQueue, lambda message: _some(message.queue), lambda source: DeleteQueue(source.some())),
    (
        FindKey,
        lambda message: message.job_id + _some(message.key),
        lambda source: FindKey(job_id=_job_id(source), key=source.some()),
    ),
    (
        FoundKey,
        lambda message: message.job_id + bytes((message.is_pending,)) + _some(message.known_id),
        _read_found_key,
    ),
    (WatchJob, _pack_id, lambda source: WatchJob(_job_id(source))),
    (
        JobEnded,
        lambda message: message.job_id + _some(message.end),
        lambda source: JobEnded(_job_id(source), _word(source)),
    ),
    (NeedNothing, lambda message: b"", lambda source: NeedNothing()),
    (
        GaveUp,
        lambda message: message.job_id + _some(message.key),
        lambda source: GaveUp(_job_id(source), source.some()),
    ),
)
_NUMBERS: Final[dict[type[Any], int]] = {row[0]: number for number, row in enumerate(_TYPES, FIRST_MESSAGE)}
# Messages about moved jobs have other numbers: nodes that do not count moves ignore them.
_WITH_MOVES: Final[dict[type[Any], int]] = {
    kind: 0x80 | _NUMBERS[kind] for kind in (ReplJob, Notice, YourJobs, LendJob, Moved)
}
_ROWS: Final = {
    **{_NUMBERS[row[0]]: row for row in _TYPES},
    **{number: _TYPES[_NUMBERS[kind] - FIRST_MESSAGE] for kind, number in _WITH_MOVES.items()},
}


def _has_moves(message: Message) -> bool:
    if isinstance(message, (Notice, Moved)):
        return message.moves > 0
    if isinstance(message, (ReplJob, LendJob)):
        return message.copy.moves > 0
    return isinstance(message, YourJobs) and any(copy.moves for copy in message.copies)


def pack(message: Message) -> tuple[int, bytes]:
    """Return the type and the body of a message's record."""
    number = (_WITH_MOVES if _has_moves(message) else _NUMBERS)[type(message)]
    return number, _ROWS[number][1](message)


def read(number: int, body: bytes) -> Message | None:
    """Return the message in a record, None if its type is not known. Raises Unreadable."""
    if number not in _ROWS:
        return None
    source = _Input(body)
    message: Message = _ROWS[number][2](source)
    source.end()
    return message
