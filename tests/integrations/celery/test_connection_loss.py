"""Connections that are reset, and those that fall silent, beneath a consumer."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import kombu
import pytest

import kestreld.integrations.celery  # noqa: F401 - as a program of Kombu's without Celery does
from kestreld.client import KestrelCluster
from kestreld.errors import ConnectionLost
from tests.support.daemon import Daemon
from tests.support.ports import free_port
from tests.support.queue_client import QueueClient
from tests.support.waiting import until
from tests.support.way import Way


@pytest.fixture
def way(own_server: Daemon) -> Iterator[Way]:
    way = Way(own_server.port)
    yield way
    way.close()


@contextmanager
def both_ways(server: Daemon, way: Way, **options: object) -> Iterator[tuple[Any, Any]]:
    """A connection that goes the way, and one that does not."""
    with (
        kombu.Connection(f"kestrel://127.0.0.1:{way.port}", transport_options=options) as connection,
        kombu.Connection(f"kestrel://{server.address}") as direct,
    ):
        yield connection, direct


def figures(server: Daemon, queue: str) -> dict[str, int | str]:
    with KestrelCluster([server.address]) as cluster:
        return cluster.queue(queue).stats()[server.address]


def drain(connection: Any, got: list[Any], count: int) -> None:
    end = time.monotonic() + 30
    while len(got) < count:
        assert time.monotonic() < end, f"{len(got)} of {count} messages came"
        try:
            connection.drain_events(timeout=0.5)
        except TimeoutError:
            continue


def test_a_reset_repeats_no_message_and_loses_no_acknowledgement(own_server: Daemon, way: Way) -> None:
    with both_ways(own_server, way) as (connection, direct):
        got: list[Any] = []
        queue = kombu.Queue("resets")
        producer = direct.Producer()
        for number in range(16):
            producer.publish(number, routing_key="resets", declare=[queue])
        callbacks = [lambda body, message: got.append(message)]
        with connection.Consumer([queue], callbacks=callbacks, prefetch_count=16):
            drain(connection, got, 16)
            way.reset()
            for message in got[:8]:
                message.ack()
            way.reset()
            for message in got[8:]:
                message.ack()
            producer.publish("after", routing_key="resets")
            drain(connection, got, 17)
            got[16].ack()
        assert [message.payload for message in got] == [*range(16), "after"]
    until(lambda: figures(own_server, "resets")["open_transactions"] == 0, "the acknowledgements")
    assert figures(own_server, "resets")["items"] == 0


@pytest.mark.long
def test_acknowledgements_after_a_reset_take_less_time_than_their_leases(own_server: Daemon, way: Way) -> None:
    """They go over a connection of which a worker that publishes nothing has no other use."""
    count, lease_s = 1500, 4
    with both_ways(own_server, way, lease_s=lease_s) as (connection, direct):
        got: list[Any] = []
        queue = kombu.Queue("acks")
        with connection.Consumer([queue], callbacks=[lambda body, message: got.append(message)]):
            producer = direct.Producer()
            for number in range(count):
                producer.publish(number, routing_key="acks", declare=[queue])
            drain(connection, got, count)
            way.reset()
            way.delay_s = 0.01
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=0.5)
            for message in got:
                message.ack()
            until(lambda: figures(own_server, "acks")["open_transactions"] == 0, "the acknowledgements")
            assert figures(own_server, "acks")["leases_expired"] == 0
    assert len(got) == count


def test_a_reset_gives_nothing_that_is_held_to_others(own_server: Daemon, way: Way) -> None:
    """Neither at once nor once the holder would count as gone; while it does nothing, too."""
    url, options = f"kestrel://127.0.0.1:{way.port}", {"missing_s": 1}
    with kombu.Connection(url, transport_options=options) as connection:
        got: list[Any] = []
        queue = kombu.Queue("held")
        for number in range(4):
            connection.Producer().publish(number, routing_key="held", declare=[queue])
        with connection.Consumer([queue], callbacks=[lambda body, message: got.append(message)]):
            drain(connection, got, 4)
            for _ in range(3):
                way.reset()
                time.sleep(0.02)  # it may be about to connect
            await_gone(own_server, 1200)
            for message in got:
                message.ack()
    until(lambda: figures(own_server, "held")["open_transactions"] == 0, "the acknowledgements")
    assert (figures(own_server, "held")["items"], figures(own_server, "held")["leases_expired"]) == (0, 0)


def test_what_is_held_goes_to_others_once_all_connections_are_gone(own_server: Daemon, way: Way) -> None:
    url, options = f"kestrel://127.0.0.1:{way.port}", {"missing_s": 0.5}
    with kombu.Connection(url, transport_options=options) as connection:
        got: list[Any] = []
        queue = kombu.Queue("gone")
        for number in range(4):
            connection.Producer().publish(number, routing_key="gone", declare=[queue])
        with connection.Consumer([queue], callbacks=[lambda body, message: got.append(message)], prefetch_count=2):
            drain(connection, got, 2)
            way.to_port = free_port()
            for _ in range(3):
                way.reset()
                time.sleep(0.02)  # it may have been about to connect
            with QueueClient(own_server.port) as other:
                for _ in range(4):
                    assert other.get("gone/t=30000") is not None
            way.to_port = own_server.port
    assert figures(own_server, "gone")["leases_expired"] == 2


def await_gone(server: Daemon, absence_ms: int) -> None:
    """So much of the server's time passes: some other holder is gone for as long."""
    with QueueClient(server.port) as watcher:
        with QueueClient(server.port) as other:
            other.put("other", b"x")
            other.ask(b"gets other/open/lease=60000/by=other\r\n", b"VALUE other/")
            other.read_until(b"END\r\n")
            other.do(b"present other %d" % absence_ms, b"OK\r\n")
        assert watcher.get("other/t=30000") == b"x"


