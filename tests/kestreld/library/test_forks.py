"""Queues and forks: what was open before one is the parent's alone, and a child opens its own."""

import gc
import inspect
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from kestreld.client import ConnectionLost, KestrelCluster
from kestreld.errors import JournalFailed, QueueForked, SpoolLocked
from kestreld.library import (
    ConcurrentBlockingQueue,
    JournaledBlockingQueue,
    JournaledQueue,
    JournalReader,
    PersistentQueue,
    QItem,
    QueueConfig,
    SimpleBlockingQueue,
    TransactionalJournaledBlockingQueue,
)
from kestreld.library.shared_queue import open_shared
from tests.support.daemon import running_daemon
from tests.support.forking import in_child
from tests.support.library import LONG_MS, LONG_S, at_ms, data_of, journaled
from tests.support.queue_client import QueueClient
from tests.support.shared_spools import new_spool

ARGUMENTS: Final[dict[str, Any]] = {
    "data": b"x",
    "value": b"x",
    "values": [b"x"],
    "item": QItem(0, 0, b"x", 1),
    "xid": 1,
    "seconds": 1,
    "token": 1,
    "key": "x",
    "limit": 1,
    "deadline_at_ms": 1,
    "transaction": True,
    "name": "another",
    "react": print,
    "predicate": bool,
    "error_handler": bool,
    "on_expired": bool,
}


SPECIAL: Final = ("__len__", "__enter__", "__exit__", "__iter__", "__aiter__", "__aenter__", "__aexit__")


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[PersistentQueue]:
    queue = opened(tmp_path / "spool")
    yield queue
    queue.close()


FORKS: Final = 10  # in the middle of what other threads do


def opened(spool: Path, **settings: Any) -> PersistentQueue:
    queue = PersistentQueue(str(spool), "work", QueueConfig(**settings))
    queue.setup()
    return queue


def refused(do: Callable[[], object]) -> str:
    """What QueueForked says; of anything else what came instead."""
    try:
        return f"not refused: {do()!r}"
    except QueueForked as error:
        return str(error)


def uses(queue: object) -> dict[str, Callable[[], object]]:
    """Each public method and property of a queue, and what `with` and `len` ask, by name."""
    found: dict[str, Callable[[], object]] = {}
    kind = type(queue)
    for name in dir(kind):
        member = getattr(kind, name)
        if name.startswith("_"):
            if name in SPECIAL:
                values = [None] * (len(inspect.signature(member).parameters) - 1)
                found[name] = lambda name=name, values=values: getattr(type(queue), name)(queue, *values)
            continue
        if isinstance(member, property):
            found[name] = lambda member=member: member.__get__(queue)
            continue
        parameters = list(inspect.signature(member).parameters.values())[1:]
        needed = [one.name for one in parameters if one.default is one.empty or one.name == "deadline_at_ms"]
        given = {one: ARGUMENTS[one] for one in needed}
        if inspect.iscoroutinefunction(member):
            found[name] = lambda member=member, given=given: member(queue, **given).send(None)
        else:
            found[name] = lambda member=member, given=given: member(queue, **given)
            found[f"getattr {name}"] = lambda name=name: getattr(queue, name)
    return found


def made(kind: type, spool: Path) -> tuple[object, Callable[[], None]]:
    """One of each kind with an item, and how to close it."""
    if kind in (SimpleBlockingQueue, ConcurrentBlockingQueue):
        queue = kind()
        queue.put("one")
        return queue, queue.close
    if kind is PersistentQueue:
        durable = opened(spool)
        durable.add(b"one")
        return durable, durable.close
    family = JournaledQueue(str(spool), "work")
    family.put(b"one")
    by_kind: dict[type, Callable[[], object]] = {
        JournaledQueue: lambda: family,
        JournalReader: family.reader,
        JournaledBlockingQueue: family.to_blocking_queue,
        TransactionalJournaledBlockingQueue: family.to_transactional_blocking_queue,
    }
    return by_kind[kind](), family.close


