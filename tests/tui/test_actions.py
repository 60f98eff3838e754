"""What the console changes: chosen items, marked queues, and the commands behind a colon."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot

from kestrelctl.remote.client import NOBODY
from tests.support.daemon import Daemon, running_daemon
from tests.support.queue_client import QueueClient
from tests.tui.sights import console, drive, line_of, lines, put, type_in, until, until_true
from tui.app import Console
from tui.console import run_console
from tui.plain import ViewOptions
from tui.preferences import file_path, keep_columns, load_columns
from tui.screens.details import Details
from tui.screens.overview import Overview
from tui.table import COLUMNS_SHOWN


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with running_daemon(tmp_path / "daemon", admin="127.0.0.1:0") as daemon:
        yield daemon


def drained(daemon: Daemon, queue: str) -> list[bytes]:
    with QueueClient(daemon.port) as client:
        return client.drain(queue)


async def opened(pilot: Pilot[None], queue: str) -> None:
    app = pilot.app
    assert isinstance(app, Console)
    await until(pilot, f"{queue} ")
    app.open_queue(queue)
    await until(pilot, " byte", "max_items=", "#")


async def confirm(pilot: Pilot[None], question: str, word: str) -> None:
    await until(pilot, question)
    await type_in(pilot, word, "enter")


async def command(pilot: Pilot[None], line: str) -> None:
    await pilot.press("colon")
    await type_in(pilot, line.replace(" ", "\0").replace("\0", " "), "enter")


@pytest.mark.long
def test_chosen_items_are_requeued_moved_and_deleted_and_the_others_keep_their_places(daemon: Daemon) -> None:
    put(daemon.address, "work", b"a", b"b", b"c", b"d", b"e")
    with QueueClient(daemon.port) as client:
        client.put("work", b"flagged", flags=7, expiry_s=3600)

    async def driving(pilot: Pilot[None]) -> None:
        await opened(pilot, "work")
        await pilot.press("down", "a", "down", "a")  # b and d
        await until(pilot, " *#2", " *#4")
        await pilot.press("R")
        await confirm(pilot, "Put 2 items of work at the end", "work")
        await until(pilot, "#7  ", "#8  ")
        await pilot.press("home", "D")
        await confirm(pilot, "Delete 1 item of work", "work")
        await until_true(pilot, lambda: not line_of(pilot, "#1  "), "the item gone")
        await pilot.press("home", "down", "down", "M")
        await confirm(pilot, "Move 1 item of work", "other")
        await until_true(pilot, lambda: not line_of(pilot, "#6  "), "the item gone")

    drive(console(daemon.address), driving, (140, 40))
    assert drained(daemon, "work") == [b"c", b"e", b"b", b"d"]
    with QueueClient(daemon.port) as client:
        client.ask_for("other/peek")
        assert client.read_line() == b"VALUE other/peek 7 7"


@pytest.mark.long
def test_items_that_a_consumer_holds_are_left_to_it(daemon: Daemon) -> None:
    put(daemon.address, "work", b"a", b"b")

    async def driving(pilot: Pilot[None]) -> None:
        await opened(pilot, "work")
        await pilot.press("A", "D")
        await confirm(pilot, "Delete 2 items", "work")
        await until(pilot, "work  items 0", "1 byte  OPEN")
        await until_true(pilot, lambda: not line_of(pilot, "#2  "), "the other one gone")

    with QueueClient(daemon.port) as consumer:
        consumer.get("work/open")
        drive(console(daemon.address), driving, (140, 40))
    assert drained(daemon, "work") == [b"a"]


@pytest.mark.long
def test_what_would_bring_items_back_is_refused(daemon: Daemon) -> None:
    put(daemon.address, "work+audit", b"x")
    put(daemon.address, "work", b"a")

    async def driving(pilot: Pilot[None]) -> None:
        await opened(pilot, "work")
        await pilot.press("R")
        await until(pilot, "once more to the children of work")
        await pilot.press("M")
        await confirm(pilot, "Move 1 item", "work")
        await until(pilot, "source and destination are the same")

    drive(console(daemon.address), driving, (140, 40))
    assert drained(daemon, "work") == [b"a"]


def test_single_items_require_the_admin_port_and_nothing_is_done_without(own_daemon: Daemon) -> None:
    put(own_daemon.address, "work", b"a", b"b")

    async def driving(pilot: Pilot[None]) -> None:
        await until(pilot, "queues 1")
        await pilot.press("enter")
        await until(pilot, "no admin port")
        await pilot.press("D")
        await until(pilot, "require the server's admin port")

    drive(console(own_daemon.address), driving, (140, 40))
    assert drained(own_daemon, "work") == [b"a", b"b"]


def test_marked_queues_are_flushed_moved_and_deleted_together(daemon: Daemon) -> None:
    for queue in ("a", "b", "c", "d"):
        put(daemon.address, queue, b"1", b"2")

    async def driving(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, Console)
        table = app.overview.table
        await until(pilot, "queues 4")
        await pilot.press("a", "a", "f")
        await confirm(pilot, "Discard all items of 2 queues (a, b)", "2 queues")
        await until(pilot, "items 4")
        await pilot.press("a", "A", "A")  # all, then none
        await pilot.press("home", "down", "down", "a", "M")
        await confirm(pilot, "Move all items of c", "a")
        await until_true(pilot, lambda: ("a", 2) in [(row.queue, row.items) for row in table.rows], "the items on a")
        await pilot.press("A", "d")
        await confirm(pilot, "Delete 4 queues", "4 queues")
        await until(pilot, "queues 0")

    drive(console(daemon.address), driving)


def test_an_item_is_put_by_key_and_by_command(daemon: Daemon) -> None:
    put(daemon.address, "work", b"1")

    async def driving(pilot: Pilot[None]) -> None:
        await until(pilot, "queues 1")
        await pilot.press("p")
        await confirm(pilot, "Put an item on work", "second")
        await until(pilot, "items 2")
        await command(pilot, "put third one")
        await until(pilot, "items 3")

    drive(console(daemon.address), driving)
    assert drained(daemon, "work") == [b"1", b"second", b"third one"]


@pytest.mark.long
def test_commands_sort_filter_open_and_quit(daemon: Daemon) -> None:
    for queue, count in (("a", 1), ("b", 3), ("c", 2)):
        put(daemon.address, queue, *[b"x"] * count)

    def shown(app: Console) -> str:
        return "".join(row.queue for row in app.overview.table.rows)

    async def driving(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, Console)
        await until(pilot, "queues 3")
        for line, order in (
            ("sort items", "bca"), ("sort +items", "acb"), ("sort queue", "abc"), ("filter items>1", "bc"),
            ("filter", "abc"),
        ):  # fmt: skip
            await command(pilot, line)
            await until_true(pilot, lambda order=order: shown(app) == order, line)
        await command(pilot, "interval 2s")
        await until(pilot, "every 2.0s")
        await command(pilot, "theme light")
        await until_true(pilot, lambda: app.theme == "light", "the theme")
        for line, words in (
            ("sort size", "no column 'size'"),
            ("fly", "no command 'fly'"),
            ("queue x", "no such queue: x"),
        ):
            await command(pilot, line)
            await until(pilot, words)
        await command(pilot, "queue c")
        await until_true(pilot, lambda: isinstance(app.screen, Details) and app.screen.queue == "c", "details")
        await pilot.press("colon", "escape", "escape")
        await until_true(pilot, lambda: isinstance(app.screen, Overview), "the table")
        await command(pilot, "q")
        await until_true(pilot, lambda: not app.is_running or app._exit, "the end")

    drive(console(daemon.address), driving)


@pytest.mark.long
def test_a_console_that_may_only_read_refuses_commands_that_change_something(daemon: Daemon) -> None:
    put(daemon.address, "work", b"1")

    async def driving(pilot: Pilot[None]) -> None:
        await until(pilot, "queues 1")
        for line in ("flush", "delete", "put x", "move x", "reload"):
            await command(pilot, line)
            await until(pilot, f"{line.split()[0]} is not possible here")
        await pilot.press("enter")
        await until(pilot, "#1  ")
        await pilot.press("D", "R", "M")
        assert isinstance(pilot.app.screen, Details)

    drive(console(daemon.address, is_read_only=True), driving, (140, 40))
    assert drained(daemon, "work") == [b"1"]


def test_columns_are_chosen_and_found_again(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    put(daemon.address, "work", b"1")
    started: list[Console] = []

    def run(app: Console) -> None:
        started.append(app)

    monkeypatch.setattr(Console, "run", run)

    def start() -> Console:
        run_console(
            [daemon.address], NOBODY, ViewOptions(), interval_ms=100, timeout_ms=5000,
            is_read_only=False, theme=None, record=None, replay=None,
        )  # fmt: skip
        return started[-1]

    async def choosing(pilot: Pilot[None]) -> None:
        await until(pilot, "queues 1")
        await command(pilot, "columns in/s items, oldest")
        await until_true(pilot, lambda: line_of(pilot, "in/s   items").split()[1:] == ["in/s", "items", "oldest"], "3")

    async def again(pilot: Pilot[None]) -> None:
        await until_true(pilot, lambda: line_of(pilot, "in/s   items").split()[1:] == ["in/s", "items", "oldest"], "3")
        await command(pilot, "columns")
        await until(pilot, "state", "mem_bytes")

    drive(start(), choosing)
    assert json.loads(Path(file_path()).read_text()) == {"columns": ["in_per_s", "items", "oldest_ms"]}
    drive(start(), again)
    assert load_columns() == COLUMNS_SHOWN


def test_a_file_of_columns_that_is_damaged_is_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert load_columns() == COLUMNS_SHOWN
    keep_columns(("items",))
    assert load_columns() == ("items",)
    for damage in ("", "[]", '{"columns": ["size"]}', '{"columns": 3}'):
        Path(file_path()).write_text(damage)
        assert load_columns() == COLUMNS_SHOWN


def test_left_and_right_go_column_by_column(daemon: Daemon) -> None:
    put(daemon.address, "work", b"1")

    def heads(pilot: Pilot[None]) -> list[str]:
        return line_of(pilot, "▲queue").replace("›", "").replace("‹", "").split()[1:]

    async def driving(pilot: Pilot[None]) -> None:
        await until(pilot, "queues 1")
        whole = heads(pilot)
        assert whole[:2] == ["state", "items"]
        for width in range(1, 3):
            await pilot.press("right")
            await until_true(pilot, lambda width=width: heads(pilot)[0] == ["items", "oldest"][width - 1], "a column")
            assert all(head in (*COLUMNS_SHOWN, "oldest", "open", "in/s", "out/s", "age") for head in heads(pilot))
        await pilot.press("left", "left", "left")
        await until_true(pilot, lambda: heads(pilot) == whole, "all as before")
        assert max(map(len, lines(pilot))) <= 60

    drive(console(daemon.address), driving, (60, 24))


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (40, ["state", "items"]),
        (80, ["state", "items", "oldest", "waiters", "open", "logsize", "mem_bytes"]),
        (200, ["state", "items", "depth", "oldest", "waiters", "open", "logsize", "mem_bytes", "in/s", "out/s"]),
    ],
)
def test_the_columns_that_must_be_there_are_on_any_width(daemon: Daemon, width: int, columns: list[str]) -> None:
    put(daemon.address, "a-name-of-twenty-two-x", b"1")

    async def driving(pilot: Pilot[None]) -> None:
        await until(pilot, "queues 1", "a-name-of-twent")
        shown = line_of(pilot, "▲queue").replace("›", "").split()[1:]
        assert [head for head in shown if head in columns] == columns

    drive(console(daemon.address), driving, (width, 24))


# Items with a time or an owner


def leased(client: QueueClient, queue: str, by: str = "") -> bytes:
    """Its token."""
    client.send(f"gets {queue}/open/lease=3600000{by}\r\n".encode())
    token = client.expect_line(b"VALUE ").split()[4]
    client.read_until(b"\r\nEND\r\n")
    return token


@pytest.mark.long
def test_items_show_when_they_are_due_and_who_has_leased_them_and_are_acted_on(tmp_path: Path) -> None:
    async def driving(pilot: Pilot[None]) -> None:
        await until(pilot, "work ")
        await command(pilot, "columns delayed retrying leased next_due_ms")
        await until(pilot, "delayed retrying")
        assert line_of(pilot, "› work").split()[2:6] == ["2", "1", "1", "20m"]
        await opened(pilot, "work")
        who = "LEASED by {}:{}  for ".format(*client.socket.getsockname())
        await until(
            pilot,
            who,
            "over in 60m",
            "1 leased: i lists them",
            "DELAYED  due in ",
            "delayed 2",
            "retrying 1",
            "leased 1",
            "next due in ",
        )
        await pilot.press("i")
        await until(pilot, "delayed items, the first 2", "due in 20m")
        await pilot.press("N")
        await confirm(pilot, "Make 1 item of work due now.", "work")
        await until(pilot, "due now items: 1", "delayed items, the first 1")
        await pilot.press("C")
        await confirm(pilot, "Cancel 1 item of work", "work")
        await until(pilot, "cancelled items: 1", "no delayed items")
        await pilot.press("i")
        await until(pilot, "retrying items, the first 1", "failed 1 time  because: no room")
        await pilot.press("i")
        await until(pilot, "leased items, the first 1")
        await pilot.press("E", *["backspace"] * 3)
        await type_in(pilot, "2h", "enter")
        await until(pilot, "extended items: 1", "over in 2.0h")
        await pilot.press("C")
        await confirm(pilot, "Cancel 1 item of work", "work")
        await until(pilot, "cancelled items: 0; 1 is not")
        await pilot.press("G")
        await confirm(pilot, "Give 1 item of work back", "work")
        await until(pilot, "given back items: 1", "no leased items")

    with (
        running_daemon(tmp_path / "daemon", "retry_delays=[40m]", admin="127.0.0.1:0") as daemon,
        QueueClient(daemon.port) as client,
    ):
        client.put("work", b"fails", b"leased")
        client.do(b"touch work/%b/failed/reason=no%%20room 0" % leased(client, "work"), b"TOUCHED\r\n")
        token = leased(client, "work")
        for minutes in (20, 30):
            client.do(b"set work/delay=%d 0 0 1\r\n%d" % (minutes * 60_000, minutes // 10), b"STORED\r\n")
        drive(console(daemon.address), driving, (200, 50))
        client.do(b"touch work/%b 60" % token, b"NOT_FOUND\r\n")  # it waits, but the lease was ended by hand
        assert client.drain("work") == [b"leased", b"2"]


@pytest.mark.long
def test_a_lease_that_outlived_a_kill_says_so_until_its_token_is_presented_or_it_is_ended(tmp_path: Path) -> None:
    async def driving(pilot: Pilot[None]) -> None:
        await opened(pilot, "work")
        await until(pilot, "2 leased: i lists them", "worker-7 for ", ": 2 from #1 on, not seen since the restart")
        await until(pilot, "LEASED by worker-7 at 127.0.0.1:", "not seen since the restart  for ")
        client.do(b"touch work/%b 7200" % tokens[0], b"TOUCHED\r\n")
        await pilot.press("u")
        await until(pilot, ": 2 from #1 on, extended 1 time ", "over in 2.0h  extended 1 time  ")
        assert sum("not seen since the restart" in line for line in lines(pilot)) == 1, "the other token is not"
        await pilot.press("j", "G")
        await confirm(pilot, "Give 1 item of work back", "work")
        await until(pilot, "given back items: 1", "1 leased: i lists them")

    with running_daemon(tmp_path / "daemon", admin="127.0.0.1:0") as daemon:
        with QueueClient(daemon.port) as taker:
            taker.put("work", b"1", b"2")
            tokens = [leased(taker, "work", "/by=worker-7") for _ in range(2)]
        daemon.kill()
        daemon.start()
        with QueueClient(daemon.port) as client:
            drive(console(daemon.address), driving, (320, 50))  # no line is wrapped
            client.do(b"delete work/%b" % tokens[1], b"NOT_FOUND\r\n")
            client.do(b"delete work/%b" % tokens[0], b"DELETED\r\n")
            assert client.drain("work") == [b"2"]


@pytest.mark.long
def test_dead_letters_say_where_they_come_from_and_go_back(tmp_path: Path) -> None:
    async def driving(pilot: Pilot[None]) -> None:
        await opened(pilot, "dead")
        await until(pilot, "failed on work")
        await pilot.press("b")
        await confirm(pilot, "Send the dead letters of dead", "dead")
        await until(pilot, "redriven items: 3", "no waiting items")
        await command(pilot, "redrive")
        await confirm(pilot, "Send the dead letters of dead", "dead")
        await until(pilot, "redriven items: 0")

    settings = ("max_retries=1", "move_failed_to=dead")
    with (
        running_daemon(tmp_path / "daemon", *settings, admin="127.0.0.1:0") as daemon,
        QueueClient(daemon.port) as client,
    ):
        client.put("work", b"1", b"2", b"3")
        for _ in range(6):
            client.do(b"touch work/%b/failed 0" % leased(client, "work"), b"TOUCHED\r\n")
        drive(console(daemon.address), driving, (200, 50))
        assert client.drain("work") == [b"1", b"2", b"3"]
