"""An operator's changes of queues and items, on a confirmation or an argument that the user types."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from textual.app import App

from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestreld.config.units import parse_duration_ms
from tui.admin_queries import Action, Asked, QueueDetails, delete_queue, flush_queue, reload
from tui.formats import count, printable
from tui.moving import Errand, ItemAction, check_target, move_queue, put_item, redrive_queue, run_errand
from tui.screens.details import Details
from tui.screens.questions import Confirmation, Question

NAMES_SHOWN_MAX: Final = 5
Call = Callable[[], str]  # makes one change; returns a message for the user, raises Failure


class Actions:
    def __init__(self, app: App[None], servers: Callable[[], list[Asked]], chosen: Callable[[], list[str]]) -> None:
        """`servers` returns those of the view, `chosen` the marked queues, or the current one."""
        self._app = app
        self._servers = servers
        self._chosen = chosen

    # Chosen queues

    def act(self, action: Action) -> None:
        """Run an action on every server of the view."""
        queues, servers = self._chosen(), self._servers()
        where = ", ".join(server.address for server in servers)
        if action is not Action.RELOAD and not queues:
            return
        what, named = _what(queues) if queues else ("", "")
        match action:
            case Action.RELOAD:
                confirmation = Confirmation(f"Reload the configuration of {where}.", "reload")
                self._ask_and_act(confirmation, lambda _: [partial(reload, server) for server in servers])
            case Action.FLUSH:
                confirmation = Confirmation(f"Discard all items of {named} on {where}.", what)
                self._ask_and_act(confirmation, lambda _: _each(servers, queues, flush_queue))
            case Action.DELETE:
                confirmation = Confirmation(f"Delete {named} and {_its(queues)} items on {where}.", what)
                self._ask_and_act(confirmation, lambda _: _each(servers, queues, delete_queue))
            case Action.REDRIVE:
                words = f"Send the dead letters of {named} on {where} back to the queues they come from."
                self._ask_and_act(Confirmation(words, what), lambda _: _each(servers, queues, redrive_queue))
            case Action.MOVE:
                question = Question(f"Move all items of {named} on {where} to the end of which queue?")
                self._ask_and_act(question, partial(self._moves, servers, queues))
            case Action.PUT:
                question = Question(f"Put an item on {printable(queues[0])} on {servers[0].address}:")
                self._ask_and_act(question, partial(self._puts, queues[0]))

    def _moves(self, servers: Sequence[Asked], queues: Sequence[str], target: str) -> list[Call]:
        return _each(servers, queues, lambda server, queue: move_queue(server, queue, target))

    def move_to(self, target: str) -> None:
        """Move the items of the chosen queues to another queue."""
        if queues := self._chosen():
            what, named = _what(queues)
            confirmation = Confirmation(f"Move all items of {named} to the end of {printable(target)}.", what)
            self._ask_and_act(confirmation, lambda _: self._moves(self._servers(), queues, target))

    def put(self, item: str) -> None:
        """Put an item on the first of the chosen queues, on the first server of the view."""
        if queues := self._chosen():
            self._carry_out(self._puts(queues[0], item))

    def _puts(self, queue: str, item: str) -> list[Call]:
        return [lambda: put_item(self._servers()[0], queue, item.encode("utf-8", "surrogateescape"))]

    # Chosen items

    def act_on_items(self, action: ItemAction, queue: str, chosen: Sequence[QueueDetails]) -> None:
        """Run an action on chosen items. `chosen`: the servers' answers reduced to these."""
        items = sum(len(answer.items) for answer in chosen)
        what = f"{count(items)} item{'' if items == 1 else 's'} of {printable(queue)}"

        def calls(target: str, lease_ms: int = 0) -> list[Call]:
            errand = Errand(action, queue, target, lease_ms)
            asked = {server.address: server for server in self._servers()}
            return [partial(run_errand, asked[answer.server], errand, answer.items) for answer in chosen]

        def calls_to(target: str) -> list[Call]:
            check_target(queue, target)
            return calls(target)

        def calls_for(lease: str) -> list[Call]:
            try:
                return calls("", parse_duration_ms(lease, 1000))
            except ValueError as error:
                raise Failure(ExitCode.USAGE, f"{lease}: {error}") from error

        match action:
            case ItemAction.MOVE:
                self._ask_and_act(Question(f"Move {what} to the end of which queue?"), calls_to)
            case ItemAction.REQUEUE:
                words = f"Put {what} at the end of the queue, behind all others."
                self._ask_and_act(Confirmation(words, queue), lambda _: calls(queue))
            case ItemAction.DELETE:
                self._ask_and_act(Confirmation(f"Delete {what} for good.", queue), lambda _: calls(""))
            case ItemAction.CANCEL:
                words = f"Cancel {what}, delayed or retrying: they are not delivered any more."
                self._ask_and_act(Confirmation(words, queue), lambda _: calls(""))
            case ItemAction.RUN_NOW:
                self._ask_and_act(Confirmation(f"Make {what} due now.", queue), lambda _: calls(""))
            case ItemAction.GIVE_BACK:
                words = f"Give {what} back, whoever has leased them: they wait again."
                self._ask_and_act(Confirmation(words, queue), lambda _: calls(""))
            case ItemAction.EXTEND:
                self._ask_and_act(Question(f"Extend the leases of {what} for how long from now?", "30s"), calls_for)

    # Carrying out

    def _say(self, message: str, *, is_bad: bool) -> None:
        self._app.notify(message, severity="error" if is_bad else "information", markup=False)

    def _ask_and_act(self, question: Question, calls: Callable[[str], Sequence[Call]]) -> None:
        def go_on(typed: str | None) -> None:
            if typed:
                try:
                    self._carry_out(calls(typed))
                except Failure as failure:
                    self._say(failure.words, is_bad=True)

        self._app.push_screen(question, go_on)

    def _carry_out(self, calls: Sequence[Call]) -> None:
        """Run the calls in order, in a thread."""

        def run() -> None:
            for call in calls:
                try:
                    message, is_bad = call(), False
                except Failure as failure:
                    message, is_bad = failure.words, True
                self._app.call_from_thread(self._say, message, is_bad=is_bad)
            self._app.call_from_thread(self._show_changes)

        self._app.run_worker(run, thread=True)

    def _show_changes(self) -> None:
        for screen in self._app.screen_stack:
            if isinstance(screen, Details):
                screen.action_ask()


def _each(servers: Sequence[Asked], queues: Sequence[str], change: Callable[[Asked, str], str]) -> list[Call]:
    def call(server: Asked, queue: str) -> str:
        message = change(server, queue)
        return message if len(queues) == 1 else f"{printable(queue)}: {message}"

    return [partial(call, server, queue) for server in servers for queue in queues]


def _what(queues: Sequence[str]) -> tuple[str, str]:
    """The text that the user has to type, and a description of the queues."""
    if len(queues) == 1:
        return queues[0], printable(queues[0])
    shown = ", ".join(printable(queue) for queue in queues[:NAMES_SHOWN_MAX])
    what = f"{len(queues)} queues"
    return what, f"{what} ({shown}{', …' if len(queues) > NAMES_SHOWN_MAX else ''})"


def _its(queues: Sequence[str]) -> str:
    return "its" if len(queues) == 1 else "their"