KINDS: Final = [
    PersistentQueue,
    JournaledQueue,
    JournalReader,
    JournaledBlockingQueue,
    TransactionalJournaledBlockingQueue,
    SimpleBlockingQueue,
    ConcurrentBlockingQueue,
]


# What is the parent's


@pytest.mark.parametrize("kind", KINDS)
def test_every_use_of_a_queue_raises_in_a_child(kind: type, tmp_path: Path) -> None:
    queue, close = made(kind, tmp_path)
    found = uses(queue)
    said = in_child(lambda: {name: refused(use) for name, use in found.items()})
    assert len(said) > 8
    assert {name: words for name, words in said.items() if "opened before a fork" not in words} == {}
    assert in_child(lambda: isinstance(queue, kind))
    assert len(queue) == 1 if kind is not JournaledQueue else True  # type: ignore[arg-type]
    close()


def test_the_error_names_the_queue_and_what_to_do(queue: PersistentQueue) -> None:
    assert in_child(lambda: refused(lambda: queue.add(b"x"))) == (
        "work: opened before a fork by the parent process; open it again in the child, or share it with open_shared"
    )


def test_a_method_that_was_got_before_the_fork_raises_too(queue: PersistentQueue) -> None:
    add = queue.add
    assert "opened before a fork" in in_child(lambda: refused(lambda: add(b"x")))


def test_a_grandchild_is_refused_as_its_parent_is(queue: PersistentQueue) -> None:
    assert "opened before a fork" in in_child(lambda: in_child(lambda: refused(lambda: queue.add(b"x"))))


def test_what_is_awaited_raises_in_a_child_and_comes_to_the_parent(tmp_path: Path) -> None:
    with journaled(tmp_path) as family:
        taking = family.to_blocking_queue().get()
        transaction = family.to_transactional_blocking_queue().get()
        memory = [SimpleBlockingQueue[str](), ConcurrentBlockingQueue[str]()]
        answers: list[Any] = [taking, transaction, *(queue.get() for queue in memory)]
        said = in_child(lambda: [refused(lambda answer=answer: answer.result(LONG_S)) for answer in answers])  # type: ignore[misc]
        assert ["opened before a fork" in words for words in said] == [True] * 4
        family.put_all([b"1", b"2"])
        for queue in memory:
            queue.put("3")
        assert taking.result(LONG_S) == b"1"
        assert [answer.result(LONG_S) for answer in answers[2:]] == ["3", "3"]


def test_an_answer_that_is_there_is_not_taken_in_a_child(tmp_path: Path) -> None:
    with journaled(tmp_path) as family:
        family.put(b"one")
        blocking = family.to_blocking_queue()
        answer = blocking.get()
        assert "opened before a fork" in in_child(lambda: refused(answer.result))
        assert answer.result() == b"one"


inherited: list[PersistentQueue] = []


def add_to_inherited(number: int) -> bool:
    return inherited[-1].add(b"%d" % number)


def test_nothing_that_was_answered_is_lost_when_a_pool_adds_too(tmp_path: Path) -> None:
    queue = opened(tmp_path)
    inherited.append(queue)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        for number in range(20):
            with pytest.raises(QueueForked, match=r"^work: opened before a fork by the parent process"):
                pool.apply(add_to_inherited, (100 + number,))
            assert add_to_inherited(number)
    inherited.clear()
    queue.close()
    queue = opened(tmp_path)
    assert [item.data for item in queue.remove_all(100)] == [b"%d" % number for number in range(20)]
    queue.close()


