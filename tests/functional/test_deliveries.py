"""`/deliveries`: how often a leased item was delivered before, also by a server that was killed since."""

from pathlib import Path

import pytest

from tests.functional.conftest import Connect
from tests.support.daemon import running_daemon
from tests.support.queue_client import QueueClient

NEEDS = b"CLIENT_ERROR deliveries needs lease=\r\n"
LISTED = (
    b"CLIENT_ERROR of a list of queues items can only be leased:"
    b" gets ~list/open/lease=, t=, by=, deliveries and turn\r\n"
)


def lease(client: QueueClient, key: str, lease_ms: int = 3_600_000, data: bytes = b"1") -> tuple[int, int]:
    """Lease an item; the token, and how often it was delivered before."""
    client.send(f"gets {key}/open/lease={lease_ms}/deliveries\r\n".encode())
    return expect_leased(client, data)


def expect_leased(client: QueueClient, data: bytes = b"1") -> tuple[int, int]:
    words = client.expect_line(b"VALUE ").split(b" ")
    assert len(words) == 6
    assert client.read(int(words[3]) + 2) == data + b"\r\n"
    client.expect(b"END\r\n")
    return int(words[4]), int(words[5])


def give_back(client: QueueClient, queue: str, token: int) -> None:
    client.do(b"touch %b/%d 0" % (queue.encode(), token), b"TOUCHED\r\n")


def test_an_item_is_told_how_often_it_was_delivered_however_that_ended(connect: Connect, queue: str) -> None:
    client = connect()
    client.put(queue, b"1")
    token, before = lease(client, queue)
    assert before == 0
    give_back(client, queue, token)
    token, before = lease(client, queue)
    assert before == 1
    client.do(b"touch %b/%d/failed 0" % (queue.encode(), token), b"TOUCHED\r\n")
    assert lease(client, queue, lease_ms=1)[1] == 2
    token, before = lease(client, f"{queue}/t=5000")
    assert before == 3, "a lease whose time was over"
    client.do(b"touch %b/%d/delay=1 0" % (queue.encode(), token), b"TOUCHED\r\n")
    assert lease(client, f"{queue}/t=5000")[1] == 4


def test_only_those_who_ask_are_told(connect: Connect, queue: str) -> None:
    client = connect()
    client.put(queue, b"1")
    give_back(client, queue, lease(client, queue)[0])
    client.send(f"gets {queue}/open/lease=1000\r\n".encode())
    words = client.expect_line(b"VALUE ").split(b" ")
    assert len(words) == 5


def test_one_attempt_counts_once_also_if_its_token_comes_late(connect: Connect, queue: str) -> None:
    client = connect()
    client.put(queue, b"1")
    token, _ = lease(client, queue)
    give_back(client, queue, token)
    client.do(b"touch %b/%d/lease=3600000 0" % (queue.encode(), token), b"TOUCHED\r\n")
    give_back(client, queue, token)
    assert lease(client, queue)[1] == 1


def test_an_open_read_of_an_item_that_was_leased_counts_too(connect: Connect, queue: str) -> None:
    client = connect()
    client.put(queue, b"1")
    give_back(client, queue, lease(client, queue)[0])
    client.send(f"get {queue}/open\r\nget {queue}/abort\r\n".encode())
    client.expect(f"VALUE {queue}/open 0 1\r\n1\r\nEND\r\nEND\r\n".encode())
    assert lease(client, queue)[1] == 2


@pytest.mark.parametrize("options", ["", "/by=me", "/t=1000", "/by=me/t=1000"])
def test_it_goes_with_other_options_and_of_several_queues_and_lists(connect: Connect, queue: str, options: str) -> None:
    client = connect()
    client.put(queue, b"1")
    client.do(f"wait ~them {queue}-a {queue}".encode(), b"OK\r\n")
    asked = f"open/lease=3600000{options}/deliveries"
    for before, key in enumerate((queue, "~them", "~them/turn", f"{queue}-a/{asked} {queue}")):
        client.send(f"gets {key}/{asked}\r\n".encode())
        token, found = expect_leased(client)
        assert found == before
        give_back(client, queue, token)


def test_of_several_leases_in_one_answer_each_has_its_own(connect: Connect, queue: str) -> None:
    client = connect()
    client.put(queue, b"1", b"2")
    give_back(client, queue, lease(client, queue)[0])
    word = f"{queue}/open/lease=9999/deliveries"
    client.send(f"gets {word} {word}\r\n".encode())
    assert client.expect_line(b"VALUE ").endswith(b" 1")
    client.expect(b"1\r\n")
    assert client.expect_line(b"VALUE ").endswith(b" 0")
    client.expect(b"2\r\nEND\r\n")


