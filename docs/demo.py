"""The main job, run by `make demo`: lines in, kill -9 midway, two workers, nothing lost.

kestreld runs on its embedded default, in a home of its own and on a free port. 100,000 lines of Python's standard
library go into one queue, and two worker processes take them with reliable reads. kestreld is killed once while lines
are being put, and once more when half of them are taken. The exit status is 0 if every line reached a worker.
"""

import multiprocessing
import os
import re
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice, pairwise
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Final

from pymemcache import Client  # type: ignore[import-untyped]
from pymemcache.exceptions import MemcacheError  # type: ignore[import-untyped]
from rich.console import Console
from rich.table import Table

from kestreld.files import FileLayer
from kestreld.journal.verify import SegmentReport, verify_spool

LINES: Final = 100_000
WORKERS: Final = 2
IN_FLIGHT: Final = 512  # lines the writer sends before it waits for their answers
RETRY_S: Final = 0.02
PATIENCE_S: Final = 120  # for anything: the whole demo takes a tenth of it
READY: Final = re.compile(r"ready .*memcache=127\.0\.0\.1:(\d+) .*recovered_ms=(\d+)")

processes: Final = multiprocessing.get_context("spawn")
console: Final = Console(highlight=False, soft_wrap=True)


def main() -> int:
    """Run the demo; returns its exit status."""
    items = [b"%d %b" % (number, line) for number, line in enumerate(standard_library_lines(LINES), 1)]
    with running_daemon() as daemon:
        console.print(f"kestreld is ready on port {daemon.port}, its spool is {daemon.spool}")
        started_s = time.monotonic()
        writer, takings = put_and_take(daemon, items)
        console.print(f"all is put and taken, after {time.monotonic() - started_s:.1f} s")
        daemon.stop()
        segments = list(verify_spool(FileLayer(), daemon.spool, None))
    verdict = judge(writer, takings)
    console.print(table(verdict, segments))
    whole = all(segment.bad_offset is None for segment in segments)
    return 0 if whole and not (verdict.lost or verdict.altered or verdict.disordered or verdict.unexplained) else 1


def standard_library_lines(count: int) -> Iterator[bytes]:
    """`count` lines of the modules that come with Python, from the first again if there are not so many."""
    folder = Path(sysconfig.get_path("stdlib"))
    modules = sorted(path for path in folder.rglob("*.py") if "site-packages" not in path.parts)
    return islice(cycle(line for module in modules for line in module.read_bytes().split(b"\n")), count)


def put_and_take(daemon: "Daemon", items: list[bytes]) -> tuple["Writer", list["Takings"]]:
    """Have the lines put and taken, and kestreld killed in between; what everybody saw of it."""
    writer = Writer(daemon.port, items)
    all_put = processes.Event()
    ends = [start_worker(daemon.port, all_put) for _ in range(WORKERS)]
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(writer.run)
        in_time(writer.half_put.wait(PATIENCE_S), "putting half of the lines")
        daemon.kill()
        console.print(f"kill -9 after {writer.answered:,} lines were put, {daemon.start()}")
        writing.result(PATIENCE_S)
    while items_waiting(daemon.port) > LINES // 2:
        time.sleep(RETRY_S)
    waiting = items_waiting(daemon.port)
    daemon.kill()
    console.print(f"kill -9 with {waiting:,} lines still to be taken, {daemon.start()}")
    all_put.set()
    in_time(all(end.poll(PATIENCE_S) for end in ends), "taking all lines")
    return writer, [end.recv() for end in ends]


def in_time(done: bool, what: str) -> None:
    if not done:
        raise SystemExit(f"{what} takes more than {PATIENCE_S} s")


def items_waiting(port: int) -> int:
    client = Client(("127.0.0.1", port), timeout=PATIENCE_S)
    try:
        return int(client.stats()[b"queue_jobs_items"])
    finally:
        client.close()


