"""Whatever is wrong with an argument is said where it is given, by TypeError or ValueError, and nothing is done."""

import asyncio
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, Final

import pytest

from kestreld.client import KestrelCluster
from kestreld.errors import BadQueueName, InvalidArgument
from kestreld.library import (
    ConcurrentBlockingQueue,
    JournaledQueue,
    PersistentQueue,
    QItem,
    QueueConfig,
    SimpleBlockingQueue,
)
from kestreld.library.shared_queue import SharedQueue

NAN: Final = float("nan")
NO_NUMBER: Final = ("1", b"1", [1], object())
NO_WHOLE: Final = (*NO_NUMBER, True, False, 1.0, 0.5, NAN)
NO_TEXT: Final = (b"work", 7, True, 1.5, ["work"], object())
NO_TIMEOUT: Final = (*NO_NUMBER, True, False, -1, -0.001, NAN)
NO_DELAY: Final = (*NO_NUMBER, None, True, False, -1, -0.001, NAN, float("inf"), 365 * 86_400.001)
NO_LEASE: Final = (*NO_NUMBER, None, True, False, -1, 0, 0.0009, NAN, float("inf"), 12 * 3_600.001)
NO_KEY: Final = (1, True, 1.5, ["key"], object(), "", b"")
NO_SWITCH: Final = (None, 0, 1, "no", "", 1.0)
NO_FUNCTION: Final = (None, 1, "print", True)
NO_ITEM_OF_OURS: Final = (None, 1, b"item", "item", (0, 0, b"", 1, 0))
NO_BYTES: Final = (None, "text", 1, True, 1.0, [b"item"])
Given = Callable[[Any], object]
Hole = tuple[str, Given, tuple[object, ...]]

UNLIMITED: Final = (
    "max_items", "max_size_bytes", "max_item_size_bytes", "max_retries", "open_transaction_timeout_ms", "idle_delete_ms"
)  # fmt: skip
COUNTS: Final = ("max_journal_size_bytes", "max_journal_overflow", "max_memory_size_bytes", "max_keys")
LIMITS: Final = ("max_lease_ms", "max_delay_ms", "key_time_ms")
SPANS: Final = ("sync_journal_ms", "max_age_ms")
SWITCHES: Final = ("journal_leases", "discard_old_when_full", "journal", "fanout_only")
NAMES: Final = ("move_expired_to", "move_failed_to")
NO_NAME: Final = ("", "a b", "a/b", "+x", "x.y", "\x7f", "\u4e00")


def config_holes() -> Iterator[Hole]:
    def given(name: str) -> Given:
        return lambda value: QueueConfig(**{name: value})

    for name in UNLIMITED:
        yield f"QueueConfig {name}", given(name), (*NO_WHOLE, 0, -1)
    for name in (*COUNTS, *LIMITS):
        yield f"QueueConfig {name}", given(name), (*NO_WHOLE, None, 0, -1)
    yield "QueueConfig lease_grace_ms", given("lease_grace_ms"), (*NO_WHOLE, None, 0, 1999, -1)
    for name in SPANS:
        yield f"QueueConfig {name}", given(name), (*NO_WHOLE, -1)
    no_delays = (*NO_NUMBER[:2], 1, True, {1}, [0], (1, -1), [1.5], ["1"], (None,))
    yield "QueueConfig retry_delays_ms", given("retry_delays_ms"), no_delays
    yield "QueueConfig trash_ms", given("trash_ms"), (*NO_WHOLE, None, -1)
    for name in SWITCHES:
        yield f"QueueConfig {name}", given(name), NO_SWITCH
    for name in NAMES:
        yield f"QueueConfig {name}", given(name), (*NO_TEXT, *NO_NAME)


def memory_holes() -> Iterator[Hole]:
    for kind in (SimpleBlockingQueue, ConcurrentBlockingQueue):
        queue: Any = kind()
        yield f"{kind.__name__} max_items", kind, (*NO_WHOLE, 0, -1)
        yield f"{kind.__name__} full_policy", lambda value, kind=kind: kind(1, value), (None, "refuse puts", 1, True)
        yield f"{kind.__name__} get deadline_at_ms", queue.get, (*NO_NUMBER, True, False, NAN)
        yield f"{kind.__name__} get timeout", lambda value, get=queue.get: get(timeout=value), NO_TIMEOUT
        yield f"{kind.__name__} put item", queue.put, (None,)
        yield f"{kind.__name__} poll_if predicate", queue.poll_if, NO_FUNCTION


