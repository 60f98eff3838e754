"""Options that the load tests share, and the call that runs a test with them."""

from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from kestrelctl.commands.declared import BadValue, option
from kestrelctl.commands.options import TimeoutOption, duration_ms, span_ms, way_to_one
from kestrelctl.remote.contexts import SERVER_DEFAULT
from kestrelctl.shell.exit_codes import Ended

if TYPE_CHECKING:
    from kestrelctl.bench.load_tests import LoadTest

TOLERANCE_DEFAULT: Final = "10%"
TARGET_DEFAULT: Final = 10_000
FLOOD_ITEMS_DEFAULT: Final = 10_000


def _share(value: str) -> float:
    """Parse `10%` or `0.1`."""
    try:
        share = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError as error:
        raise BadValue(f"{value!r} is not a share: write 10% or 0.1") from error
    if not 0 <= share < float("inf"):
        raise BadValue(f"{value!r} is less than 0")
    return share


QueueOption = Annotated[str, option("--queue", "-q", metavar="NAME", help="The queue. It is emptied first.")]
RateOption = Annotated[
    float,
    option(min=0, metavar="ITEMS", help="Puts per second; latencies count from when a put was due. 0 = no limit."),
]
TransactionsOption = Annotated[bool, option("--transactions", "-x", help="Reliable reads: /close/open.")]
MonitorOption = Annotated[
    bool, option("--monitor", "-M", help="Take with Kestrel 2's MONITOR and CONFIRM instead of GET.")
]
RollupOption = Annotated[int, option("--rollup", "-r", min=1, metavar="ITEMS", help="Items per batch, put and taken.")]
KilobytesOption = Annotated[int, option("--kilobytes", "-k", min=0, metavar="KB", help="Size of an item.")]
BytesOption = Annotated[int | None, option("--bytes", "-b", min=0, metavar="BYTES", help="Size of an item in bytes.")]

# Options of a single test that need more than a line

FloodItemsOption = Annotated[
    int | None,
    option("--items", "-n", min=0, metavar="ITEMS", help=f"Number of items (default {FLOOD_ITEMS_DEFAULT})."),
]
FloodTimeOption = Annotated[
    int | None,
    option("--time", "-t", metavar="SPAN", parser=span_ms, help="Put for this long instead, then take the rest."),
]
TargetOption = Annotated[
    int | None,
    option(
        min=0,
        metavar="ITEMS",
        help=f"Producers slow down when this many items wait (default {TARGET_DEFAULT} with -t).",
    ),
]
LimitOption = Annotated[
    int | None,
    option(
        "--limit",
        "-L",
        min=1,
        metavar="ITEMS",
        help="The queue keeps this many items and drops the oldest (max_items, discard_old_when_full).",
    ),
]


class BenchOptions(NamedTuple):
    """Options common to all load tests."""

    no_flush: Annotated[
        bool,
        option("--no-flush", "-F", help="Do not flush the queue first, and leave other clients' items alone."),
    ] = False
    seed: Annotated[int | None, option(metavar="N", help="The same seed puts the same items (default: a new one).")] = (
        None
    )
    pid: Annotated[
        int | None,
        option(
            min=1, metavar="PID", help="The server's process on this machine, to measure its CPU time per operation."
        ),
    ] = None
    output: Annotated[str, option("--output", "-o", metavar="table|json", help="Output format.")] = "table"
    as_json: Annotated[bool, option("--json", help="The same as -o json.")] = False
    compare: Annotated[
        str | None,
        option("--compare", metavar="OLD.json", help="Compare with the results of a run saved by -o json."),
    ] = None
    tolerance: Annotated[
        float,
        option(parser=_share, metavar="SHARE", help="With --compare: exit 1 if a figure is worse by more than this."),
    ] = TOLERANCE_DEFAULT  # type: ignore[assignment]
    host: Annotated[
        str | None, option(metavar="HOST", help="With -p, instead of -s: the server's host.", show_default=False)
    ] = None
    port: Annotated[
        int | None,
        option(
            "--port", "-p", min=1, max=65535, help="With --host, instead of -s: the server's port.", show_default=False
        ),
    ] = None
    timeout: TimeoutOption = ""

    def conduct(self, test: "LoadTest", server: str) -> None:
        from kestrelctl.bench.conduct import BenchFormat, Conditions, conduct

        if self.output not in tuple(BenchFormat):
            raise BadValue(f"--output must be table or json, not {self.output!r}")
        if self.host is not None or self.port is not None:
            default_host, _, default_port = SERVER_DEFAULT.rpartition(":")
            server = f"{self.host or default_host}:{self.port or default_port}"
        way = way_to_one(server)
        conditions = Conditions(
            address=way.servers[0],
            timeout_ms=max(1, duration_ms(self.timeout)),
            login=way.login,
            flush=not self.no_flush,
            seed=self.seed,
            server_pid=self.pid,
            form=BenchFormat.JSON if self.as_json else BenchFormat(self.output),
            old=self.compare,
            tolerance=self.tolerance,
        )
        raise Ended(conduct(test, conditions))
