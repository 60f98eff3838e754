"""A long command does not let an old Kestrel's idle time-out take the item away."""

import threading
from pathlib import Path

import pytest

from kestrelctl.items import delivering
from kestrelctl.remote.client import KestrelClient
from tests.support.peer import WHO_IS_THERE, Exchange, scripted_peer


def test_the_connection_is_used_while_a_long_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivering, "KEEP_ALIVE_S", 1)
    used = tmp_path / "used"
    script = [
        WHO_IS_THERE,
        Exchange(b"get work/open\r\n", b"VALUE work 0 3\r\njob\r\nEND\r\n"),
        Exchange(b"version\r\n", b"VERSION 1.3.0\r\n"),
        Exchange(b"get work/close\r\n", b"END\r\n"),
    ]
    with scripted_peer(script) as peer:

        def end_the_command() -> None:
            assert peer.wait_until_heard(3)
            used.touch()

        end_after_use = threading.Thread(target=end_the_command)
        end_after_use.start()
        client = KestrelClient(peer.address, timeout_ms=5000)
        give = delivering.give_to_command(f"until [ -e '{used}' ]; do sleep 0.01; done", client)
        assert delivering.take(client, b"work", give, limit=1, wait_ms=0) == 1
        client.close()
        end_after_use.join()
