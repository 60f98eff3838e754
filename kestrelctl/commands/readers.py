"""`kestrelctl readers ls, create, move, drop`: persistent read positions in a queue's journal."""

from typing import Annotated, Final

from kestrelctl.commands.declared import BadValue, argument, option
from kestrelctl.commands.options import Output, QueueArgument, Remote
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import remark

COLUMNS: Final = ["reader", "kind", "head", "behind", "items", "bytes", "open"]


def reader_name(value: str) -> str:
    if not value or any(letter in "/+\x7f" or letter <= " " for letter in value):
        raise BadValue(f"{value!r} is not a reader name: it is empty, or contains a blank, a / or a +")
    return value


ReaderArgument = Annotated[
    str, argument(metavar="READER", help="The reader.", show_default=False, callback=reader_name)
]


def readers_ls(queue: QueueArgument, output: Output, remote: Remote) -> None:
    """Print a row for each reader of a queue: the queue itself, its children, and streams.

    head is the lowest id it has not done, behind how many ids are from there to the end. items, bytes and open reads
    are those of queues. Exit 1 when there is no such queue, 77 when the server has no admin port.
    """
    family = remote.reader_api().describe(queue)
    rows = [
        {"reader": one["reader"], "kind": one["kind"], "head": one["head"]}
        | {"behind": max(family["next_id"] - one["head"], 0)}
        | {key: one[key] for key in ("items", "bytes", "open") if key in one}
        for one in family["readers"]
    ]
    output.write_rows(rows, COLUMNS)


def readers_create(
    queue: QueueArgument,
    reader: Annotated[str, argument(metavar="NAME", help="Its name.", show_default=False, callback=reader_name)],
    remote: Remote,
    at: Annotated[
        str, option("--from", metavar="ID", help="Start position: earliest, latest, or an item id.")
    ] = "earliest",
) -> None:
    """Create a reader. The journal keeps everything it has not read: drop readers that are no longer needed.

    The queue is made if it is not there. Exit 1 when the item is gone, 73 when a reader of that name exists, which
    stays where it is.
    """
    from kestrelctl.remote.reader_api import Gone

    try:
        made, is_new = remote.reader_api().create(queue, reader, at)
    except Gone as gone:
        raise Failure(ExitCode.NEGATIVE, f"{queue} has no item {at}: its first is {gone.first_id}") from gone
    if not is_new:
        raise Failure(ExitCode.CANNOT_CREATE, f"reader {reader} of {queue} already exists, at item {made['head']}")
    remark(f"{reader} is at item {made['head']}")


def readers_move(
    queue: QueueArgument,
    reader: ReaderArgument,
    to: Annotated[str, argument(metavar="ID|latest", help="The next item to read.", show_default=False)],
    remote: Remote,
) -> None:
    """Move a reader forward, past items it has not read. It cannot move backwards; drop and recreate it.

    Exit 1 when there is no such queue or reader, 77 when it is already past that item, or the item does not exist yet.
    """
    if to != "latest" and not (to.isascii() and to.isdecimal() and 0 < int(to) < 10**18):
        raise BadValue(f"{to!r} is neither an item id nor latest")
    api = remote.reader_api()
    target = api.describe(queue)["next_id"] if to == "latest" else int(to)
    if target == 1:
        raise Failure(ExitCode.REFUSED, "a reader cannot move backwards to the first item")
    head = api.done(queue, reader, target - 1)["head"]
    if head != target:
        raise Failure(ExitCode.REFUSED, f"{reader} is already at item {head}; a reader cannot move backwards")
    remark(f"{reader} is at item {head}")


def readers_drop(queue: QueueArgument, reader: ReaderArgument, remote: Remote) -> None:
    """Drop a reader. Items that only it had not read may be deleted from disk.

    Exit 1 when there is no such queue or reader.
    """
    remote.reader_api().drop(queue, reader)
    remark(f"dropped {reader}")
