"""Every screen as it looks, as text at two sizes and as the pictures of the guide.

REDRAW=1 draws them anew (`make screens`): look at what changed before committing it.
"""

import os
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from tests.support.daemon import ROOT
from tests.tui.sights import PATIENCE_S, drive, lines, until, until_true
from tests.tui.stills import (
    LOOKS,
    NORTH,
    SOUTH,
    StillConsole,
    look_at_cluster,
    look_at_jobs,
    replay,
    still,
    tell,
)
from tui.export import without_fonts

TEXTS = Path(__file__).parent / "screens"
PICTURES = ROOT / "docs" / "screens"
SIZES = [(80, 24), (200, 50)]
REDRAW = bool(os.environ.get("REDRAW"))
REDRAW_S = 4.0
PICTURE_SIZE = (120, 34)

Steps = Callable[[Pilot[None]], Awaitable[None]]


def console_of(pilot: Pilot[None]) -> StillConsole:
    assert isinstance(pilot.app, StillConsole)
    return pilot.app


async def table(pilot: Pilot[None]) -> None:
    tell(console_of(pilot))
    await until(pilot, "queues 32", "› thumbnails")


async def pressed_in_table(keys: Sequence[str], seen: str, pilot: Pilot[None]) -> None:
    await table(pilot)
    await pilot.press(*keys)
    await until(pilot, seen)


def after(*keys: str, seen: str) -> Steps:
    return partial(pressed_in_table, keys, seen)


async def nothing_yet(pilot: Pilot[None]) -> None:
    await until(pilot, "no reply yet")


async def stale(pilot: Pilot[None]) -> None:
    tell(console_of(pilot), south_is_gone=True)
    await until(pilot, "stale for 11s", "› thumbnails")


async def filtered(pilot: Pilot[None]) -> None:
    await after("slash", seen="oldest_ms>500")(pilot)
    await pilot.press(*"shard")
    await until(pilot, "/shard")


async def palette(pilot: Pilot[None]) -> None:
    await after("ctrl+p", seen="details of this queue")(pilot)
    await pilot.press(*"shard-02")
    await until_true(pilot, lambda: len([line for line in lines(pilot) if "details of" in line]) == 1, "one found")


async def details(pilot: Pilot[None]) -> None:
    await opened(pilot)
    await until(pilot, "#33151", "max_items=")


async def opened(pilot: Pilot[None]) -> None:
    await table(pilot)
    console_of(pilot).open_queue("orders")
    await until(pilot, "#33151")


async def items_in_hex(pilot: Pilot[None]) -> None:
    await opened(pilot)
    await pilot.press("m", "x")
    await until(pilot, "0000 000102030405", "hex")


async def journal(pilot: Pilot[None]) -> None:
    await opened(pilot)
    await pilot.press("J")
    await until(pilot, "not checked yet", "reader spark")


async def journal_read(pilot: Pilot[None]) -> None:
    await journal(pilot)
    await pilot.press("c")
    await until(pilot, "✖ BAD")


async def journal_unsaid(pilot: Pilot[None]) -> None:
    await journal(pilot)
    await until(pilot, "no admin port")


async def queues_of_jobs(pilot: Pilot[None]) -> None:
    tell(console_of(pilot), looked=look_at_jobs)
    await until(pilot, "└ jobs", "JOBS use more than 75%")
    await pilot.press("g", "s", "s", "home")
    await until(pilot, "jobs  queues 5", "▼queued", "› thumbnails")


async def nodes(pilot: Pilot[None]) -> None:
    tell(console_of(pilot), looked=look_at_cluster)
    await until(pilot, "└ jobs", "10.0.0.3:7711  DOWN")
    await pilot.press("n")
    await until(pilot, "nodes  2 of 3 up", "› 10.0.0.1:7711")


async def jobs_listed(pilot: Pilot[None]) -> None:
    await queues_of_jobs(pilot)
    await pilot.press("enter")
    await until(pilot, "queued jobs, 14 and more", "I13-05a1")


async def replayed(pilot: Pilot[None]) -> None:
    app = console_of(pilot)
    app.action_seek(LOOKS // 2)
    await pilot.press("space")
    await until(pilot, "21/40", "PAUSED")


SCREENS: dict[str, tuple[Callable[[], StillConsole], Steps]] = {
    "empty": (still, nothing_yet),
    "table": (still, table),
    "stale": (partial(still, NORTH, SOUTH), stale),
    "filter": (still, filtered),
    "read-only": (partial(still, is_read_only=True), table),
    "details": (still, details),
    "items-hex": (still, items_in_hex),
    "journal": (still, journal),
    "journal-read": (still, journal_read),
    "journal-unsaid": (partial(still, NORTH, SOUTH), journal_unsaid),
    "jobs": (still, queues_of_jobs),
    "job-list": (still, jobs_listed),
    "nodes": (still, nodes),
    "help": (still, after("question_mark", seen="Everywhere")),
    "palette": (still, palette),
    "flush": (still, after("f", seen="Discard all items of thumbnails")),
    "delete": (still, after("d", seen="Delete thumbnails")),
    "reload": (still, after("r", seen="Reload the configuration")),
    "export": (still, after("e", seen="kestrel-top.csv")),
    "replay": (replay, replayed),
}
DRAWN = ("table", "stale", "details", "journal-read", "flush", "nodes", "replay")


@pytest.fixture(autouse=True)
def same_everywhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever the clock and the colours of the machine are."""
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def compare(name: str, size: tuple[int, int], draw: Callable[[Pilot[None]], str], path: Path) -> str:
    """The screen, when it looks as it did; its parts come one after the other, and nothing says that it is whole."""
    make, steps = SCREENS[name]
    expected = "" if REDRAW else path.read_text()
    drawn = []

    async def driving(pilot: Pilot[None]) -> None:
        pilot.app.animation_level = "none"
        await steps(pilot)
        for box in pilot.app.screen.query(Input):
            box.cursor_blink = False
        end = time.monotonic() + (REDRAW_S if REDRAW else PATIENCE_S)
        while (now := draw(pilot)) != expected and time.monotonic() < end:
            await pilot.pause(0.05)
        drawn.append(now)

    drive(make(), driving, size)
    if REDRAW:
        path.parent.mkdir(exist_ok=True)
        path.write_text(drawn[0])
    else:
        assert drawn[0] == expected, f"{path} is no longer what is drawn; make screens draws it anew"
    return drawn[0]


@pytest.mark.exhaustive("80x24")
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", SCREENS)
def test_screens_look_as_they_did(name: str, size: tuple[int, int]) -> None:
    path = TEXTS / f"{name}-{size[0]}x{size[1]}.txt"
    text = compare(name, size, lambda pilot: "\n".join(lines(pilot)) + "\n", path)
    assert max(map(len, text.splitlines())) <= size[0]
    assert len(text.splitlines()) == size[1]


@pytest.mark.long
@pytest.mark.parametrize("name", DRAWN)
def test_the_pictures_of_the_guide_are_what_the_console_draws(name: str) -> None:
    def draw(pilot: Pilot[None]) -> str:
        return without_fonts(pilot.app.export_screenshot(title="kestrelctl top"))

    picture = compare(name, PICTURE_SIZE, draw, PICTURES / f"{name}.svg")
    assert "url(http" not in picture  # a comment names where it is from, and a name space is no address


def test_the_guide_shows_every_picture_there_is() -> None:
    guide = (ROOT / "docs" / "operations.md").read_text()
    assert set(re.findall(r"\(screens/(.+)\.svg\)", guide)) == set(DRAWN) == {path.stem for path in PICTURES.iterdir()}
