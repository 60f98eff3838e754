"""Open, close and abort: an item that a client did not confirm is never lost, and comes back in its place."""

from collections.abc import Iterator

import pytest

from tests.functional.conftest import Connect
from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose clients may hold four items open."""
    with running_daemon(tmp_path_factory.mktemp("four"), "max_open_reads=4") as running:
        yield running


def closed_by_server(client: QueueClient) -> None:
    """Hang up and see it through: what the client held is back when this returns."""
    client.send(b"quit\r\n")
    client.expect_end()


def test_an_opened_item_is_nobody_elses_until_it_is_closed_and_then_gone(connect: Connect, queue: str) -> None:
    worker, other = connect(), connect()
    other.put(queue, b"job")
    assert worker.get(f"{queue}/open") == b"job"
    assert other.get(queue) is None
    assert other.queue_stats(queue)["open_transactions"] == "1"
    assert other.items(queue) == 0, "an open item does not count as waiting"
    worker.do(b"get %b/close" % queue.encode(), b"END\r\n")
    closed_by_server(worker)
    assert other.get(queue) is None
    assert other.queue_stats(queue)["open_transactions"] == "0"


def test_an_aborted_item_is_the_head_again(connect: Connect, queue: str) -> None:
    worker, other = connect(), connect()
    other.put(queue, b"1", b"2", b"3")
    assert worker.get(f"{queue}/open") == b"1"
    worker.do(b"get %b/abort" % queue.encode(), b"END\r\n")
    assert other.drain(queue) == [b"1", b"2", b"3"]
    stats = other.queue_stats(queue)
    assert (stats["transactions"], stats["canceled_transactions"]) == ("1", "1")


def test_close_and_open_in_one_step_work_through_a_queue(client: QueueClient, queue: str) -> None:
    client.put(queue, b"1", b"2", b"3")
    for data in (b"1", b"2", b"3", None):
        assert client.get(f"{queue}/close/open") == data
    assert client.queue_stats(queue)["open_transactions"] == "0"
    assert client.get(f"{queue}/open") is None


def test_close_and_abort_without_an_open_read_do_nothing(client: QueueClient, queue: str) -> None:
    client.put(queue, b"1")
    for option in (b"close", b"abort", b"close"):
        client.do(b"get %b/%b" % (queue.encode(), option), b"END\r\n")
    assert client.get(queue) == b"1"


def test_close_does_not_fetch(client: QueueClient, queue: str) -> None:
    client.put(queue, b"1", b"2")
    assert client.get(f"{queue}/open") == b"1"
    client.do(b"get %b/close/t=1000" % queue.encode(), b"END\r\n")
    assert client.drain(queue) == [b"2"]


@pytest.mark.parametrize("how", ["hangs up", "quits", "resets"])
def test_a_client_that_goes_leaves_its_item_at_the_head(connect: Connect, queue: str, how: str) -> None:
    worker, other = connect(), connect()
    other.put(queue, b"1", b"2")
    assert worker.get(f"{queue}/open") == b"1"
    if how == "quits":
        closed_by_server(worker)
    elif how == "resets":
        worker.send(b"get %b/peek\r\n" % queue.encode())  # its answer is never read, so closing resets
        worker.close()
    else:
        worker.close()
    # Two clients' doings have no order of their own: wait until the server has seen the first.
    other.until(queue, items=2)
    assert other.drain(queue) == [b"1", b"2"]


def test_an_item_opened_by_a_client_that_can_say_no_more_is_back_before_its_answer_is_read(
    connect: Connect, queue: str
) -> None:
    worker, other = connect(), connect()
    other.put(queue, b"1", b"2")
    worker.send(b"get %b/open\r\n" % queue.encode())
    worker.end_input()
    other.until(queue, items=2, canceled_transactions=1)
    assert other.drain(queue) == [b"1", b"2"]
    worker.expect_end(b"VALUE %b/open 0 1\r\n1\r\nEND\r\n" % queue.encode())


def test_items_of_several_clients_come_back_in_queue_order(connect: Connect, queue: str) -> None:
    observers = [connect() for _ in range(4)]
    other = connect()
    other.put(queue, *[b"%d" % number for number in range(6)])
    for number, holder in enumerate(observers):
        assert holder.get(f"{queue}/open") == b"%d" % number
    for holder in reversed(observers):
        closed_by_server(holder)
    assert other.drain(queue) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_one_open_read_is_all_a_connection_has(client: QueueClient, queue: str) -> None:
    client.put(queue, b"1", b"2")
    client.put(f"{queue}-2", b"other")
    assert client.get(f"{queue}/open") == b"1"
    for key in (f"{queue}/open", f"{queue}-2/open", f"{queue}-2/close/open", f"{queue}/open/t=5000"):
        client.ask_for(key)
        client.expect_line(b"CLIENT_ERROR ")
    client.do(b"get %b/abort" % queue.encode(), b"END\r\n")
    assert client.drain(queue) == [b"1", b"2"]
    assert client.drain(f"{queue}-2") == [b"other"]


def test_a_plain_get_is_refused_while_the_queue_has_an_open_read_of_this_connection(
    connect: Connect, queue: str
) -> None:
    worker, other = connect(), connect()
    other.put(queue, b"1", b"2", b"3")
    other.put(f"{queue}-2", b"elsewhere")
    assert worker.get(f"{queue}/open") == b"1"
    for key in (queue, f"{queue}/t=100"):
        worker.ask_for(key)
        worker.expect_line(b"CLIENT_ERROR ")
    assert worker.get(f"{queue}/peek") == b"2"
    assert worker.get(f"{queue}-2") == b"elsewhere"
    assert other.get(queue) == b"2"
    assert worker.get(f"{queue}/close/open") == b"3"


def test_closing_another_queue_closes_nothing(client: QueueClient, queue: str) -> None:
    client.put(queue, b"1")
    assert client.get(f"{queue}/open") == b"1"
    client.do(b"get %b-2/close" % queue.encode(), b"END\r\n")
    client.do(b"get %b-2/abort" % queue.encode(), b"END\r\n")
    assert client.queue_stats(queue)["open_transactions"] == "1"
    client.do(b"get %b/abort" % queue.encode(), b"END\r\n")
    assert client.get(queue) == b"1"


def test_up_to_four_open_reads_close_and_abort_oldest_first(four: Daemon, queue: str) -> None:
    with QueueClient(four.port) as worker, QueueClient(four.port) as other:
        other.put(queue, *[b"%d" % number for number in range(6)])
        assert [worker.get(f"{queue}/open") for _ in range(4)] == [b"0", b"1", b"2", b"3"]
        worker.ask_for(f"{queue}/open")
        worker.expect_line(b"CLIENT_ERROR ")
        worker.do(b"get %b/close" % queue.encode(), b"END\r\n")  # 0 is done
        worker.do(b"get %b/abort" % queue.encode(), b"END\r\n")  # 1 is back
        assert worker.get(f"{queue}/open") == b"1"
        assert worker.get(f"{queue}/close/open") == b"4"  # 2 is done
        closed_by_server(worker)
        assert other.drain(queue) == [b"1", b"3", b"4", b"5"]


def test_four_open_reads_come_back_in_queue_order_when_the_client_goes(four: Daemon, queue: str) -> None:
    with QueueClient(four.port) as worker, QueueClient(four.port) as other:
        other.put(queue, *[b"%d" % number for number in range(6)])
        assert [worker.get(f"{queue}/open") for _ in range(4)] == [b"0", b"1", b"2", b"3"]
        closed_by_server(worker)
        assert other.drain(queue) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_open_reads_of_several_queues_count_together(four: Daemon, queue: str) -> None:
    with QueueClient(four.port) as worker:
        names = [f"{queue}-{number}" for number in range(5)]
        for name in names:
            worker.put(name, name.encode())
        for name in names[:4]:
            assert worker.get(f"{name}/open") == name.encode()
        worker.ask_for(f"{names[4]}/open")
        worker.expect_line(b"CLIENT_ERROR ")
        worker.do(b"get %b/close" % names[2].encode(), b"END\r\n")
        assert worker.get(f"{names[4]}/open") == names[4].encode()
        worker.do(b"get %b/abort" % names[0].encode(), b"END\r\n")
        assert worker.get(f"{names[0]}/open") == names[0].encode()


def test_several_keys_with_open_hold_all_their_items(four: Daemon, queue: str) -> None:
    with QueueClient(four.port) as worker, QueueClient(four.port) as other:
        first, second = queue.encode(), f"{queue}-2".encode()
        other.put(queue, b"1")
        other.put(f"{queue}-2", b"2")
        worker.do(
            b"get %b/open %b/open" % (first, second),
            b"VALUE %b/open 0 1\r\n1\r\nVALUE %b/open 0 1\r\n2\r\nEND\r\n" % (first, second),
        )
        closed_by_server(worker)
        assert (other.get(queue), other.get(f"{queue}-2")) == (b"1", b"2")


def test_a_deleted_queue_keeps_no_promise_to_its_open_reads(connect: Connect, queue: str) -> None:
    """The holder can still read on: its close and abort do nothing, even to a new queue of that name."""
    worker, other = connect(), connect()
    for ending in (b"close", b"abort"):
        other.put(queue, b"old", b"older")
        assert worker.get(f"{queue}/open") == b"old"
        other.do(b"delete %b" % queue.encode(), b"DELETED\r\n")
        other.put(queue, b"new")
        assert other.get(f"{queue}/open") == b"new"
        worker.do(b"get %b/%b" % (queue.encode(), ending), b"END\r\n")
        other.do(b"get %b/abort" % queue.encode(), b"END\r\n")
        assert other.drain(queue) == [b"new"]
        other.do(b"delete %b" % queue.encode(), b"DELETED\r\n")


def test_an_open_read_of_a_deleted_queue_still_takes_its_place(connect: Connect, queue: str) -> None:
    worker, other = connect(), connect()
    other.put(queue, b"old")
    other.put(f"{queue}-2", b"else")
    assert worker.get(f"{queue}/open") == b"old"
    other.do(b"delete %b" % queue.encode(), b"DELETED\r\n")
    worker.ask_for(f"{queue}-2/open")
    worker.expect_line(b"CLIENT_ERROR ")
    worker.do(b"get %b/close" % queue.encode(), b"END\r\n")
    assert worker.get(f"{queue}-2/open") == b"else"


def test_the_holder_of_an_open_read_can_delete_its_queue(connect: Connect, queue: str) -> None:
    worker, other = connect(), connect()
    worker.put(queue, b"old")
    assert worker.get(f"{queue}/open") == b"old"
    worker.do(b"delete %b" % queue.encode(), b"DELETED\r\n")
    closed_by_server(worker)
    assert other.queue_stats(queue) == {}, "giving back an item does not bring its queue back"


def test_flush_leaves_open_reads(connect: Connect, queue: str) -> None:
    worker, other = connect(), connect()
    other.put(queue, b"1", b"2", b"3")
    assert worker.get(f"{queue}/open") == b"1"
    other.do(b"flush %b" % queue.encode(), b"END\r\n")
    other.put(queue, b"4")
    worker.do(b"get %b/abort" % queue.encode(), b"END\r\n")
    assert other.drain(queue) == [b"1", b"4"]


def test_an_expired_open_read_can_be_confirmed_but_does_not_come_back(connect: Connect, queue: str) -> None:
    worker, other = connect(), connect()
    for client, name in ((worker, queue.encode()), (other, b"%b-2" % queue.encode())):
        client.send(b"set %b 0 1 5\r\nshort\r\nget %b/open\r\n" % (name, name))  # at once
        client.expect(b"STORED\r\n")
        assert client.read_value() == b"short"
    assert worker.get(f"{queue}-3/t=1100") is None  # more than a second goes by
    worker.do(b"get %b/close" % queue.encode(), b"END\r\n")
    other.do(b"get %b-2/abort" % queue.encode(), b"END\r\n")
    assert other.get(f"{queue}-2") is None
    assert other.queue_stats(queue)["expired_items"] == "0"
    assert other.queue_stats(f"{queue}-2")["expired_items"] == "1"


def test_open_items_are_there_again_in_order_after_kill_9(four: Daemon, queue: str) -> None:
    with QueueClient(four.port) as worker, QueueClient(four.port) as other:
        other.put(queue, *[b"%d" % number for number in range(6)])
        assert [worker.get(f"{queue}/open") for _ in range(3)] == [b"0", b"1", b"2"]
        assert other.get(f"{queue}/open") == b"3"
        worker.do(b"get %b/close" % queue.encode(), b"END\r\n")
        four.kill()
    four.start()
    with QueueClient(four.port) as again:
        assert again.queue_stats(queue)["items"] == "5"
        assert again.drain(queue) == [b"1", b"2", b"3", b"4", b"5"]


def test_of_items_that_come_back_together_a_waiter_gets_the_first(four: Daemon, queue: str) -> None:
    with QueueClient(four.port) as worker, QueueClient(four.port) as waiter:
        worker.put(queue, b"1", b"2", b"3")
        assert [worker.get(f"{queue}/open") for _ in range(3)] == [b"1", b"2", b"3"]
        waiter.ask_for(f"{queue}/t=600000")
        worker.until(queue, waiters=1)
        closed_by_server(worker)
        assert waiter.read_value() == b"1"
        assert waiter.drain(queue) == [b"2", b"3"]