def test_a_fork_while_threads_put_raises_at_once_and_loses_nothing(tmp_path: Path) -> None:
    queue, memory = opened(tmp_path), SimpleBlockingQueue[int]()
    added, over = [0, 0], threading.Event()

    def put(writer: int) -> None:
        while not over.is_set() and added[writer] < 200_000:
            added[writer] += queue.add(b"%d" % writer)
            memory.put(added[writer])

    threads = [threading.Thread(target=put, args=(writer,)) for writer in range(2)]
    for thread in threads:
        thread.start()
    tries: list[Callable[[], object]] = [lambda: queue.close(), lambda: queue.add(b"x"), lambda: memory.put(1)]
    said = [in_child(lambda: " ".join(map(refused, tries))) for _ in range(FORKS)]
    over.set()
    for thread in threads:
        thread.join()
    assert [words.count("opened before a fork") for words in said] == [3] * FORKS
    assert len(memory) == sum(added)
    queue.close()
    queue = opened(tmp_path)
    assert len(queue) == sum(added)
    queue.close()


def descriptors(spool: Path) -> list[str]:
    """What of a spool this process has open."""
    links = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
    return [link for link in links if link.startswith(f"{spool}/")]


def test_a_child_has_nothing_of_the_spool_open_but_files_of_others(queue: PersistentQueue, tmp_path: Path) -> None:
    queue.add(b"one")
    spool = tmp_path / "spool"
    with open(spool / "output.log", "w"):
        assert len(descriptors(spool)) == 3
        assert in_child(lambda: descriptors(spool)) == [f"{spool}/output.log"]
        assert len(descriptors(spool)) == 3


def test_the_spool_stays_locked_while_the_parent_has_it(queue: PersistentQueue, tmp_path: Path) -> None:
    def locked() -> str:
        try:
            opened(tmp_path / "spool")
        except SpoolLocked as error:
            return str(error)
        return "not locked"

    assert f"in use by pid {os.getpid()}" in in_child(locked)
    assert f"in use by pid {os.getpid()}" in in_child(locked), "a child that has ended lets go of nothing"
    assert queue.add(b"one")


PARENT: Final = """
import os, sys
from kestreld.library import PersistentQueue
queue = PersistentQueue(sys.argv[1], "work")
queue.setup()
queue.add(b"one")
if os.fork():
    os.wait()  # to be killed
print(os.getpid(), flush=True)
sys.stdin.read()  # it lives for as long as the test wants
os._exit(0)
"""


def test_a_child_that_outlives_its_parent_does_not_keep_the_spool(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
        queue = opened(tmp_path)
        assert Path(f"/proc/{child}").exists()
        assert data_of(queue.remove()) == b"one"
        queue.close()


@pytest.mark.parametrize(
    "error", [QueueForked("work"), SpoolLocked("/spool", "pid 1"), JournalFailed("/j", "full", disk_full=True)]
)
def test_an_error_comes_from_another_process_as_it_was(error: Exception) -> None:
    found = pickle.loads(pickle.dumps(error))
    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))


# What a child opens itself


def test_a_child_opens_queues_of_its_own(queue: PersistentQueue, tmp_path: Path) -> None:
    not_set_up = PersistentQueue(str(tmp_path / "another"), "work")
    assert SimpleBlockingQueue[str]().get(at_ms(1)).result(LONG_S) is None  # its thread is there, in the parent

    def use_own() -> list[object]:
        not_set_up.setup()
        not_set_up.add(b"one")
        got = not_set_up.remove_receive(at_ms(LONG_MS), False)
        late = not_set_up.remove_receive(at_ms(20), False)
        not_set_up.close()
        memory = SimpleBlockingQueue[str]()
        return [data_of(got), late, memory.get(at_ms(20)).result(LONG_S), memory.put("x"), len(memory)]

    assert in_child(use_own) == [b"one", None, None, True, 1]
    assert queue.add(b"one")


