"""Servers that require a login, and TLS."""

import shutil
import time
from pathlib import Path

import kombu
import pytest

import kestreld.integrations.celery
from kestreld.errors import LoginRefused
from kestreld.integrations.celery.leases import FINISH_MS
from tests.functional.test_tls import settings
from tests.support.accounts import login, quick_hash
from tests.support.certificates import Authority
from tests.support.daemon import running_daemon
from tests.support.queue_client import QueueClient
from tests.support.way import Way

assert kestreld.integrations.celery
USERS = f"""
users:
  sender: {{password: "{quick_hash("one")}", rights: {{"*": [put, create]}}}}
  worker: {{password: "{quick_hash("two")}", rights: {{"*": [put, get, create, delete]}}}}
"""


def test_who_may_only_put_sends_and_who_may_get_consumes(tmp_path: Path) -> None:
    with running_daemon(tmp_path, config=USERS) as daemon:
        queue = kombu.Queue("tasks")
        with kombu.Connection(f"kestrel://sender:one@{daemon.address}") as connection:
            connection.Producer().publish(1, routing_key="tasks", declare=[queue])
        with kombu.Connection(f"kestrel://worker:two@{daemon.address}") as connection:
            message = connection.SimpleQueue("tasks").get(timeout=5)
            assert message.payload == 1
            message.ack()
        for url in (f"kestrel://{daemon.address}", f"kestrel://worker:wrong@{daemon.address}"):
            with pytest.raises(LoginRefused):
                kombu.Connection(url).connect()


def test_an_acknowledgement_that_is_refused_keeps_no_other_waiting(tmp_path: Path) -> None:
    """Over the connection that repeats those which were lost with another."""
    with running_daemon(tmp_path, config=USERS) as daemon:
        way = Way(daemon.port)
        connection = kombu.Connection(f"kestrel://worker:two@127.0.0.1:{way.port}")
        messages = []
        for name in ("theirs", "mine"):
            queue = connection.SimpleQueue(name)
            queue.put(1)
            messages.append(queue.get(timeout=5))
        daemon.reload(USERS.replace('rights: {"*": [put, get', 'rights: {"mine": [put, get'))
        way.reset()
        for message in messages:
            message.ack()
        with QueueClient(daemon.port) as client:
            client.ask(login("worker", "two"), b"STORED\r\n")
            client.until("mine", open_transactions=0)
        began_at = time.monotonic()
        connection.close()
        assert time.monotonic() - began_at < FINISH_MS / 2000, "nothing is left that it would wait for"
        way.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")
def test_messages_of_all_sizes_come_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    authority.issue_server()
    with running_daemon(tmp_path / "server", listen="tls:127.0.0.1:0", config=settings(authority)) as daemon:
        url = f"kestrels://{daemon.address.removeprefix('tls:')}"
        with kombu.Connection(url, ssl={"ssl_ca_certs": str(authority.certificate)}) as connection:
            queue = connection.SimpleQueue("tls")
            for size in (1, 16_383, 16_384, 200_000):
                queue.put("x" * size)
            for size in (1, 16_383, 16_384, 200_000):
                message = queue.get(timeout=5)
                assert message.payload == "x" * size
                message.ack()
        with pytest.raises(kombu.Connection(url).connection_errors, match="certificate"):
            kombu.Connection(url).connect()
