"""The line of keys at the bottom."""

from typing import Final

from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

# On the narrowest terminal, too: everything else can be looked up from there.
ALWAYS: Final = ("app.help", "app.quit")
FIRST: Final = ("open", "leave")
KEY_SPACES: Final = 3  # before, between and after key and label


class KeyBar(Footer):
    """The labelled keys, as many as fit, in their order; help and quit are always there."""

    def compose(self) -> ComposeResult:
        shown = [
            (binding, enabled)
            for _, binding, enabled, _ in self.screen.active_bindings.values()
            if binding.show and binding.action
        ]
        shown.sort(key=lambda each: (each[0].action in ALWAYS) - (each[0].action in FIRST))
        room = self.app.size.width - sum(self._width(binding) for binding, _ in shown if binding.action in ALWAYS)
        seen = set()
        for binding, enabled in shown:
            if binding.action in seen:
                continue
            seen.add(binding.action)
            if binding.action not in ALWAYS:
                room -= self._width(binding)
                if room < 0:
                    continue
            yield FooterKey(
                binding.key,
                self.app.get_key_display(binding),
                binding.description,
                binding.action,
                disabled=not enabled,
                tooltip=binding.tooltip,
            ).data_bind(compact=Footer.compact)

    def _width(self, binding: Binding) -> int:
        return len(self.app.get_key_display(binding)) + len(binding.description) + KEY_SPACES

    def on_resize(self) -> None:
        self.call_after_refresh(self.recompose)
