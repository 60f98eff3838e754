"""kestrelctl journal explain-space"""

from kestrelctl.commands.options import FormatOption, NoHeadersOption, QueueArgument, SpoolOption
from kestrelctl.shell.output import write_rows


def journal_explain_space(
    queue: QueueArgument,
    spool: SpoolOption = None,
    output: FormatOption = None,
    no_headers: NoHeadersOption = False,
) -> None:
    """Say what a queue's journal takes on the disk: of each segment what is live, whom it is kept for, and until when.

    A segment goes when every reader has passed it. Nothing is changed, and the server may run.

    Exit 65 the journal is damaged, 66 no such spool or queue.
    """
    from kestrelctl.journals.places import Place
    from kestrelctl.journals.space import COLUMNS, explain
    from kestrelctl.journals.times import now_ms

    place = Place.of(spool, None)
    assert place.spool is not None
    write_rows(explain(place.spool, queue, now_ms()), COLUMNS, output, headers=not no_headers)
