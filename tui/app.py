"""The console: threads poll the servers, samples go to the board, and the screens show the board."""

import asyncio
import gc
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Final

from textual.css.query import NoMatches
from textual.message import Message

from kestrelctl.remote.client import NOBODY
from kestrelctl.shell.exit_codes import Failure
from kestreld.client.access import Login
from tui.asking import Action, act
from tui.base import BaseConsole
from tui.export import export
from tui.formats import printable, span
from tui.keys import CONSOLE_KEYS, bindings
from tui.palette import Offers
from tui.plain import ViewOptions
from tui.polling import Poller, PollThread
from tui.recording import Player, Recorder
from tui.screens.details import Details
from tui.screens.help import Help
from tui.screens.journal import JournalScreen
from tui.screens.overview import Overview
from tui.screens.questions import Confirmation, Question
from tui.snapshots import Outage, Snapshot
from tui.table import QueueTable
from tui.themes import NAMES, THEMES

GARBAGE_MIN: Final = 100_000
INTERVALS_MS: Final = (100, 250, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000)


class Console(BaseConsole):
    TITLE = "kestrelctl top"
    ENABLE_COMMAND_PALETTE = True
    COMMANDS: ClassVar = {Offers}  # Textual's own write SVGs that load fonts
    BINDINGS = bindings(CONSOLE_KEYS)

    @dataclass
    class News(Message):
        """A sample of a server arrived."""

        news: Snapshot | Outage

    def __init__(
        self,
        pollers: Sequence[Poller],
        options: ViewOptions,
        *,
        interval_ms: int,
        timeout_ms: int,
        login: Login = NOBODY,
        is_read_only: bool = False,
        theme_name: str = NAMES[0],
        recorder: Recorder | None = None,
        player: Player | None = None,
    ) -> None:
        """With a `player`, show a recording instead of polling."""
        super().__init__(
            player.servers if player is not None else [poller.address for poller in pollers],
            interval_ms=interval_ms,
            timeout_ms=timeout_ms,
            login=login,
            is_read_only=is_read_only,
            recorder=recorder,
            player=player,
        )
        self.stopped_by: int | None = None  # a signal
        self.login_refusal: Failure | None = None  # a server did not take the user and password
        self._started_by = os.getppid()
        self._pollers = pollers
        self._threads: list[PollThread] = []
        self._sampled: set[str] = set()
        self._overview = Overview(options.filter, options.sort, descending=options.descending)
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = theme_name

    def on_mount(self) -> None:
        # A sample creates and drops thousands of rows without cycles: collecting them took a third of a tick.
        gc.set_threshold(GARBAGE_MIN, 20, 100)
        self.push_screen(self._overview)
        if self.player is not None:
            self.player.seek(0, self.board)
        self._threads = [PollThread(poller, self._deliver) for poller in self._pollers]
        for thread in self._threads:
            thread.start()
        self._timer = self.set_interval(self.interval_ms / 1000, self.tick)
        # SIGHUP under nohup, too: without a terminal the console would wait for keys forever.
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._stop, number)

    def _stop(self, signal_number: int) -> None:
        """Restore the terminal before the process ends."""
        self.stopped_by = signal_number
        self.exit()

    def on_unmount(self) -> None:
        for thread in self._threads:
            thread.stop()
        if self.recorder is not None:
            self.recorder.close()

    # News

    def _deliver(self, news: Snapshot | Outage) -> None:
        self.post_message(self.News(news))

    def on_console_news(self, message: News) -> None:
        self.board.receive(message.news)
        self.login_refusal = self.board.servers[message.news.server].login_refusal
        if self.login_refusal is not None:
            self.exit()
            return
        self._record(message.news)
        self._sampled.add(message.news.server)
        answering = {state.address for state in self.board.servers.values() if state.outage is None}
        if answering <= self._sampled:
            self._advance()

    def tick(self) -> None:
        """Once an interval: show samples of servers that lag behind, or the next sample of a recording."""
        if self.is_web and os.getppid() != self._started_by:
            self.exit()  # the web server has exited
        if self.player is not None:
            if not self.is_paused and not self.player.is_at_end:
                self.action_seek(1)
            return
        self._advance()
        with suppress(NoMatches):
            self._overview.show_servers()

    def _advance(self) -> None:
        if self.is_paused:
            return
        self._sampled.clear()
        if self.board.advance(self.now_ms()):
            self._show()

    def _show(self) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, Overview | Details):
                # Samples arrive from threads, also while a screen is being mounted or removed.
                with suppress(NoMatches):
                    screen.show()

    def _record(self, news: Snapshot | Outage) -> None:
        if self.recorder is None:
            return
        try:
            self.recorder.write(news)
        except OSError as error:
            self.say(f"recording stopped: {(error.strerror or str(error)).lower()}", is_bad=True)
            self.recorder = None

    def say(self, message: str, *, is_bad: bool = False) -> None:
        self.notify(message, severity="error" if is_bad else "information", markup=False)

    # Screens

    def on_queue_table_opened(self, event: QueueTable.Opened) -> None:
        self.open_queue(event.queue)

    def open_queue(self, queue: str) -> None:
        if isinstance(self.screen, Details):
            self.pop_screen()
        self.push_screen(Details(queue))

    def action_journal(self) -> None:
        queue = self._current_queue()
        if queue is not None and not isinstance(self.screen, JournalScreen):
            self.push_screen(JournalScreen(queue))

    def _current_queue(self) -> str | None:
        return self.screen.queue if isinstance(self.screen, Details | JournalScreen) else self._overview.table.current

    def action_help(self) -> None:
        self.push_screen(Help())

    def action_pause(self) -> None:
        self.is_paused = not self.is_paused
        self._advance()
        self._overview.show()

    def action_interval(self, step: int) -> None:
        longer = [interval for interval in INTERVALS_MS if interval > self.interval_ms]
        shorter = [interval for interval in INTERVALS_MS if interval < self.interval_ms]
        choice = longer[:1] if step > 0 else shorter[-1:]
        if not choice:
            return
        self.interval_ms = choice[0]
        for poller in self._pollers:
            poller.interval_ms = self.interval_ms
        self._timer.stop()
        self._timer = self.set_interval(self.interval_ms / 1000, self.tick)
        self.say(f"every {span(self.interval_ms)}")
        self._overview.show()

    def action_next_theme(self) -> None:
        index = NAMES.index(self.theme) if self.theme in NAMES else -1
        self.theme = NAMES[(index + 1) % len(NAMES)]

    def action_seek(self, samples: int) -> None:
        if self.player is not None:
            self.player.seek(self.player.position + samples, self.board)
            self._show()

    # Actions

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """False = the key does nothing and is not shown."""
        if action == "act":
            return not self.is_read_only and self.player is None
        if action in ("export", "record") and self.is_web and self.is_read_only:
            return False  # the files would be on this machine, not on the user's
        if action == "record":
            return self.player is None
        if action == "seek":
            return self.player is not None
        return True

    def action_act(self, name: str) -> None:
        """Act on every server of the view, once the user has typed the queue's name."""
        action = Action(name)
        queue = self._current_queue()
        servers = [server.address for server in self.board.servers_in(self.view)]
        if action is not Action.RELOAD and queue is None:
            return
        queue = queue or ""
        where = ", ".join(servers)
        if action is Action.RELOAD:
            confirmation = Confirmation(f"Reload the configuration of {where}.", "reload")
        elif action is Action.FLUSH:
            confirmation = Confirmation(f"Discard all items of {printable(queue)} on {where}.", queue)
        else:
            confirmation = Confirmation(f"Delete {printable(queue)} and its items on {where}.", queue)

        def act_on_servers() -> None:
            for server in servers:
                try:
                    message, is_bad = act(server, self.timeout_ms, self.login, action, queue), False
                except Failure as failure:
                    message, is_bad = failure.words, True
                self.call_from_thread(self.say, message, is_bad=is_bad)

        def go_on(typed: str | None) -> None:
            if typed is not None:
                self.run_worker(act_on_servers, thread=True)

        self.push_screen(confirmation, go_on)

    def action_export(self) -> None:
        draw = self.export_screenshot  # of the screen below the question
        picture = draw()

        def write(path: str | None) -> None:
            if not path:
                return
            try:
                export(path, self._overview.rows(), lambda: picture)
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                self.say(f"cannot write {path}: {reason}", is_bad=True)
            else:
                self.say(f"wrote {path}")

        self.push_screen(Question("Write the view to a new file: .csv, .json or .svg", "kestrel-top.csv"), write)

    def action_record(self) -> None:
        if self.recorder is not None:
            self.recorder.close()
            self.say(f"recorded to {self.recorder.path}")
            self.recorder = None
            self._overview.show()
            return

        def start(path: str | None) -> None:
            if not path:
                return
            try:
                self.recorder = Recorder(path, self.interval_ms)
            except OSError as error:
                self.say(f"cannot record to {path}: {error.strerror}", is_bad=True)
            self._overview.show()

        self.push_screen(Question("Record samples to a new file", "kestrel-top.jsonl"), start)
