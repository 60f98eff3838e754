"""The console as an operator meets it: keys in, text on the screen out, a real kestreld behind it."""

import json
import signal
import threading
import weakref
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import Input

from kestrelctl.remote.client import KestrelClient
from tests.support.daemon import Daemon, running_daemon
from tests.support.process import stop
from tests.support.queue_client import QueueClient
from tests.tui.sights import console, drive, figures, line_of, lines, put, snapshot, type_in, until, until_true
from tui.app import Console
from tui.job_lists import JobList
from tui.keys import CONSOLE_KEYS, DETAIL_KEYS, ITEM_KEYS, JOURNAL_KEYS, OVERVIEW_KEYS, TABLE_KEYS
from tui.plain import ViewOptions
from tui.recording import Recorder, load
from tui.screens.details import Details
from tui.screens.job_list import JobListScreen
from tui.screens.key_bar import KeyBar
from tui.screens.overview import Overview
from tui.screens.questions import Question
from tui.session import Session
from tui.snapshots import Outage
from tui.table import QueueTable
from tui.themes import NAMES

ALL_KEYS = CONSOLE_KEYS + OVERVIEW_KEYS + TABLE_KEYS + DETAIL_KEYS + ITEM_KEYS + JOURNAL_KEYS


def items_of(address: str) -> dict[str, int]:
    client = KestrelClient(address, 5000)
    found = {str(block["queue"]): int(block["items"]) for block in client.all_queue_stats()}
    client.close()
    return found


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
def test_a_row_for_each_queue_and_child_and_totals_above(own_daemon: Daemon, size: tuple[int, int]) -> None:
    put(own_daemon.address, "work", b"hello", b"world")
    put(own_daemon.address, "work+audit", b"!")

    async def driving(pilot: Pilot[None]) -> None:
        await until(pilot, "queues 2  items 3  bytes 11", "work+audit", f"● {own_daemon.address}")
        put(own_daemon.address, "work", *[b"more"] * 20)
        await until(pilot, "items 43")  # the child gets them as well
        await until_true(pilot, lambda: max(line_of(pilot, "› work")) > "⠑", "a curve")
        assert len(lines(pilot)) == size[1]
        assert all(len(line) <= size[0] for line in lines(pilot))

    drive(console(own_daemon.address), driving, size)


def test_filter_sort_and_order(own_daemon: Daemon) -> None:
    for queue, count in (("orders", 3), ("mail", 1), ("orders2", 2)):
        put(own_daemon.address, queue, *[b"x"] * count)

    def shown(pilot: Pilot[None]) -> list[str]:
        assert isinstance(pilot.app, Console)
        return [row.queue for row in pilot.app.overview.table.rows]

    async def driving(pilot: Pilot[None]) -> None:
        await until(pilot, "queues 3")
        assert shown(pilot) == ["mail", "orders", "orders2"]
        await pilot.press("s")
        await until_true(pilot, lambda: shown(pilot) == ["orders", "orders2", "mail"], "the largest first")
        await pilot.press("o")
        await until_true(pilot, lambda: shown(pilot) == ["mail", "orders2", "orders"], "the smallest first")
        await pilot.press("slash")
        await type_in(pilot, "ord", "space")
        await type_in(pilot, "!2", "enter")
        await until(pilot, "queues 1", "/ord !2")
        assert shown(pilot) == ["orders"]
        await pilot.press("escape")
        await until_true(pilot, lambda: len(shown(pilot)) == 3, "all queues")

    drive(console(own_daemon.address), driving)


def test_the_current_queue_stays_it_when_the_order_changes(own_daemon: Daemon) -> None:
    for queue in ("a", "b", "c"):
        put(own_daemon.address, queue, b"x")
    put(own_daemon.address, "b", b"x")

    async def driving(pilot: Pilot[None]) -> None:
        await until(pilot, "queues 3")
        await pilot.press("down")
        await until(pilot, "› b")
        await pilot.press("s")
        await until_true(
            pilot,
            lambda: lines(pilot)[lines(pilot).index(line_of(pilot, "▼items")) + 1].split()[:2] == ["›", "b"],
            "b on top",
        )
        await pilot.press("end")
        await until(pilot, "› c")

    drive(console(own_daemon.address), driving)


