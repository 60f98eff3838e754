"""Commands that create or delete many queues at once: others are served in between, and the answers are as ever."""

import pytest

from kestreld.server.command_handler import READ_BYTES
from tests.functional.conftest import Connect
from tests.support.queue_client import QueueClient

COUNT = 300  # a quarter of a second, in one turn


def names(queue: str) -> list[str]:
    return [f"{queue}-{number:03}" for number in range(COUNT)]


def there(client: QueueClient, *queues: str) -> list[str]:
    """Those of the queues that exist."""
    client.send(f"dump_stats {' '.join(queues)}\r\n".encode())
    blocks = []
    while (line := client.read_line()) != b"END":
        blocks.append(line)
    return [name for name in queues if blocks[blocks.index(b"queue '%b' {" % name.encode()) + 1] != b"}"]


CREATIONS = {
    "sets": ("set {}{} 0 0 1\r\nx\r\n", "{}", b"STORED\r\n" * COUNT),
    "sets with an expiry": ("set {}{} 0 60 1\r\nx\r\n", "{}", b"STORED\r\n" * COUNT),
    "gets": ("get {}{}\r\n", "{}", b"END\r\n" * COUNT),
    "leases": ("gets {}{}/open/lease=9000\r\n", "{}", b"END\r\n" * COUNT),
    "one get": (" {}{}", "get{}\r\n", b"END\r\n"),
    "one lease": (" {}{}/open/lease=9/t=1", "gets{}\r\n", b"END\r\n"),
    "a list": (" {}{}", "wait ~l{}\r\n", b"OK\r\n"),
}


@pytest.mark.parametrize("kind", CREATIONS)
def test_others_are_served_while_one_client_creates_many_queues(
    connect: Connect, client: QueueClient, queue: str, kind: str
) -> None:
    part, whole, answer = CREATIONS[kind]
    prefix = queue[-4:] if kind == "one lease" else queue[-8:]  # a line has 8 KiB at most
    queues = [f"{prefix}{number:03}" for number in range(COUNT if kind != "one lease" else 250)]
    other = connect()
    assert there(other, *queues) == []
    client.send(whole.format("".join(part.format("", name) for name in queues)).encode())
    while queues[0] not in (found := there(other, queues[0], queues[-1])):
        pass
    assert queues[-1] not in found
    client.expect(answer)
    assert there(other, *queues) == queues


def test_others_are_served_while_one_client_deletes_many_queues(
    connect: Connect, client: QueueClient, queue: str
) -> None:
    queues, other = names(queue), connect()
    other.send("".join(f"set {name} 0 0 1\r\nx\r\n" for name in queues).encode())
    other.expect(b"STORED\r\n" * COUNT)
    client.send("".join(f"delete {name}\r\n" for name in queues).encode())
    while queues[0] in (found := there(other, queues[0], queues[-1])):
        pass
    assert queues[-1] in found
    client.expect(b"DELETED\r\n" * COUNT)
    assert there(other, *queues) == []


@pytest.mark.parametrize(("expiry_s", "puts"), [(0, 600), (60, 100)], ids=["plain", "with an expiry"])
def test_others_are_served_while_one_client_puts_for_many_readers(
    connect: Connect, client: QueueClient, queue: str, expiry_s: int, puts: int
) -> None:
    names, other = [f"{queue[-8:]}+{number:03}" for number in range(COUNT)], connect()
    put = f"set {queue[-8:]} 0 {expiry_s} 1\r\nx\r\n".encode()
    assert puts * len(put) < READ_BYTES
    client.send(put)
    client.expect(b"STORED\r\n")
    client.send("".join(f"get {name}\r\n" for name in names).encode())
    client.expect(b"END\r\n" * COUNT)
    for before in range(0, 10 * puts, puts):
        client.send(put * puts)
        between = 0
        while (found := other.items(names[-1])) < before + puts:
            between += found > before
        client.expect(b"STORED\r\n" * puts)
        if between:
            return
    pytest.fail("others have never been served in the middle; this process may miss that once or twice")


def test_what_is_put_off_comes_with_its_own_data_and_in_order(client: QueueClient, queue: str) -> None:
    queues = names(queue)
    sets = [f"set {name} {number} 0 {len(str(number))}\r\n{number}\r\n" for number, name in enumerate(queues)]
    client.send("".join(f"{one}get {name}\r\n" for one, name in zip(sets, queues, strict=True)).encode())
    for number, name in enumerate(queues):
        data = str(number).encode()
        client.expect(b"STORED\r\nVALUE %b %d %d\r\n%b\r\nEND\r\n" % (name.encode(), number, len(data), data))


def test_a_get_of_many_queues_of_which_some_are_missing_has_all_items(client: QueueClient, queue: str) -> None:
    queues = [f"{queue[-8:]}{number:03}" for number in range(COUNT)]
    full = queues[::50]
    for name in full:
        client.put(name, b"x")
    client.send(f"get {' '.join(queues)}\r\nversion\r\n".encode())
    client.expect(b"".join(b"VALUE %b 0 1\r\nx\r\n" % name.encode() for name in full) + b"END\r\n")
    client.expect_line(b"VERSION ")


def test_a_wait_on_many_queues_that_were_deleted_creates_them_again(
    connect: Connect, client: QueueClient, queue: str
) -> None:
    queues, other = [f"{queue[-4:]}{number:03}" for number in range(200)], connect()
    client.send(f"gets {' '.join(f'{name}/open/lease=60000/t=600000' for name in queues)}\r\n".encode())
    other.until(queues[-1], waiters=1)
    other.send("".join(f"delete {name}\r\n" for name in queues[:-1]).encode())
    other.expect(b"DELETED\r\n" * 199)
    other.put(queues[-1], b"x")
    client.expect_line(f"VALUE {queues[-1]}/open/lease=60000/t=600000 0 1 ".encode())
    client.expect(b"x\r\nEND\r\n")


def test_a_client_that_leaves_half_way_creates_no_more(connect: Connect, queue: str) -> None:
    queues, other = names(queue), connect()
    with connect() as client:
        client.send(f"wait ~l {' '.join(queues)}\r\n".encode()[:8000] + b"\r\n")
        while not there(other, queues[0]):
            pass
    assert len(there(other, *queues)) < COUNT
