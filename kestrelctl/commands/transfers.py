"""Arguments and options that `move` and `copy` share."""

from typing import TYPE_CHECKING, Annotated, NamedTuple

from kestrelctl.commands.declared import argument, option
from kestrelctl.commands.options import GrepOption, Remote, answer_ms, other_server, per_second, queue_name, way_to
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import counted, remark

if TYPE_CHECKING:
    from kestrelctl.items.transfers import Transfer

RateOption = Annotated[float | None, option(metavar="N/s", parser=per_second, help="Maximum rate.", show_default=False)]


class Transfers(NamedTuple):
    """Source, destination, selection and rate of a transfer."""

    source: Annotated[str, argument(metavar="SRC", help="Source queue.", show_default=False, callback=queue_name)]
    target: Annotated[str, argument(metavar="DST", help="Destination queue.", show_default=False, callback=queue_name)]
    to: Annotated[
        str,
        option(
            "--to",
            metavar="HOST:PORT|unix:PATH",
            help="Destination server, with the same credentials (default: the same server).",
            callback=other_server,
            show_default=False,
        ),
    ] = ""
    match: GrepOption = None
    limit: Annotated[
        int | None, option("--max", min=1, metavar="N", help="Maximum number of items.", show_default=False)
    ] = None
    rate: RateOption = None

    def of(self, remote: Remote) -> "Transfer":
        from kestrelctl.items.transfers import Transfer

        way, timeout_ms = way_to(remote.server), answer_ms(remote.timeout)
        return Transfer(way, timeout_ms, self.source, self.target, self.to, self.match, self.limit, self.rate or 0.0)

    def tell(self, verb: str, done: str, count: int) -> None:
        """Print the number of items. Raises Failure if there was none."""
        if not count:
            raise Failure(ExitCode.NEGATIVE, f"nothing to {verb} in {self.source}")
        remark(f"{done} {counted(count, 'item')}")
