"""`kestrelctl journal explain-space`: explain a queue's disk usage."""

from kestrelctl.commands.options import Output, QueueArgument, SpoolOption


def journal_explain_space(queue: QueueArgument, output: Output, spool: SpoolOption = None) -> None:
    """Explain a queue's disk usage: the live items of each segment, and the readers that need it.

    A segment goes when every reader has passed it. Nothing is changed, and the server may run.

    Exit 65 the journal is damaged, 66 no such spool or queue.
    """
    from kestrelctl.journals.locations import JournalLocation
    from kestrelctl.journals.space import COLUMNS, explain
    from kestrelctl.journals.times import now_ms

    place = JournalLocation.of(spool, None)
    assert place.spool is not None
    output.write_rows(explain(place.spool, queue, now_ms()), COLUMNS)