def test_a_message_whose_delivery_was_lost_comes_again_soon_and_not_as_failed(own_server: Daemon, way: Way) -> None:
    """The server has leased it, and its reply went nowhere."""
    with both_ways(own_server, way) as (connection, direct):
        got: list[Any] = []
        queue = kombu.Queue("lost-delivery")
        with connection.Consumer([queue], callbacks=[lambda body, message: got.append((body, message.ack()))]):
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=0.2)
            way.is_silent = True
            direct.Producer().publish(1, routing_key="lost-delivery")
            until(lambda: figures(own_server, "lost-delivery").get("leased") == 1, "the lease")
            way.is_silent = False
            since = time.monotonic()
            drain(connection, got, 1)
            assert time.monotonic() - since < 5
        assert got == [(1, None)]
    assert figures(own_server, "lost-delivery")["leases_expired"] == 0


def test_a_publish_that_is_not_answered_is_given_up_in_time(own_server: Daemon, way: Way) -> None:
    url, options = f"kestrel://127.0.0.1:{way.port}", {"publish_outage_s": 0}
    with kombu.Connection(url, connect_timeout=1, transport_options=options) as connection:
        producer = connection.Producer()
        producer.publish(1, routing_key="silent-publish")
        way.is_silent = True
        with pytest.raises(ConnectionLost, match="no answer in time"):
            producer.publish(2, routing_key="silent-publish")
        way.is_silent = False
        producer.publish(3, routing_key="silent-publish")
    assert figures(own_server, "silent-publish")["items"] == 2


@pytest.mark.long
@pytest.mark.parametrize("silent_s", [0.1, 1, 2.6, 3, 3.5, 5])
def test_a_silent_connection_is_given_up_and_consuming_goes_on(own_server: Daemon, way: Way, silent_s: float) -> None:
    with both_ways(own_server, way) as (connection, direct):
        got: list[Any] = []
        queue = kombu.Queue("silence")
        with connection.Consumer([queue], callbacks=[lambda body, message: got.append((body, message.ack()))]):
            direct.Producer().publish(1, routing_key="silence", declare=[queue])
            drain(connection, got, 1)
            way.is_silent = True
            passes_at: list[float] = []

            def pass_on() -> None:
                way.is_silent = False
                passes_at.append(time.monotonic())
                direct.Producer().publish(2, routing_key="silence")

            timer = threading.Timer(silent_s, pass_on)
            timer.start()
            drain(connection, got, 2)
            assert time.monotonic() - passes_at[0] < 2
            timer.join()
    until(lambda: figures(own_server, "silence")["open_transactions"] == 0, "the acknowledgements")


