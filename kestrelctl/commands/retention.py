"""`kestrelctl retention simulate`: simulate limits on a queue."""

from typing import Annotated

from kestrelctl.commands.declared import BadValue, option
from kestrelctl.commands.options import (
    ArchiveOption,
    Output,
    QueueArgument,
    SinceOption,
    SpoolOption,
    UntilOption,
    duration_ms,
    size_bytes,
)
from kestrelctl.shell.output import remark


def retention_simulate(
    queue: QueueArgument,
    output: Output,
    spool: SpoolOption = None,
    archive: ArchiveOption = None,
    max_age: Annotated[
        int | None,
        option(metavar="SPAN", parser=duration_ms, help="As the setting max_age: 1h.", show_default=False),
    ] = None,
    max_items: Annotated[
        int | None, option(metavar="N", min=1, help="As the setting max_items.", show_default=False)
    ] = None,
    max_size: Annotated[
        int | None,
        option(metavar="SIZE", parser=size_bytes, help="As the setting max_size: 64MiB.", show_default=False),
    ] = None,
    refuse: Annotated[
        bool, option("--refuse", help="A full queue refuses new items instead of discarding the oldest.")
    ] = False,
    since: SinceOption = None,
    until: UntilOption = None,
) -> None:
    """Simulate limits on a queue by replaying its journal with them.

    Each item comes when it came, and leaves when it left unless a limit is before that: consumers get on no faster
    for what falls away, so it is the most that would have happened. missed_items are those that fell away though
    somebody got them in truth. Limits hold from --since on. Peaks are beside those that really were. Items in open
    reads wait as all others.

    Exit 1 nothing is known of that time, 65 the journal is damaged, 66 no such spool or queue.
    """
    from kestrelctl.journals.locations import JournalLocation
    from kestrelctl.journals.retention import Limits, simulate
    from kestrelctl.journals.times import now_ms

    if max_age is None and max_items is None and max_size is None:
        raise BadValue("give --max-age, --max-items or --max-size")
    limits = Limits(max_age or None, max_items, max_size, refuse)
    until_ms = until if until is not None else now_ms()
    found, unseen = simulate(JournalLocation.of(spool, archive), queue, limits, since, until_ms)
    output.write_record(found)
    if unseen:
        remark(
            f"items={unseen} are left out: they were put before the first record on disk; use --archive to include them"
        )
