"""The box with the first items of a queue, some of them chosen for an action."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import Static

from tui.admin_queries import QueueDetails, Shown, WaitingItem
from tui.formats import NOT_SEEN, span, times
from tui.items import SHOWN_BYTES_MAX, ItemForm, shown_item
from tui.keys import ITEM_KEYS, bindings
from tui.screens.boxes import Box, put_lines

SHOWN_BYTES_OF_ALL: Final = 64 * 1024
SHOWN_BYTES_MIN: Final = 512


def waiting_title(
    answers: Sequence[QueueDetails], form: ItemForm, waiting: int | None, which: Shown, *, is_stopped: bool = False
) -> str:
    """Title of the box. `waiting`: number of waiting items, None = unknown."""
    shown = sum(len(answer.items) for answer in answers)
    if not shown and (is_stopped or any(answer.failure for answer in answers)):
        return "STOPPED: items unknown" if is_stopped else "items unknown"
    if which != Shown.FIRST:
        return f"{which} items, the first {shown}, {form}" if shown else f"no {which} items"
    if not shown:
        return "no waiting items" if answers else "items"
    if any(answer.only_head for answer in answers):
        return f"the item at the head, {form}"
    of = f" of {waiting:,}" if waiting is not None and waiting > shown else ""
    return f"waiting items, the first {shown}{of}, {form}" if shown > 1 or of else f"the only waiting item, {form}"


class ItemView(Static):
    """An item under a heading line."""


class ItemBox(Box):
    """The items: one is current, and some may be chosen for an action."""

    BINDINGS = bindings(ITEM_KEYS)

    def __init__(self) -> None:
        super().__init__(id="waiting-box")
        self.chosen: set[tuple[str, int | None]] = set()  # servers and ids
        self._items: list[tuple[str, WaitingItem]] = []
        self._cursor = 0
        self._form = ItemForm.TEXT
        self._now_ms = 0
        self._several = False  # servers

    def compose(self) -> ComposeResult:
        yield Static(id="waiting")

    def show(self, answers: Sequence[QueueDetails], form: ItemForm, now_ms: int) -> None:
        self._items = [(answer.server, item) for answer in answers for item in answer.items]
        self._form, self._now_ms, self._several = form, now_ms, len(answers) > 1
        self._cursor = min(self._cursor, max(0, len(self._items) - 1))
        self.chosen &= {(server, item.item_id) for server, item in self._items}
        notes = [
            f"{answer.server}: {answer.failure or answer.only_head}"
            for answer in answers
            if (answer.failure or answer.only_head) and not answer.items
        ] + [
            f"Only the head of {answer.server} can be shown: {answer.only_head}"
            for answer in answers
            if answer.items and answer.only_head
        ]
        put_lines(self.query_one("#waiting", Static), notes)
        self.query_one("#waiting").display = bool(notes)
        views = list(self.query(ItemView))
        for view in views[len(self._items) :]:
            view.remove()
        views = views[: len(self._items)]
        new = [ItemView() for _ in self._items[len(views) :]]
        if new:
            self.mount_all(new, before="#waiting")
        for place, view in enumerate([*views, *new]):
            self._draw(view, place)

    def picked(self, answers: Sequence[QueueDetails]) -> list[QueueDetails]:
        """The answers reduced to the chosen items, or to the current one; servers without any are left out."""
        chosen = self.chosen
        if not chosen and self._items:
            server, item = self._items[self._cursor]
            chosen = {(server, item.item_id)}
        picked = [
            replace(answer, items=[item for item in answer.items if (answer.server, item.item_id) in chosen])
            for answer in answers
        ]
        return [answer for answer in picked if answer.items]

    def _draw(self, view: ItemView, place: int) -> None:
        server, item = self._items[place]
        bytes_max = min(SHOWN_BYTES_MAX, max(SHOWN_BYTES_MIN, SHOWN_BYTES_OF_ALL // len(self._items)))
        signs = ("›" if place == self._cursor else " ") + ("*" if (server, item.item_id) in self.chosen else " ")
        of = f"{server}  " if self._several else ""
        text = Text()
        text.append(f"{signs}{of}{_heading(item, self._now_ms)}\n", "bold")
        text.append(shown_item(item.data, self._form, bytes_max))
        view.update(text)

    def _redraw(self, *places: int) -> None:
        views = list(self.query(ItemView))
        for place in places:
            self._draw(views[place], place)

    def _go(self, place: int) -> None:
        if self._items:
            before, self._cursor = self._cursor, min(max(place, 0), len(self._items) - 1)
            self._redraw(before, self._cursor)
            self.query(ItemView)[self._cursor].scroll_visible(animate=False)

    def action_move(self, items: int) -> None:
        self._go(self._cursor + items)

    def action_jump(self, place: int) -> None:
        self._go(place if place >= 0 else len(self._items) + place)

    def action_mark(self) -> None:
        if self._items:
            server, item = self._items[self._cursor]
            self.chosen ^= {(server, item.item_id)}
            self._go(self._cursor + 1)
            self._redraw(*range(len(self._items)))

    def action_mark_all(self) -> None:
        names = {(server, item.item_id) for server, item in self._items}
        self.chosen = set() if names <= self.chosen else names
        self._redraw(*range(len(self._items)))


def _state(item: WaitingItem, now_ms: int) -> list[str]:
    """Words on a held item: state, holder, since when, due or until, how often that was extended."""
    parts = [item.state.upper() if item.state != "waiting" else "due"]
    if item.holder:
        parts[0] += f" by {item.holder}" + (f" at {item.client}" if item.client != item.holder else "")
    if not item.is_seen:
        parts.append(NOT_SEEN)
    if item.since_at_ms is not None:
        parts.append(f"for {span(max(0, now_ms - item.since_at_ms))}")
    for at_ms, words in ((item.due_at_ms, "due"), (item.until_at_ms, "over")):
        if at_ms is not None:
            parts.append(f"{words} in {span(at_ms - now_ms)}" if at_ms > now_ms else f"{words} now")
    if item.extended:
        parts.append(times("extended", item.extended))
    return parts


def _heading(item: WaitingItem, now_ms: int) -> str:
    parts = [f"#{item.item_id}"] if item.item_id is not None else []
    parts.append(f"{len(item.data):,} byte{'' if len(item.data) == 1 else 's'}")
    if item.is_open and not item.state:
        parts.append("OPEN")
    if item.state:
        parts += _state(item, now_ms)
    if item.add_at_ms is not None:
        parts.append(f"{span(max(0, now_ms - item.add_at_ms))} old")
    if item.expire_at_ms is not None:
        left_ms = item.expire_at_ms - now_ms
        parts.append(f"expires in {span(left_ms)}" if left_ms > 0 else "expired")
    if item.attempts:
        parts.append(times("failed", item.attempts))
    if item.origin:
        parts.append(item.origin)
    if item.failure:
        parts.append(f"because: {item.failure}")
    if item.flags:
        parts.append(f"flags {item.flags}")
    return "  ".join(parts)