@pytest.mark.long
def test_a_queue_that_was_deleted_during_an_outage_is_declared_and_bound_again(own_server: Daemon, way: Way) -> None:
    with both_ways(own_server, way) as (connection, direct):
        got: list[Any] = []
        exchange = kombu.Exchange("news", "fanout")
        queue = kombu.Queue("short-lived", exchange, expires=1)
        with connection.Consumer([queue], callbacks=[lambda body, message: got.append((body, message.ack()))]):
            direct.Producer().publish(1, exchange=exchange)
            drain(connection, got, 1)
            way.to_port = free_port()
            way.reset()
            until(lambda: not figures(own_server, "short-lived"), "the queue's end")
            direct.default_channel.exchange_delete("news")
            direct.Producer().publish("to a queue without settings", routing_key="short-lived")
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=3)
            way.to_port = own_server.port
            drain(connection, got, 2)
            direct.Producer().publish(3, exchange=exchange)
            drain(connection, got, 3)
    until(lambda: not figures(own_server, "short-lived"), "its end once nobody reads it any more")


def test_a_queue_that_does_not_last_can_be_declared_where_somebody_has_made_one_that_does(own_server: Daemon) -> None:
    """As workers do for commands to them, once the queue of one that was away has been deleted."""
    with kombu.Connection(f"kestrel://{own_server.address}") as connection:
        connection.Producer().publish(1, routing_key="commands")
        queue = kombu.Queue("commands", durable=False, expires=1)(connection.default_channel)
        queue.declare()
        message = queue.get()
        assert message.payload == 1
        message.ack()
    until(lambda: not figures(own_server, "commands"), "its end, as it is declared")


def test_an_outage_that_is_too_long_is_an_error_of_the_connection(own_server: Daemon) -> None:
    url, options = f"kestrel://{own_server.address}", {"outage_s": 0.3}
    with kombu.Connection(url, transport_options=options) as connection, connection.Consumer([kombu.Queue("too-long")]):
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.1)
        own_server.kill()
        with pytest.raises(connection.connection_errors, match="connection refused"):
            connection.drain_events(timeout=30)


@pytest.mark.long
def test_an_acknowledgement_on_a_connection_that_fell_silent_is_repeated(own_server: Daemon, way: Way) -> None:
    with both_ways(own_server, way) as (connection, direct):
        got: list[Any] = []
        queue = kombu.Queue("silent-acks")
        direct.Producer().publish(1, routing_key="silent-acks", declare=[queue])
        with connection.Consumer([queue], callbacks=[lambda body, message: got.append(message)]):
            drain(connection, got, 1)
            way.is_silent = True
            got[0].ack()
            end = time.monotonic() + 2.5
            while time.monotonic() < end:
                with pytest.raises(TimeoutError):
                    connection.drain_events(timeout=0.2)
            way.is_silent = False
            with pytest.raises(TimeoutError):  # it is not given back as one that never arrived
                connection.drain_events(timeout=4)
        until(lambda: figures(own_server, "silent-acks")["open_transactions"] == 0, "the acknowledgement")
    assert figures(own_server, "silent-acks")["items"] == 0
    assert len(got) == 1


@pytest.mark.long
def test_a_message_that_takes_its_time_on_a_slow_connection_arrives_once(own_server: Daemon) -> None:
    way, text = Way(own_server.port, bytes_per_s=1_000_000), "x" * 4_000_000
    with both_ways(own_server, way) as (connection, direct):
        got: list[Any] = []
        queue = kombu.Queue("slow")
        direct.Producer().publish(text, routing_key="slow", declare=[queue])
        with connection.Consumer([queue], callbacks=[lambda body, message: got.append((body, message.ack()))]):
            drain(connection, got, 1)
        assert got == [(text, None)]
        until(lambda: figures(own_server, "slow")["open_transactions"] == 0, "the acknowledgement")
    assert figures(own_server, "slow")["items"] == 0
    way.close()


@pytest.mark.long
@pytest.mark.parametrize("is_get", [False, True], ids=["put", "get"])
def test_a_request_lasts_as_long_as_bytes_go_or_come(own_server: Daemon, *, is_get: bool) -> None:
    way, text = Way(own_server.port, bytes_per_s=1_000_000), "x" * 4_000_000
    slow = kombu.Connection(f"kestrel://127.0.0.1:{way.port}", connect_timeout=1)
    with slow, kombu.Connection(f"kestrel://{own_server.address}") as direct:
        (direct if is_get else slow).SimpleQueue("slow").put(text)
        message = (slow if is_get else direct).SimpleQueue("slow").get(block=False)
        assert message.payload == text
        message.ack()
        assert slow.transport.broker.wire.opened == 1
    way.close()
