"""The command palette: queues by name and key bindings by help text."""

from collections.abc import Callable
from typing import Final

from textual.command import DiscoveryHit, Hit, Hits, Provider

from tui.formats import printable
from tui.keys import CONSOLE_KEYS, OVERVIEW_KEYS, Key
from tui.screens.console_screen import ConsoleScreen
from tui.table import QueueTable

QUEUES_OFFERED_MAX: Final = 10
NOT_OFFERED: Final = ("app.command_palette", "clear")
DETAILS: Final = "details of this queue"


class Offers(Provider):
    """Entries of the palette: queues by name, and key bindings by help text."""

    async def discover(self) -> Hits:
        for name in self._names()[:QUEUES_OFFERED_MAX]:
            yield DiscoveryHit(printable(name), self._opening(name), help=DETAILS)
        for key in self._keys():
            yield DiscoveryHit(key.meaning, self._doing(key), help=f"key {key.shown}")

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for name in self._names():
            if (score := matcher.match(name)) > 0:
                yield Hit(score, matcher.highlight(printable(name)), self._opening(name), help=DETAILS)
        for key in self._keys():
            if (score := matcher.match(key.meaning)) > 0:
                yield Hit(score, matcher.highlight(key.meaning), self._doing(key), help=f"key {key.shown}")

    def _names(self) -> list[str]:
        board = next(screen.session.board for screen in self.app.screen_stack if isinstance(screen, ConsoleScreen))
        return [row.queue for row in board.rows()]

    def _keys(self) -> list[Key]:
        """Key bindings that apply now."""
        known = {name: key for key in (*CONSOLE_KEYS, *OVERVIEW_KEYS) if (name := key.action) not in NOT_OFFERED}
        return [key for name, key in known.items() if self.app.check_action(_bare(name), ())]

    def _opening(self, name: str) -> Callable[[], object]:
        return lambda: self.app.post_message(QueueTable.Opened(name))

    def _doing(self, key: Key) -> Callable[[], object]:
        return lambda: self.app.run_action(key.action, self.app.screen)


def _bare(action: str) -> str:
    """The name of an action, without namespace and parameters."""
    return action.removeprefix("app.").partition("(")[0]
