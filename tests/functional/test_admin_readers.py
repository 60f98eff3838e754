"""The reader API: ranges of ids that are read without taking them, and readers that remember how far they came."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kestreld.journal.records import item_data, item_id, whole_records
from tests.functional.conftest import Connect
from tests.support.accounts import login, quick_hash
from tests.support.daemon import Daemon, running_daemon
from tests.support.http import Answer, ask, asked, basic
from tests.support.queue_client import QueueClient
from tests.support.strace import injected
from tests.support.waiting import PATIENCE_S, until

LONG_MS = int(PATIENCE_S * 4000)  # whoever waits to the end of it has failed


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    config = "queues:\n  memory: {journal: false}\n"
    with running_daemon(tmp_path_factory.mktemp("kestreld"), config=config, admin="127.0.0.1:0") as running:
        yield running


def items(daemon: Daemon, queue: str, query: str = "") -> list[tuple[int, bytes]]:
    """Ids and data of a range."""
    return records(ask(daemon, f"/queues/{queue}/items?{query}"))


def records(answer: Answer) -> list[tuple[int, bytes]]:
    """Ids and data of what came."""
    assert answer.status == 200, answer
    found = [answer.body[start:end] for _, start, end in whole_records(answer.body, 0, "answer")]
    assert len(found) == int(answer.headers["X-Kestrel-Items"])
    return [(item_id(record), item_data(record)) for record in found]


def head(daemon: Daemon, queue: str, reader: str) -> int:
    (found,) = [one["head"] for one in ask(daemon, f"/queues/{queue}").json["readers"] if one["reader"] == reader]
    return int(found)


def test_a_range_is_the_journals_own_records_and_takes_nothing(daemon, connect: Connect, queue):
    client = connect()
    client.put(queue, b"one", b"\x00\xff", b"three")
    assert items(daemon, queue) == [(1, b"one"), (2, b"\x00\xff"), (3, b"three")]
    assert items(daemon, queue, "first=2&limit=1") == [(2, b"\x00\xff")]
    assert client.drain(queue) == [b"one", b"\x00\xff", b"three"]
    assert items(daemon, queue, "first=3") == [(3, b"three")]  # taken, and still in the journal
    assert items(daemon, queue, "first=4") == items(daemon, queue, "first=latest") == []


def test_lines_of_json_say_all_there_is_to_an_item(daemon, connect: Connect, queue):
    client = connect()
    client.ask(b"set %b 7 1000 5\r\nk\xc3\xa4se\r\n" % queue.encode(), b"STORED\r\n")
    client.put(queue, b"\xff\x00")
    client.get(f"{queue}/open")
    first, second = ask(daemon, f"/queues/{queue}/items?format=ndjson").lines
    assert (first["id"], first["flags"], first["data"], first["is_open"]) == (1, 7, "käse", True)
    assert first["expire_ms"] - first["add_ms"] == 1_000_000
    assert (second["base64"], "flags" in second, "expire_ms" in second) == ("/wA=", False, False)


def test_what_waits_is_what_a_queue_has_yet_to_deliver(daemon, connect: Connect, queue):
    client = connect()
    client.put(queue, *[b"%d" % number for number in range(1, 7)])
    child = f"{queue}+audit"
    client.get(child)
    client.put(queue, b"7")
    client.put(child, b"own")
    client.get(queue)
    client.get(f"{queue}/open")
    other = connect()
    assert other.get(queue) == b"3"
    assert [number for number, _ in items(daemon, queue, "waiting=1")] == [2, 4, 5, 6, 7]
    assert items(daemon, child.replace("+", "%2B"), "waiting=1") == [(7, b"7"), (8, b"own")]
    assert 8 not in {number for number, _ in items(daemon, queue)}
    assert items(daemon, queue, "waiting=1&first=6&limit=1") == [(6, b"6")]


def test_pages_cover_everything_once(daemon, connect: Connect, queue):
    client = connect()
    client.put(queue, *[b"x" * (number % 50) for number in range(3000)])
    for page in ("limit=700", "bytes=5000"):
        first, seen = "earliest", []
        while True:
            answer = ask(daemon, f"/queues/{queue}/items?first={first}&format=ndjson&{page}")
            if not answer.body:
                break
            assert len(answer.body) < 200_000
            seen += [line["id"] for line in answer.lines]
            first = answer.headers["X-Kestrel-Next"]
        assert seen == list(range(1, 3001))


def test_a_large_item_comes_alone_however_little_was_asked_for(daemon, connect: Connect, queue):
    connect().put(queue, b"x" * 3_000_000, b"y")
    assert [(number, len(data)) for number, data in items(daemon, queue, "bytes=100")] == [(1, 3_000_000)]


def test_waiting_for_items_ends_with_the_first_or_with_the_time(daemon, connect: Connect, queue):
    client = connect()
    client.put(queue, b"one")
    with asked(daemon, f"/queues/{queue}/items?first=2&wait_ms={LONG_MS}") as answer:
        client.put(queue, b"two")
        assert records(answer()) == [(2, b"two")]
    client.get(f"{queue}+child")
    with asked(daemon, f"/queues/{queue}/items?first=3&wait_ms={LONG_MS}") as answer:
        client.put(f"{queue}+child", b"own")  # not for everybody
        client.put(queue, b"three")
        assert records(answer())[-1] == (4, b"three")
    assert items(daemon, queue, "first=5&wait_ms=100") == []


def test_waiting_ends_when_the_queue_is_deleted(daemon, connect: Connect, queue):
    client = connect()
    client.put(queue, b"one")
    with asked(daemon, f"/queues/{queue}/items?first=2&wait_ms={LONG_MS}") as answer:
        client.do(b"delete " + queue.encode(), b"DELETED\r\n")
        assert answer().status == 404


def test_a_reader_has_a_place_of_its_own_and_keeps_it(tmp_path):
    with running_daemon(tmp_path, admin="127.0.0.1:0") as daemon:
        with QueueClient(daemon.port) as client:
            client.put("work", b"1", b"2", b"3", b"4")
        made = ask(daemon, "/queues/work/readers/spark?from=2", "POST")
        assert (made.status, made.json) == (201, {"reader": "spark", "kind": "stream", "head": 2, "behind": 3})
        assert ask(daemon, "/queues/work/readers/spark?from=4", "POST").status == 200  # it is there already
        assert items(daemon, "work", "reader=spark")[0] == (2, b"2")
        assert ask(daemon, "/queues/work/readers/spark/done?through=3", "POST").json["head"] == 4
        assert ask(daemon, "/queues/work/readers/spark/done?through=2", "POST").json["head"] == 4  # never back
        daemon.kill()
        daemon.start()
        assert head(daemon, "work", "spark") == 4
        assert items(daemon, "work", "reader=spark") == [(4, b"4")]
        with QueueClient(daemon.port) as client:
            assert client.items("work") == 4
        assert ask(daemon, "/queues/work/readers/spark", "DELETE").json == {"dropped": "spark"}
        daemon.kill()
        daemon.start()
        assert [one["reader"] for one in ask(daemon, "/queues/work").json["readers"]] == [""]


def test_readers_outlive_the_queue_while_a_child_keeps_the_journal(daemon, connect: Connect, queue):
    client = connect()
    client.put(queue, b"1")
    client.get(f"{queue}+child")
    client.put(queue, b"2")
    assert ask(daemon, f"/queues/{queue}/readers/spark", "POST").status == 201
    client.do(b"delete " + queue.encode(), b"DELETED\r\n")
    assert items(daemon, queue, "reader=spark") == [(1, b"1"), (2, b"2")]
    assert ask(daemon, f"/queues/{queue}/items?waiting=1").status == 404
    assert ask(daemon, f"/queues/{queue}/readers/spark/done?through=1", "POST").json["head"] == 2
    assert ask(daemon, f"/queues/{queue}/readers/spark", "DELETE").status == 200
    assert client.stats().get(f"queue_{queue}_items") is None  # none of this has made it again


def test_places_of_readers(daemon, connect: Connect, queue):
    connect().put(queue, b"1", b"2", b"3")
    for word, at in (("earliest", 1), ("latest", 4), ("3", 3)):
        assert ask(daemon, f"/queues/{queue}/readers/{word}?from={word}", "POST").json["head"] == at
    for word, status in (("5", 410), ("0", 410), ("x", 400), ("-1", 400), ("%C2%B2", 400)):
        assert ask(daemon, f"/queues/{queue}/readers/other?from={word}", "POST").status == status
    assert ask(daemon, f"/queues/{queue}/readers/latest/done?through=4", "POST").status == 409
    assert ask(daemon, f"/queues/{queue}/readers/latest/done", "POST").status == 400
    assert ask(daemon, f"/queues/{queue}/readers/nobody/done?through=1", "POST").status == 404
    assert ask(daemon, f"/queues/{queue}/readers/nobody", "DELETE").status == 404
    for name in ("a%2Bb", "a%2Fb", "a%20b", "."):
        assert ask(daemon, f"/queues/{queue}/readers/{name}", "POST").status in (400, 404)
    assert ask(daemon, "/queues/a%20b/readers/r", "POST").status == 400
    assert ask(daemon, f"/queues/{queue}%2Baudit/readers/r", "POST").status == 400
    assert ask(daemon, "/queues/new-by-reader/readers/r", "POST").status == 201
    assert ask(daemon, "/queues/memory/readers/r", "POST").status == 409


def test_there_is_a_limit_to_readers_of_a_queue(daemon, connect: Connect, queue):
    statuses = [ask(daemon, f"/queues/{queue}/readers/r{number}", "POST").status for number in range(257)]
    assert statuses == [201] * 256 + [409]


def test_a_reader_holds_what_it_has_not_done_and_what_goes_is_410(tmp_path):
    with (
        running_daemon(tmp_path, "max_journal_size=1024", "max_journal_overflow=1000", admin="127.0.0.1:0") as daemon,
        QueueClient(daemon.port) as client,
    ):
        client.put("work", *[b"x" * 200 for _ in range(100)])
        assert ask(daemon, "/queues/work/readers/spark", "POST").status == 201
        assert len(client.drain("work")) == 100
        client.put("work", b"last")
        assert len(items(daemon, "work", "reader=spark")) == 101
        assert ask(daemon, "/queues/work/readers/spark/done?through=90", "POST").status == 200
        gone = until_gone(daemon, client, "/queues/work/items?first=1")
        assert gone.status == 410
        assert 1 < gone.json["first_id"] <= 91
        assert gone.json["next_id"] >= 102
        assert items(daemon, "work", "reader=spark")[0][0] == 91
        assert ask(daemon, "/queues/work/readers/late?from=1", "POST").status == 410
        journal_id = gone.json["journal_id"]
        assert ask(daemon, f"/queues/work/items?journal_id={journal_id}").status == 200
        client.do(b"delete work", b"DELETED\r\n")
        client.put("work", b"again")
        assert ask(daemon, f"/queues/work/items?journal_id={journal_id}").status == 410
        assert ask(daemon, "/queues/work/items?first=101").status == 410


def until_gone(daemon: Daemon, client: QueueClient, path: str) -> Answer:
    """Segments that nobody needs go within seconds, and not before the next one is on disk."""
    answers: list[Answer] = []

    def is_gone() -> bool:
        client.put("work", b"more")
        client.get("work")
        answers.append(ask(daemon, path))
        return answers[-1].status == 410

    until(is_gone, "old segments to go")
    return answers[-1]


def test_ranges_and_limits_that_are_none_are_refused(daemon, connect: Connect, queue):
    connect().put(queue, b"x")
    for query in (
        "limit=0",
        "limit=100001",
        "limit=x",
        "bytes=0",
        "bytes=999999999",
        "wait_ms=-1",
        "wait_ms=300001",
        "first=1_0",
        "first=99999999999999999999",
        "format=xml",
        "waiting=2",
    ):
        assert ask(daemon, f"/queues/{queue}/items?{query}").status == 400, query
    assert ask(daemon, f"/queues/{queue}/items?reader=nobody").status == 404
    assert ask(daemon, f"/queues/{queue}/items?first=100").status == 410
    assert ask(daemon, "/queues/memory/items").status in (404, 409)


def test_answers_wait_for_the_disk_where_sync_journal_says_so(tmp_path):
    with running_daemon(tmp_path, "sync_journal=true", admin="127.0.0.1:0") as daemon:
        with QueueClient(daemon.port) as client:
            client.put("work", b"1", b"2")
        slow = injected(daemon.pid, "fdatasync:delay_enter=1500000", "fsync:delay_enter=1500000")
        with ThreadPoolExecutor() as pool, slow:
            made = pool.submit(ask, daemon, "/queues/work/readers/spark", "POST")
            assert ask(daemon, "/healthz").status == 200
            assert not made.done()
            assert made.result(PATIENCE_S).status == 201
        with injected(daemon.pid, "fdatasync:error=EIO", "fsync:error=EIO"):
            failed = ask(daemon, "/queues/work/readers/spark/done?through=1", "POST")
        assert failed.status == 503
        assert "sync failed" in failed.json["error"]
        assert str(daemon.spool) not in failed.json["error"]


def test_a_damaged_journal_is_said_and_the_others_are_read(tmp_path: Path):
    with running_daemon(tmp_path, admin="127.0.0.1:0") as daemon:
        with QueueClient(daemon.port) as client:
            client.put("bad", b"x" * 100)
            client.put("good", b"y")
        (segment,) = daemon.spool.glob("bad.journal/*.seg")
        content = bytearray(segment.read_bytes())
        content[-50] ^= 1
        segment.write_bytes(content)
        answer = ask(daemon, "/queues/bad/items")
        assert answer.status == 503
        assert answer.json["error"].startswith("corrupt: ")
        assert items(daemon, "good") == [(1, b"y")]


def test_rights_are_those_of_the_queue(tmp_path):
    config = (
        "users:\n"
        f"  all: {{password: '{quick_hash('pw')}', rights: {{'*': all}}}}\n"
        f"  some: {{password: '{quick_hash('pw')}', rights: {{'a*': [peek], 'b': [get]}}}}\n"
    )
    with running_daemon(tmp_path, config=config, admin="127.0.0.1:0") as daemon:
        with QueueClient(daemon.port) as client:
            client.ask(login("all", "pw"), b"STORED\r\n")
            for name in ("ab", "b", "c"):
                client.put(name, b"x")
            client.get("ab+child")
        who = basic("some", "pw")
        for path, method, status in (
            ("/queues/ab/items", "GET", 200),
            ("/queues/ab%2Bchild/items", "GET", 200),
            ("/queues/b/items", "GET", 403),
            ("/queues/ab/position?at_ms=0", "GET", 200),
            ("/queues/b/position?at_ms=0", "GET", 403),
            ("/queues/c/items", "GET", 403),
            ("/queues/c%2Fa/items", "GET", 403),
            ("/queues/ab/readers/r", "POST", 403),
            ("/queues/b/readers/r", "POST", 201),
            ("/queues/b/readers/r/done?through=1", "POST", 200),
            ("/queues/ab/readers/r/done?through=1", "POST", 403),
            ("/queues/c/readers/r", "DELETE", 403),
            ("/queues/b/readers/r", "DELETE", 200),
            ("/queues/not-there/readers/r", "POST", 403),
        ):
            assert ask(daemon, path, method, who).status == status, path
        assert "not-there" not in {one["queue"] for one in ask(daemon, "/queues", headers=who).json["queues"]}
