"""GET with t=: who waits, who is served in which order, and what ends a wait."""

import time

import pytest

from tests.functional.conftest import Connect
from tests.support.daemon import Daemon
from tests.support.process import resident_bytes
from tests.support.queue_client import QueueClient


def wait_at(observer: QueueClient, queue: str, *keyed: tuple[QueueClient, str]) -> None:
    """Have clients wait, each in line before the next asks."""
    before = int(observer.queue_stats(queue).get("waiters", 0))
    for number, (client, key) in enumerate(keyed, start=before + 1):
        client.ask_for(key)
        observer.until(queue, waiters=number)


def test_a_get_waits_for_the_item_that_comes(connect: Connect, queue: str) -> None:
    waiter, other = connect(), connect()
    wait_at(other, queue, (waiter, f"{queue}/t=600000"))
    other.put(queue, b"at last")
    assert waiter.read_value() == b"at last"
    assert other.get(queue) is None
    assert other.queue_stats(queue)["waiters"] == "0"


def test_an_item_that_is_there_is_not_waited_for(client: QueueClient, queue: str) -> None:
    client.put(queue, b"here")
    assert client.get(f"{queue}/t=600000") == b"here"


@pytest.mark.parametrize("wait", ["t=0", "t=-5", "t=-99999999999"])
def test_no_time_to_wait_is_no_wait(client: QueueClient, queue: str, wait: str) -> None:
    assert client.get(f"{queue}/{wait}") is None


@pytest.mark.parametrize("wait_ms", [1, 30, 250])
def test_a_wait_ends_when_its_time_has_come(client: QueueClient, queue: str, wait_ms: int) -> None:
    started = time.monotonic()
    assert client.get(f"{queue}/t={wait_ms}") is None
    assert (time.monotonic() - started) * 1000 >= wait_ms
    assert client.queue_stats(queue)["waiters"] == "0"


def test_waits_of_different_length_end_in_their_own_time(connect: Connect, queue: str) -> None:
    long, short, other = connect(), connect(), connect()
    wait_at(other, queue, (long, f"{queue}/t=600000"))
    assert short.get(f"{queue}/t=50") is None
    long.expect_no_answer_yet()
    other.put(queue, b"for the patient")
    assert long.read_value() == b"for the patient"


def test_the_longest_wait_there_is_can_be_asked_for(connect: Connect, queue: str) -> None:
    waiter, other = connect(), connect()
    wait_at(other, queue, (waiter, f"{queue}/t=9999999999999999999"))
    other.put(queue, b"x")
    assert waiter.read_value() == b"x"


def test_waiters_are_served_in_the_order_they_came(connect: Connect, queue: str) -> None:
    waiters = [connect() for _ in range(5)]
    other = connect()
    wait_at(other, queue, *[(waiter, f"{queue}/t=600000") for waiter in waiters])
    other.put(queue, *[b"%d" % number for number in range(5)])
    assert [waiter.read_value() for waiter in waiters] == [b"0", b"1", b"2", b"3", b"4"]


def test_one_item_ends_one_wait(connect: Connect, queue: str) -> None:
    first, second, other = connect(), connect(), connect()
    wait_at(other, queue, (first, f"{queue}/t=600000"), (second, f"{queue}/t=600000"))
    other.put(queue, b"one")
    assert first.read_value() == b"one"
    other.expect_nothing_more()
    second.expect_no_answer_yet()
    assert other.queue_stats(queue)["waiters"] == "1"
    other.put(queue, b"two")
    assert second.read_value() == b"two"


def test_who_was_served_goes_to_the_end_of_the_line(connect: Connect, queue: str) -> None:
    first, second, other = connect(), connect(), connect()
    wait_at(other, queue, (first, f"{queue}/t=600000"), (second, f"{queue}/t=600000"))
    other.put(queue, b"1")
    assert first.read_value() == b"1"
    wait_at(other, queue, (first, f"{queue}/t=600000"))
    other.put(queue, b"2", b"3")
    assert second.read_value() == b"2"
    assert first.read_value() == b"3"


