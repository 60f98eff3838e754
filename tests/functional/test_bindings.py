"""Bindings of exchanges to queues: made, listed and removed by any client, and kept over restarts."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from kestreld.journal.ledger import HEADER_BYTES, checked_ledger_end
from tests.support.accounts import login, quick_hash
from tests.support.daemon import Daemon, running_daemon
from tests.support.power_disk import power_disk
from tests.support.queue_client import QueueClient
from tests.support.small_disk import small_disk
from tests.support.strace import injected

OK = b"OK\r\n"
Table = set[tuple[str, ...]]


@contextmanager
def served(folder: Path, *settings: str) -> Iterator[tuple[Daemon, QueueClient]]:
    with running_daemon(folder, *settings) as daemon, QueueClient(daemon.port) as client:
        yield daemon, client


def bindings(client: QueueClient, exchange: str = "") -> Table:
    """What `bindings` lists, decoded as a client in Python would."""
    client.send(f"bindings {exchange}".rstrip().encode() + b"\r\n")
    found = []
    while (line := client.read_line().decode()) != "END":
        word, *fields = line.split(" ")
        assert (word, len(fields)) == ("BINDING", 4)
        found.append(tuple("" if field == "%" else unquote(field) for field in fields))
    assert len(found) == len(set(found))
    return set(found)


def test_any_client_sees_what_another_has_bound_and_unbound(tmp_path: Path) -> None:
    with served(tmp_path) as (daemon, client), QueueClient(daemon.port) as other:
        assert bindings(other) == set()
        client.ask(b"bind celery work\r\nbind celery work key\r\nbind celery work user.# topic\r\n", OK * 3)
        client.ask(b"BIND events monitor\r\n", OK)
        of_celery = {("celery", "work", "", ""), ("celery", "work", "key", ""), ("celery", "work", "user.#", "topic")}
        assert bindings(other, "celery") == of_celery
        assert bindings(other) == of_celery | {("events", "monitor", "", "")}
        other.ask(b"unbind celery work key\r\n", OK)
        assert bindings(client, "celery") == of_celery - {("celery", "work", "key", "")}
        other.ask(b"unbind celery work % %\r\n", OK)
        assert bindings(client, "celery") == {("celery", "work", "user.#", "topic")}
        client.ask(b"bind celery work\r\nbind celery other\r\nunbind celery work\r\n", OK * 3)
        assert bindings(client) == {("celery", "other", "", ""), ("events", "monitor", "", "")}


def test_the_same_again_changes_nothing_and_is_ok(tmp_path: Path) -> None:
    with served(tmp_path) as (daemon, client):
        client.ask(b"unbind e q\r\nunbind e q k\r\nunbind e q k p\r\n", OK * 3)
        assert not (daemon.spool / ".bindings").exists()
        client.ask(b"bind e q k\r\n" * 2, OK * 2)
        size_bytes = (daemon.spool / ".bindings").stat().st_size
        client.ask(b"bind e q k\r\nbind e q k %\r\nbind e q %6B\r\nunbind e q\r\n", OK * 4)
        client.ask(b"unbind e q\r\n" * 2, OK * 2)
        assert size_bytes < (daemon.spool / ".bindings").stat().st_size < size_bytes + 60
        assert bindings(client) == set()


TEXTS = ("", "a b", "%", "%41", "a.*.#", "käse/日本", "tab\tline\r\n", "\x00", "+", "BINDING", "END", "x" * 255)


def test_routing_keys_and_patterns_of_any_characters_come_back_as_they_were(tmp_path: Path) -> None:
    with served(tmp_path) as (_, client):
        expected = set()
        for number, text in enumerate(TEXTS):
            word = quote(text) or "%"
            client.ask(f"bind {word} q{number}%41 {word} {word}\r\n".encode(), OK)
            expected.add((text, f"q{number}A", text, text))
        assert bindings(client) == expected
        for text in TEXTS:
            assert {one[0] for one in bindings(client, quote(text) or "%")} == {text}
        client.ask(b"bind  q \r\nbind e q  p\r\n", OK * 2)  # empty words
        assert ("", "q", "", "") in bindings(client)
        assert ("e", "q", "", "p") in bindings(client)
        client.ask("bind raw q käse\r\n".encode(), OK)
        client.ask(b"bindings raw\r\n", b"BINDING raw q k%C3%A4se %\r\nEND\r\n")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("bind", "bind needs an exchange and a queue, and may have a routing key and a pattern"),
        ("unbind e", "unbind needs an exchange and a queue, and may have a routing key and a pattern"),
        ("bind e q k p more", "bind needs an exchange and a queue, and may have a routing key and a pattern"),
        ("bindings e q", "too many words for bindings"),
        ("bind e a/b", "queue name must not contain '/'"),
        ("unbind e a.b", "queue name must not contain '.'"),
        ("bind e  k", "queue name must not be empty"),
        ("bind %4 q", "exchange needs two hexadecimal digits behind each %"),
        ("bind e q %%", "routing key needs two hexadecimal digits behind each %"),
        ("bind e q k %zz", "pattern needs two hexadecimal digits behind each %"),
        ("bindings 100%", "exchange needs two hexadecimal digits behind each %"),
        ("bind e q " + "%41" * 256, "routing key is longer than 255 bytes"),
        ("bind " + "x" * 256 + " q", "exchange is longer than 255 bytes"),
        ("bind e q k " + "x" * 256, "pattern is longer than 255 bytes"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_and_nothing_is_bound(shared: QueueClient, line: str, reason: str) -> None:
    shared.ask(line.encode() + b"\r\n", f"CLIENT_ERROR {reason}\r\n".encode())
    assert bindings(shared) == set()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueueClient]:
    with served(tmp_path_factory.mktemp("shared")) as (_, client):
        yield client


def test_kestrel_1_knows_no_such_command(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "compat=kestrel-1") as daemon:
        for line in (b"bind e q", b"unbind e q", b"bindings"):
            with QueueClient(daemon.port) as client:
                client.send(line + b"\r\n")
                client.expect_end(b"CLIENT_ERROR\r\n")


# Queues


def test_a_queue_that_is_deleted_loses_its_bindings_first(tmp_path: Path) -> None:
    with served(tmp_path) as (_, client):
        client.ask(b"bind e q a\r\nbind f q b\r\nbind e q+child c\r\nbind e other d\r\n", OK * 4)
        client.ask(b"delete q\r\nversion\r\n", b"NOT_FOUND\r\nVERSION 1.0.0\r\n")  # bound, and never put on
        assert bindings(client) == {("e", "q+child", "c", ""), ("e", "other", "d", "")}
        client.ask(b"bind e q a\r\nset q 0 0 1\r\nx\r\nget q+child/t=0\r\n", b"OK\r\nSTORED\r\nEND\r\n")
        client.ask(b"delete q\r\nget q/peek\r\n", b"DELETED\r\nEND\r\n")
        assert bindings(client) == {("e", "q+child", "c", ""), ("e", "other", "d", "")}
        client.send(b"delete q+child noreply\r\n")
        client.ask(b"bindings\r\n", b"BINDING e other d %\r\nEND\r\n")


def test_a_delete_that_nobody_waits_for_deletes_the_bindings_and_the_queue(tmp_path: Path) -> None:
    with served(tmp_path) as (daemon, client):
        client.ask(b"bind e q\r\nset q 0 0 1\r\nx\r\n", b"OK\r\nSTORED\r\n")
        with QueueClient(daemon.port) as brief:
            brief.send(b"delete q noreply\r\n")
            brief.socket.shutdown(socket.SHUT_WR)
            brief.expect_end()
        client.ask(b"get q/peek\r\nbindings\r\n", b"END\r\nEND\r\n")


def test_more_bindings_than_max_bindings_are_refused_until_some_are_removed_or_it_is_raised(tmp_path: Path) -> None:
    full = b"SERVER_ERROR too many bindings\r\n"
    with served(tmp_path) as (daemon, client):
        client.ask(b"bind e q 1\r\nbind e q 2\r\n", OK * 2)
        assert "reloaded" in daemon.reload("max_bindings: 2\n")
        client.ask(b"bind e q 3\r\nbind e q 2\r\nunbind e q 1\r\nbind e q 3\r\n", full + OK * 3)
        assert client.stats()["bindings"] == "2"
        client.ask(b"bind e q 4\r\n", full)
        assert "reloaded" in daemon.reload("max_bindings: 3\n")
        client.ask(b"bind e q 4\r\nbind e q 5\r\n", OK + full)


def test_bindings_that_are_pipelined_share_syncs_and_come_in_order_with_other_commands(tmp_path: Path) -> None:
    with served(tmp_path) as (daemon, client):
        lines = [b"bind e q key.%d\r\n" % number for number in range(500)]
        client.ask(b"".join(lines), OK * 500)
        content = (daemon.spool / ".bindings").read_bytes()
        at, writes = HEADER_BYTES, 0
        while at < len(content):
            at, writes = checked_ledger_end(content, at)[1], writes + 1
        assert writes <= 10, "each write is synced"
        client.ask(
            b"bind e q new\r\nbind e r\r\nset q 0 0 1\r\nx\r\nunbind e q new\r\nbind e  k\r\n", OK * 2 + b"STORED\r\n"
        )
        client.expect(OK + b"CLIENT_ERROR queue name must not be empty\r\n")
        client.ask(b"unbind e q\r\nbind e q last\r\nbindings e\r\n", OK * 2)
        listed = {client.read_line(), client.read_line()}
        assert listed == {b"BINDING e r % %", b"BINDING e q last %"}
        client.expect(b"END\r\n")


def test_thousands_of_bindings_are_listed_and_removed_while_others_are_served(tmp_path: Path) -> None:
    count = 3000
    with served(tmp_path) as (daemon, client), QueueClient(daemon.port) as other:
        lines = [b"bind e q key.%d\r\n" % number for number in range(count)]
        with QueueClient(daemon.port) as second:
            second.send(b"".join(lines[::2]))
            client.ask(b"".join(lines[1::2]), OK * (count // 2))
            second.expect(OK * (count // 2))
        assert len(bindings(client, "e")) == count
        client.send(b"unbind e q\r\nbindings\r\n")
        answers = 0
        while not client.received:
            other.ask(b"version\r\n", b"VERSION 1.0.0\r\n")
            answers += 1
            client.socket.setblocking(False)
            with suppress(BlockingIOError):
                client.received = client.socket.recv(1 << 16)
        assert client.received.startswith(OK)
        assert answers > 1
        assert daemon.stop() == 0
        assert (daemon.spool / ".bindings").stat().st_size < 1_000_000


# Rights


def test_binding_takes_the_right_to_put_and_reading_none(tmp_path: Path) -> None:
    users = {"may": "{work*: put}", "makes": "{work*: put, new*: [put, create]}", "sees": "{other: get}"}
    lines = "".join(
        f"  {name}: {{password: {quick_hash(name)!r}, rights: {rights}}}\n" for name, rights in users.items()
    )
    daemon = Daemon(tmp_path)
    daemon.config_path.write_text(f"users:\n{lines}")
    daemon.start()
    try:
        clients = {name: QueueClient(daemon.port) for name in users}
        for name, client in clients.items():
            client.ask(login(name, name), b"STORED\r\n")
        no_put = b"CLIENT_ERROR not allowed: put on 'other'\r\n"
        clients["may"].ask(b"bind e other\r\nunbind e other\r\nunbind e other k\r\n", no_put * 3)
        clients["may"].ask(b"bind e work\r\n", b"CLIENT_ERROR not allowed: create on 'work'\r\n")
        clients["makes"].ask(b"bind e new\r\nbind e work\r\n", OK + b"CLIENT_ERROR not allowed: create on 'work'\r\n")
        clients["may"].ask(b"unbind e work\r\n", OK)
        for client in clients.values():
            assert bindings(client) == {("e", "new", "", "")}
            client.close()
    finally:
        daemon.kill()


# Restarts


def test_what_was_answered_ok_is_there_after_a_stop_and_after_a_kill(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        expected: Table = set()
        for life in range(4):
            with QueueClient(daemon.port) as client:
                assert bindings(client) == expected
                client.ask(f"bind e q{life} k.{life}\r\nbind e q p\r\nunbind e q{life - 2}\r\n".encode(), OK * 3)
                expected |= {("e", f"q{life}", f"k.{life}", ""), ("e", "q", "p", "")}
                expected = {one for one in expected if one[1] != f"q{life - 2}"}
            if life % 2:
                assert daemon.stop() == 0
            else:
                daemon.kill()
            daemon.start()
        with QueueClient(daemon.port) as client:
            assert bindings(client) == expected


def test_a_power_cut_takes_no_binding_that_was_answered_ok(tmp_path: Path) -> None:
    """Queues are not synced: bindings are all the same."""
    with power_disk(tmp_path / "disk", 3) as disk:
        daemon = Daemon(tmp_path, ["sync_journal=false"])
        daemon.spool = disk.folder / "spool"
        expected: Table = set()
        daemon.start()
        try:
            for life in range(4):
                with QueueClient(daemon.port) as client:
                    found = bindings(client)
                    assert expected <= found <= expected | {("e", "unanswered", str(life - 1), "")}
                    expected = found
                    for number in range(3):
                        client.ask(f"bind e q {life}.{number}\r\n".encode(), OK)
                        expected.add(("e", "q", f"{life}.{number}", ""))
                    client.ask(f"unbind e q {life - 1}.1\r\n".encode(), OK)
                    expected.discard(("e", "q", f"{life - 1}.1", ""))
                    client.send(f"bind e unanswered {life}\r\n".encode())
                    daemon.kill()
                    disk.cut()
                daemon.start()
        finally:
            daemon.kill()


def test_a_damaged_table_is_refused_by_name_and_queues_are_served(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        with QueueClient(daemon.port) as client:
            client.ask(b"bind e q a\r\nbind e q b\r\n", OK * 2)
        assert daemon.stop() == 0
        path = daemon.spool / ".bindings"
        content = bytearray(path.read_bytes())
        content[-30] ^= 1
        path.write_bytes(content)
        daemon.start()
        with QueueClient(daemon.port) as client:
            why = f"SERVER_ERROR bindings {path}: byte ".encode()
            for command in (b"bind e q c", b"unbind e q a", b"bindings"):
                client.send(command + b"\r\n")
                assert b"move it away to begin with an empty table, and restart" in client.expect_line(why)
            client.ask(b"set q 0 0 1\r\nx\r\ndelete q\r\n", b"STORED\r\nDELETED\r\n")
        assert "in a part that had been synced" in daemon.logged(".bindings: byte")
        assert path.read_bytes() == bytes(content)


def test_an_error_of_the_disk_fails_the_binding_and_the_next_one_is_made_again(tmp_path: Path) -> None:
    with served(tmp_path) as (daemon, client):
        client.ask(b"bind e q a\r\n", OK)
        path = daemon.spool / ".bindings"
        with injected(daemon.pid, "fdatasync:error=EIO:when=1"):
            client.ask(b"bind e q b\r\n", f"SERVER_ERROR bindings {path}: Input/output error\r\n".encode())
            assert bindings(client) == {("e", "q", "a", "")}
            client.ask(b"bind e q b\r\n", OK)
        assert "the next change writes the file anew" in daemon.logged(".bindings: Input/output error")
        daemon.kill()
        daemon.start()
        with QueueClient(daemon.port) as after:
            assert bindings(after) == {("e", "q", "a", ""), ("e", "q", "b", "")}


def test_a_full_disk_refuses_bindings_until_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        daemon = Daemon(tmp_path)
        daemon.spool = disk.folder / "spool"
        daemon.start()
        try:
            with QueueClient(daemon.port) as client:
                client.ask(b"bind e q a\r\n", OK)
                (disk.folder / "ballast").write_bytes(bytes(64 << 10)[: 40 << 10])
                number = 0
                while True:
                    client.send(b"bind e q %d %b\r\n" % (number, b"x" * 255))
                    if (line := client.read_line()) != b"OK":
                        break
                    number += 1
                assert line.startswith(b"SERVER_ERROR bindings "), line
                assert line.endswith(b": No space left on device"), line
                assert ("e", "q", "a", "") in bindings(client)
                (disk.folder / "ballast").unlink()
                client.ask(b"bind e q b\r\n", OK)
                assert len(bindings(client)) == number + 2
        finally:
            daemon.kill()
