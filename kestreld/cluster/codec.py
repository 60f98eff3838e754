"""Messages as bytes: what is in the frames of the bus. Numbers are little-endian, bytes have their length before them.

A message of a type that this node does not know is passed over, as nodes are upgraded one after the other. One that
cannot be read is refused: the frame is whole, so whoever sent it does not speak this language.
"""

import struct
from collections.abc import Callable, Iterable
from typing import Any, Final

from kestreld.cluster.frames import FIRST_MESSAGE
from kestreld.cluster.job_messages import (
    About,
    Acked,
    Death,
    DeleteQueue,
    Forget,
    Give,
    JobCopy,
    JobMessage,
    Keep,
    Kept,
    KnowsAck,
    LetGo,
    Moved,
    Need,
    Pause,
    Stored,
    TookBack,
)
from kestreld.cluster.messages import Failed, Meet, Ping, Pong, Rumour, Suspected
from kestreld.cluster.nodes import NODE_ID_BYTES, PORT_MAX, Flag, NodeAddress
from kestreld.cluster.requeueing import Word
from kestreld.jobs.job_id import ID_BYTES

Message = Ping | Pong | Meet | Suspected | Failed | JobMessage

NODES_MAX: Final = 1_000
JOBS_MAX: Final = 10_000
SPAN_MS_MAX: Final = 1 << 52
_WORDS: Final = (Word.WILL_QUEUE, Word.HAS_QUEUED, Word.WORKING, Word.ENQUEUE)
_SIZE: Final = struct.Struct("<I")
_FLAGS: Final = struct.Struct("<H")
_RUMOUR: Final = struct.Struct(f"<{NODE_ID_BYTES}sHHH")
_COPY: Final = struct.Struct(f"<{ID_BYTES}sQQQQQQHIIqB")
_ABOUT: Final = struct.Struct(f"<B{ID_BYTES}sIIQ")
_COUNT: Final = struct.Struct("<I")
_NEED: Final = struct.Struct("<IB")
_DEATH: Final = struct.Struct("<Q")
_MOVED: Final = struct.Struct(f"<{ID_BYTES}sIIB")


class Unreadable(ValueError):
    """The bytes are no message of that type."""