def test_every_waiting_peek_sees_the_item_and_the_first_get_takes_it(connect: Connect, queue: str) -> None:
    peeks = [connect() for _ in range(3)]
    gets = [connect() for _ in range(2)]
    other = connect()
    other.get(queue)
    peek, get = f"{queue}/peek/t=600000", f"{queue}/t=600000"
    wait_at(other, queue, (peeks[0], peek), (gets[0], get), (peeks[1], peek), (gets[1], get), (peeks[2], peek))
    other.put(queue, b"seen by four")
    assert [client.read_value() for client in peeks] == [b"seen by four"] * 3
    assert gets[0].read_value() == b"seen by four"
    other.expect_nothing_more()
    gets[1].expect_no_answer_yet()
    other.put(queue, b"for the second")
    assert gets[1].read_value() == b"for the second"


def test_a_waiting_peek_leaves_the_item(connect: Connect, queue: str) -> None:
    peek, other = connect(), connect()
    other.get(queue)
    wait_at(other, queue, (peek, f"{queue}/t=600000/peek"))
    other.put(queue, b"stays")
    assert peek.read_value() == b"stays"
    assert other.get(queue) == b"stays"


def test_a_waiting_open_holds_what_it_gets(connect: Connect, queue: str) -> None:
    worker, other = connect(), connect()
    wait_at(other, queue, (worker, f"{queue}/t=600000/open"))
    other.put(queue, b"job")
    assert worker.read_value() == b"job"
    stats = other.queue_stats(queue)
    assert (stats["items"], stats["open_transactions"]) == ("0", "1")
    worker.do(b"get %b/abort" % queue.encode(), b"END\r\n")
    assert other.get(queue) == b"job"


@pytest.mark.parametrize("how", ["abort", "hang up"])
def test_an_item_that_comes_back_ends_a_wait(connect: Connect, queue: str, how: str) -> None:
    worker, waiter, other = connect(), connect(), connect()
    other.put(queue, b"job")
    assert worker.get(f"{queue}/open") == b"job"
    wait_at(other, queue, (waiter, f"{queue}/t=600000"))
    if how == "abort":
        worker.do(b"get %b/abort" % queue.encode(), b"END\r\n")
    else:
        worker.close()
    assert waiter.read_value() == b"job"


@pytest.mark.parametrize("open_it", ["", "/open"])
def test_a_waiter_that_has_gone_takes_nothing_with_it(connect: Connect, queue: str, open_it: str) -> None:
    other = connect()
    patient = connect()
    for _ in range(5):
        leaver = connect()
        wait_at(other, queue, (leaver, f"{queue}/t=600000{open_it}"))
        leaver.close()
        other.until(queue, waiters=0)
    wait_at(other, queue, (patient, f"{queue}/t=600000"))
    other.put(queue, b"1", b"2")
    assert patient.read_value() == b"1"
    assert other.drain(queue) == [b"2"]


def test_delete_ends_the_waits_with_nothing(connect: Connect, queue: str) -> None:
    get, peek, other = connect(), connect(), connect()
    wait_at(other, queue, (get, f"{queue}/t=600000"), (peek, f"{queue}/t=600000/peek"))
    other.do(b"delete %b" % queue.encode(), b"DELETED\r\n")
    assert get.read_value() is None
    assert peek.read_value() is None
    other.put(queue, b"of the new queue")
    assert get.get(queue) == b"of the new queue"


def test_flush_lets_waiters_wait(connect: Connect, queue: str) -> None:
    waiter, other = connect(), connect()
    wait_at(other, queue, (waiter, f"{queue}/t=600000"))
    other.do(b"flush %b" % queue.encode(), b"END\r\n")
    other.do(b"flush_all", b"OK\r\n")
    waiter.expect_no_answer_yet()
    other.put(queue, b"after the flush")
    assert waiter.read_value() == b"after the flush"


def test_an_expired_item_ends_no_wait(connect: Connect, queue: str) -> None:
    waiter, other = connect(), connect()
    wait_at(other, queue, (waiter, f"{queue}/t=600000"))
    other.put(queue, b"expired", expiry_s=-1)
    other.expect_nothing_more()
    waiter.expect_no_answer_yet()
    other.put(queue, b"live")
    assert waiter.read_value() == b"live"
    assert other.queue_stats(queue)["expired_items"] == "1"