def test_a_child_that_opens_a_queue_while_its_parent_did_so_is_not_held_up(tmp_path: Path) -> None:
    over = threading.Event()

    def open_and_close() -> None:
        while not over.is_set():
            opened(tmp_path / "spool").close()

    thread = threading.Thread(target=open_and_close)
    thread.start()
    for _ in range(FORKS):

        def use_own() -> bool:
            own = opened(tmp_path / "own")
            added = own.add(b"one")
            own.close()
            return added

        assert in_child(use_own)
    over.set()
    thread.join()


# Servers


def add_to_shared(spool: str, first: int, end: int) -> None:
    queue = open_shared(spool, "work")
    for number in range(first, end):
        queue.add(b"%d" % number)
    queue.close()


@pytest.mark.long
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_processes_of_each_kind_share_a_spool(method: str) -> None:
    with new_spool() as spool:
        queue = open_shared(str(spool), "work")
        context: Any = multiprocessing.get_context(method)
        children = [
            context.Process(target=add_to_shared, args=(str(spool), first, first + 10)) for first in (0, 10, 20)
        ]
        for child in children:
            child.start()
        for number in range(30, 40):
            assert queue.add(b"%d" % number)
        for child in children:
            child.join(LONG_S)
            assert child.exitcode == 0
        assert sorted(int(item.data) for item in queue.remove_all(100)) == list(range(40))
        queue.close()


def test_a_shared_queue_goes_on_in_a_child_over_a_connection_of_its_own() -> None:
    with new_spool() as spool:
        queue = open_shared(str(spool), "work")
        queue.add(b"one")
        opened_read = queue.remove(True)
        assert opened_read is not None

        def use() -> list[object]:
            own = os.getpid()
            threading.excepthook = lambda _: os.kill(own, signal.SIGKILL)
            is_added = queue.add(b"two")
            waited = queue.remove_receive(at_ms(LONG_MS))
            try:
                queue.confirm_remove(opened_read.xid)
            except ConnectionLost as lost:
                return [is_added, data_of(waited), "before a fork" in str(lost)]
            return ["confirmed"]

        assert in_child(use) == [True, b"two", True]
        assert len(queue) == 0
        queue.unremove(opened_read.xid)
        assert data_of(queue.remove()) == b"one"
        queue.close()


def test_children_and_parent_of_a_cluster_do_not_share_connections(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, KestrelCluster([daemon.address]) as cluster:
        queue = cluster.queue("work")

        def put_and_get(sign: bytes) -> None:
            for number in range(300):
                item = sign * (1000 + number)
                assert queue.put(item)
                assert set(queue.get() or b"") <= set(b"pc")

        put_and_get(b"p")
        child = multiprocessing.get_context("fork").Process(target=put_and_get, args=(b"c",))
        child.start()
        put_and_get(b"p")
        child.join(LONG_S)
        assert child.exitcode == 0
        assert queue.get() is None


def test_an_open_read_of_the_parent_is_not_touched_by_a_child(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, KestrelCluster([daemon.address]) as cluster:
        queue = cluster.queue("work")
        queue.put(b"one")
        reading = iter(queue)
        assert next(reading) == b"one"

        def forget() -> bool:
            nonlocal reading
            reading = iter(())
            gc.collect()
            return True

        assert in_child(forget)
        with QueueClient(daemon.port) as other:
            assert other.get("work") is None, "it is open still"
            reading.close()  # type: ignore[attr-defined]
            assert other.get("work") == b"one"


CLUSTER_PARENT: Final = """
import os, sys
from kestreld.client import KestrelCluster
queue = KestrelCluster([sys.argv[1]]).queue("work")
queue.put(b"one")
reading = iter(queue)
next(reading)
if not os.fork():
    sys.stdin.read()
    os._exit(0)
os._exit(1)
"""


def test_what_a_dead_parent_had_open_returns_though_its_child_lives(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        command = [sys.executable, "-c", CLUSTER_PARENT, daemon.address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as parent:
            assert parent.wait(LONG_S) == 1
            with KestrelCluster([daemon.address]) as cluster:
                assert cluster.queue("work").get(LONG_MS) == b"one"