class _Input:
    """What is left to read of a message."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size_bytes: int) -> bytes:
        if size_bytes > len(self._data) - self._at:
            raise Unreadable("it ends too early")
        self._at += size_bytes
        return self._data[self._at - size_bytes : self._at]

    def fields(self, form: struct.Struct) -> tuple[Any, ...]:
        return form.unpack(self.take(form.size))

    def some(self) -> bytes:
        return self.take(_SIZE.unpack(self.take(_SIZE.size))[0])

    def count(self, most: int) -> int:
        count = int(_COUNT.unpack(self.take(_COUNT.size))[0])
        if count > most:
            raise Unreadable(f"{count} of what there are {most} at most")
        return count

    def ids(self, size_bytes: int, most: int) -> tuple[bytes, ...]:
        return tuple([self.take(size_bytes) for _ in range(self.count(most))])

    def end(self) -> None:
        if self._at != len(self._data):
            raise Unreadable("something follows it")


def _some(data: bytes) -> bytes:
    return _SIZE.pack(len(data)) + data


def _ids(ids: Iterable[bytes]) -> bytes:
    packed = b"".join(ids)
    return _COUNT.pack(len(packed) // NODE_ID_BYTES) + packed  # ids of jobs are as long as those of nodes


def _span(span_ms: int) -> int:
    if span_ms > SPAN_MS_MAX:
        raise Unreadable(f"a time of {span_ms} ms")
    return span_ms


# Of nodes


def _pack_rumours(rumours: tuple[Rumour, ...]) -> bytes:
    packed = [_COUNT.pack(len(rumours))]
    for rumour in rumours:
        address = rumour.address
        packed += (
            _RUMOUR.pack(rumour.node_id, address.port, address.bus_port, rumour.flags),
            _some(address.host.encode()),
        )
    return b"".join(packed)


def _read_rumour(source: _Input) -> Rumour:
    node_id, port, bus_port, flags = source.fields(_RUMOUR)
    host = source.some()
    if not (0 < port <= PORT_MAX and 0 < bus_port <= PORT_MAX and host.isascii()):
        raise Unreadable("an address that cannot be one")
    return Rumour(node_id, NodeAddress(host.decode(), port, bus_port), Flag(flags & _ALL_FLAGS))


_ALL_FLAGS: Final = int(Flag.SUSPECT | Flag.FAILED | Flag.HANDSHAKE | Flag.NO_ADDRESS | Flag.LEAVING)


def _pack_ping(message: Ping | Pong) -> bytes:
    return _FLAGS.pack(message.flags) + _pack_rumours(message.rumours)


def _read_flags(source: _Input) -> Flag:
    return Flag(source.fields(_FLAGS)[0] & _ALL_FLAGS)


def _read_rumours(source: _Input) -> tuple[Rumour, ...]:
    return tuple([_read_rumour(source) for _ in range(source.count(NODES_MAX))])


# Of jobs


def _pack_death(death: Death | None) -> bytes:
    return b"" if death is None else _DEATH.pack(death.ago_ms) + _some(death.origin) + _some(death.reason)


def _read_death(source: _Input, *, is_dead: bool) -> Death | None:
    if not is_dead:
        return None
    ago_ms = _span(source.fields(_DEATH)[0])
    origin, reason = source.some(), source.some()
    return Death(origin, reason, ago_ms)


def _pack_copy(copy: JobCopy) -> bytes:
    fields = _COPY.pack(
        copy.job_id, copy.created, copy.ttl_ms, copy.ttl_left_ms, copy.retry_ms, copy.delay_ms, copy.due_in_ms,
        copy.replicate, copy.nacks, copy.deliveries, copy.retries_max, copy.death is not None,
    )  # fmt: skip
    rest = (_some(copy.queue), _some(copy.key), _ids(copy.owners), _pack_death(copy.death), _some(copy.body))
    return fields + b"".join(rest)


def _read_copy(source: _Input) -> JobCopy:
    (
        job_id, created, ttl_ms, ttl_left_ms, retry_ms, delay_ms, due_in_ms, replicate, nacks, deliveries, retries_max,
        is_dead,
    ) = source.fields(_COPY)  # fmt: skip
    for span_ms in (ttl_ms, ttl_left_ms, retry_ms, delay_ms, due_in_ms):
        _span(span_ms)
    queue, key, owners = source.some(), source.some(), source.ids(NODE_ID_BYTES, NODES_MAX)
    death = _read_death(source, is_dead=bool(is_dead))
    return JobCopy(
        job_id, queue, source.some(), created, ttl_ms, ttl_left_ms, retry_ms, delay_ms, due_in_ms, replicate, nacks,
        deliveries, owners, key, retries_max, death,
    )  # fmt: skip


def _pack_give(message: Give) -> bytes:
    return _COUNT.pack(len(message.copies)) + b"".join(map(_pack_copy, message.copies))


def _pack_about(message: About) -> bytes:
    word = _WORDS.index(message.word)
    return _ABOUT.pack(word, message.job_id, message.nacks, message.deliveries, message.after_ms)


def _read_about(source: _Input) -> About:
    word, job_id, nacks, deliveries, after_ms = source.fields(_ABOUT)
    if word >= len(_WORDS):
        raise Unreadable(f"word {word} about a job")
    return About(_WORDS[word], job_id, nacks, deliveries, _span(after_ms))


def _pack_moved(message: Moved) -> bytes:
    fields = _MOVED.pack(message.job_id, message.nacks, message.deliveries, message.death is not None)
    return fields + _some(message.queue) + _pack_death(message.death)


def _read_moved(source: _Input) -> Moved:
    job_id, nacks, deliveries, is_dead = source.fields(_MOVED)
    queue = source.some()
    return Moved(job_id, queue, _read_death(source, is_dead=bool(is_dead)), nacks, deliveries)


def _read_need(source: _Input) -> Need:
    count, is_waiting = source.fields(_NEED)
    return Need(source.some(), count, bool(is_waiting))


def _job_id(source: _Input) -> bytes:
    return source.take(ID_BYTES)


_Row = tuple[type[Any], Callable[[Any], bytes], Callable[[_Input], Any]]
# In the order of their numbers, the first of which is FIRST_MESSAGE: what is added comes at the end.
_TYPES: Final[tuple[_Row, ...]] = (
    (Ping, _pack_ping, lambda source: Ping(_read_flags(source), _read_rumours(source))),
    (Pong, _pack_ping, lambda source: Pong(_read_flags(source), _read_rumours(source))),
    (Meet, lambda message: _FLAGS.pack(message.flags), lambda source: Meet(_read_flags(source))),
    (
        Suspected,
        lambda message: message.node_id + bytes((message.is_down,)),
        lambda source: Suspected(source.take(NODE_ID_BYTES), source.take(1) != b"\0"),
    ),
    (Failed, lambda message: message.node_id, lambda source: Failed(source.take(NODE_ID_BYTES))),
    (
        Keep,
        lambda message: bytes((message.is_answered,)) + _pack_copy(message.copy),
        lambda source: Keep(is_answered=source.take(1) != b"\0", copy=_read_copy(source)),
    ),
    (Kept, lambda message: message.job_id, lambda source: Kept(_job_id(source))),
    (About, _pack_about, _read_about),
    (
        Acked,
        lambda message: message.job_id + _ids(message.owners),
        lambda source: Acked(_job_id(source), source.ids(NODE_ID_BYTES, NODES_MAX)),
    ),
    (
        KnowsAck,
        lambda message: message.job_id + bytes((message.is_known,)) + _ids(message.owners),
        lambda source: KnowsAck(_job_id(source), source.take(1) != b"\0", source.ids(NODE_ID_BYTES, NODES_MAX)),
    ),
    (Forget, lambda message: _ids(message.job_ids), lambda source: Forget(source.ids(ID_BYTES, JOBS_MAX))),
    (
        Need,
        lambda message: _NEED.pack(message.count, message.is_waiting) + _some(message.queue),
        _read_need,
    ),
    (Give, _pack_give, lambda source: Give(tuple([_read_copy(source) for _ in range(source.count(JOBS_MAX))]))),
    (Stored, lambda message: message.job_id, lambda source: Stored(_job_id(source))),
    (LetGo, lambda message: message.job_id, lambda source: LetGo(_job_id(source))),
    (TookBack, lambda message: message.job_id, lambda source: TookBack(_job_id(source))),
    (
        Pause,
        lambda message: bytes((message.pause,)) + _some(message.queue),
        lambda source: Pause(pause=source.take(1)[0] & 3, queue=source.some()),
    ),
    (DeleteQueue, lambda message: _some(message.queue), lambda source: DeleteQueue(source.some())),
    (Moved, _pack_moved, _read_moved),
)
_NUMBERS: Final = {row[0]: number for number, row in enumerate(_TYPES, FIRST_MESSAGE)}


def pack(message: Message) -> tuple[int, bytes]:
    """The type and the body of its frame."""
    number = _NUMBERS[type(message)]
    return number, _TYPES[number - FIRST_MESSAGE][1](message)


def read(number: int, body: bytes) -> Message | None:
    """The message in a frame; None where its type is not known here. Raises Unreadable."""
    if not FIRST_MESSAGE <= number < FIRST_MESSAGE + len(_TYPES):
        return None
    source = _Input(body)
    message: Message = _TYPES[number - FIRST_MESSAGE][2](source)
    source.end()
    return message
