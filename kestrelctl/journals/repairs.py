"""The result of a repair, offline or by a server, as messages, a row and an exit code."""

from typing import Final

from kestrelctl.shell.exit_codes import ExitCode
from kestrelctl.shell.output import say
from kestreld.client.blocks import Cell
from kestreld.client.items import RepairAnswer

REPAIR_COLUMNS: Final = ["queue", "finding", "damages", "items", "lost_items", "kept_at"]
MAY_BE_LOST: Final = "may be lost"  # in the text of a damage whose lost items cannot be counted
Row = dict[str, Cell]


def report_repair(queue: str, answer: RepairAnswer) -> tuple[Row, ExitCode]:
    """Print the damages on stderr; return the row and the exit code, OK if nothing is lost."""
    may_lose = any(MAY_BE_LOST in damage for damage in answer.damages)
    for damage in answer.damages:
        say(f"{queue}: {damage}")
    row: Row = {
        "queue": queue,
        "finding": "damaged" if answer.damages else "",
        "damages": len(answer.damages),
        "items": "",
        "lost_items": answer.lost,
        "kept_at": answer.kept_at,
    }
    if answer.kept_at:
        say(f"{queue}: repaired; the damaged journal is kept in {answer.kept_at}")
        row |= {"finding": "repaired", "items": answer.items}
    return row, ExitCode.NEGATIVE if answer.lost or may_lose else ExitCode.OK
