"""The console application: threads poll the servers, samples go to the board, and screens show the board."""

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
from kestreld.config.units import parse_duration_ms
from tui.admin_queries import Action
from tui.commands import parse
from tui.export import export
from tui.figures import COLUMNS
from tui.formats import printable, span
from tui.jobs_console import JOB_SCREENS, JobsConsole
from tui.keys import CONSOLE_KEYS, bindings
from tui.palette import Offers
from tui.plain import ViewOptions
from tui.polling import Poller, PollThread
from tui.preferences import columns_named, keep_columns
from tui.recording import Player, Recorder
from tui.screens.command_line import CommandLine
from tui.screens.details import Details
from tui.screens.help import Help
from tui.screens.journal import JournalScreen
from tui.screens.overview import Overview
from tui.screens.questions import Question
from tui.snapshots import Outage, Snapshot
from tui.table import COLUMNS_SHOWN, QueueTable
from tui.themes import NAMES, THEMES

GARBAGE_MIN: Final = 100_000
INTERVALS_MS: Final = (100, 250, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000)


class Console(JobsConsole):
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
        columns: Sequence[str] = COLUMNS_SHOWN,
        keeps_columns: bool = False,
    ) -> None:
        """With a `player`, show a recording instead of polling. `keeps_columns`: save the chosen columns."""
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
        self.keeps_columns = keeps_columns
        self._overview = Overview(options.filter, options.sort, descending=options.descending, columns=columns)
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
        """Run once an interval: show samples while some servers lag behind, or the next sample of a recording."""
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
            if isinstance(screen, (Overview, Details, *JOB_SCREENS)):
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
        self._show()

    def action_try_now(self) -> None:
        for thread in self._threads:
            if self.board.servers[thread.address].outage is not None:
                thread.poll_now()

    def action_interval(self, step: int) -> None:
        longer = [interval for interval in INTERVALS_MS if interval > self.interval_ms]
        shorter = [interval for interval in INTERVALS_MS if interval < self.interval_ms]
        choice = longer[:1] if step > 0 else shorter[-1:]
        if not choice:
            return
        self.refresh_every(choice[0])

    def refresh_every(self, interval_ms: int) -> None:
        self.interval_ms = interval_ms
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
        if action in ("export", "record") and self.is_web and self.is_read_only:
            return False  # the files would be on this machine, not on the user's
        if action in ("record", "try_now"):
            return self.player is None
        if action == "seek":
            return self.player is not None
        return super().check_action(action, parameters)

    def chosen_queues(self) -> list[str]:
        marked = self._overview.table.marked
        if isinstance(self.screen, Overview) and marked:
            chosen = [row.queue for row in self._overview.rows() if row.queue in marked]
            if chosen:
                return chosen
        current = self._current_queue()
        return [current] if current is not None else []

    def after_acting(self) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, Details):
                screen.action_ask()

    def action_export(self) -> None:
        picture = self.export_screenshot()  # of the screen below the question

        def write(path: str | None) -> None:
            if path:
                self.export_to(path, picture)

        self.push_screen(Question("Write the view to a new file: .csv, .json or .svg", "kestrel-top.csv"), write)

    def export_to(self, path: str, picture: str) -> None:
        try:
            export(path, self._overview.rows(), lambda: picture)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self.say(f"cannot write {path}: {reason}", is_bad=True)
        else:
            self.say(f"wrote {path}")

    def action_record(self) -> None:
        if self.recorder is None:
            self.push_screen(Question("Record samples to a new file", "kestrel-top.jsonl"), self.record_to)
        else:
            self._stop_recording(self.recorder)

    def _stop_recording(self, recorder: Recorder) -> None:
        recorder.close()
        self.say(f"recorded to {recorder.path}")
        self.recorder = None
        self._overview.show()

    def record_to(self, path: str | None) -> None:
        if not path:
            return
        try:
            self.recorder = Recorder(path, self.interval_ms)
        except OSError as error:
            self.say(f"cannot record to {path}: {error.strerror}", is_bad=True)
        self._overview.show()

    # Commands

    def action_command(self) -> None:
        self.push_screen(CommandLine([row.queue for row in self.board.rows(self.view)]), self.run_command)

    def run_command(self, line: str | None) -> None:
        """Run a command typed after a colon."""
        if not line or not line.strip(" :"):
            return
        try:
            command, argument = parse(line)
            action = "act" if command.name in list(Action) else command.name
            if not self.check_action(action, ()):
                reason = "no server has other nodes" if action == "nodes" else "read-only, or a replay"
                raise ValueError(f"{command.name} is not possible here: {reason}")
            getattr(self, f"command_{command.name}")(argument)
        except ValueError as error:
            self.say(str(error), is_bad=True)

    def command_queue(self, name: str) -> None:
        self._known(name)
        self.open_queue(name)

    def command_journal(self, name: str) -> None:
        if name:
            self._known(name)
            self._overview.table.go_to(name)
            self.push_screen(JournalScreen(name))
        else:
            self.action_journal()

    def _known(self, name: str) -> None:
        if all(row.queue != name for row in self.board.rows(self.view)):
            raise ValueError(f"no such queue: {printable(name)}")

    def command_sort(self, argument: str) -> None:
        (column,) = columns_named([argument.lstrip("+-")], COLUMNS)
        self._overview.sort_by(
            column, descending=not argument.startswith("+") if column != "queue" else argument[0] == "-"
        )

    def command_filter(self, words: str) -> None:
        self._overview.filter_by(words)

    def command_columns(self, argument: str) -> None:
        columns = columns_named(argument.replace(",", " ").split()) or COLUMNS_SHOWN
        self._overview.table.show_columns(columns)
        if not self.keeps_columns:
            return
        try:
            keep_columns(columns)
        except OSError as error:
            self.say(f"cannot keep the columns: {error.strerror or error}", is_bad=True)

    def command_server(self, address: str) -> None:
        if address not in self.board.views and address not in self.board.servers:
            raise ValueError(f"no server {address}: there are {', '.join(self.board.servers)}")
        self.view = address if address in self.board.views else self.board.views[0]
        self._overview.show()

    def command_theme(self, name: str) -> None:
        if name not in NAMES:
            raise ValueError(f"no such theme: {name!r}; use one of {', '.join(NAMES)}")
        self.theme = name

    def command_interval(self, argument: str) -> None:
        interval_ms = parse_duration_ms(argument, 1000)
        if interval_ms == 0:
            raise ValueError("the interval must be greater than 0")
        self.refresh_every(interval_ms)

    def command_put(self, item: str) -> None:
        queues = self.chosen_queues()
        if queues:
            self.carry_out(self.puts(queues[0], item))

    def command_move(self, target: str) -> None:
        self.move_to(target)

    def command_flush(self, _: str) -> None:
        self.action_act("flush")

    def command_delete(self, _: str) -> None:
        self.action_act("delete")

    def command_reload(self, _: str) -> None:
        self.action_act("reload")

    def command_redrive(self, _: str) -> None:
        self.action_act("redrive")

    def command_export(self, path: str) -> None:
        self.export_to(path, self.export_screenshot())

    def command_record(self, path: str) -> None:
        if self.recorder is not None:
            self._stop_recording(self.recorder)
        elif path:
            self.record_to(path)
        else:
            self.action_record()

    def command_help(self, _: str) -> None:
        self.action_help()

    def command_quit(self, _: str) -> None:
        self.exit()
