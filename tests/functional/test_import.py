"""A real kestreld started on the spools of real Kestrels serves what they did, and what they lost."""

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from kestreld.config.config_file import load
from kestreld.journal.kestrel.ops import ADDX, Op, encode
from tests.support.daemon import ROOT, Daemon, running_daemon
from tests.support.queue_client import QueueClient
from tests.support.shell import Kestrelctl

JOURNALS: Final = Path(__file__).parents[1] / "golden" / "journals"
SETS: Final = sorted(path.name for path in JOURNALS.iterdir() if path.is_dir())

RECORDED_AT_S: Final = 1_795_253_600  # some items expired while they were recorded

# Sets of which more comes back than Kestrel delivered: it cuts a damaged file, and all behind the cut is lost.
DAMAGED: Final = ("c_trunc", "c_arch_trunc", "c_badop")
# Kestrel 2.x does not start on these.
REFUSED: Final = {
    "f_hugelen": {"f_hugelen": ["a", "b"]},
    "f_neglen": {"f_neglen": ["a", "b"]},
    "f_weirdname": {"f_weird": ["a"]},
}
# What Kestrel loses or turns around: 2.x all but one open read of 1.x, 1.3 the order of several after a roll.
MENDED: Final = {
    "c_old_rt2": {"c_old_rt2": ["a", "b", "c"]},
    "c_old_roll": {"c_old_roll": ["open4", "open5", "q1", "q2"]},
    "v13_k_rollopen": {"k_rollopen": ["0000" + "w" * 40, "0001" + "w" * 40, "0002" + "w" * 40, "tail"]},
}


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A kestreld that was started on the files of all sets."""
    folder = tmp_path_factory.mktemp("kestreld")
    spool = folder / "spool"
    spool.mkdir()
    for name in SETS:
        shutil.copytree(JOURNALS / name / "files", spool, dirs_exist_ok=True)
    with running_daemon(folder) as daemon:
        yield daemon


def expected(name: str) -> dict[str, list[str]]:
    """The items of each queue of a set."""
    expect = json.loads((JOURNALS / name / "expect.json").read_text())
    recovered = {queue: found["items"] for queue, found in expect.get("queues", {}).items()}
    return REFUSED.get(name) or MENDED.get(name) or recovered | expect.get("queues_recovered_by_13", {})


@pytest.mark.parametrize("name", SETS)
def test_a_recorded_spool_is_served(imported: Daemon, name: str) -> None:
    assert expected(name)
    if name == "j_expired" and time.time() < RECORDED_AT_S:
        pytest.skip("the clock says that what expired when it was recorded is yet to expire")
    with QueueClient(imported.port) as client:
        for queue, items in expected(name).items():
            got = [data.decode("latin-1") for data in client.drain(queue)]
            if name.startswith(DAMAGED):
                rest = iter(got)
                assert all(data in rest for data in items), got
            else:
                assert got == items


def test_what_could_not_be_read_is_in_the_log_and_the_rest_went_to_imported(imported: Daemon) -> None:
    spool = imported.spool
    assert f"kestreld: c_badop10: {spool}/c_badop10: byte 44: unknown opcode 10; unread_bytes=1" in imported.log
    assert f"kestreld: {spool}/f_weird.backup: not a file of Kestrel or kestreld; left alone" in imported.log
    left = {path.name for path in spool.iterdir() if path.is_file() and path.name != ".lock"}
    assert left == {"f_weird.backup"}
    (folder,) = (spool / ".imported").iterdir()
    sources = {path.name for name in SETS for path in (JOURNALS / name / "files").iterdir() if path.is_file()}
    assert {path.name for path in folder.iterdir()} == sources - left


def test_kill_9_after_an_import_loses_nothing_and_a_restart_imports_nothing(tmp_path: Path) -> None:
    items = [b"%d" % number for number in range(1000)]
    spool = tmp_path / "spool"
    spool.mkdir()
    (spool / "q").write_bytes(b"".join([encode(Op(ADDX, 0, 1_700_000_000_000, 0, data)) for data in items]))
    with running_daemon(tmp_path) as daemon:
        with QueueClient(daemon.port) as client:
            assert [client.get("q") for _ in range(300)] == items[:300]
        daemon.kill()
        daemon.start()
        with QueueClient(daemon.port) as client:
            assert client.drain("q") == items[300:]


def test_a_queue_whose_files_lie_beside_another_journal_is_stopped_and_the_others_serve(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        with QueueClient(daemon.port) as client:
            client.put("q", b"new")
            client.put("other", b"x")
        daemon.stop()
        (daemon.spool / "q").write_bytes(encode(Op(ADDX, 0, 1_700_000_000_000, 0, b"old")))
        daemon.start()
        with QueueClient(daemon.port) as client:
            client.send(b"get q\r\n")
            answer = client.expect_line(b"SERVER_ERROR corrupt ").decode()
            assert f"{daemon.spool}/q: " in answer
            assert f"{daemon.spool}/q.journal" in answer
            assert client.drain("other") == [b"x"]


def shown(language: str) -> list[str]:
    """The code blocks of the migration page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "docs/migration.md").read_text(), re.M | re.S)


def test_the_commands_on_the_migration_page_work_as_written(tmp_path: Path) -> None:
    into_spool, into_server, back = shown("sh")
    kestrel = tmp_path / "kestrel"
    shutil.copytree(JOURNALS / "j_readbehind" / "files", kestrel)
    for path in list(kestrel.iterdir()):
        path.rename(kestrel / path.name.replace("j_readbehind", "work"))
    items = [data.encode() for data in expected("j_readbehind")["j_readbehind"]]
    with running_daemon(tmp_path / "running") as daemon, QueueClient(daemon.port) as client:
        for number, command in enumerate((into_spool, into_server, back)):
            here = command.replace("/var/spool", str(tmp_path)).replace("127.0.0.1:22133", daemon.address)
            run = Kestrelctl("127.0.0.1:1", tmp_path).script("sh", here)
            assert (run.code, run.err) == (0, ""), number
        assert client.drain("work") == items
    shutil.copytree(tmp_path / "kestrel-again", tmp_path / "last" / "spool")
    with running_daemon(tmp_path / "last") as daemon, QueueClient(daemon.port) as client:
        assert client.drain("work") == items


def test_the_configuration_on_the_migration_page_has_no_mistakes_and_says_the_same() -> None:
    (block,) = shown("yaml")
    config = load(block, "docs/migration.md")
    assert (str(config.memcache[0]), config.queue_path) == ("0.0.0.0:22133", "/var/spool/kestrel")
    work = config.for_queue("work")
    assert (work.max_items, work.max_age_ms, work.move_expired_to) == (100_000, 60_000, "late")