def test_commands_behind_a_wait_wait_too(connect: Connect, queue: str) -> None:
    waiter, other = connect(), connect()
    name = queue.encode()
    other.put(f"{queue}-2", b"behind")
    wait_at(other, queue, (waiter, f"{queue}/t=600000"))
    waiter.send(
        b"get %b-2\r\nset %b-3 0 0 3\r\nabc\r\nfrobnicate\r\nget %b/t=600000\r\nversion\r\n" % (name, name, name)
    )
    assert other.items(f"{queue}-2") == 1
    waiter.expect_no_answer_yet()
    other.put(queue, b"1")
    assert waiter.read_value() == b"1"
    assert waiter.read_value() == b"behind"
    waiter.expect(b"STORED\r\nERROR\r\n")
    other.expect_nothing_more()
    waiter.expect_no_answer_yet()
    other.put(queue, b"2")
    assert waiter.read_value() == b"2"
    waiter.expect_line(b"VERSION ")


def test_a_client_can_send_a_lot_behind_a_wait(connect: Connect, queue: str) -> None:
    """More than the server reads ahead: the rest stays in the sockets until the wait is over."""
    waiter, other = connect(), connect()
    count = 2000
    data = b"x" * 100
    wait_at(other, queue, (waiter, f"{queue}/t=600000"))
    waiter.send(b"set %b-2 0 0 100\r\n%b\r\n" % (queue.encode(), data) * count)
    other.put(queue, b"go")
    assert waiter.read_value() == b"go"
    waiter.expect(b"STORED\r\n" * count)
    assert other.items(f"{queue}-2") == count


def test_an_item_put_by_the_waiter_itself_is_not_what_it_waits_for(connect: Connect, queue: str) -> None:
    waiter, other = connect(), connect()
    waiter.send(b"get %b/t=20\r\nset %b 0 0 1\r\nx\r\nget %b\r\n" % ((queue.encode(),) * 3))
    assert waiter.read_value() is None
    waiter.expect(b"STORED\r\n")
    assert waiter.read_value() == b"x"
    assert other.get(queue) is None


def test_a_child_is_waited_at_like_any_queue(connect: Connect, queue: str) -> None:
    parent, child, other = connect(), connect(), connect()
    wait_at(other, f"{queue}+audit", (child, f"{queue}+audit/t=600000"))
    wait_at(other, queue, (parent, f"{queue}/t=600000"))
    other.put(queue, b"both")
    assert (parent.read_value(), child.read_value()) == (b"both", b"both")
    wait_at(other, f"{queue}+audit", (child, f"{queue}+audit/t=600000"))
    wait_at(other, queue, (parent, f"{queue}/t=600000"))
    other.put(f"{queue}+audit", b"child only")
    assert child.read_value() == b"child only"
    other.expect_nothing_more()
    parent.expect_no_answer_yet()


def test_waiters_of_one_turn_and_one_pipelined_put_are_matched_in_order(connect: Connect, queue: str) -> None:
    waiters = [connect() for _ in range(50)]
    other = connect()
    wait_at(other, queue, *[(waiter, f"{queue}/t=600000") for waiter in waiters])
    items = [b"%d" % number for number in range(80)]
    other.put(queue, *items)
    assert [waiter.read_value() for waiter in waiters] == items[:50]
    assert other.drain(queue) == items[50:]


@pytest.mark.long
def test_waits_that_are_over_leave_nothing_behind(daemon: Daemon, connect: Connect, queue: str) -> None:
    """Thousands of waits of ten minutes, each served at once, while somebody waits who would give up before them."""
    patient, waiter, other = connect(), connect(), connect()
    wait_at(other, f"{queue}-2", (patient, f"{queue}-2/t=500000"))
    grown_bytes = 0
    for number in range(5000):
        waiter.ask_for(f"{queue}/t=600000")
        other.until(queue, waiters=1)
        other.put(queue, b"x")
        assert waiter.read_value() == b"x"
        if number == 1000:
            grown_bytes = -resident_bytes(daemon.pid)
    grown_bytes += resident_bytes(daemon.pid)
    assert grown_bytes < 300_000
