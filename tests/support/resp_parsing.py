"""What the RESP parser makes of a stream, as values that compare."""

from collections.abc import Iterable
from typing import Any

from kestreld.server.disque.parser import Refusal, RespParser


def parse(pieces: Iterable[bytes], *, is_known: bool = True) -> list[Any]:
    """The commands of a stream that comes in these pieces: lists of words, and (reason,) in the place of a refusal."""
    parser = RespParser(is_known=is_known)
    commands: list[Any] = []
    for piece in pieces:
        for command in parser.feed(piece):
            commands.append((command.reason,) if isinstance(command, Refusal) else command)
    return commands
