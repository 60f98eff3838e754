"""`doctor`: what it sees of a real server and its machine, and what it says to do."""

import json
import os
import pwd
import re
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kestrelctl.doctor.machine import space
from kestrelctl.doctor.results import CheckResult, exit_code, graded
from kestrelctl.remote.checking import State
from tests.support.daemon import Daemon, running_daemon
from tests.support.forked import no_forks
from tests.support.shell import ROOT, Kestrelctl

MACHINE = {"clock synchronised", "disk space", "disk latency"}  # as this one happens to be


@contextmanager
def installed_daemon(folder: Path, **settings: str) -> Iterator[Daemon]:
    """The doctor reads its command line."""
    with ExitStack() as stack:
        with no_forks():
            daemon = stack.enter_context(running_daemon(folder, **settings))
        yield daemon


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Daemon]:
    """With an admin port and a queue."""
    config = "queues: {work: {max_items: 7}}\n"
    with installed_daemon(tmp_path / "daemon", config=config, admin="127.0.0.1:0") as daemon:
        yield daemon


def examined(daemon: Daemon, *options: str) -> tuple[int, dict[str, tuple[str, str, str]]]:
    """The exit code, and by check its state, words and advice; those of this machine left out."""
    kestrelctl = Kestrelctl(daemon.address, daemon.folder)
    run = kestrelctl("doctor", "-o", "json", *options)
    found = {row["check"]: (row["state"], row["words"], row["advice"]) for row in json.loads(run.out)}
    states = [row[0] for row in found.values()]
    expected = 88 if "critical" in states else 1 if "warning" in states else 0
    assert run.code in (expected, 69)
    assert found.keys() >= MACHINE
    return run.code, {check: row for check, row in found.items() if check not in MACHINE}


def test_a_server_that_is_well_has_nothing_but_ok(watched: Daemon) -> None:
    Kestrelctl(watched.address, watched.folder)("put", "work", "x")
    _, found = examined(watched)
    assert {row[0] for row in found.values()} == {"ok"}, found
    assert {row[2] for row in found.values()} == {""}
    checks = {"server", "queues", "clock", "config", "admin port", "descriptors", "spool", "clock and journals"}
    assert found.keys() == checks
    assert found["admin port"][1] == f"{watched.admin} answers: ready"
    assert re.fullmatch(r"\d+ of \d+ in use", found["descriptors"][1])
    assert found["spool"][1].startswith(f"{watched.spool} belongs to ")


def test_a_setting_that_is_not_in_force_is_told_with_the_way_to_take_it_up(watched: Daemon) -> None:
    kestrelctl = Kestrelctl(watched.address, watched.folder)
    kestrelctl("put", "work", "x")
    watched.config_path.write_text("queues: {work: {max_items: 8}}\n")
    state, words, advice = examined(watched)[1]["config"]
    assert (state, words) == ("warning", "work max_items is 7, the file says 8")
    assert advice == f"run kestrelctl reload to apply {watched.config_path}"
    assert kestrelctl("reload").code == 0
    assert examined(watched)[1]["config"][0] == "ok"
    watched.config_path.write_text("max_itemz: 8\n")
    code, found = examined(watched)
    assert (code, found["config"][0]) == (88, "critical")
    assert "max_itemz" in found["config"][1]
    named = watched.folder / "named.yaml"
    named.write_text("max_age: 1h\nqueues: {work: {max_items: 7}}\n")
    assert "work max_age is 0, the file says 3600000" in examined(watched, "--config", str(named))[1]["config"][1]


def test_a_cache_is_looked_at_where_there_is_one_or_should_be(watched: Daemon, tmp_path: Path) -> None:
    watched.config_path.write_text("listen: {cache: 127.0.0.1:11211}\n")
    assert examined(watched)[1]["cache"] == (
        "warning",
        "listen.cache is set, but the server has no cache",
        "restart the server",
    )
    with installed_daemon(tmp_path / "cache", config="listen: {cache: 127.0.0.1:0}\n") as daemon:
        assert examined(daemon)[1]["cache"][:2] == ("ok", "0 values use 0 of 67108864 bytes")
        daemon.config_path.write_text("listen: {cache: 127.0.0.1:0}\ncache_memory: 1GiB\n")
        state, words, _ = examined(daemon)[1]["cache"]
        assert (state, words) == ("warning", "cache_memory is 67108864, the file says 1073741824")


