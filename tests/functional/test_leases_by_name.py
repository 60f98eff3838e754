"""`leases by=NAME`: what a holder has, with the tokens, also after a kill of the server."""

from pathlib import Path

import pytest

from tests.functional.conftest import Connect
from tests.support.daemon import running_daemon
from tests.support.queue_client import QueueClient

LEASE_MS = 3_600_000
NEEDS = b"CLIENT_ERROR leases needs by= and the name of a holder\r\n"
BAD_NAME = b"CLIENT_ERROR by= needs a name that has from 1 to 64 printable ASCII characters, without blanks and /\r\n"


def lease(client: QueueClient, queue: str, options: str = "") -> int:
    """Lease an item for an hour; the token."""
    client.send(f"gets {queue}/open/lease={LEASE_MS}{options}\r\n".encode())
    words = client.expect_line(b"VALUE ").split(b" ")
    client.read(int(words[3]) + 2)
    client.expect(b"END\r\n")
    return int(words[4])


def listed(client: QueueClient, line: str) -> list[tuple[str, int, int]]:
    """Queue, id and token of each lease that the server lists; the times are checked."""
    client.send(line.encode() + b"\r\n")
    found = []
    while (answer := client.read_line()) != b"END":
        word, queue, item, token, left_ms, length_ms = answer.decode().split(" ")
        assert word == "LEASE"
        assert 0 < int(left_ms) <= int(length_ms)
        assert int(length_ms) >= LEASE_MS - 1
        found.append((queue, int(item), int(token)))
    return found


def test_a_holder_is_told_what_it_has_from_all_queues_and_nothing_of_others(connect: Connect, queue: str) -> None:
    client, other = connect(), connect()
    client.put(queue, b"1", b"2", b"3", b"4", b"5")
    client.put(f"{queue}-b", b"1")
    first = lease(client, queue, f"/by={queue}-me")
    lease(client, queue)
    lease(client, queue, f"/by={queue}-me2")
    second = lease(other, queue, f"/by={queue}-me")
    third = lease(client, f"{queue}-b", f"/by={queue}-me")
    mine = [(queue, 1, first), (queue, 4, second), (f"{queue}-b", 1, third)]
    assert sorted(listed(other, f"leases by={queue}-me")) == mine
    assert listed(other, f"leases by={queue}-me {queue}") == mine[:2]
    assert listed(other, f"leases by={queue}-me {queue}-none") == []
    host, port = client.socket.getsockname()
    assert listed(client, f"leases by={host}:{port}") == [], "an address is no name"
    client.do(b"delete %b/%d" % (queue.encode(), second), b"DELETED\r\n")
    assert listed(other, f"leases by={queue}-me {queue}") == mine[:1]


def test_commands_behind_it_come_after_it(connect: Connect, queue: str) -> None:
    client = connect()
    client.put(queue, b"1")
    token = lease(client, queue, f"/by={queue}")
    client.send(f"leases by={queue}\r\ndelete {queue}/{token}\r\nleases by={queue} {queue}\r\n".encode())
    client.expect_line(b"LEASE %b 1 %d " % (queue.encode(), token))
    client.expect(b"END\r\nDELETED\r\nEND\r\n")


def test_tokens_of_leases_that_outlived_a_kill_are_listed_and_are_good(tmp_path: Path) -> None:
    """Those of a worker that never got its replies, of items that have failed before, and of extended leases."""
    with running_daemon(tmp_path, "max_retries=5", "move_failed_to=dead") as daemon:
        with QueueClient(daemon.port) as client:
            client.put("work", b"1", b"2", b"3")
            failed = lease(client, "work")
            client.do(b"touch work/%d/failed 0" % failed, b"TOUCHED\r\n")
            tokens = [lease(client, "work", "/by=me") for _ in range(3)]
            client.do(b"touch work/%d 7200" % tokens[1], b"TOUCHED\r\n")
        for _ in range(2):
            daemon.kill()
            daemon.start()
            with QueueClient(daemon.port) as client:
                assert listed(client, "leases by=me") == [("work", at, token) for at, token in enumerate(tokens, 1)]
        with QueueClient(daemon.port) as client:
            client.do(b"touch work/%d 0" % tokens[0], b"TOUCHED\r\n")
            client.do(b"delete work/%d" % tokens[1], b"DELETED\r\n")
            assert listed(client, "leases by=me") == [("work", 3, tokens[2])]
            assert client.get("work") == b"1"


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b"leases", NEEDS),
        (b"leases me", NEEDS),
        (b"leases by", NEEDS),
        (b"leases  by=me", NEEDS),
        (b"leases by=", BAD_NAME),
        (b"leases by=a/b", BAD_NAME),
        (b"leases by=" + 65 * b"x", BAD_NAME),
        (b"leases by=\xff", BAD_NAME),
        (b"leases by=me q r", b"CLIENT_ERROR too many words for leases\r\n"),
        (b"leases by=me  q", b"CLIENT_ERROR empty queue name\r\n"),
        (b"leases by=me q/r", b"CLIENT_ERROR "),
        (b"leases by=me", b"END\r\n"),
        (b"LEASES by=me q ", b"END\r\n"),
    ],
)
def test_what_is_no_such_command_is_refused(client: QueueClient, line: bytes, answer: bytes) -> None:
    client.send(line + b"\r\n")
    client.expect(answer)
    if not answer.endswith(b"\n"):
        client.read_line()
    client.expect_nothing_more()


def test_kestrel_1_does_not_know_it(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "compat=kestrel-1") as daemon, QueueClient(daemon.port) as client:
        client.do(b"leases by=me", b"CLIENT_ERROR\r\n")


def test_of_a_stopped_queue_nothing_is_listed_and_if_it_is_named_that_is_said(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        with QueueClient(daemon.port) as client:
            for name in ("work", "sound"):
                client.put(name, b"1", b"2")
                lease(client, name, "/by=me")
        daemon.stop()
        segment = max((daemon.spool / "work.journal").glob("*.seg"))
        content = bytearray(segment.read_bytes())
        content[len(content) // 2] ^= 1
        segment.write_bytes(content)
        daemon.start()
        with QueueClient(daemon.port) as client:
            assert [queue for queue, _, _ in listed(client, "leases by=me")] == ["sound"]
            client.send(b"leases by=me work\r\n")
            client.expect_line(b"SERVER_ERROR corrupt ")
