"""What the memcache parser makes of a stream, as values that compare."""

from collections.abc import Callable, Iterable
from typing import Any

from kestreld.config.config import Compat, QueueConfig
from kestreld.server.memcache import commands as wire
from kestreld.server.memcache.commands import Command, CommandCache
from kestreld.server.memcache.parser import MemcacheParser

SMALL_LINE_BYTES = 60  # so that lines too long turn up often

Shown = tuple[Any, ...]


def shown(batch: list[Any]) -> list[Shown]:
    """Commands as values that compare, each SET with its data, each about a lease with its token."""
    values: list[Shown] = []
    commands = iter(batch)
    for command in commands:
        data = next(commands) if command.kind <= wire.SET_WITH or command.kind >= wire.CONFIRM else None
        values.append((*_fields(command), data))
    return values


def _fields(command: Command) -> Shown:
    own = (command.kind, command.key, command.name, command.expiry_s, command.flags, command.noreply)
    options = (command.wait_ms, command.opens, command.closes, command.aborts, command.peeks, command.with_id)
    held = (command.lease_ms, command.delay_ms, command.item_key, command.adds, command.counts)
    parts = [_fields(part) for part in command.parts]
    # What a binary answer says of its request is what had come of it.
    reply = command.reply[:1] if command.reply.startswith(b"\x81") else command.reply
    return (*own, *options, command.prefix, reply, command.words, parts, held)


def hangs_up(values: list[Shown]) -> bool:
    return bool(values) and values[-1][0] == wire.REPLY and values[-1][8]


def parse(
    pieces: Iterable[bytes],
    compat: Compat = Compat.NONE,
    lines: CommandCache | None = None,
    config_of: Callable[[str], QueueConfig] | None = None,
    line_bytes_max: int = SMALL_LINE_BYTES,
) -> list[Shown]:
    """What a session would carry out of a stream that comes in these pieces: nothing after a hang-up."""
    parser = MemcacheParser(lines or CommandCache(), compat, line_bytes_max, config_of)
    values: list[Shown] = []
    for piece in pieces:
        values += shown(parser.feed(piece))
        if hangs_up(values):
            break
    return values
