"""The line of keys at the bottom of the screen."""

from typing import Final

from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

# Shown on the narrowest terminal, too: help lists all others.
ALWAYS: Final = ("app.help", "app.quit")
FIRST: Final = ("open", "leave")
KEY_SPACES: Final = 3  # before, between and after key and label


class KeyBar(Footer):
    """The labelled keys, as many as fit, in order. Help and quit are always shown."""

    def __init__(self) -> None:
        super().__init__(show_command_palette=False)
        self._shown: list[tuple[Binding, bool]] = []

    def compose(self) -> ComposeResult:
        self._shown = self._fitting()
        for binding, enabled in self._shown:
            key = FooterKey(
                binding.key,
                self.app.get_key_display(binding),
                binding.description,
                binding.action,
                disabled=not enabled,
                tooltip=binding.tooltip,
            )
            key.set_reactive(FooterKey.compact, False)  # setting it later would style the key again
            yield key

    async def recompose(self) -> None:
        """Recompose only if other keys are to be shown, because each is styled anew."""
        if self.is_attached and self._fitting() != self._shown:
            await super().recompose()

    def _fitting(self) -> list[tuple[Binding, bool]]:
        """The keys that fit, and for each True if it can be used now."""
        labelled = [
            (binding, enabled)
            for _, binding, enabled, _ in self.screen.active_bindings.values()
            if binding.show and binding.action
        ]
        labelled.sort(key=lambda each: (each[0].action in ALWAYS) - (each[0].action in FIRST))
        room = self.app.size.width - sum(self._width(binding) for binding, _ in labelled if binding.action in ALWAYS)
        fitting: dict[str, tuple[Binding, bool]] = {}
        for binding, enabled in labelled:
            if binding.action in fitting:
                continue
            if binding.action not in ALWAYS:
                room -= self._width(binding)
                if room < 0:
                    continue
            fitting[binding.action] = (binding, enabled)
        return list(fitting.values())

    def _width(self, binding: Binding) -> int:
        return len(self.app.get_key_display(binding)) + len(binding.description) + KEY_SPACES

    def on_resize(self) -> None:
        self.call_after_refresh(self.recompose)
