"""Screen with the details of a queue: plots, readers, consumers, settings and the first items."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Static

from kestreld.client.blocks import Cell
from tui.admin_queries import Consumer, QueueDetails, Shown
from tui.formats import NOT_SEEN, count, printable, span, times
from tui.history import SAMPLES_MAX, SERIES
from tui.items import ItemForm
from tui.keys import DETAIL_KEYS, bindings
from tui.moving import ItemAction
from tui.plots import largest, plot
from tui.queue_rows import FIGURES, HEADINGS, QueueRow, cell, labelled
from tui.screens.boxes import IN_A_REPLAY, LOADING, Box, BoxScreen, put_lines
from tui.screens.key_bar import KeyBar
from tui.screens.waiting import ItemBox, waiting_title
from tui.session import Session
from tui.states import STOPPED

NARROW_WIDTH: Final = 70  # from this width on, the boxes are side by side
SPANS_SAMPLES: Final = (60, SAMPLES_MAX)
TITLE: Final = (
    "items", "bytes", "logsize", "mem_items", "oldest_ms", "waiters", "open_reads", "expired", "discarded"
)  # fmt: skip
_HELD: Final = {"delayed": "delayed", "retrying": "retrying", "leased": "leased", "dead_letters": "dead letters"}


class Details(BoxScreen):
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (NARROW_WIDTH, "-wide")]  # noqa: RUF012  (Textual declares it so)
    BINDINGS = bindings(DETAIL_KEYS)
    DEFAULT_CSS = """
    Details #settings, Details #consumers, Details #waiting, Details ItemView { text-wrap: wrap; text-overflow: fold; }
    Details #plots { height: 8; }
    Details .plot { width: 1fr; height: 8; padding: 0 1; color: $accent; }
    Details #boxes { height: 1fr; }
    Details #who { width: 1fr; }
    Details #who Box { width: 100%; height: 1fr; }
    Details #who #consumers-box { height: auto; max-height: 50%; }
    Details #waiting-box { width: 2fr; }
    Details.-narrow #boxes { layout: vertical; }
    Details.-narrow #who, Details.-narrow #boxes Box { width: 100%; }
    Details.-narrow #waiting-box { height: 2fr; }
    Details.-narrow .plot { display: none; }
    Details.-narrow #items { display: block; }
    """

    @dataclass
    class ItemsChosen(Message):
        """The user wants an action on items. `chosen`: the servers' answers reduced to these items."""

        action: ItemAction
        queue: str
        chosen: Sequence[QueueDetails]

    def __init__(self, session: Session, queue: str) -> None:
        super().__init__(session)
        self.queue = queue
        self.answers: list[QueueDetails] = []  # one for each server of the view
        self._form = ItemForm.TEXT
        self._shown = Shown.FIRST
        self._samples = SPANS_SAMPLES[0]

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        with Horizontal(id="plots"):
            for column in SERIES:
                yield Static(id=column, classes="plot")
        with Horizontal(id="boxes"):
            with Vertical(id="who"):
                for name in ("readers", "consumers"):
                    with Box(id=f"{name}-box"):
                        yield Static(id=name)
            with Box(id="settings-box"):
                yield Static(id="settings")
            yield ItemBox()
        yield KeyBar()

    def on_mount(self) -> None:
        self.query_one("#readers-box").border_title = "servers and readers"
        self.query_one("#consumers-box").border_title = "consumers"
        self.query_one("#settings-box").border_title = "settings"
        self.query_one("#waiting-box").border_title = "items"
        self.query_one("#waiting-box").focus()
        for name in ("consumers", "settings", "waiting"):
            put_lines(self.query_one(f"#{name}", Static), [LOADING if self.session.player is None else IN_A_REPLAY])
        self.action_ask()
        self.show()

    def on_resize(self) -> None:
        self.show()

    # Drawing

    def show(self) -> None:
        """Show the current state of the board."""
        history = self.session.board.history
        for column in SERIES:
            form = FIGURES[column].form
            box = self.query_one(f"#{column}", Static)
            values = history.series(self.queue, column, self._samples)
            width, height = max(4, box.size.width - 2), 6
            foot = f"max {form(largest(values))} in {span(history.span_ms(self._samples))}"
            put_lines(box, [f"{HEADINGS[column]} {form(_now(values))}", *plot(values, width, height), foot])
        put_lines(self.query_one("#title", Static), [_title(self.queue, self._row())])
        put_lines(self.query_one("#readers", Static), self._reader_lines())

    def _row(self) -> QueueRow | None:
        return next((row for row in self.session.board.rows() if row.queue == self.queue), None)

    def _reader_lines(self) -> list[str]:
        lines = []
        for server in self.session.board.servers_in():
            lines.append(server.address + (" (stale)" if server.outage is not None else ""))
            family = [row for row in server.rows if row.queue == self.queue or row.queue.startswith(f"{self.queue}+")]
            answer = next((answer for answer in self.answers if answer.server == server.address), None)
            for row in sorted(family, key=lambda row: row.queue):
                figures = answer.figures.get(row.queue, {}) if answer is not None else {}
                lines += _reader(row, figures)
            if answer is not None and answer.failure:
                lines.append(f"  ▲ {answer.failure}")
        return lines

    def show_answers(self, answers: list[QueueDetails]) -> None:
        self.answers = answers
        settings = next((answer.settings for answer in answers if answer.settings), {})
        lines = [f"{name}={value}" for name, value in settings.items() if name != "queue"]
        put_lines(self.query_one("#settings", Static), lines or ["not reported by the server"])
        several = len(answers) > 1
        lines = [line for answer in answers for line in _consumer_lines(answer, self.queue, with_server=several)]
        put_lines(self.query_one("#consumers", Static), lines)
        self.show_items()
        self.show()

    def show_items(self) -> None:
        """Show the first items from each server of the view."""
        row = self._row()
        box = self.query_one(ItemBox)
        box.border_title = waiting_title(
            self.answers,
            self._form,
            row.items if row is not None else None,
            self._shown,
            is_stopped=row is not None and row.state == STOPPED,
        )
        box.show(self.answers, self._form, self.session.now_ms())

    # Keys

    def action_ask(self) -> None:
        self.ask("details", self.session.requests.details_of(self.queue, self._shown), self.show_answers)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.session.may_act if action == "items" else True

    def action_items(self, name: str) -> None:
        chosen = self.query_one(ItemBox).picked(self.answers)
        action = ItemAction(name)
        if any(item.item_id is None for answer in chosen for item in answer.items):
            self._refuse("single items require the server's admin port")
        elif action is ItemAction.REQUEUE and any(
            row.queue.startswith(f"{self.queue}+") for row in self.session.board.rows()
        ):
            self._refuse(f"would deliver them once more to the children of {printable(self.queue)}")
        elif chosen:
            self.post_message(self.ItemsChosen(action, self.queue, chosen))

    def _refuse(self, reason: str) -> None:
        self.notify(reason, severity="error", markup=False)

    def action_next_state(self) -> None:
        states = list(Shown)
        self._shown = states[(states.index(self._shown) + 1) % len(states)]
        self.action_ask()

    def action_next_form(self) -> None:
        forms = list(ItemForm)
        self._form = forms[(forms.index(self._form) + 1) % len(forms)]
        self.show_items()

    def action_next_span(self) -> None:
        self._samples = SPANS_SAMPLES[(SPANS_SAMPLES.index(self._samples) + 1) % len(SPANS_SAMPLES)]
        self.show()


