"""Lines of plain text in a widget."""

from collections.abc import Sequence

from rich.text import Text
from textual.widgets import Static


def put_lines(box: Static, lines: Sequence[str]) -> None:
    """Show these, and lay the screen out anew only when their number is another: that costs more than all the rest."""
    text, content = "\n".join(lines), box.content
    before = content.plain if isinstance(content, Text) else ""
    if text != before:
        box.update(Text(text), layout=not before or not text or text.count("\n") != before.count("\n"))
