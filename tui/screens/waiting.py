"""The first waiting items of a queue, as text."""

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from tui.asking import QueueDetails, WaitingItem
from tui.formats import span
from tui.items import SHOWN_BYTES_MAX, ItemForm, shown_item

SHOWN_BYTES_OF_ALL: Final = 64 * 1024
SHOWN_BYTES_MIN: Final = 512


def waiting_title(answers: Sequence[QueueDetails], form: ItemForm, waiting: int | None) -> str:
    """The title of the box. `waiting` = how many there are, None = unknown."""
    shown = sum(len(answer.items) for answer in answers)
    if not shown:
        return "no waiting items" if answers else "items"
    if any(answer.only_head for answer in answers):
        return f"the item at the head, {form}"
    of = f" of {waiting:,}" if waiting is not None and waiting > shown else ""
    return f"waiting items, the first {shown}{of}, {form}" if shown > 1 or of else f"the only waiting item, {form}"


def waiting_text(answers: Sequence[QueueDetails], form: ItemForm, now_ms: int) -> Text:
    """Every item under a heading line."""
    text = Text()
    shown = sum(len(answer.items) for answer in answers)
    bytes_max = min(SHOWN_BYTES_MAX, max(SHOWN_BYTES_MIN, SHOWN_BYTES_OF_ALL // max(shown, 1)))
    for answer in answers:
        if answer.items and len(answers) > 1:
            text.append(f"{answer.server}\n", "bold")
        for item in answer.items:
            text.append(f"{_heading(item, now_ms)}\n", "bold")
            text.append(f"{shown_item(item.data, form, bytes_max)}\n")
        if answer.items and answer.only_head:
            text.append(f"Only the head of {answer.server} can be shown: {answer.only_head}\n", "dim")
    text.rstrip()
    return text


def _heading(item: WaitingItem, now_ms: int) -> str:
    parts = [f"#{item.item_id}"] if item.item_id is not None else []
    parts.append(f"{len(item.data):,} byte{'' if len(item.data) == 1 else 's'}")
    if item.is_open:
        parts.append("OPEN")
    if item.add_at_ms is not None:
        parts.append(f"{span(max(0, now_ms - item.add_at_ms))} old")
    if item.expire_at_ms is not None:
        left_ms = item.expire_at_ms - now_ms
        parts.append(f"expires in {span(left_ms)}" if left_ms > 0 else "expired")
    if item.flags:
        parts.append(f"flags {item.flags}")
    return "  ".join(parts)