def test_each_child_counts_for_itself(connect: Connect, queue: str) -> None:
    client = connect()
    client.send(f"get {queue}+copy\r\n".encode())
    client.expect(b"END\r\n")
    client.put(queue, b"1")
    give_back(client, queue, lease(client, queue)[0])
    assert lease(client, f"{queue}+copy")[1] == 0
    assert lease(client, queue)[1] == 1


@pytest.mark.parametrize("kills", [True, False])
@pytest.mark.parametrize("journals", ["true", "false"])
def test_it_is_known_after_a_restart(tmp_path: Path, kills: bool, journals: str) -> None:
    """What came back and what runs, also where the lease ends after the restart. Without records of leases and after
    a kill, what ran is not known.
    """
    with running_daemon(tmp_path, f"journal_leases={journals}") as daemon:
        with QueueClient(daemon.port) as client:
            client.put("back", b"1")
            client.put("runs", b"1")
            client.put("fresh", b"1")
            for _ in range(2):
                give_back(client, "back", lease(client, "back")[0])
            give_back(client, "runs", lease(client, "runs")[0])
            token, _ = lease(client, "runs")
        for _ in range(2):
            daemon.kill() if kills else daemon.stop()
            daemon.start()
        with QueueClient(daemon.port) as client:
            assert lease(client, "fresh")[1] == 0
            if journals == "true":
                assert lease(client, "back")[1] == 2
                give_back(client, "runs", token)
                assert lease(client, "runs")[1] == 2
            elif not kills:
                give_back(client, "runs", token)
                assert lease(client, "runs")[1] >= 1


@pytest.mark.parametrize(("settings", "known"), [((), 4), (("max_retries=50", "move_failed_to=dead"), 6)])
def test_after_a_restart_four_are_known_and_all_counted_failures(
    tmp_path: Path, settings: tuple[str, ...], known: int
) -> None:
    with running_daemon(tmp_path, *settings) as daemon:
        with QueueClient(daemon.port) as client:
            client.put("work", b"1")
            for before in range(6):
                token, found = lease(client, "work")
                assert found == before
                client.do(b"touch work/%d/failed 0" % token, b"TOUCHED\r\n")
        daemon.kill()
        daemon.start()
        with QueueClient(daemon.port) as client:
            token, found = lease(client, "work")
            assert found == known
            give_back(client, "work", token)
            assert lease(client, "work")[1] == known + 1


def test_an_item_whose_reply_never_left_was_not_delivered(connect: Connect, queue: str) -> None:
    client, gone = connect(), connect()
    client.put(queue, b"x" * 8_000_000)  # more than socket buffers have room for
    gone.send(f"gets {queue}/open/lease=3600000\r\n".encode())
    assert gone.read(6) == b"VALUE "
    gone.socket.close()
    assert lease(client, f"{queue}/t=5000", data=b"x" * 8_000_000)[1] == 0


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b"gets q/deliveries", NEEDS),
        (b"get q/deliveries", NEEDS),
        (b"gets q/open/deliveries", NEEDS),
        (b"gets q/peek/deliveries", NEEDS),
        (b"gets q/by=a/deliveries", NEEDS),
        (b"get q/open/lease=9/deliveries", b"CLIENT_ERROR lease= needs gets,"),
        (b"gets q/lease=9/deliveries", b"CLIENT_ERROR lease= needs open\r\n"),
        (b"gets q/open/lease=9/deliveries=1", b"CLIENT_ERROR unknown option deliveries=\r\n"),
        (b"gets q/open/lease=9/by=a/delivery", b"CLIENT_ERROR by= needs a name that "),
        (b"gets ~l/open/lease=9/delivery", LISTED),
        (b"gets ~l/deliveries", NEEDS),
        (b"set q/deliveries 0 0 0\r\n", b"CLIENT_ERROR "),
        (b"touch q/1/deliveries 0", b"CLIENT_ERROR "),
    ],
)
def test_it_is_an_option_of_leases_only(client: QueueClient, line: bytes, answer: bytes) -> None:
    client.send(line + b"\r\n")
    client.expect(answer)
    if not answer.endswith(b"\n"):
        client.read_line()
    client.expect_nothing_more()


def test_kestrel_1_ignores_it(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "compat=kestrel-1") as daemon, QueueClient(daemon.port) as client:
        client.put("work", b"1")
        client.send(b"get work/deliveries\r\n")
        client.expect(b"VALUE work 0 1\r\n1\r\nEND\r\n")
