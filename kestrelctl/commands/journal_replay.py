"""`kestrelctl journal replay`: put the items of a journal on a queue again."""

import re
import time
from typing import Annotated

from kestrelctl.commands.declared import BadValue, option
from kestrelctl.commands.options import (
    ArchiveOption,
    Output,
    QueueArgument,
    Remote,
    SinceOption,
    SpoolOption,
    TimeoutOption,
    UntilOption,
    pattern,
)
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import STDERR, is_terminal
from kestreld.client.blocks import Cell


def _speed(value: str) -> float:
    """Parse a speed; 0 = max."""
    from kestrelctl.journals.replaying import parse_speed

    try:
        return parse_speed(value) or 0
    except ValueError as error:
        raise BadValue(str(error)) from error


def _rate(value: str) -> float:
    from kestrelctl.journals.replaying import parse_rate

    try:
        return parse_rate(value)
    except ValueError as error:
        raise BadValue(str(error)) from error


def journal_replay(
    queue: QueueArgument,
    to: Annotated[str, option(metavar="HOST:PORT|unix:PATH", help="The destination server.", show_default=False)],
    output: Output,
    into: Annotated[
        str | None, option("--queue", metavar="QUEUE", help="The destination queue (default: the same).")
    ] = None,
    spool: SpoolOption = None,
    archive: ArchiveOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    after: Annotated[int, option(metavar="ID", help="Only items after this id.", show_default=False)] = 0,
    grep: Annotated[
        re.Pattern[bytes] | None,
        option(metavar="RE", parser=pattern, help="Only items whose data matches this regular expression."),
    ] = None,
    speed: Annotated[float, option(metavar="1x|max", parser=_speed, help="Speed relative to the original: 1x.")] = "1x",  # type: ignore[assignment]
    rate: Annotated[float | None, option(metavar="N/s", parser=_rate, help="Maximum rate.")] = None,
    timeout: TimeoutOption = "",
) -> None:
    """Replay the items of a journal and its archive, in order and with their original timing.

    All that are on the disk count, delivered or not. Flags are kept; an item that was to expire gets as long as it
    had, and one that was put for later its delay. Items get new ids and add times. The server of the journal may run.

    Exit 1 there are no such items, 65 the journal is damaged, 66 no such spool or queue, 69 no server, 80 or 81 the
    queue is full. If it ends early, it prints the id of the last item; --after ID continues after it.
    """
    from kestrelctl.journals.locations import JournalLocation, checked_name
    from kestrelctl.journals.replaying import COLUMNS, Choice, Pace, replay

    place, choice = JournalLocation.of(spool, archive), Choice(since, until, after, grep)
    target = into if into is not None else queue
    checked_name(target)
    total = sum(1 for _ in choice.of(place, queue)) if is_terminal(STDERR) else None
    begun_s = time.monotonic()
    done = replay(Remote(to, timeout).client(), target, choice.of(place, queue), Pace(speed or None, rate), total)
    if not done.items:
        raise Failure(ExitCode.NEGATIVE, f"no such items in the journal of {queue}")
    row: dict[str, Cell] = {"queue": target, "items": done.items, "bytes": done.data_bytes, "last_id": done.last_id}
    took_ms = round((time.monotonic() - begun_s) * 1000)
    output.write_rows([row | {"took_ms": took_ms}], COLUMNS)