def client_holes() -> Iterator[Hole]:
    def cluster(name: str) -> Given:
        return lambda value: KestrelCluster(["127.0.0.1:1"], **{name: value})

    yield "KestrelCluster servers", KestrelCluster, ("127.0.0.1:1", "", [], [""], [1], [None], [b"a:1"], None, 1)
    for name in ("user", "password", "ca", "cert", "key"):
        yield f"KestrelCluster {name}", cluster(name), (None, *NO_TEXT)
    yield "KestrelCluster tls", cluster("tls"), NO_SWITCH
    yield "KestrelCluster timeout_ms", cluster("timeout_ms"), (*NO_WHOLE, None, 0, -1)
    yield "KestrelCluster patience_ms", cluster("patience_ms"), (*NO_NUMBER, True, None, -1, NAN)
    yield "KestrelCluster outage_s", cluster("outage_s"), (*NO_NUMBER, True, -1, NAN)
    yield "KestrelCluster chance", cluster("chance"), (1, "x", object())
    away = KestrelCluster(["127.0.0.1:1"], patience_ms=0)
    queue = away.queue("work")
    yield "KestrelCluster queue", away.queue, (None, *NO_TEXT, "", "a b", "a/b")
    yield "ClusterQueue put item", queue.put, NO_BYTES
    yield "ClusterQueue put expiry", lambda value: queue.put(b"", value), (*NO_WHOLE, None)
    for name in ("get", "peek"):
        yield f"ClusterQueue {name} wait_ms", getattr(queue, name), (*NO_NUMBER, True, False, -1, NAN)
    yield "ClusterQueue get timeout", lambda value: queue.get(timeout=value), NO_TIMEOUT
    yield "ClusterQueue peek timeout", lambda value: queue.peek(timeout=value), NO_TIMEOUT
    yield "ClusterQueue read wait_ms", lambda value: queue.read(value).__enter__(), (*NO_NUMBER, True, -1, NAN)


MADE_WITHOUT_DISK: Final = [*config_holes(), *memory_holes(), *client_holes()]


@pytest.mark.parametrize(("name", "given", "values"), MADE_WITHOUT_DISK, ids=[hole[0] for hole in MADE_WITHOUT_DISK])
def test_what_cannot_be_is_refused(name: str, given: Given, values: tuple[object, ...]) -> None:
    refuses(given, values, {"queue": "queue name"}.get(name.split()[-1], name.split()[-1]))


def refuses(given: Given, values: tuple[object, ...], argument: str) -> None:
    for value in values:
        with pytest.raises((InvalidArgument, BadQueueName)) as refused:
            finished(given, value)
        said = str(refused.value)
        if isinstance(refused.value, BadQueueName):
            assert "queue" in said, value
            assert repr(value) in said, value
            continue
        assert isinstance(refused.value, (TypeError, ValueError)), value
        assert re.fullmatch(rf"(each of )?{re.escape(argument)} must be .+, not .+", said), value
        assert refused.value.argument in (argument, f"each of {argument}")
        if argument == "password":
            assert said.endswith(f"not {type(value)}"), value
        elif not isinstance(value, (list, tuple)):  # of those one element is wrong
            assert said.endswith(f"not {shortened(value)}"), value


def finished(given: Given, value: object) -> None:
    async def waited() -> None:
        outcome = given(value)
        if inspect.iscoroutine(outcome):
            await outcome

    asyncio.run(waited())


def test_every_field_of_a_configuration_is_in_the_table() -> None:
    known = {field.name for field in fields(QueueConfig)}
    assert known == {
        *UNLIMITED,
        *COUNTS,
        *SPANS,
        *LIMITS,
        *SWITCHES,
        *NAMES,
        "retry_delays_ms",
        "lease_grace_ms",
        "trash_ms",
    }


