"""Messages of the bus as bytes, both ways, and bytes that are none."""

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestreld.cluster.codec import TIME_MS_MAX, TIMES_MAX, Message, Unreadable, pack, read
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
from kestreld.cluster.messages import Failed, GossipEntry, Meet, Ping, Pong, Suspected
from kestreld.cluster.nodes import Flag, NodeAddress
from kestreld.cluster.reactions import Word

A, B = b"a" * 40, b"b" * 40
JOB = b"D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1"
DEATH = Death(b"origin\r\n", b"retries", 12)
COPY = JobCopy(JOB, b"queue\0", b"body" * 100, 5_000_001, 86_400_000, 300_000, 2000, 1500, 3, 1, 2, (A, B))
DEAD = JobCopy(JOB, b"q.dead", b"", 1, 2, 4, 5, 0, 1, 0, 0, (), b"key", 7, DEATH)
REDRIVEN = replace(COPY, moves=2)
ENTRY = GossipEntry(B, NodeAddress("fe80::1", 7711, 17_711), Flag.LEAVING)
MESSAGES: list[Message] = [
    Ping(Flag(0)),
    Ping(Flag.LEAVING, (ENTRY, GossipEntry(A, NodeAddress("10.0.0.1", 1, 65_535), Flag(0)))),
    Pong(Flag(0), (ENTRY,)),
    Meet(Flag.LEAVING),
    Suspected(A, is_down=True),
    Suspected(A, is_down=False),
    Failed(B),
    ReplJob(COPY),
    ReplJob(DEAD),
    GotJob(JOB),
    Owners(JOB, (A, B)),
    *[Notice(word, JOB, 3, 4, TIME_MS_MAX) for word in Word],
    SetAck(JOB, (A, B)),
    GotAck(JOB, is_known=True, owners=(A,)),
    GotAck(JOB, is_known=False, owners=()),
    DelJob((JOB, JOB)),
    NeedJobs(b"a queue", 100),
    NeedJobs(b"", 0),
    NeedJobs(b"q", 1, is_waiting=True),
    YourJobs(1, (COPY, DEAD)),
    TookJobs(1 << 63),
    LendJob(COPY, is_new=True),
    LendJob(DEAD, is_new=False),
    Declined(JOB),
    Stored(JOB),
    LetGo(JOB),
    Released(JOB),
    TookBack(JOB),
    Moved(JOB, b"q.dead", DEATH, 1, 2),
    Moved(JOB, b"q", None, 0, 0),
    LeftJob((JOB,)),
    CaughtUp(),
    NeedNothing(),
    GaveUp(JOB),
    GaveUp(JOB, b"1:qkey"),
    PauseQueue(b"q", 3),
    DeleteQueue(b"\xff"),
    FindKey(b"1:qkey", JOB),
    FoundKey(JOB, b""),
    FoundKey(JOB, JOB, is_pending=True),
    WatchJob(JOB),
    JobEnded(JOB, b"acked"),
]
WITH_MOVES: list[Message] = [
    ReplJob(REDRIVEN),
    LendJob(replace(DEAD, moves=1), is_new=False),
    YourJobs(1, (COPY, REDRIVEN)),
    Notice(Word.ENQUEUE, JOB, 3, 4, 5, moves=TIMES_MAX),
    Moved(JOB, b"q.dead", DEATH, 1, 2, moves=3),
    Moved(JOB, b"q", None, 0, 0, moves=2),
]
MESSAGES += WITH_MOVES


def name(message: object) -> str:
    return type(message).__name__


@pytest.mark.parametrize("message", MESSAGES, ids=name)
def test_a_message_comes_as_it_was_sent(message: Message) -> None:
    assert read(*pack(message)) == message


@pytest.mark.parametrize("message", MESSAGES, ids=name)
def test_a_message_that_is_cut_short_or_goes_on_is_refused(message: Message) -> None:
    number, body = pack(message)
    for end in range(len(body)):
        with pytest.raises(Unreadable):
            read(number, body[:end])
    with pytest.raises(Unreadable):
        read(number, body + b"\0")


@pytest.mark.parametrize(
    "message",
    [
        WatchJob(b"D-dcb833cf-8YL1NT17e9+wsA/09Nqx\r\nQI-05a1"),
        FoundKey(JOB, b"\r\n" * 20),
        ReplJob(replace(COPY, job_id=b"x" * 40)),
        ReplJob(replace(COPY, owners=(A, b"\r\n" * 20))),
        ReplJob(replace(COPY, nacks=TIMES_MAX + 1)),
        ReplJob(replace(DEAD, death=replace(DEATH, reason=b"x" * 101))),
        Moved(JOB, b"q", replace(DEATH, reason=b"one\r\ntwo"), 0, 0),
        Moved(JOB, b"q", None, 0, TIMES_MAX + 1),
        Notice(Word.WORKING, JOB, TIMES_MAX + 1, 0, 0),
        Notice(Word.WORKING, JOB, moves=TIMES_MAX + 1),
        JobEnded(JOB, b"acked\r\n+more"),
        JobEnded(JOB, b""),
    ],
    ids=name,
)
def test_what_clients_would_be_shown_or_what_could_not_be_counted_on_is_refused(message: Message) -> None:
    with pytest.raises(Unreadable):
        read(*pack(message))


def test_every_kind_of_message_is_tried_here() -> None:
    numbers = {pack(message)[0] for message in MESSAGES if message not in WITH_MOVES}
    assert numbers == set(range(FIRST_MESSAGE, FIRST_MESSAGE + 32))


@pytest.mark.parametrize("message", WITH_MOVES, ids=name)
def test_what_is_said_of_moves_is_of_types_that_nodes_pass_over_which_do_not_count_them(message: Message) -> None:
    assert pack(message)[0] >= 128


def test_a_type_that_is_not_known_is_passed_over() -> None:
    assert read(200, b"anything") is None


def test_times_are_spans_in_every_message_but_those_that_receivers_translate() -> None:
    kinds: set[Any] = {type(message) for message in MESSAGES}
    assert [field.name for kind in kinds for field in fields(kind) if field.name.endswith("_at_ms")] == []


@given(st.integers(0, 255), st.binary(max_size=400))
def test_garbage_is_refused_or_a_message_never_another_error(number: int, body: bytes) -> None:
    try:
        message = read(number, body)
    except Unreadable:
        return
    if message is not None:
        assert pack(message)[0] == number