def test_a_spool_that_others_may_look_into_or_write_to_is_told(watched: Daemon) -> None:
    for mode, state in ((0o755, "warning"), (0o722, "critical")):
        watched.spool.chmod(mode)
        found = examined(watched)[1]["spool"]
        assert (found[0], found[2]) == (state, f"chmod 0700 {watched.spool}")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_file_of_somebody_else_in_the_spool_is_critical(watched: Daemon) -> None:
    Kestrelctl(watched.address, watched.folder)("put", "work", "x")
    (segment,) = watched.spool.rglob("*.seg")
    os.chown(segment, pwd.getpwnam("nobody").pw_uid, -1)
    state, words, advice = examined(watched)[1]["spool"]
    assert (state, str(segment) in words) == ("critical", True)
    assert f"chown -R root {watched.spool}" in advice


def test_a_stopped_queue_and_an_admin_port_that_is_not_ready_are_critical(watched: Daemon) -> None:
    kestrelctl = Kestrelctl(watched.address, watched.folder)
    kestrelctl("put", "work", "first")
    kestrelctl("put", "work", "second")
    watched.stop()
    (segment,) = watched.spool.rglob("*.seg")
    segment.write_bytes(segment.read_bytes().replace(b"first", b"fIrst"))
    watched.start()
    assert kestrelctl("get", "work").code == 84
    code, found = examined(watched)
    assert (code, found["queues"]) == (
        88,
        ("critical", "stopped because of a corrupt journal: work", "kestrelctl repair work"),
    )


def test_few_descriptors_are_told(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (1024, 1024))
        state, words, advice = examined(daemon)[1]["descriptors"]
    assert (state, "of 1024 in use" in words) == ("warning", True)
    assert "LimitNOFILE" in advice


def test_without_a_server_the_machine_is_looked_at_and_it_is_exit_69(watched: Daemon) -> None:
    watched.stop()
    kestrelctl = Kestrelctl(watched.address, watched.folder)
    run = kestrelctl("doctor", "--spool", str(watched.spool), "--config", str(watched.config_path), "-o", "json")
    found = {row["check"]: row["state"] for row in json.loads(run.out)}
    assert run.code == 69
    assert (found["server"], found["spool"], found["descriptors"]) == ("critical", "ok", "unknown")
    assert run.err.startswith(f"kestrelctl: cannot reach {watched.address}")


def test_a_server_on_a_unix_socket_is_found_by_it(short_path: Path) -> None:
    with installed_daemon(short_path, listen=f"unix:{short_path}/s") as daemon:
        _, found = examined(daemon)
    assert (found["descriptors"][0], found["spool"][0], found["admin port"][1]) == ("ok", "ok", "off")


def test_a_line_for_each_check_begins_with_its_state(watched: Daemon, tmp_path: Path) -> None:
    run = Kestrelctl(watched.address, tmp_path)("doctor", "--no-headers")
    lines = [line.split("\t") for line in run.out.decode().splitlines()]
    assert all(len(line) == 4 for line in lines)
    assert {line[0] for line in lines} <= {"ok", "warning", "critical", "unknown"}


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ((State.OK, State.UNKNOWN), 0),
        ((State.OK, State.WARNING, State.UNKNOWN), 1),
        ((State.WARNING, State.CRITICAL), 88),
    ],
)
def test_the_worst_decides_and_what_is_unknown_does_not_count(states: tuple[State, ...], code: int) -> None:
    assert exit_code([CheckResult("x", state, "") for state in states]) == code


def test_limits_are_warnings_from_the_first_and_critical_from_the_second() -> None:
    assert [graded("x", value, (1, 2), "", "").state for value in (0.9, 1, 2)] == [
        State.OK,
        State.WARNING,
        State.CRITICAL,
    ]


def test_a_full_disk_is_critical() -> None:
    assert os.statvfs("/proc").f_bavail == 0
    assert space("disk space", "/proc").state == State.CRITICAL


def test_json_has_the_keys_that_the_documentation_promises(watched: Daemon, tmp_path: Path) -> None:
    (row,) = re.findall(r"^\| `doctor` \| (.*) \|$", (ROOT / "docs" / "kestrelctl.md").read_text(), re.MULTILINE)
    run = Kestrelctl(watched.address, tmp_path)("doctor", "-o", "json")
    assert {key for one in json.loads(run.out) for key in one} == set(re.findall(r"`([a-z]+)`", row))