def test_what_can_be_is_taken() -> None:
    QueueConfig(**dict.fromkeys((*UNLIMITED, *SPANS, *NAMES), None))  # type: ignore[arg-type]
    assert QueueConfig(retry_delays_ms=[1, 2]) == QueueConfig(retry_delays_ms=(1, 2))  # type: ignore[arg-type]
    QueueConfig(
        **dict.fromkeys((*UNLIMITED, *COUNTS, *LIMITS), 1), **dict.fromkeys(SPANS, 0), move_expired_to="late+child"
    )  # type: ignore[arg-type]
    KestrelCluster(iter(("127.0.0.1:1", "127.0.0.1:2")), timeout_ms=1, patience_ms=0)
    assert SimpleBlockingQueue[int](1).get(0).result() is None
    assert ConcurrentBlockingQueue[int](None).get(-5).result() is None


@pytest.mark.parametrize("kind", [PersistentQueue, JournaledQueue, SharedQueue])
def test_what_a_queue_of_a_spool_is_made_with_is_checked(tmp_path: Path, kind: Any) -> None:
    refuses(lambda value: kind(value, "work"), (None, 7, True, b"spool", ["x"], ""), "spool path")
    refuses(lambda value: kind(str(tmp_path), value), (None, *NO_TEXT, "", "a b", "a/b"), "queue name")
    if kind is SharedQueue:
        refuses(lambda value: kind(str(tmp_path), "work", config_path=value), (7, True, b"x", ""), "config_path")
        refuses(
            lambda value: kind(str(tmp_path), "work", patience_ms=value),
            (*NO_NUMBER, None, True, -1, NAN),
            "patience_ms",
        )
    else:
        refuses(lambda value: kind(str(tmp_path), "work", value), (1, True, "journal", {}, QueueConfig), "config")
    if kind is JournaledQueue:
        refuses(lambda value: kind(str(tmp_path), "work", archive_path=value), (7, True, b"x", ""), "archive_path")
    assert list(tmp_path.iterdir()) == []


def test_a_path_may_be_one_of_pathlib(tmp_path: Path) -> None:
    queue = PersistentQueue(tmp_path, "work")  # type: ignore[arg-type]
    queue.setup()
    queue.close()


def test_each_operation_of_a_persistent_queue_checks_what_it_is_given(tmp_path: Path) -> None:
    queue: Any = PersistentQueue(str(tmp_path), "work")
    queue.setup()
    try:
        queue.add(b"item")
        deadline = (*NO_NUMBER, None, True, False, NAN)
        refuses(queue.add, NO_BYTES, "item")
        refuses(lambda value: queue.add(b"", value), (*NO_WHOLE, None, "", -1), "expiry")
        refuses(lambda value: queue.add_all([b""], value), (*NO_WHOLE, None, "", -1), "expiry")
        refuses(lambda value: queue.add(b"", delay=value), NO_DELAY, "delay")
        refuses(lambda value: queue.add(b"", key=value), NO_KEY, "key")
        refuses(lambda value: queue.add(value, delay=1), NO_BYTES, "item")
        refuses(lambda value: queue.put_nowait(b"", delay=value), NO_DELAY, "delay")
        refuses(lambda value: queue.put_nowait(b"", key=value), NO_KEY, "key")
        refuses(queue.cancel, (None, *NO_KEY), "key")
        for call in (queue.lease, queue.lease_async):
            refuses(call, NO_LEASE, "seconds")
            refuses(lambda value, call=call: call(1, value), NO_TIMEOUT, "timeout")
            refuses(lambda value, call=call: call(1, heartbeat=value), NO_SWITCH, "heartbeat")
        refuses(queue.confirm_lease, (*NO_WHOLE, None, 0, -1), "token")
        lease = queue.lease(1)
        refuses(lease.extend, NO_LEASE, "seconds")
        refuses(lease.give_back, NO_DELAY, "delay")
        assert lease.give_back()
        refuses(queue.add_all, ([None], ["text"]), "item")
        refuses(queue.add_all, (None, 1), "values")
        refuses(queue.remove, NO_SWITCH, "transaction")
        refuses(queue.remove_all, (*NO_WHOLE, None, -1), "limit")
        refuses(queue.unremove, (*NO_WHOLE, None, -1), "xid")
        refuses(queue.confirm_remove, (*NO_WHOLE, None, -1), "xid")
        refuses(queue.remove_receive, deadline, "deadline_at_ms")
        refuses(queue.peek_receive, deadline, "deadline_at_ms")
        refuses(lambda value: queue.remove_receive(0, value), NO_SWITCH, "transaction")
        refuses(lambda value: queue.remove_react(0, False, value), NO_FUNCTION, "react")
        refuses(lambda value: queue.remove_react(0, value, print), NO_SWITCH, "transaction")
        refuses(lambda value: queue.peek_react(0, value), NO_FUNCTION, "react")
        refuses(queue.remove_async, deadline, "deadline_at_ms")
        refuses(lambda value: queue.remove_async(0, value), NO_SWITCH, "transaction")
        refuses(queue.peek_async, deadline, "deadline_at_ms")
        assert len(queue) == 1
        assert queue.remove_all(0) == []
        assert queue.remove_receive(-1).data == b"item"
    finally:
        queue.close()


