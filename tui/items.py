"""An item's bytes as text, hex or JSON."""

import json
from enum import StrEnum
from typing import Final

SHOWN_BYTES_MAX: Final = 4096
HEX_BYTES_A_LINE: Final = 8


class ItemForm(StrEnum):
    TEXT = "text"
    HEX = "hex"
    JSON = "json"


def shown_item(data: bytes, form: ItemForm, bytes_max: int = SHOWN_BYTES_MAX) -> str:
    """Its first bytes. In the JSON form, what is not JSON is shown as text."""
    cut = f"\n… of {len(data):,} bytes" if len(data) > bytes_max else ""
    match form:
        case ItemForm.HEX:
            return _hex(data[:bytes_max]) + cut
        case ItemForm.JSON:
            try:
                text = json.dumps(json.loads(data), indent=1, ensure_ascii=False)
            except (ValueError, RecursionError):
                return f"(not JSON)\n{_text(data[:bytes_max])}{cut}"
            return text if len(text) <= bytes_max else text[:bytes_max] + "\n…"
        case ItemForm.TEXT:
            return _text(data[:bytes_max]) + cut


def _text(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() or letter == "\n" else "·" for letter in text)


def _hex(data: bytes) -> str:
    lines = []
    for at in range(0, len(data), HEX_BYTES_A_LINE):
        piece = data[at : at + HEX_BYTES_A_LINE]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in piece)
        lines.append(f"{at:04x} {piece.hex():<{2 * HEX_BYTES_A_LINE}} {letters}")
    return "\n".join(lines)
