"""An item's bytes as text, hex or JSON."""

import json
from codecs import getincrementaldecoder
from enum import StrEnum
from typing import Final

SHOWN_BYTES_MAX: Final = 4096
HEX_BYTES_A_LINE: Final = 8
_CONTROL: Final = frozenset(range(32)) - frozenset(b"\t\n\r\x1b") | {127}


class ItemForm(StrEnum):
    TEXT = "text"
    HEX = "hex"
    JSON = "json"


def shown_item(data: bytes, form: ItemForm, bytes_max: int = SHOWN_BYTES_MAX) -> str:
    """The first bytes of an item. Invalid JSON is shown as text, and binary data as hex."""
    cut = f"\n… of {len(data):,} bytes" if len(data) > bytes_max else ""
    match form:
        case ItemForm.HEX:
            return _hex(data[:bytes_max]) + cut
        case ItemForm.JSON:
            try:
                text = json.dumps(json.loads(data), indent=1, ensure_ascii=False)
            except (ValueError, RecursionError):
                return f"(not JSON)\n{shown_item(data, ItemForm.TEXT, bytes_max)}"
            return text if len(text) <= bytes_max else text[:bytes_max] + "\n…"
        case ItemForm.TEXT:
            piece = data[:bytes_max]
            return (_hex if _is_binary(piece) else _text)(piece) + cut


def _is_binary(data: bytes) -> bool:
    """True if the bytes have control characters or are not UTF-8. The last character may be cut off."""
    try:
        getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return True
    return not _CONTROL.isdisjoint(data)


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