def test_each_operation_of_a_journaled_queue_checks_what_it_is_given(tmp_path: Path) -> None:
    with JournaledQueue(str(tmp_path), "work") as journaled:
        queue: Any = journaled
        refuses(queue.put, NO_BYTES, "item")
        refuses(lambda value: queue.put(b"", value), (*NO_WHOLE, None, -1), "expiry")
        refuses(lambda value: queue.put(b"", delay=value), NO_DELAY, "delay")
        refuses(lambda value: queue.put(b"", key=value), NO_KEY, "key")
        refuses(queue.cancel, (None, *NO_KEY), "key")
        refuses(queue.reader, (None, *NO_TEXT, "a b"), "reader name")
        refuses(lambda value: queue.reader("", value), (1, True, "x", {}), "config")
        refuses(lambda value: queue.reader("", error_handler=value), (1, True, "x"), "error_handler")
        refuses(lambda value: queue.reader("", on_expired=value), (1, True, "x"), "on_expired")
        refuses(queue.drop_reader, (None, *NO_TEXT), "reader name")
        refuses(lambda value: queue.to_blocking_queue(value, bytes), NO_FUNCTION, "encode")
        refuses(lambda value: queue.to_blocking_queue(bytes, value), NO_FUNCTION, "decode")
        refuses(lambda value: queue.to_transactional_blocking_queue(bytes, value), NO_FUNCTION, "decode")
        refuses(queue.to_blocking_queue().poll_if, NO_FUNCTION, "predicate")
        reader: Any = queue.reader()
        for call in (reader.get, reader.peek, reader.get_later, reader.get_async):
            refuses(call, (*NO_NUMBER, True, False, NAN), "deadline_at_ms")
        refuses(reader.confirm_lease, (*NO_WHOLE, None, 0, -1), "token")
        for call in (reader.lease, reader.lease_async):
            refuses(call, NO_LEASE, "seconds")
            refuses(lambda value, call=call: call(1, value), NO_TIMEOUT, "timeout")
            refuses(lambda value, call=call: call(1, heartbeat=value), NO_SWITCH, "heartbeat")
        for call in (reader.commit, reader.unget):
            refuses(call, NO_ITEM_OF_OURS, "item")
        refuses(reader.discard_expired, (*NO_WHOLE, None, -2), "limit")
        reader.commit(QItem(0, 0, b"", 0))  # one that is not open is nothing to do
        assert (queue.readers, len(reader)) == (("",), 0)


def test_each_operation_of_a_shared_queue_checks_what_it_is_given(tmp_path: Path) -> None:
    """Before it looks for a server: there is none."""
    queue: Any = SharedQueue(str(tmp_path / "none"), "work", patience_ms=0)
    refuses(queue.add, NO_BYTES, "item")
    refuses(lambda value: queue.add(b"", value), (*NO_WHOLE, None, -1), "expiry")
    refuses(queue.remove, NO_SWITCH, "transaction")
    refuses(queue.remove_all, (*NO_WHOLE, None, -1), "limit")
    refuses(queue.unremove, (*NO_WHOLE, None, -1), "xid")
    refuses(queue.confirm_remove, (*NO_WHOLE, None, -1), "xid")
    refuses(queue.remove_receive, (*NO_NUMBER, None, True, NAN), "deadline_at_ms")
    refuses(lambda value: queue.remove_react(0, False, value), NO_FUNCTION, "react")
    refuses(lambda value: queue.remove_react(0, value, print), NO_SWITCH, "transaction")
    refuses(lambda value: queue.peek_react(0, value), NO_FUNCTION, "react")
    refuses(lambda value: queue.remove_async(0, value), NO_SWITCH, "transaction")
    assert not (tmp_path / "none").exists()
