"""What the command palette offers: queues, and what the keys do."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider

from tui.formats import printable
from tui.keys import CONSOLE_KEYS, OVERVIEW_KEYS

if TYPE_CHECKING:
    from tui.app import Console

QUEUES_OFFERED_MAX: Final = 10


class Queues(Provider):
    """Queues, by name."""

    async def discover(self) -> Hits:
        for name in self._names()[:QUEUES_OFFERED_MAX]:
            yield DiscoveryHit(printable(name), self._opening(name), help="details of this queue")

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for name in self._names():
            if (score := matcher.match(name)) > 0:
                yield Hit(score, matcher.highlight(printable(name)), self._opening(name), help="details of this queue")

    def _names(self) -> list[str]:
        console = cast("Console", self.app)
        return [row.queue for row in console.board.rows(console.view)]

    def _opening(self, name: str) -> "_Opening":
        return _Opening(cast("Console", self.app), name)


@dataclass(frozen=True, slots=True)
class _Opening:
    console: "Console"
    queue: str

    def __call__(self) -> None:
        self.console.open_queue(self.queue)


class Keys(Provider):
    """What keys do, by its words."""

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        console = cast("Console", self.app)
        for key in (*CONSOLE_KEYS, *OVERVIEW_KEYS):
            score = matcher.match(key.meaning)
            name = key.action.removeprefix("app.").partition("(")[0]
            if score > 0 and console.check_action(name, ()) and key.action != "app.command_palette":
                yield Hit(score, matcher.highlight(key.meaning), _Doing(console, key.action), help=f"key {key.shown}")


@dataclass(frozen=True, slots=True)
class _Doing:
    console: "Console"
    action: str

    async def __call__(self) -> None:
        await self.console.run_action(self.action, self.console.screen)