class Daemon:
    """kestreld as it runs for a user without a configuration, but for its home and its ports."""

    def __init__(self, home: str) -> None:
        self.home = home
        self.port = 0
        self.spool = f"{home}/.local/state/kestreld/spool"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> str:
        """Start it, on the port it had before if any; returns words on how long that took, once it is ready."""
        # The spool is the default said aloud: a configuration in /etc must not lead to one that is in use.
        settings = [f"listen.memcache=127.0.0.1:{self.port}", "listen.admin=null", f"queue_path={self.spool}"]
        command = [sys.executable, "-m", "kestreld", *(word for setting in settings for word in ("--set", setting))]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KESTREL")}
        environment["HOME"] = self.home
        started_s = time.monotonic()
        self._process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        said = []
        for line in self._process.stderr:
            said.append(line)
            if ready := READY.search(line):
                break
        else:
            raise SystemExit("".join(said) or "kestreld does not start")
        threading.Thread(target=self._process.stderr.read, daemon=True).start()
        self.port = int(ready[1])
        return f"ready again after {1000 * (time.monotonic() - started_s):.0f} ms, {ready[2]} ms of them for recovery"

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """SIGTERM, unless it has stopped already."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(PATIENCE_S)


@contextmanager
def running_daemon() -> Iterator[Daemon]:
    """A kestreld of its own, that leaves nothing behind."""
    with tempfile.TemporaryDirectory(prefix="kestreld-demo-") as home:
        daemon = Daemon(home)
        daemon.start()
        try:
            yield daemon
        finally:
            daemon.stop()


class Writer:
    """Puts the lines in order, many ahead of their answers. What got no answer before a kill it sends again."""

    def __init__(self, port: int, items: list[bytes]) -> None:
        self.port = port
        self.items = items
        self.answered = 0  # so many were answered STORED
        self.sent = 0
        self.sent_again: set[bytes] = set()  # stored once or twice, nobody can know
        self.half_put = threading.Event()

    def run(self) -> None:
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), PATIENCE_S) as connection:
                    self._put_rest(connection)
                    return
            except ConnectionError:
                time.sleep(RETRY_S)

    def _put_rest(self, connection: socket.socket) -> None:
        self.sent_again.update(self.items[self.answered : self.sent])
        answers = connection.makefile("rb")
        while self.answered < len(self.items):
            batch = self.items[self.answered : self.answered + IN_FLIGHT]
            self.sent = self.answered + len(batch)
            connection.sendall(b"".join([b"set jobs 0 0 %d\r\n%b\r\n" % (len(item), item) for item in batch]))
            for _ in batch:
                answer = answers.readline()
                if not answer.endswith(b"\n"):
                    raise ConnectionError("hung up")
                if answer != b"STORED\r\n":
                    raise SystemExit(f"a put was answered {answer!r}")
                self.answered += 1
            if self.answered >= len(self.items) // 2:
                self.half_put.set()


@dataclass
class Takings:
    """What one worker got: the lines of each connection it had, in their order."""

    by_connection: list[list[bytes]] = field(default_factory=list)
    confirmed: set[bytes] = field(default_factory=set)
    unconfirmed: set[bytes] = field(default_factory=set)  # open when a connection broke


def start_worker(port: int, all_put: Event) -> Connection:
    """A worker process; the connection on which it sends its Takings."""
    here, there = processes.Pipe(duplex=False)
    processes.Process(target=work, args=(port, all_put, there), daemon=True).start()
    there.close()
    return here


def work(port: int, all_put: Event, report: Connection) -> None:
    """Take lines, over a new connection when one breaks, until all are put and none is left."""
    takings = Takings()
    while not take(Client(("127.0.0.1", port), timeout=PATIENCE_S), all_put, takings):
        time.sleep(RETRY_S)
    report.send(takings)


def take(client: Client, all_put: Event, takings: Takings) -> bool:
    """Close the line held and open the next, again and again. True when there are no more, False when cut off."""
    taken: list[bytes] = []
    takings.by_connection.append(taken)
    held: bytes | None = None
    while True:
        nothing_follows = all_put.is_set()
        try:
            item = client.get("jobs/close/open/t=250")
        except (OSError, MemcacheError):
            if held is not None:
                takings.unconfirmed.add(held)  # its close may be written or not: it may come again
            return False
        if held is not None:
            takings.confirmed.add(held)
        held = item
        if item is not None:
            taken.append(item)
        elif nothing_follows:
            client.close()
            return True


@dataclass
class Verdict:
    """What became of the lines, as counts."""

    put: int
    sent_again: int
    confirmed: int
    closed: int  # open at a kill and never seen again: the close was written, the answer cut off
    redelivered: int
    lost: int
    altered: int  # taken, but nothing like it was put
    disordered: int  # came after a line that was put later, on the same connection
    unexplained: int  # came twice, although stored once and confirmed


def judge(writer: Writer, takings: Sequence[Takings]) -> Verdict:
    put = set(writer.items[: writer.answered])
    connections = [taken for one in takings for taken in one.by_connection]
    times = Counter(item for taken in connections for item in taken)
    confirmed = {item for one in takings for item in one.confirmed}
    may_repeat = writer.sent_again.union(*(one.unconfirmed for one in takings))
    disordered = 0
    for taken in connections:
        once = [int(item.split(b" ", 1)[0]) for item in taken if item in put and item not in writer.sent_again]
        disordered += sum(later <= earlier for earlier, later in pairwise(once))
    return Verdict(
        put=len(put),
        sent_again=len(writer.sent_again),
        confirmed=len(confirmed),
        closed=len(times.keys() & put - confirmed),
        redelivered=times.total() - len(times),
        lost=len(put - times.keys()),
        altered=len(times.keys() - put),
        disordered=disordered,
        unexplained=sum(item not in may_repeat for item, count in times.items() if count > 1),
    )


def table(verdict: Verdict, segments: Sequence[SegmentReport]) -> Table:
    shown = Table("lines", "", "")
    shown.columns[1].justify = "right"
    shown.add_row("put", f"{verdict.put:,}", "answered STORED")
    shown.add_row("sent again", f"{verdict.sent_again:,}", "no answer came before a kill")
    shown.add_row("confirmed", f"{verdict.confirmed:,}", f"taken and closed by {WORKERS} workers")
    shown.add_row("closed", f"{verdict.closed:,}", "the close was written, its answer cut off")
    shown.add_row("redelivered", f"{verdict.redelivered:,}", "stored twice, or open at a kill")
    shown.add_row("  without a reason", f"{verdict.unexplained:,}", "stored once and confirmed")
    shown.add_row("altered", f"{verdict.altered:,}", "taken, but never put")
    shown.add_row("out of order", f"{verdict.disordered:,}", "")
    shown.add_row("lost", f"{verdict.lost:,}", "put, but never taken", style="bold")
    bad = [segment for segment in segments if segment.bad_offset is not None]
    records = sum(segment.records for segment in segments)
    found = f"{records:,} records, {sum(segment.live_items for segment in segments)} items left"
    shown.add_row("journal", f"{len(bad)} bad" if bad else "verified", found)
    return shown


if __name__ == "__main__":
    sys.exit(main())
