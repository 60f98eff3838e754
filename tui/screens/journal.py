"""Screen with the journal of a queue: its segments, the readers that hold them, and the result of a check."""

import time
from collections.abc import Sequence
from typing import Final

from textual.app import ComposeResult
from textual.widgets import Static

from tui.formats import count, printable, size
from tui.journals import Check, JournalDetails, Reader, Segment
from tui.keys import JOURNAL_KEYS, bindings
from tui.screens.boxes import IN_A_REPLAY, LOADING, Box, BoxScreen, in_columns, put_lines
from tui.screens.key_bar import KeyBar
from tui.session import Session

SEGMENTS_SHOWN_MAX: Final = 1000
UNREAD: Final = "·"
HEADS: Final = ("number", "state", "first id", "ids", "live", "dead", "bytes", "records", "sums", "held by")


class JournalScreen(BoxScreen):
    BINDINGS = bindings(JOURNAL_KEYS)
    DEFAULT_CSS = """
    JournalScreen #segments-box { height: 2fr; }
    JournalScreen #holders-box { height: 1fr; }
    """

    def __init__(self, session: Session, queue: str) -> None:
        super().__init__(session)
        self.queue = queue
        self.answers: list[JournalDetails] = []  # one for each server of the view
        self.checks: dict[str, Check] = {}  # by server
        self.is_checking = False

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        with Box(id="segments-box"):
            yield Static(id="segments")
        with Box(id="holders-box"):
            yield Static(id="holders")
        yield KeyBar()

    def on_mount(self) -> None:
        self.query_one("#segments-box").border_title = "segments"
        self.query_one("#holders-box").border_title = "readers and what they hold"
        self.query_one("#segments-box").focus()
        self.action_ask()
        self.show()

    # Drawing

    def show_answers(self, answers: list[JournalDetails]) -> None:
        self.answers = answers
        self.show()

    def show_checks(self, checks: dict[str, Check]) -> None:
        self.checks, self.is_checking = checks, False
        self.show()

    def show(self) -> None:
        """Show the answers and checks so far."""
        answered = [answer for answer in self.answers if not answer.failure]
        segments = sum(len(answer.segments) for answer in answered)
        on_disk = sum(answer.bytes_on_disk for answer in answered)
        title = [f"{printable(self.queue)}  journal"]
        if answered:
            title += [f"segments {count(segments)}", f"on disk {size(on_disk)}"]
        if self.is_checking:
            title.append("CHECKING ALL FILES …")
        put_lines(self.query_one("#title", Static), ["  ".join(title)])
        put_lines(self.query_one("#segments", Static), self._segment_lines())
        put_lines(self.query_one("#holders", Static), self._holder_lines())

    def _segment_lines(self) -> list[str]:
        if self.session.player is not None:
            return [IN_A_REPLAY]
        lines = [] if self.answers else [LOADING]
        for answer in self.answers:
            lines += self._lines_of(answer)
        return lines

    def _lines_of(self, answer: JournalDetails) -> list[str]:
        if answer.failure:
            return [f"▲ {answer.server} cannot show its journal: {answer.failure}"]
        check = self.checks.get(answer.server)
        lines = [f"{answer.server}  {'  '.join(answer.notes)}"] if len(self.answers) > 1 else ["  ".join(answer.notes)]
        lines += _checksum_lines(check)
        left_out = len(answer.segments) - SEGMENTS_SHOWN_MAX
        if left_out > 0:
            lines.append(f"{count(left_out)} older segments not shown")
        known = {reader.name: reader for reader in answer.readers}
        rows = [_segment(segment, check, known) for segment in answer.segments[-SEGMENTS_SHOWN_MAX:]]
        return [*lines, *in_columns([HEADS, *rows], right=range(len(HEADS) - 1)), ""]

    def _holder_lines(self) -> list[str]:
        lines = [] if self.answers or self.session.player is not None else [LOADING]
        for answer in self.answers:
            if len(self.answers) > 1 and answer.readers:
                lines.append(answer.server)
            readers = sorted(answer.readers, key=lambda reader: reader.head)
            lines += in_columns([_holder(reader, answer) for reader in readers], right=(2, 3))
        return lines

    # Keys

    def action_ask(self) -> None:
        self.ask("journal", self.session.requests.journals_of(self.queue), self.show_answers)

    def action_check(self) -> None:
        if self.answers and not self.is_checking:
            self.is_checking = True
            self.ask("check", self._check, self.show_checks)
            self.show()

    def _check(self) -> dict[str, Check]:
        """Check the journals, in a thread; cancelled when the screen is left."""
        app = self.app
        return self.session.requests.check_journals(
            self.queue, self.answers, lambda: not app.is_running or self not in app.screen_stack
        )


def _checksum_lines(check: Check | None) -> list[str]:
    """The result of a check."""
    if check is None:
        return ["checksums: not checked yet; press c to read all files of the journal"]
    at = time.strftime("%H:%M:%S", time.localtime(check.at_ms / 1000))
    if check.failure:
        return [f"▲ checksums not checked: {check.failure}"]
    records = sum(segment.records for segment in check.segments.values())
    segments = f"{len(check.segments)} segment{'' if len(check.segments) == 1 else 's'}"
    read = f"{segments}, {records:,} record{'' if records == 1 else 's'} read at {at}"
    if not check.problems:
        return [f"● all checksums match: {read}"]
    return [f"✖ {read}", *(f"✖ {problem}" for problem in check.problems)]


def _segment(segment: Segment, check: Check | None, known: dict[str, Reader]) -> Sequence[str]:
    ids = segment.end_id - segment.first_id
    read = check.segments.get(segment.file) if check is not None else None
    live = count(read.live_items) if read is not None else f"≤{count(segment.needed_ids)}"
    # The ids of a compacted segment have gaps.
    has_all = segment.state not in ("compacted", "replaced")
    dead = count(max(0, ids - read.live_items)) if read is not None else f"≥{count(max(0, ids - segment.needed_ids))}"
    sums = UNREAD if read is None else "✖ BAD" if read.problem else "ok"
    more = f" and {segment.pins - len(segment.pinned_by)} more" if segment.pins > len(segment.pinned_by) else ""
    holders = ", ".join(_name(known[name]) if name in known else name for name in segment.pinned_by) + more
    return (
        str(segment.number),
        segment.state,
        str(segment.first_id),
        count(ids) if has_all else UNREAD,
        live,
        dead if has_all else UNREAD,
        size(segment.bytes),
        count(read.records) if read is not None else UNREAD,
        sums,
        holders or "no reader",
    )


def _holder(reader: Reader, answer: JournalDetails) -> Sequence[str]:
    held = [segment for segment in answer.segments if segment.end_id > reader.head or segment.state == "live"]
    held_bytes = size(sum(segment.bytes for segment in held))
    behind = count(max(0, answer.next_id - reader.head))
    in_segments = f"holds {held_bytes} in {len(held)} segment{'' if len(held) == 1 else 's'}"
    return _name(reader), f"head {reader.head}", f"{behind} behind", in_segments


def _name(reader: Reader) -> str:
    if reader.kind == "stream":
        return f"reader {printable(reader.name)}"
    return f"+{printable(reader.name)}" if reader.name else "the queue"
