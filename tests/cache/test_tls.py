"""The cache over TLS. Which certificates log in, and what they may do, is in `test_rights`."""

import shutil
import ssl
from collections.abc import Iterator

import pytest
from pymemcache import Client

from tests.functional.test_tls import context, settings
from tests.support.certificates import Authority
from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, ssl.SSLContext]]:
    """A daemon with a cache over TLS, and what its clients trust."""
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    authority.issue_server()
    folder = tmp_path_factory.mktemp("tls")
    with running_daemon(folder, "listen.cache=tls:127.0.0.1:0", config=settings(authority)) as daemon:
        yield daemon, context(authority)


def connected(secure: tuple[Daemon, ssl.SSLContext]) -> QueueClient:
    daemon, trusted = secure
    client = QueueClient(daemon.cache_port)
    client.socket = trusted.wrap_socket(client.socket, server_hostname="localhost")
    return client


def test_pymemcache_stores_and_gets_values_of_all_sizes(secure: tuple[Daemon, ssl.SSLContext]) -> None:
    daemon, trusted = secure
    client = Client(("127.0.0.1", daemon.cache_port), default_noreply=False, timeout=10, tls_context=trusted)
    for size in (0, 1, 16383, 16384, 16385, 1_000_000):
        assert client.set("key", b"x" * size)
        assert client.get("key") == b"x" * size
    client.close()


def test_many_commands_in_one_piece_are_all_answered(secure: tuple[Daemon, ssl.SSLContext]) -> None:
    with connected(secure) as client:
        client.send(b"".join([b"set key%d 0 0 7\r\n%07d\r\n" % (number, number) for number in range(5000)]))
        client.expect(b"STORED\r\n" * 5000)
        client.send(b"".join([b"get key%d\r\n" % number for number in range(5000)]))
        client.expect(b"".join([b"VALUE key%d 0 7\r\n%07d\r\nEND\r\n" % (number, number) for number in range(5000)]))


def test_answers_wait_for_a_client_that_does_not_read(secure: tuple[Daemon, ssl.SSLContext]) -> None:
    value = b"x" * 1_000_000
    with connected(secure) as client, connected(secure) as witness:
        client.put("large", value)
        client.send(b"get large\r\n" * 10)
        witness.do(b"get nothing", b"END\r\n")
        for _ in range(10):
            assert client.read_value() == value


def test_plain_text_and_noise_are_hung_up_on_and_nobody_else_notices(secure: tuple[Daemon, ssl.SSLContext]) -> None:
    with connected(secure) as client:
        client.put("key", b"x")
        for noise in (b"version\r\n" * 10, b"\x16\x03\x01\x02\x00" + b"\x00" * 600, b"\x80" * 3):
            with QueueClient(secure[0].cache_port) as stranger:
                stranger.send(noise)
                stranger.end_input()
                assert b"VERSION" not in stranger.read_all()
        assert client.get("key") == b"x"
