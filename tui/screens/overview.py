"""The first screen: totals, the health of each server, and the table of queues."""

from collections.abc import Sequence
from typing import Final

from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import Input, Static

from tui.board import ALL_SERVERS
from tui.choosing import chosen, in_order
from tui.formats import span
from tui.keys import OVERVIEW_KEYS, bindings
from tui.queue_rows import COLUMNS, QueueRow
from tui.screens.boxes import put_lines
from tui.screens.console_screen import ConsoleScreen
from tui.screens.key_bar import KeyBar
from tui.session import Session
from tui.summaries import health_line, server_lines, totals_line, trouble_lines
from tui.table import QueueTable

SERVER_LINES_MAX: Final = 5


class Overview(ConsoleScreen):
    BINDINGS = bindings(OVERVIEW_KEYS)
    DEFAULT_CSS = """
    Overview Static { text-wrap: nowrap; text-overflow: ellipsis; }
    Overview #totals { height: 1; background: $panel; text-style: bold; padding: 0 1; }
    Overview #servers { height: auto; padding: 0 1; color: $text-muted; }
    Overview #stale { display: none; height: auto; background: $warning; color: $background; padding: 0 1; }
    Overview #stale.shown { display: block; }
    Overview #troubles { display: none; height: auto; padding: 0 1; text-style: bold; }
    Overview #scrubber { display: none; height: 1; padding: 0 1; color: $accent; }
    Overview #scrubber.shown { display: block; }
    Overview #filter { display: none; height: 1; border: none; padding: 0 1; background: $boost; }
    """

    def __init__(self, session: Session, words: str, sort: str, *, descending: bool, columns: Sequence[str]) -> None:
        super().__init__(session)
        self._columns = columns
        self.filter_words = words
        self.sort_column, self.descending = sort, descending
        self._sorted_before = "queue", False

    @property
    def table(self) -> QueueTable:
        return self.query_one(QueueTable)

    def compose(self) -> ComposeResult:
        yield Static(id="totals")
        yield Static(id="servers")
        yield Static(id="stale")
        yield Static(id="troubles")
        yield Static(id="scrubber")
        yield QueueTable(self._columns)
        yield Input(value=self.filter_words, placeholder="name  !name  items>100  oldest_ms>500", id="filter")
        yield KeyBar()

    def on_mount(self) -> None:
        self.table.focus()
        self.show()

    # Drawing

    def rows(self) -> list[QueueRow]:
        """The rows of the table in its current order."""
        rows = chosen(self.session.board.rows(), self.filter_words)
        return in_order(rows, self.sort_column, descending=self.descending)

    def show(self) -> None:
        """Show the current state of the board."""
        rows = self.rows()
        self.table.show(rows, self.session.board.history, (self.sort_column, self.descending))
        put_lines(self.query_one("#totals", Static), ["  ".join([*self._state(), totals_line(rows)])])
        self.show_servers()

    def show_servers(self) -> None:
        """Show the servers' health, which changes without new samples: an outage gets longer."""
        session = self.session
        now_ms = session.now_ms()
        servers = session.board.servers_in()
        healthy = [server for server in servers if server.outage is None]
        lines = [line for server in healthy for line in server_lines(server, now_ms)]
        if len(lines) > SERVER_LINES_MAX:  # lines of caches are dropped first
            lines = [health_line(server, now_ms) for server in healthy]
        if len(lines) > SERVER_LINES_MAX:
            lines[SERVER_LINES_MAX - 1 :] = [f"… and {len(lines) - SERVER_LINES_MAX + 1} more; press v to see each"]
        box = self.query_one("#servers", Static)
        box.display = bool(lines)
        put_lines(box, lines)
        stale = [health_line(server, now_ms) for server in servers if server.outage is not None]
        banner = self.query_one("#stale", Static)
        banner.set_class(bool(stale), "shown")
        put_lines(banner, stale)
        troubles = self.query_one("#troubles", Static)
        lines = trouble_lines(session.board.rows(), servers, session.board.node_rows())
        troubles.display = bool(lines)
        colours = self.app.theme_variables
        text = Text("\n").join(
            Text(line, colours["error" if line.startswith("✖") else "warning"][:7]) for line in lines
        )
        if text != troubles.content:
            troubles.update(text)
        scrubber = self.query_one("#scrubber", Static)
        player = session.player
        scrubber.set_class(player is not None, "shown")
        if player is not None:
            put_lines(scrubber, [player.scrubber(max(10, self.size.width - 44))])

    def _state(self) -> list[str]:
        """Settings for the title. Those that differ from the default come first: a narrow screen cuts off the line."""
        session = self.session
        words = [f"[{session.board.view}]"] if session.board.view != ALL_SERVERS else []
        if session.is_paused:
            words.append("PAUSED")
        if session.recorder is not None:
            words.append("RECORDING")
        if session.is_read_only:
            words.append("read-only")
        if self.filter_words:
            words.append(f"/{self.filter_words}")
        return [*words, f"every {span(session.interval_ms)}"]

    # Keys

    def action_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.display = True
        self.set_focus(box)  # at once: the next key is for it

    def on_input_changed(self, event: Input.Changed) -> None:
        self.filter_words = event.value
        self.show()
        self.table.go_to_top()

    def filter_by(self, words: str) -> None:
        self.query_one("#filter", Input).value = words

    def on_input_submitted(self) -> None:
        self.query_one("#filter", Input).display = False
        self.set_focus(self.table)

    def action_clear(self) -> None:
        self.query_one("#filter", Input).value = ""
        self.on_input_submitted()

    def action_sort(self, step: int) -> None:
        self.sort_by(COLUMNS[(COLUMNS.index(self.sort_column) + step) % len(COLUMNS)])

    def sort_by(self, column: str, *, descending: bool | None = None) -> None:
        """Sort by a column, figures in descending order; the same column again reverses the order."""
        if descending is not None:
            self.sort_column, self.descending = column, descending
        elif column == self.sort_column:
            self.descending = not self.descending
        else:
            self.sort_column, self.descending = column, column != "queue"
        self.show()

    def action_worst(self) -> None:
        if (self.sort_column, self.descending) == ("state", True):
            self.sort_column, self.descending = self._sorted_before
        else:
            self._sorted_before = self.sort_column, self.descending
            self.sort_column, self.descending = "state", True
        self.show()
        self.table.go_to_top()

    def action_reverse(self) -> None:
        self.sort_by(self.sort_column)

    def action_next_view(self) -> None:
        self.session.board.look_at_next()
        self.show()

    def on_queue_table_head_clicked(self, event: QueueTable.HeadClicked) -> None:
        self.sort_by(event.column)
