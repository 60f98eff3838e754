"""Leases, delays and keys as memcache clients have them: every command and every refusal, over real sockets."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pymemcache import Client
from pymemcache.exceptions import MemcacheClientError

from tests.functional.conftest import Connect
from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient

pytestmark = pytest.mark.usefixtures("no_queues")

CONFIG = """
listen: {admin: null}
max_open_reads: 3
max_lease: 1h
queues:
  fragile: {max_retries: 1, move_failed_to: dead}
  patient: {retry_delays: [40ms]}
  limited: {open_transaction_timeout: 30ms, max_retries: 1, move_failed_to: limited-dead}
  brief: {max_delay: 1s, max_lease: 1s}
  short: {max_item_size: 10}
  full: {max_items: 1}
  fleeting: {journal: false}
"""


@pytest.fixture(scope="module")
def daemon_config() -> str:
    return CONFIG


@pytest.fixture
def cache(daemon: Daemon) -> Iterator[Client]:
    """A memcache client as anybody has it."""
    client = Client(("127.0.0.1", daemon.port), default_noreply=False)
    yield client
    client.close()


def lease(client: QueueClient, queue: str, options: str = "/open/lease=30000") -> tuple[bytes, int]:
    """Lease an item; its data and the token."""
    client.send(f"gets {queue}{options}\r\n".encode())
    return leased(client, queue + options)


def leased(client: QueueClient, key: str) -> tuple[bytes, int]:
    words = client.expect_line(b"VALUE ").split(b" ")
    assert words[1] == key.encode()
    data = client.read(int(words[3]) + 2)[:-2]
    client.expect(b"END\r\n")
    return data, int(words[4])


def waiting(client: QueueClient) -> None:
    """All that was sent before has been carried out: whoever of it waits does so by now."""
    client.do(b"get nobody/peek", b"END\r\n")


# With pymemcache, as the page of the protocol prints it


def test_a_lease_is_confirmed_by_its_token_from_any_connection(daemon: Daemon, cache: Client, queue: str) -> None:
    cache.set(queue, b"job", flags=7)
    value, token = cache.gets(f"{queue}/open/lease=30000")
    assert value == b"job"
    assert 0 < int(token) < 1 << 63
    assert cache.get(queue) is None
    cache.close()
    other = Client(("127.0.0.1", daemon.port), default_noreply=False)
    assert other.delete(f"{queue}/" + token.decode()) is True
    assert other.delete(f"{queue}/" + token.decode()) is False
    assert other.get(queue) is None
    other.close()


def test_a_lease_is_extended_given_back_delayed_and_failed_by_its_token(cache: Client, queue: str) -> None:
    cache.set(queue, b"job")
    for touch in ("", "/delay=30", "/failed"):
        value, token = cache.gets(f"{queue}/open/lease=30000/t=60000")
        assert value == b"job"
        mine = f"{queue}/" + token.decode()
        assert cache.touch(mine, 60) is True
        assert cache.touch(mine + "/lease=50000", 0) is True
        assert cache.touch(mine + touch, 0) is True
    assert cache.gets(f"{queue}/open/lease=30000") is not None, "it is back at once"
    assert cache.touch(mine, 60) is False, "somebody else has it"


def test_an_item_is_put_for_later(cache: Client, queue: str) -> None:
    began = time.monotonic()
    assert cache.set(f"{queue}/delay=100", b"later") is True
    assert cache.get(f"{queue}/t=60000") == b"later"
    assert time.monotonic() - began >= 0.1


def test_a_put_with_a_key_is_stored_once_and_may_be_sent_again(cache: Client, queue: str) -> None:
    assert [cache.set(f"{queue}/key=order-17", b"1") for _ in range(3)] == [True] * 3
    assert cache.add(f"{queue}/key=order-17", b"2") is False
    assert cache.add(f"{queue}/key=order-18", b"3") is True
    assert [cache.get(queue) for _ in range(3)] == [b"1", b"3", None]
    assert cache.set(f"{queue}/key=order-17", b"4") is True
    assert cache.get(queue) is None, "a key counts when its item is done, too"


def test_what_is_not_due_yet_is_cancelled_by_its_key_and_may_be_put_anew(cache: Client, queue: str) -> None:
    assert cache.set(f"{queue}/delay=60000/key=order/17", b"1") is True
    assert cache.delete(f"{queue}/key=order/17") is True
    assert cache.delete(f"{queue}/key=order/17") is False
    assert cache.set(f"{queue}/key=order/17", b"2") is True
    assert cache.delete(f"{queue}/key=order/17") is False, "it is due"
    assert cache.get(queue) == b"2"


def test_touch_0_tells_a_server_that_knows_leases(cache: Client, queue: str) -> None:
    assert cache.touch(f"{queue}/0", 0) is False


# Leases


def test_the_value_line_has_the_key_as_sent_the_flags_and_the_token(client: QueueClient, queue: str) -> None:
    client.put(queue, b"job", flags=4294967295)
    client.send(b"gets %b/lease=60000/t=5/open\r\n" % queue.encode())
    line = client.expect_line(b"VALUE %b/lease=60000/t=5/open 4294967295 3 " % queue.encode())
    client.expect(b"job\r\nEND\r\n")
    client.do(b"delete %b/%b" % (queue.encode(), line.split()[-1]), b"DELETED\r\n")


def test_an_extension_counts_from_now(client: QueueClient, queue: str) -> None:
    client.put(queue, b"job")
    _, token = lease(client, queue, "/open/lease=60000")
    client.do(b"touch %b/%d/lease=30 0" % (queue.encode(), token), b"TOUCHED\r\n")
    assert client.get(f"{queue}/t=60000") == b"job"
    client.do(b"touch %b/%d 1" % (queue.encode(), token), b"NOT_FOUND\r\n")


def test_a_lease_that_runs_out_is_not_honoured_once_somebody_else_has_the_item(connect: Connect, queue: str) -> None:
    slow, other = connect(), connect()
    slow.put(queue, b"job")
    _, token = lease(slow, queue, "/open/lease=20")
    data, new = lease(other, queue, "/open/lease=30000/t=60000")
    assert (data, new != token) == (b"job", True)
    for line in (b"delete %b/%d", b"touch %b/%d 5", b"touch %b/%d 0", b"touch %b/%d/failed 0"):
        slow.do(line % (queue.encode(), token), b"NOT_FOUND\r\n")
    other.do(b"delete %b/%d" % (queue.encode(), new), b"DELETED\r\n")


def test_a_lease_outlives_the_connection_and_leaves_room_for_open_reads(connect: Connect, queue: str) -> None:
    worker, other = connect(), connect()
    worker.put(queue, *[b"%d" % one for one in range(8)])
    tokens = [lease(worker, queue)[1] for _ in range(4)]
    assert [worker.get(f"{queue}/open") for _ in range(3)] == [b"4", b"5", b"6"]
    worker.send(b"quit\r\n")
    worker.expect_end()
    assert other.drain(queue) == [b"4", b"5", b"6", b"7"]
    for token in tokens:
        other.do(b"delete %b/%d" % (queue.encode(), token), b"DELETED\r\n")


def test_who_waits_for_a_lease_gets_the_item_as_it_is_put(connect: Connect, queue: str) -> None:
    worker, other = connect(), connect()
    worker.send(b"gets %b/open/lease=30000/t=60000\r\n" % queue.encode())
    other.put(queue, b"job")
    data, token = leased(worker, f"{queue}/open/lease=30000/t=60000")
    assert data == b"job"
    other.do(b"delete %b/%d" % (queue.encode(), token), b"DELETED\r\n")


def test_a_wait_for_a_lease_ends_with_nothing(client: QueueClient, queue: str) -> None:
    client.do(b"gets %b/open/lease=30000/t=10" % queue.encode(), b"END\r\n")
    client.do(b"gets %b/open/lease=30000" % queue.encode(), b"END\r\n")


def test_pipelined_leases_have_a_token_each(client: QueueClient, queue: str) -> None:
    client.put(queue, b"1", b"2", b"3")
    key = f"{queue}/open/lease=30000"
    client.send(f"gets {key}/t=1000\r\ngets {key}\r\ngets {key}\r\ngets {key}\r\n".encode())
    tokens = [leased(client, key + "/t=1000"), leased(client, key), leased(client, key)]
    client.expect(b"END\r\n")
    assert [data for data, _ in tokens] == [b"1", b"2", b"3"]
    client.send(b"".join(b"delete %b/%d\r\n" % (queue.encode(), token) for _, token in tokens))
    client.expect(b"DELETED\r\n" * 3)


def test_one_gets_of_several_queues_leases_of_each(client: QueueClient, queue: str) -> None:
    one, two = queue, queue + "-two"
    client.put(one, b"1")
    client.put(two, b"2")
    client.send(f"gets {two}/open/lease=9000 {queue}-none/open/lease=9000 {one}/open/lease=9000\r\n".encode())
    for name, data in ((two, b"2"), (one, b"1")):
        words = client.expect_line(b"VALUE %b/open/lease=9000 0 1 " % name.encode()).split()
        client.expect(data + b"\r\n")
        name_of_token = b"%b/%b" % (name.encode(), words[-1])
    client.expect(b"END\r\n")
    client.do(b"delete " + name_of_token, b"DELETED\r\n")


def test_waiting_on_several_queues_takes_one_item_of_the_first_that_has_one(connect: Connect, queue: str) -> None:
    worker, other = connect(), connect()
    names = [f"{queue}-{one}" for one in "abc"]
    keys = " ".join(f"{name}/open/lease=30000/t=60000" for name in names)
    worker.send(f"gets {keys}\r\n".encode())
    waiting(other)
    other.put(names[1], b"b")
    data, token = leased(worker, f"{names[1]}/open/lease=30000/t=60000")
    assert data == b"b"
    other.do(b"delete %b/%d" % (names[1].encode(), token), b"DELETED\r\n")
    for name in reversed(names):
        other.put(name, name[-1].encode())
    for name in names:  # in the client's order, one at a time
        worker.send(f"gets {keys}\r\n".encode())
        data, _ = leased(worker, f"{name}/open/lease=30000/t=60000")
        assert data == name[-1].encode()
    assert [other.queue_stats(name)["waiters"] for name in names] == ["0"] * 3


def test_waiting_on_several_queues_ends_with_the_shortest_wait(client: QueueClient, queue: str) -> None:
    line = f"gets {queue}/open/lease=9/t=60000 {queue}/open/lease=9/t=10 {queue}-two/open/lease=9/t=60000"
    client.do(line.encode(), b"END\r\n")
    assert client.queue_stats(queue)["waiters"] == "0"


def test_a_child_has_leases_of_its_own(client: QueueClient, queue: str) -> None:
    client.get(f"{queue}+copy")
    client.put(queue, b"job")
    _, token = lease(client, queue)
    _, token_of_child = lease(client, f"{queue}+copy")
    client.do(b"delete %b/%d" % (queue.encode(), token_of_child), b"NOT_FOUND\r\n")
    client.do(b"delete %b+copy/%d" % (queue.encode(), token), b"NOT_FOUND\r\n")
    client.do(b"delete %b+copy/%d" % (queue.encode(), token_of_child), b"DELETED\r\n")
    client.do(b"delete %b/%d" % (queue.encode(), token), b"DELETED\r\n")


def test_tokens_of_a_queue_that_was_made_again_are_not_found(client: QueueClient, queue: str) -> None:
    client.put(queue, b"old")
    _, token = lease(client, queue)
    client.do(b"delete %b" % queue.encode(), b"DELETED\r\n")
    for line in (b"delete %b/%d", b"touch %b/%d 5", b"touch %b/%d 0"):
        client.do(line % (queue.encode(), token), b"NOT_FOUND\r\n")
    client.put(queue, b"new")
    client.do(b"delete %b/%d" % (queue.encode(), token), b"NOT_FOUND\r\n")
    assert client.get(queue) == b"new"


def test_a_token_makes_no_queue(client: QueueClient, queue: str) -> None:
    client.do(b"delete %b/77" % queue.encode(), b"NOT_FOUND\r\n")
    client.do(b"touch %b/77 5" % queue.encode(), b"NOT_FOUND\r\n")
    client.do(b"delete %b/key=k" % queue.encode(), b"NOT_FOUND\r\n")
    client.do(b"delete %b" % queue.encode(), b"NOT_FOUND\r\n")


@pytest.mark.parametrize("token", ["0", "18446744073709551615", "99999999999999999999", "9223372036854775808"])
def test_numbers_that_are_no_tokens_are_not_found(client: QueueClient, queue: str, token: str) -> None:
    client.put(queue, b"job")
    lease(client, queue)
    client.do(f"delete {queue}/{token}".encode(), b"NOT_FOUND\r\n")


def test_a_number_of_thousands_of_digits_is_no_token_even_behind_ones_that_are(client: QueueClient, queue: str) -> None:
    name = queue.encode()
    client.do(b"delete %b/1" % name, b"NOT_FOUND\r\n")
    client.do(b"delete %b/%b" % (name, b"1" * 6000), b"NOT_FOUND\r\n")
    client.do(b"delete %b/1\r\ndelete %b/%b" % (name, name, b"1" * 6000), b"NOT_FOUND\r\n" * 2)


def test_a_token_with_a_bit_too_many_is_not_found(client: QueueClient, queue: str) -> None:
    client.put(queue, b"job")
    _, token = lease(client, queue)
    client.do(b"delete %b/%d" % (queue.encode(), token + (1 << 63)), b"NOT_FOUND\r\n")
    client.do(b"delete %b/%d" % (queue.encode(), token), b"DELETED\r\n")


def test_a_lease_of_a_queue_kept_in_memory_is_confirmed_too(client: QueueClient) -> None:
    client.put("fleeting", b"1", b"2")
    _, token = lease(client, "fleeting")
    client.do(b"delete fleeting/%d" % token, b"DELETED\r\n")
    client.do(b"set fleeting/delay=20/key=k 0 0 1\r\n3", b"STORED\r\n")
    assert [client.get("fleeting/t=60000") for _ in range(2)] == [b"2", b"3"]


# What is counted


def test_only_what_has_failed_is_counted_as_an_attempt(client: QueueClient) -> None:
    client.put("fragile", b"job")
    for _ in range(3):
        _, token = lease(client, "fragile")
        client.do(b"touch fragile/%d 0" % token, b"TOUCHED\r\n")
    _, token = lease(client, "fragile")
    client.do(b"touch fragile/%d/failed 0" % token, b"TOUCHED\r\n")
    assert lease(client, "fragile", "/open/lease=10")[0] == b"job"
    assert client.get("dead/t=60000") == b"job", "a lease that runs out is a failure, too: the second one"


def test_what_has_failed_waits_as_retry_delays_say(client: QueueClient) -> None:
    client.put("patient", b"1", b"2")
    _, token = lease(client, "patient")
    client.ask(b"touch patient/%d/failed 0\r\nget patient\r\nget patient\r\n" % token, b"TOUCHED\r\n")  # at once
    assert client.read_value() == b"2"
    assert client.read_value() is None
    assert client.get("patient/t=60000") == b"1"


def test_an_open_read_ends_with_its_time_and_a_later_close_touches_nobody(connect: Connect) -> None:
    worker, other = connect(), connect()
    worker.put("limited", b"1")
    assert worker.get("limited/open") == b"1"
    assert other.get("limited/open/t=60000") == b"1"
    assert worker.get("limited/close") is None
    assert other.get("limited-dead/t=60000") == b"1", "both have counted"
    for option in ("close", "abort", "close/open"):
        assert worker.get(f"limited/{option}") is None
    worker.put("limited", b"2")
    assert worker.get("limited/close/open") == b"2"
    assert worker.get("limited/close") is None
    other.do(b"get limited-dead/t=60", b"END\r\n")


# Keys and delays


def test_a_key_belongs_to_the_queue_it_was_put_on(client: QueueClient, queue: str) -> None:
    client.get(f"{queue}+copy")
    name = queue.encode()
    client.do(b"set %b/key=k 0 0 1\r\n1" % name, b"STORED\r\n")
    client.do(b"add %b+copy/key=k 0 0 1\r\n2" % name, b"STORED\r\n")
    client.do(b"add %b+copy/key=k 0 0 1\r\n3" % name, b"NOT_STORED\r\n")
    assert (client.drain(queue), client.drain(f"{queue}+copy")) == ([b"1"], [b"1", b"2"])


def test_a_cancelled_item_is_cancelled_in_parent_and_children(client: QueueClient, queue: str) -> None:
    client.get(f"{queue}+copy")
    name = queue.encode()
    client.do(b"set %b/delay=60000/key=k 0 0 1\r\n1" % name, b"STORED\r\n")
    client.do(b"set %b+copy/delay=50/key=k 0 0 1\r\n2" % name, b"STORED\r\n")
    client.do(b"delete %b/key=k" % name, b"DELETED\r\n")
    assert client.get(f"{queue}+copy/t=60000") == b"2", "that is another key"
    for one in (queue, f"{queue}+copy"):
        assert client.queue_stats(one)["items"] == "0"


def test_a_put_that_is_refused_leaves_no_key(client: QueueClient) -> None:
    client.put("full", b"x")
    client.do(b"set full/key=k 0 0 1\r\n1", b"NOT_STORED\r\n")
    client.do(b"set full/delay=1/key=k 0 0 1\r\n1", b"NOT_STORED\r\n")
    assert client.get("full") == b"x"
    client.do(b"add full/key=k 0 0 1\r\n1", b"STORED\r\n")
    client.do(b"add short/key=k 0 0 11\r\n12345678901", b"NOT_STORED\r\n")
    client.do(b"add short/key=k 0 0 1\r\n1", b"STORED\r\n")


def test_a_delayed_item_keeps_flags_and_expiry(client: QueueClient, queue: str) -> None:
    name = queue.encode()
    client.do(b"set %b/delay=20 9 0 1\r\n1" % name, b"STORED\r\n")
    client.do(b"set %b/delay=20 9 -1 1\r\n2" % name, b"STORED\r\n")
    client.ask(b"get %b/t=60000\r\n" % name, b"VALUE %b/t=60000 9 1\r\n1\r\nEND\r\n" % name)
    client.do(b"get %b/t=50" % name, b"END\r\n")


def test_delays_of_any_size_of_item_are_kept_through_the_cache_of_lines(client: QueueClient, queue: str) -> None:
    one, two, get = b"set %b/delay=100 0 0 1\r\n1\r\n", b"set %b/delay=100 0 0 2\r\n22\r\n", b"get %b\r\n"
    client.send((one + two + get) % ((queue.encode(),) * 3))  # at once
    client.expect(b"STORED\r\nSTORED\r\nEND\r\n")
    assert sorted([client.get(f"{queue}/t=60000") or b"", client.get(f"{queue}/t=60000") or b""]) == [b"1", b"22"]


def test_noreply_works_on_all_of_them(client: QueueClient, queue: str) -> None:
    name = queue.encode()
    client.send(b"set %b/delay=60000/key=a 0 0 1 noreply\r\n1\r\n" % name)
    client.send(b"set %b/key=b 0 0 1 noreply\r\n2\r\nadd %b/key=c 0 0 1 noreply\r\n3\r\n" % (name, name))
    client.send(b"add %b/key=c 0 0 1 noreply\r\n4\r\ndelete %b/key=a noreply\r\n" % (name, name))
    client.expect_nothing_more()
    tokens = [lease(client, queue)[1] for _ in range(2)]
    client.send(b"touch %b/%d 60 noreply\r\ntouch %b/%d/lease=50000 0 noreply\r\n" % (name, tokens[0], name, tokens[0]))
    client.send(b"touch %b/%d 0 noreply\r\ntouch %b/%d/failed 0 noreply\r\n" % (name, tokens[0], name, tokens[1]))
    client.expect_nothing_more()
    token = lease(client, queue)[1]
    client.send(b"delete %b/%d noreply\r\ntouch %b/1 0 noreply\r\n" % (name, token, name))
    client.expect_nothing_more()
    assert client.drain(queue) == [b"3"]
    client.do(b"add %b/key=a 0 0 1\r\n5" % name, b"STORED\r\n")


# Refusals: nothing is taken, nothing is put

GETS_REFUSED = {
    "get q/open/lease=1000": "lease= needs gets",
    "gets q/lease=1000": "lease= needs open",
    "gets q/open/lease=1000/close": "lease= cannot be combined with close, abort or peek",
    "gets q/open/lease=1000/abort": "lease= cannot be combined with close, abort or peek",
    "gets q/lease=1000/peek": "lease= cannot be combined with close, abort or peek",
    "gets q/open/lease=": "lease= needs a number of milliseconds from 1 on",
    "gets q/open/lease=0": "lease= needs a number of milliseconds from 1 on",
    "gets q/open/lease=-5": "lease= needs a number of milliseconds from 1 on",
    "gets q/open/lease=5s": "lease= needs a number of milliseconds from 1 on",
    "gets q/open/lease=3600001": "lease= allows at most 3600000 (max_lease)",
    "gets q q/open/lease=3600001": "lease= allows at most 3600000 (max_lease)",
    "gets brief/open/lease=1001": "lease= allows at most 1000 (max_lease)",
    "gets q/open/lease=1000/leese=1": "unknown option leese=",
    "get q/timeout=5": "unknown option timeout=",
    "get q x/timeout=5": "unknown option timeout=",
    "get q/delay=5": "unknown option delay=",
    "gets q/open/lease=1/lease=2": "lease= is given twice",
    "gets q/t=1/open/lease=1/t=2": "t= is given twice",
    "get q/t=1/t=1": "t= is given twice",
    "gets q/open/lease=9/t=5 q/t=5": "t= cannot be used with several queues, unless each has open, lease= and t=",
    "gets q/open/lease=9/t=5 x/open/lease=9": "t= cannot be used with several queues",
}
TOUCHES_REFUSED = {
    "touch": "touch needs <queue>/<token> and a number of seconds",
    "touch q 5": "touch needs <queue>/<token> and a number of seconds",
    "touch q/12": "touch needs <queue>/<token> and a number of seconds",
    "touch q/12 x": "touch needs <queue>/<token> and a number of seconds",
    "touch q/12 -1": "touch needs <queue>/<token> and a number of seconds",
    "touch q/12x 5": "touch needs <queue>/<token> and a number of seconds",
    "touch /12 5": "touch needs <queue>/<token> and a number of seconds",
    "touch q/12 5 6": "too many words for touch",
    "touch q/12/failed 5": "touch with an option needs 0 seconds",
    "touch q/12/lost 0": "unknown option 'lost'",
    "touch q/12/ 0": "unknown option ''",
    "touch q/12/failed/reason= 0": "reason= needs a text that is not empty",
    "touch q/12/failed/reason=%0 0": "reason= needs two hexadecimal digits behind each %",
    "touch q/12/failed/reason=%ff 0": "reason= needs a text that is UTF-8",
    "touch q/12/failed/reason=two%0Alines 0": "reason= needs a text that consists of printable characters",
    "touch q/12/failed/reason=" + 201 * "x" + " 0": "reason= needs a text that takes at most 200 bytes",
    "touch q/12/failed/reason=" + 101 * "%c3%a4" + " 0": "reason= needs a text that takes at most 200 bytes",
    "touch q/12/failed/reason=x/reason=y 0": "reason= is given twice",
    "touch q/12/failed/reason=x 5": "touch with an option needs 0 seconds",
    "touch q/12/failed/because=x 0": "unknown option failed/because=",
    "touch q/12/lease=0 0": "lease= needs a number of milliseconds from 1 on",
    "touch q/12/delay=x 0": "delay= needs a number of milliseconds",
    "touch q/12/delay=1/delay=2 0": "delay= is given twice",
    "touch q/12/lease=1/lease=2 0": "lease= is given twice",
    "touch q/12/leese=5 0": "unknown option leese=",
    "touch q/12 3601": "lease= allows at most 3600000 (max_lease)",
    "touch brief/12/lease=1001 0": "lease= allows at most 1000 (max_lease)",
    "touch brief/12/delay=1001 0": "delay= allows at most 1000 (max_delay)",
    "touch q/12/delay=31536000001 0": "delay= allows at most 31536000000 (max_delay)",
    "delete q/12 5 5": "too many words for delete",
    "delete q/kee=5": "unknown option kee=",
    "delete q/key=": "key= needs a key",
    "delete /key=k": "empty queue name",
    "delete q/key=" + 250 * "k": "a queue name with its options and key takes at most 250 bytes",
}
PUTS_REFUSED = {
    "set q/delay= 0 0 9": "delay= needs a number of milliseconds",
    "set q/delay=-1 0 0 9": "delay= needs a number of milliseconds",
    "set q/delay=31536000001 0 0 9": "delay= allows at most 31536000000 (max_delay)",
    "set brief/delay=1001 0 0 9": "delay= allows at most 1000 (max_delay)",
    "set q/delay=1/delay=2 0 0 9": "delay= is given twice",
    "add q/delay=1/delay=2/key=a/delay=3 0 0 9": "delay= is given twice",
    "set q/key= 0 0 9": "key= needs a key",
    "add q/key= 0 0 9": "key= needs a key",
    "set q/lease=5 0 0 9": "unknown option lease=",
    "set q/deelay=5/key=k 0 0 9": "unknown option deelay=",
    "add q/odd/key=k 0 0 9": "unknown option 'odd'",
    "set /key=k 0 0 9": "empty queue name",
    "set q/key=" + 250 * "k" + " 0 0 9": "a queue name with its options and key takes at most 250 bytes",
}


@pytest.mark.parametrize("line", GETS_REFUSED)
def test_a_get_that_is_refused_takes_nothing(client: QueueClient, line: str) -> None:
    client.put("q", b"job")
    client.send(line.encode() + b"\r\n")
    client.expect_line(b"CLIENT_ERROR " + GETS_REFUSED[line].encode())
    assert client.drain("q") == [b"job"]


@pytest.mark.parametrize("line", TOUCHES_REFUSED)
def test_a_touch_or_delete_that_is_refused_says_why(client: QueueClient, line: str) -> None:
    client.do(line.encode(), b"CLIENT_ERROR %b\r\n" % TOUCHES_REFUSED[line].encode())


@pytest.mark.parametrize("line", PUTS_REFUSED)
def test_a_put_that_is_refused_puts_nothing_and_its_data_is_no_command(client: QueueClient, line: str) -> None:
    client.do(line.encode() + b"\r\nflush_all", b"CLIENT_ERROR %b\r\n" % PUTS_REFUSED[line].encode())
    client.expect_nothing_more()
    assert client.drain("q") == []


def test_words_without_a_value_are_ignored_as_ever(client: QueueClient, queue: str) -> None:
    client.put(queue, b"1")
    assert client.get(f"{queue}/odd/open/opne") == b"1"


@pytest.mark.parametrize("line", ["add q 0 0 1", "add q/delay=5 0 0 1", "replace q/key=k 0 0 1", "add q/key 0 0 1"])
def test_storage_commands_that_need_a_key_stay_errors_without_one(client: QueueClient, line: str) -> None:
    client.do(line.encode() + b"\r\nx", b"ERROR\r\n")
    assert client.drain("q") == []


# Where the answer does not arrive


def test_a_lease_whose_answer_never_left_ends_at_once_and_is_not_counted(connect: Connect) -> None:
    other = connect()
    large = b"x" * 16_000_000  # more than goes into the buffers of a connection
    other.put("fragile", large, b"small")
    for _ in range(3):
        worker = connect()
        worker.send(b"gets fragile/open/lease=3600000\r\n" * 2)
        other.until("fragile", open_transactions=1)
        worker.close()
        other.until("fragile", items=2)
    assert other.drain("fragile") == [large, b"small"], "nobody has failed"


def test_a_client_that_sends_no_more_still_gets_its_lease(connect: Connect, queue: str) -> None:
    worker, other = connect(), connect()
    other.put(queue, b"job")
    worker.send(b"gets %b/open/lease=30000\r\n" % queue.encode())
    worker.end_input()
    _, token = leased(worker, f"{queue}/open/lease=30000")
    assert other.get(queue) is None
    other.do(b"delete %b/%d" % (queue.encode(), token), b"DELETED\r\n")


# Over stops and kills


@pytest.mark.parametrize("stop", [Daemon.stop, Daemon.kill], ids=["stop", "kill"])
def test_leases_delays_and_keys_survive(tmp_path: Path, stop: Callable[[Daemon], object]) -> None:
    with running_daemon(tmp_path) as daemon:
        with QueueClient(daemon.port) as client:
            client.put("work", b"1", b"2")
            tokens = [lease(client, "work")[1] for _ in range(2)]
            client.do(b"set later/delay=400/key=k 0 0 1\r\n3", b"STORED\r\n")
            client.do(b"set later/delay=60000/key=c 0 0 1\r\n4", b"STORED\r\n")
            client.do(b"delete later/key=c", b"DELETED\r\n")
        stop(daemon)
        daemon.start()
        with QueueClient(daemon.port) as client:
            client.do(b"add later/key=k 0 0 1\r\n5", b"NOT_STORED\r\n")
            if stop is Daemon.stop:
                assert client.get("work") is None
            for token in tokens:
                client.do(b"delete work/%d" % token, b"DELETED\r\n")
            assert client.get("work") is None
            assert client.get("later/t=60000") == b"3"
            client.do(b"add later/key=c 0 0 1\r\n6", b"STORED\r\n")


def test_a_stop_of_the_server_is_no_failure_of_what_its_clients_have_open(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "max_retries=1", "move_failed_to=dead") as daemon:
        with QueueClient(daemon.port) as client:
            client.put("work", b"job")
        for _ in range(3):
            with QueueClient(daemon.port) as client:
                assert client.get("work/open") == b"job"
                daemon.restart()
        with QueueClient(daemon.port) as client:
            assert client.get("work") == b"job"


# Where Kestrel's own words hold


def test_kestrel_knows_none_of_this(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "compat=kestrel-1") as daemon, QueueClient(daemon.port) as client:
        client.put("q", b"1", b"2")
        client.ask(b"gets q/open/lease=30000/odd=7\r\n", b"VALUE q 0 1\r\n1\r\nEND\r\n")
        client.do(b"get q/close", b"END\r\n")
        cache = Client(("127.0.0.1", daemon.port), default_noreply=False)
        with pytest.raises(MemcacheClientError):
            cache.touch("q/0", 0)
        cache.close()
        assert client.get("q") == b"2"
