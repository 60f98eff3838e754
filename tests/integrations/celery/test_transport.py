"""What a program sees of Kombu's transport."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kombu
import pytest
from kombu.asynchronous.hub import Hub
from kombu.exceptions import ChannelError

from kestreld.client import KestrelCluster
from kestreld.client.access import Login
from kestreld.integrations.celery.consumption import WAIT_MS, Consumption
from kestreld.integrations.celery.leases import End, LeaseKeeper
from kestreld.integrations.celery.names import name_of, queue_of
from kestreld.integrations.celery.wire import Wire, wait_for
from tests.support.daemon import Daemon, running_daemon
from tests.support.peer import Exchange, scripted_peer
from tests.support.waiting import PATIENCE_S, until

Connect = Callable[..., Any]


def figures(server: Daemon, queue: str) -> dict[str, int | str]:
    with KestrelCluster([server.address]) as cluster:
        return cluster.queue(queue).stats()[server.address]


def received(connection: Any, consumer: Any, count: int, timeout_s: float = 5) -> None:
    for _ in range(count):
        connection.drain_events(timeout=timeout_s)


def test_a_message_comes_with_its_headers_and_properties(connect: Connect) -> None:
    with connect().SimpleQueue("whole") as queue:
        queue.put({"a": [1, "ü"]}, headers={"k": "v"}, correlation_id="17", serializer="json", compression="zlib")
        message = queue.get(timeout=5)
        assert message.payload == {"a": [1, "ü"]}
        assert message.headers["k"] == "v"
        assert message.properties["correlation_id"] == "17"
        assert message.delivery_info["routing_key"] == "whole"
        message.ack()
        assert queue.qsize() == 0


def test_bodies_of_any_bytes_are_kept(connect: Connect) -> None:
    body = bytes(range(256)) + b"\r\n\n"
    with connect().SimpleQueue("bytes") as queue:
        queue.put(body, serializer="raw")
        message = queue.get(timeout=5)
        assert message.body == body
        message.ack()


@pytest.mark.parametrize("name", ["a.b", "celery@host.celery.pidbox", "a+b", "with blank", "50%", "%2E", "ü/~"])
def test_names_that_a_server_does_not_take_are_encoded_and_back(connect: Connect, name: str) -> None:
    assert name_of(queue_of(name)) == name
    with connect().SimpleQueue(name) as queue:
        queue.put(1)
        message = queue.get(timeout=5)
        message.ack()
        assert message.payload == 1


def test_names_that_differ_are_encoded_differently_and_too_long_ones_are_refused() -> None:
    assert queue_of("plain-name_1") == b"plain-name_1"
    assert len({queue_of(name) for name in ("a.b", "a%2Eb", "a%p3", "a b")}) == 4
    with pytest.raises(ChannelError, match="must have from 1 to 150 bytes"):
        queue_of("." * 100)


def test_messages_are_acknowledged_in_any_order_and_those_that_are_not_come_again(connect: Connect) -> None:
    connection, got = connect(), []
    queue = kombu.Queue("any-order")
    producer = connection.Producer()
    for number in range(4):
        producer.publish(number, routing_key="any-order", declare=[queue])
    with connection.Consumer([queue], callbacks=[lambda body, message: got.append(message)]) as consumer:
        received(connection, consumer, 4)
    got[2].ack()
    got[0].ack()
    got[3].reject()
    got[1].requeue()
    connection.close()
    with connect().SimpleQueue("any-order") as again:
        message = again.get(timeout=5)
        assert message.payload == 1
        message.ack()
        assert again.qsize() == 0


def test_without_prefetch_what_a_worker_has_acknowledged_and_not_ended_counts(
    server: Daemon, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: set[int] = set()
    worker = SimpleNamespace(reserved_requests=running, active_requests=set(), should_terminate=None, should_stop=None)
    monkeypatch.setitem(sys.modules, "celery.worker.state", worker)
    connection = connect(disable_prefetch=True)
    queue = kombu.Queue("unfetched", channel=connection.default_channel)
    got: list[Any] = []

    def begin(body: int, message: Any) -> None:
        message.ack()
        got.append(body)
        running.add(body)

    with connection.Consumer([queue], callbacks=[begin], prefetch_count=2):
        for number in range(3):
            connection.Producer().publish(number, routing_key="unfetched")
        received(connection, None, 2)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.3)
        assert got == [0, 1]
        assert figures(server, "unfetched")["items"] == 1
        running.remove(0)
        received(connection, None, 1)
        assert got == [0, 1, 2]


def test_prefetch_limits_what_is_leased_and_what_was_fetched_ahead_goes_back(server: Daemon, connect: Connect) -> None:
    connection, got = connect(), []
    queue = kombu.Queue("ahead")
    producer = connection.Producer()
    for number in range(10):
        producer.publish(number, routing_key="ahead", declare=[queue])
    with connection.Consumer([queue], callbacks=[lambda body, message: got.append(message)], prefetch_count=3) as one:
        received(connection, one, 3)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.1)
        assert figures(server, "ahead")["leased"] == 3
        got[0].ack()
        received(connection, one, 1)
    assert [message.payload for message in got] == [0, 1, 2, 3]
    connection.close()
    assert figures(server, "ahead")["items"] == 9
    assert figures(server, "ahead")["leased"] == 0


def test_a_consumer_without_acknowledgements_has_its_messages_confirmed(server: Daemon, connect: Connect) -> None:
    connection, got = connect(), []
    queue = kombu.Queue("no-ack")
    connection.Producer().publish(1, routing_key="no-ack", declare=[queue])
    with connection.Consumer([queue], no_ack=True, callbacks=[lambda body, message: got.append(body)]) as consumer:
        received(connection, consumer, 1)
    connection.close()
    assert got == [1]
    assert figures(server, "no-ack")["items"] == 0


def test_an_idle_hub_waits_at_the_server_and_is_called_when_a_message_comes(connect: Connect) -> None:
    connection, got, hub = connect(), [], Hub()
    queue = kombu.Queue("hub")
    with connection.Consumer([queue], callbacks=[lambda body, message: got.append((body, message.ack()))]):
        connection.register_with_event_loop(hub)
        hub.run_once()
        turns = 0
        publisher = connect()
        publisher.Producer().publish(7, routing_key="hub")
        while not got:
            hub.run_once()
            turns += 1
        assert got == [(7, None)]
        assert turns <= 3
        connection.transport.unregister_from_event_loop(connection.connection, hub)
    hub.close()


def test_acknowledgements_of_a_hub_reach_the_server(server: Daemon, connect: Connect) -> None:
    connection, hub, got = connect(), Hub(), []
    queue = kombu.Queue("hub-acks")
    for number in range(50):
        connection.Producer().publish(number, routing_key="hub-acks", declare=[queue])
    callback = [lambda body, message: got.append((body, message.ack()))]
    with connection.Consumer([queue], callbacks=callback, prefetch_count=4):
        connection.register_with_event_loop(hub)
        while len(got) < 50:
            hub.run_once()
        hub.run_once()
        assert [body for body, _ in got] == list(range(50))
        until(lambda: figures(server, "hub-acks")["open_transactions"] == 0, "what the server has")
        connection.transport.unregister_from_event_loop(connection.connection, hub)
    hub.close()


def bodies_of(connection: kombu.Connection, names: tuple[str, str], count: int) -> list[str]:
    """What comes from two queues, with so many messages each."""
    got: list[str] = []
    queues = [kombu.Queue(name) for name in names]
    producer = connection.Producer()
    for name in names:
        for number in range(count):
            producer.publish(f"{name[-1]}{number}", routing_key=name, declare=queues)

    def take(body: str, message: Any) -> None:
        message.ack()
        got.append(body)

    consumer = connection.Consumer(queues, callbacks=[take])
    with consumer:
        received(connection, consumer, count * len(names))
    return got


def test_several_queues_take_turns(connect: Connect) -> None:
    bodies = bodies_of(connect(), ("turn-a", "turn-b"), 3)
    assert [body[0] for body in bodies] in (list("ababab"), list("bababa"))


def test_the_order_of_queues_can_be_strict(connect: Connect) -> None:
    bodies = bodies_of(connect(queue_order_strategy="sorted"), ("strict-b", "strict-a"), 2)
    assert bodies == ["a0", "a1", "b0", "b1"]


def test_a_queue_with_priorities_delivers_lower_numbers_first(connect: Connect) -> None:
    connection, got = connect(), []
    queue = kombu.Queue("priorities", max_priority=10)
    producer = connection.Producer()
    for priority in (9, 4, 0, 3):
        producer.publish(priority, routing_key="priorities", declare=[queue], priority=priority)
    consumer = connection.Consumer([queue], callbacks=[lambda body, message: got.append((body, message.ack()))])
    with consumer:
        assert queue(connection.default_channel).queue_declare(passive=True).message_count == 4
        received(connection, consumer, 4)
    assert [body for body, _ in got] == [0, 4, 3, 9]  # 3 and 4 are one step
    assert queue(connection.default_channel).purge() == 0


def test_topics_fanouts_and_direct_exchanges_are_shared_by_connections(connect: Connect) -> None:
    publisher = connect()
    exchanges = {kind: kombu.Exchange(f"shared-{kind}", type=kind) for kind in ("topic", "fanout", "direct")}
    queues = [
        kombu.Queue("shared-t", exchanges["topic"], routing_key="a.#"),
        kombu.Queue("shared-u", exchanges["topic"], routing_key="a.*"),
        kombu.Queue("shared-f", exchanges["fanout"]),
        kombu.Queue("shared-d", exchanges["direct"], routing_key="a.b.c"),
    ]
    for queue in queues:
        queue(connect().default_channel).declare()
    for exchange in exchanges.values():
        publisher.Producer().publish(1, exchange=exchange.name, routing_key="a.b.c")
    lengths = {q.name: q(publisher.default_channel).queue_declare(passive=True).message_count for q in queues}
    assert lengths == {"shared-t": 1, "shared-u": 0, "shared-f": 1, "shared-d": 1}
    queues[0](publisher.default_channel).delete()
    bound = publisher.manager.get_bindings()  # as `celery list bindings` does
    assert "shared-t" not in [one["destination"] for one in bound]
    assert {"destination": "shared-u", "source": exchanges["topic"].name, "routing_key": "a.*"} in bound


def test_purge_returns_how_many_messages_it_dropped_and_deleted_queues_are_gone(connect: Connect) -> None:
    connection = connect()
    queue = kombu.Queue("purged")(connection.default_channel)
    for number in range(3):
        connection.Producer().publish(number, routing_key="purged", declare=[queue])
    assert queue.purge() == 3
    queue.delete()
    with pytest.raises(ChannelError, match="NOT_FOUND - no queue 'purged'"):
        queue.queue_declare(passive=True)


def test_expires_message_ttl_and_max_length_are_declared_at_the_server(server: Daemon, connect: Connect) -> None:
    queue = kombu.Queue("settings", expires=60, message_ttl=5, max_length=2, durable=False)
    connection = connect()
    queue(connection.default_channel).declare()
    with KestrelCluster([server.address]) as cluster:
        assert cluster
    for number in range(3):
        connection.Producer().publish(number, routing_key="settings")
    assert queue(connection.default_channel).queue_declare(passive=True).message_count == 2


def test_a_message_that_the_server_refuses_is_an_error_that_says_why(own_server: Daemon) -> None:
    own_server.stop()
    own_server.settings.append("max_item_size=1000")
    own_server.start()
    refused = pytest.raises(ChannelError, match=r"refused a message of .* bytes: .*max_item_size")
    with kombu.Connection(f"kestrel://{own_server.address}") as connection, refused:
        connection.Producer().publish("x" * 2000, routing_key="large")


def test_no_server_and_a_wrong_address_are_errors_of_connections() -> None:
    connection = kombu.Connection("kestrel://127.0.0.1:1")
    with pytest.raises(connection.connection_errors):
        connection.connect()
    with pytest.raises(ValueError, match="there are no virtual hosts"):
        kombu.Connection("kestrel://127.0.0.1:1/prod").connect()


def test_a_delayed_task_is_delivered_when_it_is_due_and_not_before(connect: Connect) -> None:
    connection = connect()
    due = time.time() + 0.5
    eta = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(due)) + f".{int(due % 1 * 1e6):06}+00:00"
    with connection.SimpleQueue("later") as queue:
        queue.put(1, headers={"id": "t", "task": "f", "eta": eta})
        queue.put(1, headers={"id": "t", "task": "f", "eta": eta})  # the same again is the same task
        assert queue.qsize() == 0
        message = queue.get(timeout=5)
        assert due <= time.time() < due + 1
        assert message.headers["eta"] == eta
        message.ack()
        assert queue.qsize() == 0
    connection.close()


def test_a_server_that_is_restarted_is_not_noticed_by_a_consumer(own_server: Daemon) -> None:
    with kombu.Connection(f"kestrel://{own_server.address}") as connection:
        got: list[Any] = []
        queue = kombu.Queue("restarts")
        producer = connection.Producer()
        producer.publish(1, routing_key="restarts", declare=[queue])
        with connection.Consumer([queue], callbacks=[lambda body, message: got.append(message)]) as consumer:
            received(connection, consumer, 1)
            own_server.kill()
            own_server.start()
            producer.publish(2, routing_key="restarts")
            received(connection, consumer, 1)
            got[0].ack()
            got[1].ack()
        assert [message.payload for message in got] == [1, 2]
        until(lambda: figures(own_server, "restarts")["items"] == 0, "what the server has")
        until(lambda: figures(own_server, "restarts")["leased"] == 0, "what the server has")


def test_a_publish_is_repeated_with_its_key_and_stored_once(own_server: Daemon) -> None:
    """The reply to the first put is lost."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    lost = threading.Event()

    def forward() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                there = socket.create_connection(("127.0.0.1", own_server.port))
                threading.Thread(target=one_way, args=(client, there, False), daemon=True).start()
                threading.Thread(target=one_way, args=(there, client, True), daemon=True).start()

    def one_way(source: socket.socket, to: socket.socket, is_back: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if is_back and b"STORED" in data and not lost.is_set():
                    lost.set()
                    to.shutdown(socket.SHUT_RDWR)
                    return
                to.sendall(data)

    threading.Thread(target=forward, daemon=True).start()
    with kombu.Connection(f"kestrel://127.0.0.1:{port}") as connection:
        connection.Producer().publish(1, routing_key="once", retry=True)
    listener.close()
    assert lost.is_set()
    assert figures(own_server, "once")["items"] == 1
    assert figures(own_server, "once")["keys_refused"] == 1


def test_a_lease_is_extended_while_the_message_is_worked_on(server: Daemon, connect: Connect) -> None:
    with connect(lease_s=0.4).SimpleQueue("long-work") as queue:
        queue.put(1)
        message = queue.get(timeout=5)
        for _ in range(2):  # the figure is of the end that was known when the last one had come
            last_ms = 0
            while (left_ms := int(figures(server, "long-work")["next_due_ms"])) <= last_ms or not last_ms:
                last_ms = left_ms
        message.ack()
    assert figures(server, "long-work")["leases_expired"] == 0


def test_a_message_of_the_redis_transport_is_read(server: Daemon, connect: Connect) -> None:
    payload = (
        b'{"body": "eyJhIjogMX0=", "content-encoding": "utf-8", "content-type": "application/json",'
        b' "headers": {"k": 1}, "properties": {"delivery_mode": 2, "priority": 0, "body_encoding": "base64",'
        b' "delivery_info": {"exchange": "", "routing_key": "moved"}, "delivery_tag": "17"}}'
    )
    with KestrelCluster([server.address]) as cluster:
        cluster.queue("moved").put(payload)
    with connect().SimpleQueue("moved") as queue:
        message = queue.get(timeout=5)
        assert (message.payload, message.headers) == ({"a": 1}, {"k": 1})
        message.ack()


def test_an_item_that_is_no_message_is_dropped_and_logged(
    server: Daemon, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    with KestrelCluster([server.address]) as cluster:
        cluster.queue("foreign").put(b"hello")
    with connect().SimpleQueue("foreign") as queue:
        queue.put(1)
        message = queue.get(timeout=5)
        assert message.payload == 1
        message.ack()
    assert "foreign: dropped an item that is no message" in caplog.text


def test_a_forked_child_leaves_the_connection_and_the_leases_to_its_parent(server: Daemon, connect: Connect) -> None:
    connection = connect()
    with connection.SimpleQueue("forked") as queue:
        queue.put(1)
        message = queue.get(timeout=5)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = 0 if not connection.transport.broker.wire.is_open else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert figures(server, "forked")["leased"] == 1
        message.ack()
        until(lambda: figures(server, "forked")["leased"] == 0, "what the server has")


def test_a_message_that_was_put_back_is_delivered_as_such(connect: Connect) -> None:
    with connect().SimpleQueue("again") as queue:
        queue.put(1)
        first = queue.get(timeout=5)
        first.requeue()
        second = queue.get(timeout=5)
        assert (first.delivery_info["redelivered"], second.delivery_info["redelivered"]) == (False, True)
        second.ack()


def test_a_message_that_others_had_is_delivered_as_such_with_how_often_that_was(
    server: Daemon, connect: Connect
) -> None:
    with connect().SimpleQueue("had") as queue:
        queue.put(1, headers={"x-delivery-count": 7, "kept": 1})
        with KestrelCluster([server.address]) as cluster:
            for _ in range(2):
                assert cluster.queue("had").lease(0.001) is not None
                until(lambda: figures(server, "had")["leased"] == 0, "the end of the lease")
        first = queue.get(timeout=5)
        assert first.delivery_info["redelivered"]
        assert first.headers == {"x-delivery-count": 2, "kept": 1}
        first.requeue()
        second = queue.queue.get()
        assert second.delivery_info["redelivered"]
        assert second.headers["x-delivery-count"] == 3
        second.ack()
        queue.put(2, headers={"x-delivery-count": 7})
        third = queue.get(timeout=5)
        assert not third.delivery_info["redelivered"]
        assert third.headers == {}
        third.ack()


def test_a_server_that_does_not_count_deliveries_is_not_asked_again() -> None:
    asked = b"gets ~celery/open/lease=60000/by=me.1"
    older = b"CLIENT_ERROR by= needs a name that has from 1 to 64 printable ASCII characters, without blanks and /\r\n"
    script = [
        Exchange(b"version\r\n", b"VERSION 1.0.0\r\n"),
        Exchange(b"wait ~celery work\r\n", b"OK\r\n"),
        Exchange(asked + b"/deliveries/t=%d\r\n" % WAIT_MS, older),
        Exchange(asked + b"/t=%d\r\n" % WAIT_MS, b"VALUE work/open/lease=60000 0 3 17\r\njob\r\nEND\r\n"),
    ]
    with scripted_peer(script) as peer:
        wire = Wire(peer.address, Login(), 5)
        keeper = LeaseKeeper(Wire(peer.address, Login(), 5), 60_000, lambda: True, lambda: None)
        consumption = Consumption(wire, "me", 60_000, 5, keeper, lambda talks: ())
        consumption.queues = [b"work"]
        while not consumption.ready:
            consumption.ask(1)
            wire.flush()
            assert wait_for((wire,), PATIENCE_S)
            wire.receive()
        (leased,) = consumption.ready
        assert (leased.data, leased.deliveries) == (b"job", None)
        keeper.let_go(leased.held)
        keeper.answered(End(leased.held, b""), b"DELETED")
        keeper.close()
        wire.close()


def test_a_task_that_is_not_due_is_cancelled_by_its_result(server: Daemon) -> None:
    from celery import Celery

    from kestreld.integrations.celery import cancel

    app = Celery(broker=f"kestrel://{server.address}")
    later = app.send_task("f", countdown=600, queue="cancelled")
    assert figures(server, "cancelled")["delayed"] == 1
    assert cancel(later, "cancelled")
    assert not cancel(later, "cancelled")
    assert figures(server, "cancelled")["delayed"] == 0
    once = [app.send_task("f", task_id="17", once=True, queue="cancelled") for _ in range(2)]
    assert not cancel(once[0], "cancelled")
    assert figures(server, "cancelled")["items"] == 1


def put_for(queue: Any, seconds: float) -> None:
    eta = datetime.now(UTC) + timedelta(seconds=seconds)
    queue.put(1, headers={"eta": eta.isoformat()})


def test_a_task_for_later_than_a_queue_allows_waits_as_long_as_it_allows_and_then_again(tmp_path: Path) -> None:
    """A task that is due within a second is delivered: Celery waits for its time."""
    with (
        running_daemon(tmp_path, "max_delay=700ms") as daemon,
        kombu.Connection(f"kestrel://{daemon.address}") as connection,
        connection.SimpleQueue("later") as queue,
    ):
        since = time.monotonic()
        put_for(queue, 2.2)
        message = queue.get(timeout=10)
        assert 1.2 <= time.monotonic() - since < 2.2
        message.ack()


def test_a_task_for_the_year_after_next_is_kept(server: Daemon, connect: Connect) -> None:
    with connect().SimpleQueue("years") as queue:
        put_for(queue, 800 * 86_400)
        found = figures(server, "years")
        assert found["delayed"] == 1
        assert 364 < int(found["next_due_ms"]) / 86_400_000 <= 365


def test_eventlet_is_refused() -> None:
    pytest.importorskip("eventlet", reason="needs eventlet")
    program = (
        "import eventlet; eventlet.monkey_patch();"
        "import kombu, kestreld.integrations.celery;"
        "kombu.Connection('kestrel://').connect()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "NotImplementedError: kestrel:// does not work with eventlet: use" in done.stderr
