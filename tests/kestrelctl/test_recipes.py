"""The scripts of docs/recipes, as they stand there, under dash and bash."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.daemon import Daemon, running_daemon
from tests.support.shell import Kestrelctl, Outcome

RECIPES: Final = Path(__file__).parents[2] / "docs" / "recipes"
pytestmark = [pytest.mark.parametrize("shell", ["dash", "bash"]), pytest.mark.exhaustive("dash")]


class Recipes:
    """Runs a recipe by its name."""

    def __init__(self, kestrelctl: Kestrelctl, folder: Path, shell: str) -> None:
        path = shutil.which(shell)
        if path is None:
            pytest.skip(f"{shell} is not installed")
        self._shell = path
        self._folder = folder
        self._environment = kestrelctl.environment

    def __call__(self, name: str, *arguments: str, **variables: str) -> Outcome:
        (script,) = re.findall(r"^```sh\n(.*?)^```$", (RECIPES / f"{name}.md").read_text(), re.MULTILINE | re.DOTALL)
        path = self._folder / name
        path.write_text(script)
        run = subprocess.run(
            [self._shell, str(path), *arguments],
            cwd=self._folder,
            env=self._environment | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
        )
        return Outcome(run.returncode, run.stdout, run.stderr.decode())


@pytest.fixture
def recipe(kestrelctl: Kestrelctl, tmp_path: Path, shell: str) -> Recipes:
    return Recipes(kestrelctl, tmp_path, shell)


def test_drain_moves_any_bytes_into_a_file_and_back(
    kestrelctl: Kestrelctl, recipe: Recipes, queue: str, tmp_path: Path
) -> None:
    items = b"one\0" + b"two\nlines\0" + b"\xff\xfe\0"
    kestrelctl("put", queue, "--null", stdin=items)
    for _ in range(2):  # the second finds nothing, which is no failure
        assert recipe("drain", queue, "items") == Outcome(0, b"", "")
    assert kestrelctl("get", queue).code == 1
    kestrelctl("put", queue, "--length-prefixed", stdin=(tmp_path / "items").read_bytes())
    assert kestrelctl("get", queue, "--all", "--null").out == items


def test_a_drain_onto_a_full_disk_leaves_the_items(kestrelctl: Kestrelctl, recipe: Recipes, queue: str) -> None:
    kestrelctl("put", queue, "kept")
    assert recipe("drain", queue, "/dev/full").code == 74
    assert kestrelctl("get", queue).out == b"kept"


def test_the_cron_worker_handles_all_and_is_quiet(
    kestrelctl: Kestrelctl, recipe: Recipes, queue: str, tmp_path: Path
) -> None:
    kestrelctl("put", queue, "--lines", stdin=b"a\nb\n")
    for _ in range(2):
        assert recipe("cron-worker", queue, f"cat >>{tmp_path}/done") == Outcome(0, b"", "")
    assert (tmp_path / "done").read_bytes() == b"ab"


def test_the_cron_worker_gives_back_what_its_handler_fails_at(
    kestrelctl: Kestrelctl, recipe: Recipes, queue: str
) -> None:
    kestrelctl("put", queue, "--lines", stdin=b"bad\nlater\n")
    run = recipe("cron-worker", queue, "exit 3")
    assert run.code == 85
    assert run.err.count("\n") == 1
    assert kestrelctl("get", queue, "--all").out == b"bad\nlater\n"


def test_the_cron_worker_does_not_fail_while_the_server_is_away(recipe: Recipes) -> None:
    run = recipe("cron-worker", "q", "cat", KESTRELCTL_SERVER="127.0.0.1:1")
    assert run.code == 0
    assert run.err.count("\n") == 1


def test_a_backup_of_a_busy_server_holds_what_was_put_before_it(
    own_daemon: Daemon, own_kestrelctl: Kestrelctl, shell: str, tmp_path: Path
) -> None:
    own_kestrelctl("put", "work", "--lines", stdin=b"".join(b"%d\n" % number for number in range(1000)))
    flood = [sys.executable, "-m", "kestrelctl", "bench", "flood", "-n", "1000000", "-k", "0", "-q", "busy"]
    with subprocess.Popen(
        flood, env=own_kestrelctl.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as busy:
        recipe = Recipes(own_kestrelctl, tmp_path, shell)
        (tmp_path / "copy").mkdir()
        for _ in range(2):  # the second replaces the first
            run = recipe("backup", str(own_daemon.spool), "copy/spool")
            assert run.code == 0, run.err
        busy.terminate()
    with running_daemon(tmp_path / "copy") as restored:
        restored_kestrelctl = Kestrelctl(restored.address, tmp_path)
        taken = restored_kestrelctl("get", "work", "--all").out.splitlines()
    assert taken == [b"%d" % number for number in range(1000)]


def test_a_backup_with_a_damaged_journal_keeps_the_copy_of_all_others_then_complains(
    own_daemon: Daemon, own_kestrelctl: Kestrelctl, shell: str, tmp_path: Path
) -> None:
    recipe = Recipes(own_kestrelctl, tmp_path, shell)
    own_kestrelctl("put", "work", "--lines", stdin=b"first\nsecond\n")
    assert recipe("backup", str(own_daemon.spool), "copy").code == 0
    own_kestrelctl("put", "later", "x")
    assert own_daemon.stop() == 0
    (segment,) = (own_daemon.spool / "work.journal").glob("*.seg")
    data = bytearray(segment.read_bytes())
    data[data.index(b"first")] ^= 1
    segment.write_bytes(data)
    for _ in range(2):
        run = recipe("backup", str(own_daemon.spool), "copy")
        assert run.code == 65
        assert "corrupt" in run.err
        assert list((tmp_path / "copy" / "later.journal").glob("*.seg"))
        (whole,) = (tmp_path / "copy.whole" / "work.journal").glob("*.seg")
        assert b"first" in whole.read_bytes()
    assert own_kestrelctl("journal-verify", "--repair", str(own_daemon.spool)).code == 1
    assert recipe("backup", str(own_daemon.spool), "copy").code == 0
    assert sorted(path.name for path in tmp_path.glob("copy*")) == ["copy", "copy.old"]


def test_wait_for_empty_waits_for_all_queues_or_says_which_is_not(
    kestrelctl: Kestrelctl, recipe: Recipes, queue: str
) -> None:
    kestrelctl("put", queue, "x")
    run = recipe("wait-for-empty", "50ms", queue)
    assert run.code == 124
    assert run.err.startswith(f"{queue} is not empty after 50ms:\nqueue\titems\t")
    kestrelctl("get", queue)
    assert recipe("wait-for-empty", "50ms", queue, queue) == Outcome(0, b"", "")


def test_alert_speaks_when_the_verdict_changes_and_only_then(
    kestrelctl: Kestrelctl, recipe: Recipes, queue: str, tmp_path: Path
) -> None:
    def alerted() -> list[str]:
        assert recipe("alert", "state", "cat >>alerts", queue, "--items-warn", "1") == Outcome(0, b"", "")
        alerts = tmp_path / "alerts"
        return [line.split(" - ")[0] for line in alerts.read_text().splitlines()] if alerts.exists() else []

    kestrelctl("put", queue, "x")
    assert alerted() == ["KESTREL WARNING"]
    assert alerted() == ["KESTREL WARNING"]
    kestrelctl("get", queue)
    assert alerted() == ["KESTREL WARNING", "KESTREL OK"]
    assert alerted() == ["KESTREL WARNING", "KESTREL OK"]