def _title(queue: str, row: QueueRow | None) -> str:
    if row is None:
        return f"{printable(queue)}  no such queue"
    stopped = "  ✖ STOPPED" if row.is_stopped else ""
    return printable(queue) + stopped + "  " + "  ".join(labelled(row, TITLE))


def _reader(row: QueueRow, figures: Mapping[str, Cell]) -> list[str]:
    """Lines on one reader. Only kestreld reports its head."""
    name, plus, child = row.queue.partition("+")
    lines = [
        f"  {printable(plus + child if plus else name)}",
        *(f"    {HEADINGS[column]} {cell(row, column)}" for column in ("items", "in_per_s", "out_per_s")),
    ]
    if "head_id" in figures and "next_id" in figures:
        lines += [f"    head {figures['head_id']}", f"    next {figures['next_id']}"]
    lines += [f"    {words} {count(known)}" for key, words in _HELD.items() if (known := _number(figures, key))]
    if due_ms := _number(figures, "next_due_ms"):
        lines.append(f"    next due in {span(due_ms)}")
    return lines


def _number(figures: Mapping[str, Cell], key: str) -> int:
    value = figures.get(key, 0)
    return value if isinstance(value, int) else 0


def _consumer_lines(answer: QueueDetails, queue: str, *, with_server: bool) -> list[str]:
    """Lines on clients that hold items and clients that wait, the longest first."""
    lines = [answer.server] if with_server else []
    found = answer.consumers
    if found is None:
        return [*lines, "shown by the admin port only"]
    leased = _number(answer.figures.get(queue, {}), "leased")  # leases count as open reads, but belong to no connection
    opened = max(found.open_reads - leased, len(found.holding))
    if not opened and not leased and not found.waiters:
        return [*lines, "no client waits for or holds an item"]
    if opened:
        lines += [f"{count(opened)} open", *map(_holding, found.holding)]
    if leased:
        lines += [f"{count(leased)} leased: i lists them", *map(_leasing, found.leasing)]
    if found.waiters:
        lines += [f"{count(found.waiters)} waiting", *map(_waiting, found.waiting)]
        if found.waiters > len(found.waiting):
            lines.append(f"  … {count(found.waiters - len(found.waiting))} more")
    return lines


def _holding(consumer: Consumer) -> str:
    which = f"#{consumer.first_id}"
    if consumer.open_reads > 1:
        which = f"{count(consumer.open_reads)} from {which} on"
    return f"{_waiting(consumer)}: {which}"


def _leasing(consumer: Consumer) -> str:
    extended = f", {times('extended', consumer.extended)}" if consumer.extended else ""
    return _holding(consumer) + extended + ("" if consumer.is_seen else f", {NOT_SEEN}")


def _waiting(consumer: Consumer) -> str:
    user = f" {printable(consumer.user)}" if consumer.user else ""
    return f"  {consumer.client or 'a client'}{user} for {span(consumer.age_ms)}"


def _now(values: Sequence[float]) -> float | None:
    return values[-1] if values and values[-1] == values[-1] else None
