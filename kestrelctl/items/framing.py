"""Framing of items on standard output and input: raw, lines, null, length-prefixed, JSON."""

import base64
import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import OutputFormat
from kestreld.client.blocks import Cell


class Framing(StrEnum):
    RAW = "raw"  # the bytes as they are, nothing between items
    LINES = "lines"  # a newline after each
    NULL = "null"  # a zero byte after each
    LENGTH_PREFIXED = "length-prefixed"  # four bytes of length before each
    JSON = "json"  # an object on a line of its own


# length-prefixed:  | length u32 | data (length) |  big-endian
LENGTH: Final = struct.Struct(">I")
TEXT_LETTERS_MAX: Final = 60
SEPARATORS: Final = {Framing.LINES: b"\n", Framing.NULL: b"\0"}


def frame(item: bytes, framing: Framing, more: Mapping[str, object] | None = None) -> bytes:
    """The item as written to standard output; JSON includes the fields of `more`."""
    match framing:
        case Framing.RAW:
            return item
        case Framing.LENGTH_PREFIXED:
            return LENGTH.pack(len(item)) + item
        case Framing.JSON:
            return _json_line({**data_fields(item), **(more or {})})
        case Framing.LINES | Framing.NULL:
            return item + SEPARATORS[framing]


def data_fields(item: bytes) -> dict[str, Cell]:
    """`{"data": text}`, or `{"data_base64": …}` if the item is not UTF-8."""
    try:
        return {"data": item.decode()}
    except UnicodeDecodeError:
        return {"data_base64": base64.b64encode(item).decode()}


def readable(data: bytes, form: OutputFormat) -> str:
    """Bytes as the text of a cell; a table shows only their beginning."""
    text = data.decode("utf-8", "backslashreplace")
    if form == OutputFormat.TABLE:
        text = "".join(letter if letter.isprintable() else "·" for letter in text[: TEXT_LETTERS_MAX + 1])
        text = text if len(text) <= TEXT_LETTERS_MAX else f"{text[:TEXT_LETTERS_MAX]}…"
    return text


def _json_line(fields: Mapping[str, object]) -> bytes:
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def split(chunks: Iterable[bytes], framing: Framing) -> Iterator[list[bytes]]:
    """Split a stream into items: for each chunk the items that it completed, so that a slow stream is not held back.

    An unfinished last line is an item too. Raises Failure if a length exceeds the rest of the input.
    """
    if framing == Framing.LENGTH_PREFIXED:
        return _split_lengths(chunks)
    return _split_at(chunks, SEPARATORS[framing])


def _split_at(chunks: Iterable[bytes], separator: bytes) -> Iterator[list[bytes]]:
    unfinished: list[bytes] = []
    for chunk in chunks:
        *items, rest = chunk.split(separator)
        if items:
            items[0] = b"".join([*unfinished, items[0]])
            unfinished = []
            yield items
        if rest:
            unfinished.append(rest)
    if unfinished:
        yield [b"".join(unfinished)]


def _split_lengths(chunks: Iterable[bytes]) -> Iterator[list[bytes]]:
    buffer = bytearray()
    wanted_bytes = LENGTH.size
    for chunk in chunks:
        buffer += chunk
        if len(buffer) < wanted_bytes:
            continue
        items: list[bytes] = []
        at = 0
        while len(buffer) - at >= LENGTH.size:
            (length,) = LENGTH.unpack_from(buffer, at)
            if len(buffer) - at - LENGTH.size < length:
                break
            items.append(bytes(buffer[at + LENGTH.size : at + LENGTH.size + length]))
            at += LENGTH.size + length
        del buffer[:at]
        wanted_bytes = LENGTH.size if len(buffer) < LENGTH.size else LENGTH.size + LENGTH.unpack_from(buffer)[0]
        if items:
            yield items
    if buffer:
        raise Failure(ExitCode.IO, f"the input ends inside an item: {wanted_bytes - len(buffer)} bytes are missing")


def choose(otherwise: Framing, **asked: bool) -> Framing:
    """The one framing whose option was given, else `otherwise`. Raises Failure if several were given."""
    chosen = [Framing[name.upper()] for name, is_on in asked.items() if is_on]
    if len(chosen) > 1:
        raise Failure(ExitCode.USAGE, f"--{chosen[0]} and --{chosen[1]} are mutually exclusive")
    return chosen[0] if chosen else otherwise
