"""The console application: threads poll the servers, samples go to the board, and screens show the board."""

import asyncio
import gc
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Final

from textual.app import App
from textual.css.query import NoMatches
from textual.message import Message

from kestrelctl.shell.exit_codes import Failure
from kestreld.config.units import parse_duration_ms
from tui.actions import Actions
from tui.admin_queries import Action
from tui.commands import parse
from tui.export import export
from tui.formats import printable, span
from tui.job_table import JobTable
from tui.keys import CONSOLE_KEYS, bindings
from tui.palette import Offers
from tui.plain import ViewOptions
from tui.polling import Poller, PollThread
from tui.preferences import columns_named, keep_columns
from tui.queue_rows import COLUMNS
from tui.screens.command_line import CommandLine
from tui.screens.details import Details
from tui.screens.help import Help
from tui.screens.job_list import JobListScreen
from tui.screens.jobs import JobsScreen
from tui.screens.journal import JournalScreen
from tui.screens.nodes import NodesScreen
from tui.screens.overview import Overview
from tui.screens.questions import Question
from tui.session import Session
from tui.snapshots import Outage, Snapshot
from tui.table import COLUMNS_SHOWN, QueueTable
from tui.themes import NAMES, THEMES

GARBAGE_MIN: Final = 100_000
INTERVALS_MS: Final = (100, 250, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000)

JOB_SCREENS: Final = (JobsScreen, JobListScreen, NodesScreen)