def test_a_mouse_sorts_selects_and_opens(own_daemon: Daemon) -> None:
    for queue in ("a", "b"):
        put(own_daemon.address, queue, b"x")

    async def driving(pilot: Pilot[None]) -> None:
        await until(pilot, "queues 2")
        await pilot.click(QueueTable, offset=(26, 0))
        await until(pilot, "▼items")
        await pilot.click(QueueTable, offset=(3, 2))
        await until(pilot, "› b")
        await pilot.click(QueueTable, offset=(3, 2), times=2)
        await until_true(pilot, lambda: isinstance(pilot.app.screen, Details), "details")

    drive(console(own_daemon.address), driving)


def test_pause_holds_the_screen_still(own_daemon: Daemon) -> None:
    put(own_daemon.address, "work", b"x")

    async def driving(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, Console)
        await until(pilot, "items 1")
        await pilot.press("space")
        await until(pilot, "PAUSED")
        put(own_daemon.address, "work", b"x")

        def has_heard() -> bool:
            look = app.board.servers[own_daemon.address].snapshot
            return look is not None and look.queues["work"][0] == 2

        await until_true(pilot, has_heard, "news")
        assert "items 1 " in lines(pilot)[0]
        await pilot.press("space")
        await until(pilot, "items 2")

    drive(console(own_daemon.address), driving)


def test_details_of_a_queue(own_daemon: Daemon) -> None:
    put(own_daemon.address, "work", b'{"job":1}', b"second")
    put(own_daemon.address, "work+audit", b"!")

    async def driving(pilot: Pilot[None]) -> None:
        await until(pilot, "queues 2")
        await pilot.press("enter")
        await until(
            pilot, "work  items 2", "+audit", "head 1", "next 4", "max_items=infinite", '{"job":1}', "at the head, text"
        )
        await until(pilot, "9 bytes", "no admin port")
        await pilot.press("m")
        await until(pilot, "7b226a6f62223a31", "at the head, hex")
        await pilot.press("m")
        await until(pilot, '"job": 1', "at the head, json")
        await pilot.press("z", "u", "escape")
        await until_true(pilot, lambda: isinstance(pilot.app.screen, Overview), "the table")
        assert items_of(own_daemon.address) == {"work": 2, "work+audit": 1}

    drive(console(own_daemon.address), driving, size=(140, 40))


@pytest.mark.exhaustive("40", "120")
@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_the_line_of_keys_has_whole_labels_and_always_help_and_quit(tmp_path: Path, width: int) -> None:
    def bar(pilot: Pilot[None]) -> str:
        return "".join(lines(pilot)[-1:])

    async def driving(pilot: Pilot[None]) -> None:
        await until(pilot, "› work", "? help  q quit")
        labels = {f"{key.shown} {key.label}" for key in ALL_KEYS if key.label}
        for key, first in (None, "enter details"), ("enter", "escape back"), ("J", "escape back"):
            if key is not None:
                await pilot.press(key)
            await until_true(pilot, lambda first=first: bar(pilot).startswith(f" {first}"), first)
            assert bar(pilot).endswith("? help  q quit")
            assert len(bar(pilot)) < width
            assert set(bar(pilot).strip().split("  ")) <= labels

    drive(replaying(tmp_path), driving, (width, 24))


def test_the_line_of_keys_is_drawn_anew_only_where_other_keys_fit(tmp_path: Path) -> None:
    async def driving(pilot: Pilot[None]) -> None:
        def keys() -> list[Widget]:
            return list(pilot.app.screen.query_one(KeyBar).children)

        async def resize(width: int, height: int) -> None:
            await pilot.resize_terminal(width, height)
            await until_true(pilot, lambda: len(lines(pilot)) == height, f"{height} lines")
            await pilot.pause()

        await until(pilot, "› work", "? help  q quit")
        before = keys()
        await resize(200, 30)
        assert keys() == before
        await resize(40, 24)
        await until_true(pilot, lambda: len(keys()) < len(before), "fewer keys")

    drive(replaying(tmp_path), driving, (200, 24))


def test_boxes_say_that_they_are_loading_and_in_a_replay_that_they_stay_empty(
    own_daemon: Daemon, tmp_path: Path
) -> None:
    put(own_daemon.address, "work", b"x")

    async def loading(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, Console)
        await until(pilot, "queues 1")
        stop(own_daemon.pid)
        await pilot.press("enter")
        await until_true(pilot, lambda: "\n".join(lines(pilot)).count("loading …") == 3, "boxes that wait")
        own_daemon.signal(signal.SIGCONT)
        await until(pilot, "max_items=infinite", "the item at the head")
        assert "loading" not in "\n".join(lines(pilot))

    drive(console(own_daemon.address), loading)

    async def replayed(pilot: Pilot[None]) -> None:
        await until(pilot, "› work")
        await pilot.press("enter")
        await until_true(pilot, lambda: "\n".join(lines(pilot)).count("not available in") == 3, "empty boxes")

    drive(replaying(tmp_path), replayed)


