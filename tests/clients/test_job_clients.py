"""Other people's Redis clients drive every command on jobs; redis-cli and redis-py do in tests/jobs."""

import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.clients.preparing import Missing, of_node
from tests.support.daemon import running_daemon
from tests.support.resp import resp_client

BESIDE_COMMANDS: Final = {"blocking", "pipeline", "unknown"}


def test_ioredis_drives_every_command(tmp_path: Path) -> None:
    try:
        run = of_node("ioredis", "jobs.js")
    except Missing as missing:
        pytest.skip(str(missing))
    with running_daemon(tmp_path, "listen.disque=127.0.0.1:0", "jobs.journal=true") as daemon:
        with resp_client(daemon.disque) as client:
            commands = {one[0].decode() for one in client("COMMAND")}
        words = [*run.command, daemon.disque.rpartition(":")[2]]
        done = subprocess.run(words, env=run.environment, capture_output=True, text=True, timeout=100)
        said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
        assert said == dict.fromkeys(commands | BESIDE_COMMANDS, "ok"), done.stderr
        assert daemon.wait() == 0
