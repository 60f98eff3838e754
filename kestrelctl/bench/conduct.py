"""Conducts a load test from its options to the figures on stdout, the verdict on stderr and the exit code."""

import json
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

from kestrelctl.bench import report as reports
from kestrelctl.bench.load_tests import Fanout, LoadTest
from kestrelctl.bench.trial import Trial
from kestrelctl.remote.access import parse_address
from kestrelctl.remote.client import KestrelClient
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import STDERR, is_terminal, say, write_data
from kestrelctl.shell.signals import signals_held
from kestreld.client.access import Login, open_socket
from kestreld.client.blocks import text

PROBE_S: Final = 1.0


class BenchFormat(StrEnum):
    TABLE = "table"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Options common to all load tests."""

    address: str
    timeout_ms: int
    login: Login
    flush: bool
    seed: int | None  # None = a new one
    server_pid: int | None  # None = unknown
    form: BenchFormat
    old: str | None  # a file to compare with
    tolerance: float


def conduct(test: LoadTest, conditions: Conditions) -> ExitCode:
    """Run a load test and return its exit code. Raises Failure if the test cannot finish."""
    for queue in test.queues:
        _check_queue(queue)
    with closing(KestrelClient(conditions.address, conditions.timeout_ms, conditions.login)) as client:
        client.must_be_known()
    old = reports.read_old(conditions.old, test) if conditions.old is not None else None
    # Without leave to flush, other clients may be using the queue at the end.
    made = _missing(test.queues, conditions) if conditions.flush else []
    seed = random.SystemRandom().getrandbits(32) if conditions.seed is None else conditions.seed
    trial = Trial(
        conditions.address,
        conditions.timeout_ms,
        conditions.login,
        seed=seed,
        item_bytes=test.item_bytes,
        server_pid=conditions.server_pid or _pid_behind(conditions.address),
        fanout=test.queues if isinstance(test, Fanout) else (),
    )
    try:
        if conditions.flush:
            trial.flush(test.queues)
        with _progress(test.name, trial):
            test.run(trial)
        trial.drain(test.queues, to_the_end=conditions.flush)
    finally:
        with signals_held():
            # A command still on its way to the server must not recreate a deleted queue.
            trial.loop.hang_up()
            _delete(made, conditions)
    verdict = test.verdict(trial)
    report = reports.make_report(test, trial, seed, verdict)
    comparison = reports.compare(old, report, conditions.tolerance) if old is not None else []
    if conditions.form is BenchFormat.JSON:
        extra = {"comparison": comparison} if old is not None else {}
        write_data(json.dumps({**asdict(report), **extra}, indent=2).encode() + b"\n")
    else:
        reports.write_table(report)
        if comparison:
            reports.write_comparison(comparison)
    say(f"{test.name}: {verdict.words()}")
    if not verdict.is_good:
        return ExitCode.NOT_INTACT
    if worse := [str(row["figure"]) for row in comparison if row["worse"]]:
        say(f"{test.name}: worse than in {conditions.old} by more than {conditions.tolerance:.0%}: {', '.join(worse)}")
        return ExitCode.NEGATIVE
    return ExitCode.OK


def _check_queue(queue: bytes) -> None:
    if not queue or b"/" in queue or min(queue) <= 32 or 127 in queue:
        name = queue.decode("utf-8", "backslashreplace")
        raise Failure(ExitCode.USAGE, f"{name!r} is not a queue name: it is empty, or has a / or a blank in it")


def _missing(queues: list[bytes], conditions: Conditions) -> list[bytes]:
    """The queues among `queues` that the server does not have. Empty if the server does not list its queues."""
    client = KestrelClient(conditions.address, conditions.timeout_ms, conditions.login)
    try:
        there = {block["queue"] for block in client.all_queue_stats()}
    except Failure as failure:
        if failure.code == ExitCode.UNREACHABLE:
            raise
        return []
    finally:
        client.close()
    return [queue for queue in queues if text(queue) not in there]


def _delete(queues: list[bytes], conditions: Conditions) -> None:
    client = KestrelClient(conditions.address, conditions.timeout_ms, conditions.login)
    try:
        for queue in queues:
            client.delete_queue(queue)
    except Failure as failure:
        say(f"cannot delete {text(queue)}: {failure.words}")
    finally:
        client.close()


def _pid_behind(address: str) -> int | None:
    """Process id of the listener on a Unix socket. None = no Unix socket, or nothing listens."""
    at = parse_address(address)
    if not at.path:
        return None
    try:
        with open_socket(at, PROBE_S) as probe:
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except OSError:  # the trial reports this better
        return None
    pid: int = struct.unpack("3i", credentials)[0]
    return pid or None


@contextmanager
def _progress(name: str, trial: Trial) -> Iterator[None]:
    """Show a progress bar on stderr if that is a terminal."""
    if not is_terminal(STDERR):
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[operations]:,} operations"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        task = progress.add_task(name, total=1.0, operations=0)

        def show(fraction: float, operations: int) -> None:
            progress.update(task, completed=fraction, operations=operations, refresh=True)

        trial.on_progress = show
        yield
