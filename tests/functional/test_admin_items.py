"""The admin port's pages of items by state, and what an operator does with one of them."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.functional.conftest import Connect
from tests.support.accounts import quick_hash
from tests.support.daemon import Daemon, running_daemon
from tests.support.http import Answer, ask, basic
from tests.support.queue_client import QueueClient
from tests.support.waiting import until

CONFIG = """
listen: {memcache: 127.0.0.1:0, admin: 127.0.0.1:0}
queues:
  memory: {journal: false}
  patient: {retry_delays: [1h]}
  tight: {max_memory_size: 1KiB}
  fragile: {max_retries: 1, move_failed_to: dead}
  brittle: {max_retries: 1, move_failed_to: dead}
  full: {max_items: 1}
  late: {move_expired_to: dead}
"""


@pytest.fixture(scope="module")
def module_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("kestreld"), config=CONFIG, admin="127.0.0.1:0") as running:
        yield running


@pytest.fixture
def daemon(module_daemon: Daemon) -> Daemon:
    """It has no queues yet: ids begin with 1."""
    with QueueClient(module_daemon.port) as client:
        for one in ask(module_daemon, "/queues").json["queues"]:
            client.do(f"delete {one['queue']}".encode(), b"DELETED\r\n")
    return module_daemon


def put_later(client: QueueClient, queue: str, data: bytes, delay_ms: int = 3_600_000, key: str = "") -> None:
    word = f"{queue}/delay={delay_ms}" + (f"/key={key}" if key else "")
    client.ask(b"set %b 0 0 %d\r\n%b\r\n" % (word.encode(), len(data), data), b"STORED\r\n")


def lease(client: QueueClient, queue: str, lease_ms: int = 3_600_000) -> int:
    """Lease an item; the token."""
    client.send(f"gets {queue}/open/lease={lease_ms}\r\n".encode())
    words = client.expect_line(b"VALUE ").split(b" ")
    client.read(int(words[3]) + 2)
    client.expect(b"END\r\n")
    return int(words[4])


def fail(client: QueueClient, queue: str) -> None:
    client.do(f"touch {queue}/{lease(client, queue)}/failed 0".encode(), b"TOUCHED\r\n")


def page(daemon: Daemon, queue: str, state: str, query: str = "") -> list[Any]:
    answer = ask(daemon, f"/queues/{queue}/items?state={state}{query}")
    assert answer.status == 200, answer
    assert len(answer.lines) == int(answer.headers["X-Kestrel-Items"])
    return answer.lines


def ids(daemon: Daemon, queue: str, state: str) -> list[int]:
    return [item["id"] for item in page(daemon, queue, state)]


def post(daemon: Daemon, path: str) -> Answer:
    return ask(daemon, f"/queues/{path}", "POST")


def test_each_state_has_its_page(daemon: Daemon, connect: Connect) -> None:
    client = connect()
    client.put("patient", b"leased", b"failed", b"waiting")
    put_later(client, "patient", b"delayed")
    lease(client, "patient")
    fail(client, "patient")
    assert {state: ids(daemon, "patient", state) for state in ("waiting", "delayed", "leased", "retrying")} == {
        "waiting": [3],
        "delayed": [4],
        "leased": [1],
        "retrying": [2],
    }
    assert page(daemon, "patient", "delayed&waiting=0")[0]["data"] == "delayed"


def test_an_item_says_when_it_is_due_and_how_often_it_failed(daemon: Daemon, connect: Connect) -> None:
    client, now_ms = connect(), time.time() * 1000
    client.put("patient", b"job")
    fail(client, "patient")
    put_later(client, "patient", b"later", 1_800_000)
    (failed,), (delayed,) = page(daemon, "patient", "retrying"), page(daemon, "patient", "delayed")
    assert abs(failed["due_at_ms"] - now_ms - 3_600_000) < 100_000
    assert abs(delayed["due_at_ms"] - now_ms - 1_800_000) < 100_000
    assert (failed["attempts"], "attempts" in delayed) == (1, False)


def test_an_item_and_its_dead_letter_say_why_it_failed(daemon: Daemon, connect: Connect) -> None:
    client = connect()
    client.put("patient", b"job", b"other")
    token = lease(client, "patient")
    client.do(
        b"touch patient/%d/failed/reason=no%%20room%%20%%2f%%20100%%25%%20gr%%c3%%b6\xc3\x9fe 0" % token, b"TOUCHED\r\n"
    )
    client.do(b"touch patient/%d/failed/reason=too%%20late 0" % token, b"TOUCHED\r\n")
    fail(client, "patient")
    assert [item.get("failure_reason") for item in page(daemon, "patient", "retrying")] == [
        "no room / 100% größe",
        None,
    ]
    client.put("fragile", b"job")
    for why in (b"first", 200 * b"x"):
        client.do(b"touch fragile/%d/failed/reason=%b 0" % (lease(client, "fragile"), why), b"TOUCHED\r\n")
    (letter,) = ask(daemon, "/queues/dead/items?format=ndjson&waiting=1").lines
    assert (letter["origin"]["reason"], letter["failure_reason"]) == ("failed", 200 * "x")


def test_a_leased_item_says_who_has_it_since_when_and_until_when(daemon: Daemon, connect: Connect) -> None:
    client, now_ms = connect(), time.time() * 1000
    client.put("work", b"job")
    lease(client, "work", 60_000)
    (leased,) = page(daemon, "work", "leased")
    host, port = client.socket.getsockname()[:2]
    assert leased["client"] == f"{host}:{port}"
    assert abs(leased["since_at_ms"] - now_ms) < 100_000
    assert leased["until_at_ms"] - leased["since_at_ms"] == 60_000
    assert leased["is_open"]


@pytest.mark.parametrize("queue", ["work", "tight", "memory"])
def test_pages_go_on_where_the_one_before_ended_in_the_order_of_due_times(
    daemon: Daemon, connect: Connect, queue: str
) -> None:
    client = connect()
    for minutes in (3, 1, 2, 5, 4):
        put_later(client, queue, b"%d" % minutes * 400, minutes * 60_000)
    found, after = [], ""
    for _ in range(3):
        answer = ask(daemon, f"/queues/{queue}/items?state=delayed&limit=2{after}")
        found.append([item["data"][0] for item in answer.lines])
        after = f"&after={answer.headers['X-Kestrel-Next']}"
    assert found == [["1", "2"], ["3", "4"], ["5"]]
    assert answer.headers["X-Kestrel-Next"] is None
    assert len(page(daemon, queue, "delayed", "&bytes=500")) == 2


def test_what_waits_is_paged_by_id_without_what_is_held_back(daemon: Daemon, connect: Connect) -> None:
    client = connect()
    client.put("work", b"1", b"2")
    lease(client, "work")
    put_later(client, "work", b"3")
    client.put("work", b"4")
    put_later(client, "work", b"5", 1)
    until(lambda: 5 in ids(daemon, "work", "waiting"), "item 5 to be due")
    assert ids(daemon, "work", "waiting") == [2, 4, 5]
    first = ask(daemon, "/queues/work/items?state=waiting&limit=2")
    assert [item["id"] for item in first.lines] == [2, 4]
    assert [item["id"] for item in page(daemon, "work", "waiting", f"&after={first.headers['X-Kestrel-Next']}")] == [5]


def test_what_is_not_done_yet_has_items_that_are_not_due_yet(daemon: Daemon, connect: Connect) -> None:
    client = connect()
    put_later(client, "work", b"1")
    client.put("work", b"2", b"3", b"4")
    assert client.get("work") == b"2"
    lease(client, "work")
    lines = ask(daemon, "/queues/work/items?waiting=1&format=ndjson").lines
    assert [(item["id"], item.get("state")) for item in lines] == [(1, "delayed"), (3, "leased"), (4, None)]


def test_a_cancelled_item_is_never_delivered(daemon: Daemon, connect: Connect) -> None:
    client = connect()
    put_later(client, "patient", b"1")
    client.put("patient", b"2")
    fail(client, "patient")
    assert post(daemon, "patient/items/1/cancel").json == {"queue": "patient", "id": 1, "was": "delayed"}
    assert post(daemon, "patient/items/2/cancel").json["was"] == "retrying"
    assert ids(daemon, "patient", "delayed") == ids(daemon, "patient", "retrying") == []
    assert post(daemon, "patient/items/1/cancel").status == 404


def test_an_item_is_cancelled_by_its_key(daemon: Daemon, connect: Connect) -> None:
    put_later(connect(), "work", b"1", key="order-ä")
    assert post(daemon, "work/cancel?key=order-%C3%A4").status == 200
    assert ids(daemon, "work", "delayed") == []
    assert post(daemon, "work/cancel?key=order-%C3%A4").status == 404
    assert post(daemon, "work/cancel").status == 400


def test_an_item_that_is_run_now_goes_to_whoever_waits(daemon: Daemon, connect: Connect) -> None:
    client = connect()
    put_later(client, "work", b"1")
    client.send(b"get work/t=60000\r\n")
    client.expect_no_answer_yet()
    assert post(daemon, "work/items/1/run-now").status == 200
    assert client.read_value() == b"1"
    assert post(daemon, "work/items/1/run-now").status == 404


def test_a_lease_is_extended_and_given_back_by_id(daemon: Daemon, connect: Connect) -> None:
    client = connect()
    client.put("work", b"1")
    token = lease(client, "work", 60_000)
    assert post(daemon, "work/items/1/extend?lease_ms=120000").status == 200
    (leased,) = page(daemon, "work", "leased")
    assert leased["until_at_ms"] - leased["since_at_ms"] >= 120_000
    assert post(daemon, "work/items/1/give-back?delay_ms=60000").status == 200
    assert ids(daemon, "work", "delayed") == [1]
    post(daemon, "work/items/1/run-now")
    lease(client, "work")
    assert post(daemon, "work/items/1/give-back").status == 200
    assert client.get("work") == b"1"
    client.do(b"delete work/%d" % token, b"NOT_FOUND\r\n")


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("work/items/1/extend?lease_ms=1000", 409, "item 1 is delayed; it must be leased"),
        ("work/items/9/cancel", 404, "item 9 does not exist, or is waiting; it must be delayed or retrying"),
        ("work/items/x/cancel", 400, "expected an item id"),
        ("work/items/1/cancel?journal_id=1", 409, "the queue was deleted, and its ids belong to other items"),
        ("other/items/1/cancel", 404, "no such queue"),
        ("work/redrive?to=work", 400, "source and destination are the same"),
        ("work/redrive?to=a~b", 400, "queue name must not contain '~'"),
    ],
)
def test_a_refused_action_says_why_and_changes_nothing(
    daemon: Daemon, connect: Connect, path: str, status: int, words: str
) -> None:
    put_later(connect(), "work", b"1")
    answer = post(daemon, path)
    assert (answer.status, answer.json["error"]) == (status, words)
    assert ids(daemon, "work", "delayed") == [1]


def test_a_bad_page_is_refused(daemon: Daemon, connect: Connect) -> None:
    connect().put("work", b"1")
    assert ask(daemon, "/queues/work/items?state=lost").json["error"].startswith("state must be one of waiting, ")
    assert ask(daemon, "/queues/work/items?state=delayed&after=1").status == 400
    assert ask(daemon, "/queues/memory/items?state=waiting").status == 404


# Dead letters


def test_a_dead_letter_says_where_it_comes_from_and_is_sent_back_there(daemon: Daemon, connect: Connect) -> None:
    client, now_ms = connect(), time.time() * 1000
    client.put("fragile", b"1")
    client.put("brittle", b"2")
    for queue in ("fragile", "fragile", "brittle", "brittle"):
        fail(client, queue)
    client.put("dead", b"3")
    found = page(daemon, "dead", "waiting")
    put_at_ms = found[0]["origin"].pop("put_at_ms")
    assert abs(put_at_ms - now_ms) < 100_000
    assert found[0]["origin"] == {"queue": "fragile", "reason": "failed", "attempts": 2}
    assert (found[1]["origin"]["queue"], "origin" in found[2]) == ("brittle", False)
    expected = {"queue": "dead", "moved": 2, "to": {"fragile": 1, "brittle": 1}, "without_origin": 1, "refused": {}}
    assert post(daemon, "dead/redrive?dry_run=1").json == expected | {"next": None}
    assert ids(daemon, "dead", "waiting") == [1, 2, 3]
    assert post(daemon, "dead/redrive").json == expected | {"next": None}
    assert ids(daemon, "dead", "waiting") == [3]
    assert (client.get("fragile"), client.get("brittle"), client.get("dead")) == (b"1", b"2", b"3")


def test_an_expired_item_says_so(daemon: Daemon, connect: Connect) -> None:
    client = connect()
    client.put("late", b"1", expiry_s=-1)
    client.do(b"flush_expired late", b"1\r\n")
    assert page(daemon, "dead", "waiting")[0]["origin"]["reason"] == "expired"


def test_a_redrive_leaves_what_its_destination_refuses_and_goes_on_behind_it(daemon: Daemon, connect: Connect) -> None:
    client = connect()
    client.put("dead", b"1", b"2", b"3")
    answer = post(daemon, "dead/redrive?to=full&limit=2").json
    assert (answer["moved"], list(answer["refused"]), answer["next"]) == (1, ["full"], 2)
    assert ids(daemon, "dead", "waiting") == [2, 3]
    assert post(daemon, "dead/redrive?to=work&after=2&through=2").json["moved"] == 0
    assert post(daemon, "dead/redrive?to=work").json["moved"] == 2
    assert client.drain("work") == [b"2", b"3"]


def test_what_is_sent_back_is_there_after_a_crash_once(tmp_path: Path) -> None:
    with running_daemon(tmp_path, config=CONFIG, admin="127.0.0.1:0") as daemon, QueueClient(daemon.port) as client:
        client.put("dead", *[b"%d" % number for number in range(5)])
        assert post(daemon, "dead/redrive?to=work").json["moved"] == 5
        client.get("work")
        daemon.kill()
    with running_daemon(tmp_path, config=CONFIG, admin="127.0.0.1:0") as daemon, QueueClient(daemon.port) as client:
        assert client.drain("work") == [b"1", b"2", b"3", b"4"]
        assert client.get("dead") is None


def test_items_that_a_worker_has_are_not_sent_back(daemon: Daemon, connect: Connect) -> None:
    client = connect()
    client.put("memory", b"1", b"2")
    put_later(client, "memory", b"3")
    lease(client, "memory")
    assert post(daemon, "memory/redrive?to=work").json["moved"] == 1
    assert client.drain("work") == [b"2"]
    assert (ids(daemon, "memory", "leased"), ids(daemon, "memory", "delayed")) == ([1], [3])


def test_stats_and_metrics_count_what_has_a_time_or_an_owner(daemon: Daemon, connect: Connect) -> None:
    client = connect()
    client.put("fragile", b"1")
    for _ in range(2):
        fail(client, "fragile")
    client.put("patient", b"2", b"3")
    fail(client, "patient")
    token = lease(client, "patient")
    put_later(client, "patient", b"4", key="k")
    put_later(client, "patient", b"4", key="k")
    client.do(b"delete patient/%d" % (token - 1), b"NOT_FOUND\r\n")
    expected = {"delayed": 1, "retrying": 1, "leased": 1, "keys": 1, "keys_refused": 1, "confirms_late": 1}

    client.send(b"dump_stats patient fragile\r\n")
    block = dict(line.strip().split(b"=") for line in client.read_until(b"END\r\n").split(b"\r\n") if b"=" in line)
    assert 0 < int(block[b"next_due_ms"]) <= 3_600_000
    assert block[b"dead_letters"] == b"1"

    stats = ask(daemon, "/stats.json").json
    rows = {row[0]: dict(zip(stats["columns"], row, strict=True)) for row in stats["rows"]}
    assert {key: rows["patient"][key] for key in expected} == expected
    assert 0 < rows["patient"]["next_due_at_ms"] - stats["now_ms"] <= 3_600_000
    assert (rows["fragile"]["dead_letters"], rows["patient"]["dead_letters"]) == (1, 0)

    metrics = ask(daemon, "/metrics").body.decode()
    counters = {"keys_refused", "confirms_late"}
    for key, value in expected.items():
        assert f'kestrel_queue_{key}{"_total" * (key in counters)}{{queue="patient"}} {value}\n' in metrics
    assert 'kestrel_queue_dead_letters_total{queue="fragile"} 1\n' in metrics

    lease_ends(client)
    look = ask(daemon, f"/stats.json?changed_since={stats['at']}").json
    (row,) = [row for row in look["rows"] if row[0] == "brief"]
    assert dict(zip(look["columns"], row, strict=True))["leases_expired"] == 1


def lease_ends(client: QueueClient) -> None:
    client.put("brief", b"1")
    lease(client, "brief", 1)
    client.send(b"get brief/t=30000\r\n")
    assert client.read_value() == b"1"


def test_pages_and_actions_need_their_rights(tmp_path: Path) -> None:
    config = f"""
listen: {{memcache: 127.0.0.1:0, admin: 127.0.0.1:0}}
users:
  looker: {{password: "{quick_hash("password")}", rights: {{work: peek}}}}
  worker: {{password: "{quick_hash("password")}", rights: {{work: [get, put, peek]}}}}
"""
    with running_daemon(tmp_path, config=config, admin="127.0.0.1:0") as daemon, QueueClient(daemon.port) as client:
        client.send(b"set auth 0 0 15\r\nworker password\r\n")
        client.expect(b"STORED\r\n")
        put_later(client, "work", b"1")
        client.put("work", b"2")
        lease(client, "work")

        def by(user: str, path: str, method: str = "POST") -> Answer:
            return ask(daemon, f"/queues/{path}", method, basic(user, "password"))

        (leased,) = by("looker", "work/items?state=leased", "GET").lines
        assert "client" not in leased
        assert by("looker", "work/items/1/run-now").status == by("looker", "work/redrive?to=other").status == 403
        assert by("looker", "work/cancel?key=k").status == 403
        assert by("worker", "work/redrive?to=other").json["refused"] == {}
        assert by("worker", "work/items/1/run-now").status == 200
        assert "not allowed" in by("worker", "work/redrive?to=other").json["refused"]["other"]
