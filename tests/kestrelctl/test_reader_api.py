"""Reading by item ids while others take what is read: what is gone is passed over, and said where that matters."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from kestrelctl.items.listing import follow
from kestrelctl.remote.reader_api import PAGE_ITEMS, ReaderApi, open_reader_api
from kestrelctl.shell.exit_codes import ExitCode, Failure
from tests.support.daemon import Daemon, running_daemon
from tests.support.wire import connected

ITEMS = 3 * PAGE_ITEMS
DATA = b"x" * 100


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Daemon]:
    """With a queue of many short segments."""
    with running_daemon(tmp_path, "max_journal_size=32KiB", admin="127.0.0.1:0") as daemon:
        with connected(daemon.address) as client:
            for _ in range(ITEMS // 500):
                client.ask(b"set q 0 0 %d\r\n%b\r\n" % (len(DATA), DATA) * 500, b"STORED\r\n" * 500)
        yield daemon


@pytest.fixture
def api(server: Daemon) -> ReaderApi:
    return open_reader_api(server.address, 60_000)


def take(server: Daemon, api: ReaderApi, count: int) -> int:
    """Take so many, and wait until segments of them are gone; the first id that is there still."""
    with connected(server.address) as client:
        for _ in range(count // 500):
            client.ask(b"get q\r\n" * 500, b"VALUE q 0 %d\r\n%b\r\nEND\r\n" % (len(DATA), DATA) * 500)
    while (first_id := int(api.describe("q")["first_id"])) <= count - 1000:
        pass
    return first_id


def test_a_listing_goes_on_behind_what_was_taken_meanwhile(server: Daemon, api: ReaderApi) -> None:
    items = api.waiting("q")
    page = [item.id for item in islice(items, PAGE_ITEMS)]
    assert page == list(range(1, PAGE_ITEMS + 1))
    assert take(server, api, 2500) > PAGE_ITEMS + 1
    assert [item.id for item in items] == list(range(2501, ITEMS + 1))


def test_a_listing_ends_where_the_queue_ended_when_it_began(server: Daemon, api: ReaderApi) -> None:
    items = api.waiting("q")
    next(items)
    with connected(server.address) as client:
        client.ask(b"set q 0 0 1\r\nx\r\n", b"STORED\r\n")
    assert [item.id for item in items] == list(range(2, ITEMS + 1))


def test_a_listing_of_a_queue_that_is_deleted_meanwhile_says_so(server: Daemon, api: ReaderApi) -> None:
    items = api.waiting("q")
    list(islice(items, PAGE_ITEMS))
    with connected(server.address) as client:
        client.ask(b"delete q\r\nset q 0 0 1\r\nx\r\n", b"DELETED\r\nSTORED\r\n")
    with pytest.raises(Failure) as failed:
        next(items)
    assert (failed.value.code, failed.value.words) == (ExitCode.NEGATIVE, "q was deleted meanwhile")


def test_who_follows_too_slowly_is_told_what_is_missing(
    server: Daemon, api: ReaderApi, capfd: pytest.CaptureFixture[str]
) -> None:
    journal_id = int(api.describe("q")["journal_id"])
    gone_id = take(server, api, 2500) - 1
    first_id = next(follow(api, "q", journal_id, 1))[0].id
    assert first_id > gone_id > 0  # more of them may be gone by now
    assert capfd.readouterr().err == f"kestrelctl: q: items 1 to {first_id - 1} were gone before they could be read\n"
