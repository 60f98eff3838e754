"""The journal screen: segments, who holds them, and the checksums of files that can be read from here."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.support.daemon import Daemon, running_daemon
from tests.support.http import ask
from tests.support.queue_client import QueueClient
from tests.tui.sights import console, drive, line_of, lines, put, until, until_true
from tui.admin_queries import Asked
from tui.journals import JournalDetails, ask_journal, check_journal
from tui.screens.details import Details

SMALL_SEGMENTS = ("max_journal_size=1024", "max_journal_overflow=1000")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """With a queue `work` of 60 items, 40 of them taken, and a child that has taken none."""
    with running_daemon(tmp_path, *SMALL_SEGMENTS, admin="127.0.0.1:0") as daemon:
        with QueueClient(daemon.port) as client:
            client.get("work+audit")
            for _ in range(60):
                client.put("work", b"x" * 200)
            for _ in range(40):
                client.get("work")
        yield daemon


def details_of(daemon: Daemon, queue: str) -> JournalDetails:
    return ask_journal(Asked(daemon.address, daemon.admin, 5000), queue)


def never() -> bool:
    return False


@pytest.mark.long
def test_segments_holders_and_checksums(daemon: Daemon) -> None:
    segments = len(list((daemon.spool / "work.journal").glob("*.seg")))

    async def driving(pilot: Pilot[None]) -> None:
        await until(pilot, "queues 2")
        await pilot.press("enter")
        await until(pilot, "max_items=infinite")
        await pilot.press("J")
        await until(pilot, f"work  journal  segments {segments}", "not checked yet", "≤4", "+audit, the queue")
        assert line_of(pilot, "│ +audit").split()[2:6] == ["head", "1", "60", "behind"]
        await pilot.press("c")
        await until(pilot, f"● all checksums match: {segments} segments", "ok  +audit")
        await pilot.press("escape")
        await until_true(pilot, lambda: isinstance(pilot.app.screen, Details), "the details")

    drive(console(daemon.address), driving, size=(120, 40))


def test_damage_is_shown_where_it_is(daemon: Daemon) -> None:
    second = sorted((daemon.spool / "work.journal").glob("*.seg"))[1]
    content = bytearray(second.read_bytes())
    content[-50] ^= 1
    second.write_bytes(content)

    async def driving(pilot: Pilot[None]) -> None:
        await until(pilot, "queues 2")
        await pilot.press("J")
        await until(pilot, "not checked yet")
        await pilot.press("c")
        await until(pilot, f"✖ {second.name}: corrupt", "✖ BAD")
        assert sum("BAD" in line for line in lines(pilot)) == 1

    drive(console(daemon.address), driving, size=(120, 40))


def test_a_server_without_an_admin_port_is_said_to_have_none(own_daemon: Daemon) -> None:
    put(own_daemon.address, "work", b"x")

    async def driving(pilot: Pilot[None]) -> None:
        await until(pilot, "queues 1")
        await pilot.press("J", "c")
        await until(pilot, "cannot show its journal: no admin port")

    drive(console(own_daemon.address), driving, size=(120, 40))


def test_only_the_journal_of_this_server_is_read(daemon: Daemon) -> None:
    details = details_of(daemon, "work")
    assert check_journal(details, "work", never).failure == ""
    details.journal_id += 1
    assert "is not on this machine" in check_journal(details, "work", never).failure
    details.folder = ""
    assert "requires the admin right" in check_journal(details, "work", never).failure


def test_a_check_that_nobody_waits_for_is_given_up(daemon: Daemon) -> None:
    check = check_journal(details_of(daemon, "work"), "work", lambda: True)
    assert (check.segments, check.failure) == ({}, "cancelled")


def test_what_is_refused_is_said(daemon: Daemon) -> None:
    assert details_of(daemon, "nobody").failure == "no such queue"
    assert ask(daemon, "/queues/nobody/journal").status == 404


def test_children_and_names_of_any_bytes(daemon: Daemon) -> None:
    assert [segment.state for segment in details_of(daemon, "work+audit").segments][-1] == "live"
    put(daemon.address, "a:b%2Fü", b"x")
    details = details_of(daemon, "a:b%2Fü")
    assert details.failure == ""
    assert len(check_journal(details, "a:b%2Fü", never).segments) == 1