def test_the_first_items_that_wait_are_read_back_and_stay_where_they_are(tmp_path: Path) -> None:
    async def driving(pilot: Pilot[None]) -> None:
        await until(pilot, "queues 1")
        await pilot.press("enter")
        await until(pilot, "the first 50 of 59, text", "#1  2 bytes  OPEN", "#2  9 bytes", '{"job":1}')
        await pilot.press("x")
        await until_true(pilot, lambda: line_of(pilot, '{"job":1}').startswith("│ {"), "the items in the whole screen")
        await pilot.press("end")
        await until(pilot, "#50  ", "number 50")
        await pilot.press("home")
        await until(pilot, "0000 00ff")  # binary items are hex from the start
        await pilot.press("m")
        await until(pilot, "50 of 59, hex", "7b226a6f62223a31")
        await pilot.press("escape")
        await until(pilot, "max_items=infinite")

    with running_daemon(tmp_path, admin="127.0.0.1:0") as daemon:
        put(daemon.address, "work", b"\x00\xff", b'{"job":1}', *[b"number %d" % number for number in range(3, 61)])
        with QueueClient(daemon.port) as client:
            client.get("work/open")
            drive(console(daemon.address), driving, size=(140, 40))
            assert items_of(daemon.address) == {"work": 59}


def test_a_flush_needs_the_name_of_the_queue(own_daemon: Daemon) -> None:
    put(own_daemon.address, "jobs", b"x")
    put(own_daemon.address, "jobs2", b"x")

    async def driving(pilot: Pilot[None]) -> None:
        await until(pilot, "queues 2")
        await pilot.press("down", "f")
        await until(pilot, "Discard all items of jobs2", "Type jobs2")
        await type_in(pilot, "jobs", "enter")
        await until(pilot, "type jobs2 to confirm")
        assert items_of(own_daemon.address) == {"jobs": 1, "jobs2": 1}
        await pilot.press("2", "enter")
        await until(pilot, "flushed")
        assert items_of(own_daemon.address) == {"jobs": 1, "jobs2": 0}
        await pilot.press("f", "escape")
        await until_true(pilot, lambda: isinstance(pilot.app.screen, Overview), "the table")

    drive(console(own_daemon.address), driving)


def test_delete_and_reload(own_daemon: Daemon) -> None:
    put(own_daemon.address, "jobs", b"x")

    async def driving(pilot: Pilot[None]) -> None:
        await until(pilot, "queues 1")
        await pilot.press("r")
        await type_in(pilot, "reload", "enter")
        await until(pilot, "reloaded")
        await pilot.press("d")
        await type_in(pilot, "jobs", "enter")
        await until(pilot, "queues 0")

    drive(console(own_daemon.address), driving)
    assert items_of(own_daemon.address) == {}


def test_nothing_can_be_changed_with_read_only(own_daemon: Daemon) -> None:
    put(own_daemon.address, "jobs", b"x")

    async def driving(pilot: Pilot[None]) -> None:
        await until(pilot, "queues 1", "read-only")
        await pilot.press("f", "d", "r")
        await pilot.pause()
        assert isinstance(pilot.app.screen, Overview)
        assert "flush" not in lines(pilot)[-1]

    drive(console(own_daemon.address, is_read_only=True), driving)


def test_several_servers_are_added_up_and_shown_one_by_one(own_daemon: Daemon, daemon: Daemon, queue: str) -> None:
    put(own_daemon.address, queue, b"x")
    put(daemon.address, queue, b"x", b"y")

    async def driving(pilot: Pilot[None]) -> None:
        await until(pilot, f"● {own_daemon.address}", f"● {daemon.address}", "queues 1  items 3")
        await pilot.press("v")
        await until(pilot, f"[{own_daemon.address}]", "queues 1  items 1")
        await pilot.press("v")
        await until(pilot, f"[{daemon.address}]", "queues 1  items 2")
        await pilot.press("v", "enter")
        await until(pilot, f"{queue}  items 3", own_daemon.address, daemon.address)

    drive(console(own_daemon.address, daemon.address, words=f"{queue} items>0"), driving)