class Console(App[None]):
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
        session: Session,
        *,
        theme_name: str = NAMES[0],
        columns: Sequence[str] = COLUMNS_SHOWN,
        keeps_columns: bool = False,
    ) -> None:
        """`keeps_columns`: save the chosen columns."""
        super().__init__()
        self.session = session
        self.board = session.board
        self.actions = Actions(self, session.requests.servers, self._chosen_queues)
        self.stopped_by: int | None = None  # a signal
        self.login_refusal: Failure | None = None  # a server did not take the user and password
        self._started_by = os.getppid()
        self._pollers = pollers
        self._threads: list[PollThread] = []
        self._keeps_columns = keeps_columns
        self.overview = Overview(session, options.filter, options.sort, descending=options.descending, columns=columns)
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = theme_name

    def on_mount(self) -> None:
        # A sample creates and drops thousands of rows without cycles: collecting them took a third of a tick.
        gc.set_threshold(GARBAGE_MIN, 20, 100)
        self.push_screen(self.overview)
        self.session.seek(1)
        self._threads = [PollThread(poller, self._deliver) for poller in self._pollers]
        for thread in self._threads:
            thread.start()
        self._timer = self.set_interval(self.session.interval_ms / 1000, self.tick)
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
        self.session.stop_recording()

    def say(self, message: str, *, is_bad: bool = False) -> None:
        self.notify(message, severity="error" if is_bad else "information", markup=False)

    # News

    def _deliver(self, news: Snapshot | Outage) -> None:
        self.post_message(self.News(news))

    def on_console_news(self, message: News) -> None:
        has_all = self.session.receive(message.news)
        self.login_refusal = self.board.servers[message.news.server].login_refusal
        if self.login_refusal is not None:
            self.exit()
            return
        try:
            self.session.record(message.news)
        except OSError as error:
            self.say(f"recording stopped: {(error.strerror or str(error)).lower()}", is_bad=True)
        if has_all:
            self._advance()

    def tick(self) -> None:
        """Run once an interval: show samples while some servers lag behind, or the next sample of a recording."""
        if self.is_web and os.getppid() != self._started_by:
            self.exit()  # the web server has exited
        if self.session.player is not None:
            if not self.session.is_paused and not self.session.player.is_at_end:
                self.action_seek(1)
            return
        self._advance()
        with suppress(NoMatches):
            self.overview.show_servers()

    def _advance(self) -> None:
        if self.session.advance():
            self._show()

    def _show(self) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, (Overview, Details, *JOB_SCREENS)):
                # Samples arrive from threads, also while a screen is being mounted or removed.
                with suppress(NoMatches):
                    screen.show()

    # Screens

    def on_queue_table_opened(self, event: QueueTable.Opened) -> None:
        self.open_queue(event.queue)

    def open_queue(self, queue: str) -> None:
        if isinstance(self.screen, Details):
            self.pop_screen()
        self.push_screen(Details(self.session, queue))

    def on_job_table_opened(self, event: JobTable.Opened) -> None:
        self.push_screen(JobListScreen(self.session, event.queue))

    def action_jobs(self) -> None:
        if isinstance(self.screen, JobsScreen):
            self.pop_screen()
        elif isinstance(self.screen, Overview):
            self.push_screen(JobsScreen(self.session))

    def action_nodes(self) -> None:
        if isinstance(self.screen, NodesScreen):
            self.pop_screen()
        elif isinstance(self.screen, (Overview, JobsScreen)):
            self.push_screen(NodesScreen(self.session))

    def action_journal(self) -> None:
        queue = self._current_queue()
        if queue is not None and not isinstance(self.screen, JournalScreen):
            self.push_screen(JournalScreen(self.session, queue))

    def _current_queue(self) -> str | None:
        return self.screen.queue if isinstance(self.screen, Details | JournalScreen) else self.overview.table.current

    def action_help(self) -> None:
        self.push_screen(Help())

    def action_pause(self) -> None:
        self.session.pause()
        self._advance()
        self._show()

    def action_try_now(self) -> None:
        for thread in self._threads:
            if self.board.servers[thread.address].outage is not None:
                thread.poll_now()

    def action_interval(self, step: int) -> None:
        longer = [interval for interval in INTERVALS_MS if interval > self.session.interval_ms]
        shorter = [interval for interval in INTERVALS_MS if interval < self.session.interval_ms]
        choice = longer[:1] if step > 0 else shorter[-1:]
        if choice:
            self._refresh_every(choice[0])

    def _refresh_every(self, interval_ms: int) -> None:
        self.session.refresh_every(interval_ms)
        for poller in self._pollers:
            poller.interval_ms = interval_ms
        self._timer.stop()
        self._timer = self.set_interval(interval_ms / 1000, self.tick)
        self.say(f"every {span(interval_ms)}")
        self.overview.show()

    def action_next_theme(self) -> None:
        index = NAMES.index(self.theme) if self.theme in NAMES else -1
        self.theme = NAMES[(index + 1) % len(NAMES)]

    def action_seek(self, samples: int) -> None:
        self.session.seek(samples)
        self._show()

    # Actions

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """False = the key does nothing and is not shown."""
        if action in ("act", "journal") and any(isinstance(screen, JOB_SCREENS) for screen in self.screen_stack):
            return False  # these act on the current queue of the table below, even if help is on top
        if action == "act":
            return self.session.may_act
        if action == "nodes":
            return self.board.has_cluster
        if action in ("export", "record") and self.is_web and self.session.is_read_only:
            return False  # the files would be on this machine, not on the user's
        if action in ("record", "try_now"):
            return self.session.player is None
        if action == "seek":
            return self.session.player is not None
        return True

    def action_act(self, name: str) -> None:
        self.actions.act(Action(name))

    def on_details_items_chosen(self, event: Details.ItemsChosen) -> None:
        self.actions.act_on_items(event.action, event.queue, event.chosen)

    def _chosen_queues(self) -> list[str]:
        """The marked queues, or the current one."""
        marked = self.overview.table.marked
        if isinstance(self.screen, Overview) and marked:
            chosen = [row.queue for row in self.overview.rows() if row.queue in marked]
            if chosen:
                return chosen
        current = self._current_queue()
        return [current] if current is not None else []

    def action_export(self) -> None:
        picture = self.export_screenshot()  # of the screen below the question

        def write(path: str | None) -> None:
            if path:
                self._export_to(path, picture)

        self.push_screen(Question("Write the view to a new file: .csv, .json or .svg", "kestrel-top.csv"), write)

    def _export_to(self, path: str, picture: str) -> None:
        try:
            export(path, self.overview.rows(), lambda: picture)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self.say(f"cannot write {path}: {reason}", is_bad=True)
        else:
            self.say(f"wrote {path}")

    def action_record(self) -> None:
        recorder = self.session.recorder
        if recorder is None:
            self.push_screen(Question("Record samples to a new file", "kestrel-top.jsonl"), self._record_to)
            return
        self.session.stop_recording()
        self.say(f"recorded to {recorder.path}")
        self.overview.show()

    def _record_to(self, path: str | None) -> None:
        if not path:
            return
        try:
            self.session.start_recording(path)
        except OSError as error:
            self.say(f"cannot record to {path}: {error.strerror}", is_bad=True)
        self.overview.show()

    # Commands

    def action_command(self) -> None:
        self.push_screen(CommandLine([row.queue for row in self.board.rows()]), self.run_command)

    async def run_command(self, line: str | None) -> None:
        """Run a command typed after a colon: without an argument often an action, else a method below."""
        if not line or not line.strip(" :"):
            return
        try:
            command, argument = parse(line)
            action = "act" if command.name in list(Action) else command.name
            if not self.check_action(action, ()):
                reason = "no server has other nodes" if action == "nodes" else "read-only, or a replay"
                raise ValueError(f"{command.name} is not possible here: {reason}")
            if command.action and not argument:
                await self.run_action(command.action)
            else:
                getattr(self, f"command_{command.name}")(argument)
        except ValueError as error:
            self.say(str(error), is_bad=True)

    def command_queue(self, name: str) -> None:
        self._known(name)
        self.open_queue(name)

    def command_journal(self, name: str) -> None:
        self._known(name)
        self.overview.table.go_to(name)
        self.push_screen(JournalScreen(self.session, name))

    def _known(self, name: str) -> None:
        if all(row.queue != name for row in self.board.rows()):
            raise ValueError(f"no such queue: {printable(name)}")

    def command_jobs(self, name: str) -> None:
        if all(row.queue != name for row in self.board.job_rows()):
            raise ValueError(f"no such queue of jobs: {printable(name)}")
        self.push_screen(JobListScreen(self.session, name))

    def command_sort(self, argument: str) -> None:
        (column,) = columns_named([argument.lstrip("+-")], COLUMNS)
        self.overview.sort_by(
            column, descending=not argument.startswith("+") if column != "queue" else argument[0] == "-"
        )

    def command_filter(self, words: str) -> None:
        self.overview.filter_by(words)

    def command_columns(self, argument: str) -> None:
        columns = columns_named(argument.replace(",", " ").split()) or COLUMNS_SHOWN
        self.overview.table.show_columns(columns)
        if not self._keeps_columns:
            return
        try:
            keep_columns(columns)
        except OSError as error:
            self.say(f"cannot keep the columns: {error.strerror or error}", is_bad=True)

    def command_server(self, address: str) -> None:
        self.board.look_at(address)
        self.overview.show()

    def command_theme(self, name: str) -> None:
        if name not in NAMES:
            raise ValueError(f"no such theme: {name!r}; use one of {', '.join(NAMES)}")
        self.theme = name

    def command_interval(self, argument: str) -> None:
        interval_ms = parse_duration_ms(argument, 1000)
        if interval_ms == 0:
            raise ValueError("the interval must be greater than 0")
        self._refresh_every(interval_ms)

    def command_put(self, item: str) -> None:
        self.actions.put(item)

    def command_move(self, target: str) -> None:
        self.actions.move_to(target)

    def command_export(self, path: str) -> None:
        self._export_to(path, self.export_screenshot())

    def command_record(self, path: str) -> None:
        if self.session.recorder is None:
            self._record_to(path)
        else:
            self.action_record()
