"""docs/admin.md: every command on it works as written."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kestreld.figures import OF_JOBS
from kestreld.server.admin.metrics import METRICS
from kestreld.server.disque.figures import COLUMNS
from tests.support.daemon import running_daemon

PAGE = Path(__file__).parents[2] / "docs" / "admin.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_commands_on_the_page_work(tmp_path):
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    said = []
    with running_daemon(tmp_path, "listen.disque=127.0.0.1:0", admin="127.0.0.1:0") as daemon:
        for block in blocks:
            script = block.replace("127.0.0.1:2223", daemon.admin)
            path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            servers = {"KESTRELCTL_SERVER": daemon.address, "KESTRELCTL_JOBS": daemon.disque}
            environment = os.environ | {"PATH": path, **servers}
            done = subprocess.run(["sh", "-euc", script], env=environment, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, (script, done.stderr)
            said.append(done.stdout)
    assert len(blocks) == 11
    assert said[0] == "ok\nready\n"
    assert '"is_full":false' in said[3]
    assert '"data":"second"' in said[4]
    assert '"id":3,"bytes":93,"is_end":true' in said[5]
    assert '"moved":3,"to":{"again":3},"without_origin":0' in said[6]
    assert '"state":"live"' in said[7]
    assert '"rows":[["mail",1,0,1,0,0,0,1,1,"none",0,' in said[8]
    assert '"state":"active"' in said[8]
    assert '"data":"hello"' in said[8]
    assert said[9].splitlines()[0] == '{"reader":"report","kind":"stream","head":1,"behind":4}'
    assert said[9].splitlines()[-1] == '{"dropped":"report"}'
    assert '"waiters":0,"open":0,"leased":0,"waiting":[],"holding":[],"leasing":[],"readers":[{"reader":"",' in said[10]


def test_the_page_names_every_metric_of_queues():
    shown = set(re.findall(r"`(?:kestrel_queue)?_(\w+)`", PAGE.read_text()))
    assert {one.metric for one in METRICS.values()} <= shown


def test_the_page_names_every_metric_of_jobs_and_every_column():
    page = PAGE.read_text()
    shown = set(re.findall(r"`(?:kestrel_jobs|kestrel_jobs_queue)?_(\w+)`", page))
    shown |= {name.removeprefix("queue_") for name in shown} | {f"cluster_{name}" for name in shown}
    assert {one.metric for one in OF_JOBS} <= shown
    assert all(f"`{column}`" in page for column in COLUMNS)
