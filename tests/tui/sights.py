"""A console under test: driven by Textual's Pilot, read as the text on its screen."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from unittest import mock

import textual.app
from rich.console import RenderableType
from textual._compositor import Compositor
from textual._context import visible_screen_stack
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot
from textual.screen import Screen

from kestrelctl.remote.client import NOBODY, KestrelClient
from kestreld.client.access import Login
from tests.support.waiting import PATIENCE_S
from tui.app import Console
from tui.plain import ViewOptions
from tui.polling import pollers
from tui.queue_rows import FIGURES, QueueRow
from tui.session import Session
from tui.snapshots import HELD_COUNT, KEYS, Figures, Snapshot

INTERVAL_MS: Final = 100
Driving = Callable[[Pilot[None]], Awaitable[None]]


def put(address: str, queue: str, *items: bytes, login: Login = NOBODY) -> None:
    client = KestrelClient(address, 5000, login)
    for item in items:
        client.put(queue.encode(), item)
    client.close()


def figures(**known: int) -> Figures:
    nothing_held = dict.fromkeys(KEYS[-HELD_COUNT:], 0)
    return tuple((nothing_held | known).get(key) for key in KEYS)


def snapshot(clock_ms: int, server: str = "a:1", uptime: int = 100, **queues: Figures) -> Snapshot:
    return Snapshot(server, 1_700_000_000_000 + clock_ms, clock_ms, queues, {"uptime": uptime})


def row(queue: str, **known: float) -> QueueRow:
    return QueueRow(**{column: known.get(column) for column in FIGURES} | {"queue": queue})  # type: ignore[arg-type]


def console(*addresses: str, words: str = "", is_read_only: bool = False) -> Console:
    return Console(
        pollers(addresses, 5000, INTERVAL_MS),
        ViewOptions(words),
        Session(addresses, interval_ms=INTERVAL_MS, timeout_ms=5000, is_read_only=is_read_only),
    )


def drive(app: Console, driving: Driving, size: tuple[int, int] = (120, 30)) -> None:
    """Run the console on a screen of memory until `driving` returns. What it has told the user stays there."""

    async def run() -> None:
        # Waiting for an idle process costs seconds while it polls; whoever waits here waits for what is on the screen.
        with (
            mock.patch.object(textual.app, "wait_for_idle", _do_not_wait),
            mock.patch.object(Console, "NOTIFICATION_TIMEOUT", 2 * PATIENCE_S),
            mock.patch.object(Compositor, "render_update", _render_if_asked_for),
            mock.patch.object(Stylesheet, "_parse_rules", _parse_rules_once),
        ):
            await run_on_screen()

    async def run_on_screen() -> None:
        async with app.run_test(size=size, notifications=True) as pilot:
            await driving(pilot)

    asyncio.run(run())


_render_update: Final = Compositor.render_update
_parse_rules: Final = Stylesheet._parse_rules
_parsed: Final[dict[tuple[object, ...], list[RuleSet]]] = {}


def _render_if_asked_for(
    compositor: Compositor,
    full: bool = False,
    screen_stack: list[Screen[object]] | None = None,
    simplify: bool = False,
) -> RenderableType | None:
    """Without a terminal nobody sees each change, and drawing them took a third of the tests' time: `lines` draws."""
    if full:
        return _render_update(compositor, full, screen_stack, simplify)
    compositor._dirty_regions.clear()
    return None


def _parse_rules_once(stylesheet: Stylesheet, css: str, **source: Any) -> list[RuleSet]:
    """Every console has the same stylesheets, with the variables of its theme."""
    key = (css, *source.items(), *stylesheet._variables.items())
    if key not in _parsed:
        _parsed[key] = _parse_rules(stylesheet, css, **source)
    return _parsed[key]


async def _do_not_wait(min_sleep: float = 0, max_sleep: float = 0) -> None:
    await asyncio.sleep(0)


def lines(pilot: Pilot[None]) -> list[str]:
    """What is on the screen."""
    visible_screen_stack.set(list(pilot.app._background_screens))
    strips = pilot.app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip).rstrip() for strip in strips]


def line_of(pilot: Pilot[None], text: str) -> str:
    """The first line with `text` in it, "" when there is none."""
    return next((line for line in lines(pilot) if text in line), "")


async def until(pilot: Pilot[None], *texts: str) -> None:
    """As soon as all of them are on the screen."""

    def are_there() -> bool:
        seen = "\n".join(lines(pilot))
        return all(text in seen for text in texts)

    await until_true(pilot, are_there, f"{texts} on the screen")


async def until_box_says(pilot: Pilot[None], title: str, text: str) -> None:
    """As `until`, of a text that may go on in the next line of its box: where depends on how long paths are."""
    await until_true(pilot, lambda: text in in_box(pilot, title), f"{text!r} in the box {title!r}")


def in_box(pilot: Pilot[None], title: str) -> str:
    """What is said in the box with that title, as one line; "" when there is none."""
    seen = lines(pilot)
    top = next((number for number, line in enumerate(seen) if f"╭─ {title} " in line), None)
    if top is None:
        return ""
    left = seen[top].index(f"╭─ {title} ")
    right = seen[top].index("╮", left)
    rows = [line[left + 1 : right] for line in seen[top + 1 :]]
    end = next((number for number, row in enumerate(rows) if row.startswith("─")), len(rows))
    return " ".join(" ".join(rows[:end]).split())


async def until_true(pilot: Pilot[None], condition: Callable[[], object], words: str) -> None:
    end = time.monotonic() + PATIENCE_S
    await pilot.pause(0)
    while not condition():
        assert time.monotonic() < end, f"waited for {words}:\n" + "\n".join(lines(pilot))
        await pilot.pause(0.03)


async def type_in(pilot: Pilot[None], text: str, *keys: str) -> None:
    names: Sequence[str] = [{"+": "plus", "/": "slash", ".": "full_stop", "-": "minus"}.get(key, key) for key in text]
    await pilot.press(*names, *keys)