def test_a_server_that_goes_away_is_stale_until_it_is_back(own_daemon: Daemon) -> None:
    put(own_daemon.address, "work", b"x")

    async def driving(pilot: Pilot[None]) -> None:
        await until(pilot, "queues 1")
        own_daemon.kill()
        await until(pilot, f"▲ {own_daemon.address}  stale for", "next attempt in", "› work")
        own_daemon.start()
        await until(pilot, f"● {own_daemon.address}")

    drive(console(own_daemon.address), driving)


def test_the_view_as_csv_json_and_svg(own_daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # names that are short in every message
    put(own_daemon.address, "work", b"x")

    async def driving(pilot: Pilot[None]) -> None:
        await until(pilot, "queues 1")
        for suffix in ("csv", "json", "svg", "svg", "txt"):
            await pilot.press("e")
            await until_true(pilot, lambda: isinstance(pilot.app.screen, Question), "the question")
            pilot.app.screen.query_one(Input).value = f"view.{suffix}"
            await pilot.press("enter")
            await until_true(pilot, lambda: isinstance(pilot.app.screen, Overview), "the table")
        await until(pilot, "File exists", "must end in")

    drive(console(own_daemon.address), driving)
    heads, work = (tmp_path / "view.csv").read_text().splitlines()
    assert heads.split(",")[:2] == ["queue", "items"]
    assert work.split(",")[:2] == ["work", "1"]
    assert json.loads((tmp_path / "view.json").read_text())[0]["queue"] == "work"
    picture = (tmp_path / "view.svg").read_text()
    assert "work" in picture
    assert "@font-face" not in picture


def test_what_is_recorded_can_be_replayed(own_daemon: Daemon, tmp_path: Path) -> None:
    put(own_daemon.address, "work", b"x")
    path = tmp_path / "seen.jsonl"

    async def recording(pilot: Pilot[None]) -> None:
        await until(pilot, "queues 1")
        await pilot.press("w")
        await until_true(pilot, lambda: isinstance(pilot.app.screen, Question), "the question")
        pilot.app.screen.query_one(Input).value = str(path)
        await pilot.press("enter")
        await until(pilot, "RECORDING")
        put(own_daemon.address, "work", b"x")
        await until(pilot, "items 2")
        await pilot.press("w")
        await until(pilot, "recorded to")

    drive(console(own_daemon.address), recording)
    assert load(str(path)).servers == [own_daemon.address]


def replaying(tmp_path: Path) -> Console:
    recorder = Recorder(str(tmp_path / "seen.jsonl"), 60_000)
    for look in range(3):
        recorder.write(snapshot(look * 1000, work=figures(items=look, total_items=look)))
    recorder.write(Outage("a:1", 1_700_000_003_000, "gone", 2000))
    recorder.close()
    player = load(recorder.path)
    return Console([], ViewOptions(), Session([], interval_ms=player.interval_ms, timeout_ms=5000, player=player))


def test_a_replay_goes_ahead_and_back_and_changes_nothing(tmp_path: Path) -> None:
    async def driving(pilot: Pilot[None]) -> None:
        await until(pilot, "queues 1  items 0", "1/4", "◆")
        await pilot.press("full_stop", "full_stop")
        await until(pilot, "queues 1  items 2", "3/4")
        await pilot.press("comma")
        await until(pilot, "queues 1  items 1", "2/4")
        await pilot.press("greater_than_sign")
        await until(pilot, "4/4", "▲ a:1  stale for", "gone")
        await pilot.press("f", "d", "r", "w")
        await pilot.pause()
        assert isinstance(pilot.app.screen, Overview)
        await pilot.press("enter")
        await until(pilot, "work  items 2")

    drive(replaying(tmp_path), driving)


def test_a_replay_goes_on_by_itself_unless_it_is_paused(tmp_path: Path) -> None:
    async def driving(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, Console)
        await until(pilot, "1/4")
        app.tick()
        await until(pilot, "2/4")
        await pilot.press("space")
        app.tick()
        await until(pilot, "2/4", "PAUSED")

    drive(replaying(tmp_path), driving)


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
def test_help_lists_the_keys(tmp_path: Path, size: tuple[int, int]) -> None:
    async def driving(pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        await until(pilot, "Everywhere", "this list of keys")
        await pilot.press("end")
        await until(pilot, "● up")
        await pilot.press("escape")
        await until_true(pilot, lambda: isinstance(pilot.app.screen, Overview), "the table")

    drive(replaying(tmp_path), driving, size)


def test_the_details_say_who_holds_open_reads_and_who_waits_and_from_where(tmp_path: Path) -> None:
    async def driving(pilot: Pilot[None]) -> None:
        await until(pilot, "queues 1")
        await pilot.press("enter")
        await until(pilot, "no client waits for or holds an item")
        with QueueClient(daemon.port) as holder, QueueClient(daemon.port) as waiting:
            assert holder.get("work/open") == b"only"
            waiting.ask_for("work/t=60000")
            await until(pilot, "waiters 1")
            await pilot.press("u")
            await until(pilot, "1 open", "1 waiting")
            assert "{}:{} for ".format(*holder.socket.getsockname()) in line_of(pilot, ": #1")
            assert line_of(pilot, "{}:{} for ".format(*waiting.socket.getsockname()))
        await until(pilot, "waiters 0")
        await pilot.press("u")
        await until(pilot, "no client waits for or holds an item")

    with running_daemon(tmp_path, admin="127.0.0.1:0") as daemon:
        put(daemon.address, "work", b"only")
        drive(console(daemon.address), driving, (200, 50))


def test_queues_are_in_the_command_palette(own_daemon: Daemon) -> None:
    put(own_daemon.address, "very-special", b"x")

    async def driving(pilot: Pilot[None]) -> None:
        await until(pilot, "queues 1")
        await pilot.press("ctrl+p")
        await type_in(pilot, "special")
        await until(pilot, "details of this queue")
        await pilot.press("down", "enter")
        await until_true(pilot, lambda: isinstance(pilot.app.screen, Details), "details")
        await until(pilot, "servers and readers")

    drive(console(own_daemon.address), driving)


def test_themes_and_intervals_change_in_flight(tmp_path: Path) -> None:
    async def driving(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, Console)
        seen = []
        for _ in NAMES:
            await until(pilot, "› work")
            seen.append(app.theme)
            await pilot.press("t")
            await until_true(pilot, lambda: app.theme != seen[-1], "another theme")
        assert seen == list(NAMES)
        assert app.theme == NAMES[0]
        await pilot.press("minus")
        await until(pilot, "every 30s")
        await pilot.press("plus", "plus")
        await until(pilot, "every 1.0m")

    drive(replaying(tmp_path), driving)


def test_no_color_is_heeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def driving(pilot: Pilot[None]) -> None:
        await until(pilot, "› work")
        colours = {
            (colour.triplet.red, colour.triplet.green, colour.triplet.blue)
            for strip in pilot.app.screen._compositor.render_strips()
            for segment in strip
            if segment.style is not None
            for colour in (segment.style.color, segment.style.bgcolor)
            if colour is not None and colour.triplet is not None
        }
        assert colours
        assert {colour for colour in colours if len(set(colour)) > 1} == set()

    drive(replaying(tmp_path), driving)


class Answer:
    """Of a server."""


def test_what_was_asked_before_is_not_shown_when_its_answer_comes_last(daemon: Daemon) -> None:
    app = console(daemon.address)
    is_asked, may_answer, second = threading.Event(), threading.Event(), Answer()
    late_answers: list[weakref.ref[Answer]] = []
    shown: list[Answer] = []

    def late() -> Answer:
        is_asked.set()
        assert may_answer.wait(60)
        answer = Answer()
        late_answers.append(weakref.ref(answer))
        return answer

    async def driving(pilot: Pilot[None]) -> None:
        screen = app.overview
        screen.ask("jobs", late, shown.append)
        await until_true(pilot, is_asked.is_set, "the first question")
        screen.ask("jobs", lambda: second, shown.append)
        await until_true(pilot, lambda: shown, "the second answer")
        may_answer.set()
        await until_true(pilot, lambda: late_answers and (not late_answers[0]() or len(shown) > 1), "the late answer")

    drive(app, driving)
    assert shown == [second]


def test_an_answer_that_comes_while_its_screen_is_taken_apart_is_dropped(daemon: Daemon) -> None:
    app = console(daemon.address)
    answers = []

    async def driving(pilot: Pilot[None]) -> None:
        screen = JobListScreen(app.session, "jobs")
        await app.push_screen(screen)
        await until(pilot, "no such queue")
        await screen.query_one("#title").remove()

        def show(answer: JobList) -> None:
            answers.append(answer)
            screen.show_answers([answer])

        screen.ask("late", lambda: JobList("a:1", []), show)
        await until_true(pilot, lambda: answers, "the answer")
        await pilot.press("escape")
        await until_true(pilot, lambda: app.screen is app.overview, "the table")

    drive(app, driving)
