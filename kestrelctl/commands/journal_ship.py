"""`kestrelctl journal ship`: copy closed segments to object storage."""

from typing import Annotated

from kestrelctl.commands.declared import argument, option
from kestrelctl.commands.options import Output
from kestrelctl.shell.exit_codes import Ended


def journal_ship(
    source: Annotated[
        str,
        argument(metavar="SPOOL|ARCHIVE", help="A spool, an archive, or a folder of them.", show_default=False),
    ],
    target: Annotated[str, argument(metavar="URL", help="s3://BUCKET/PREFIX.", show_default=False)],
    output: Output,
    queue: Annotated[
        str | None, option(metavar="QUEUE", help="Only this queue, or those of a pattern.", show_default=False)
    ] = None,
    delete: Annotated[
        bool, option("--delete", help="Delete each segment of an archive once its copy has been verified.")
    ] = False,
    quiet: Annotated[bool, option("--quiet", "-q", help="Print only files with problems.")] = False,
) -> None:
    """Copy closed segments to object storage that speaks S3, in the layout of an archive.

    Every record is checked before, and the stored object is read back and compared. An object that exists is never
    written over: an equal one counts as shipped, so a run that was killed is simply repeated; one with other contents
    is a problem. Live segments, Kestrel's files and the log of jobs stay. A spool's segments are never deleted.

    Endpoint and credentials are those of the environment: AWS_ENDPOINT_URL, AWS_REGION, AWS_PROFILE,
    AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. It needs pip install 'kestreld[s3]'.

    Exit 0 all copies are there, 65 a segment is damaged and was left out, or an object differs, 66 no such path or
    bucket, 69 object storage cannot be reached, 74 a read or write failed, 75 a segment was removed meanwhile, 82 and
    83 the credentials are missing, wrong or not enough.
    """
    # The journal's code is of no use to the other verbs.
    from kestrelctl.journals.shipping import COLUMNS, as_row, open_target, ship

    rows, code = ship(source, open_target(target), queue, deletes=delete)
    if quiet:
        rows = [row for row in rows if row.problem]
    if rows or not quiet:
        output.write_rows([as_row(row) for row in rows], COLUMNS)
    raise Ended(code)
