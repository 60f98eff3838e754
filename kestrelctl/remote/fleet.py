"""A fleet: several independent servers used as one: queries go to all of them, items to and from any."""

import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, TypeVar

from kestrelctl.items.putting import PutReport
from kestrelctl.remote.client import KestrelClient
from kestrelctl.remote.patterns import alike, are_names
from kestrelctl.remote.sums import sum_blocks
from kestrelctl.shell.exit_codes import ExitCode, Failure
from kestrelctl.shell.output import say
from kestreld.client.access import Login
from kestreld.client.blocks import QueueBlock
from kestreld.client.items import preference

T = TypeVar("T")
# If several servers have no item, the time to wait at each of them in turn.
WAIT_TURN_MS: Final = 250
AWAY: Final = (ExitCode.UNREACHABLE, ExitCode.TRY_AGAIN)
# Others may still have an item.
WITHOUT_ITEMS: Final = (*AWAY, ExitCode.QUEUE_STOPPED)


def _job_queues(client: KestrelClient) -> list[QueueBlock]:
    """Figures of the job queues; empty if the server does not know the command (an old Kestrel disconnects)."""
    try:
        return client.job_queue_stats()
    except Failure as failure:
        if failure.code not in (ExitCode.REFUSED, ExitCode.UNREACHABLE):
            raise
        return []


class Fleet:
    """The servers that a command line names, usually one.

    If one of several fails, its error is printed, the others go on, and `end` raises a Failure for the exit code.
    """

    def __init__(self, addresses: Sequence[str], timeout_ms: int, login: Login) -> None:
        self.clients = [KestrelClient(address, timeout_ms, login) for address in addresses]
        self.is_one = len(self.clients) == 1
        self._failure: Failure | None = None
        self._stopped: dict[str, list[str]] = {}  # queues of `queue_rows` -> the servers that have stopped them

    def close(self) -> None:
        for client in self.clients:
            client.close()

    def end(self) -> None:
        """Raise the failure of the first server that failed; its message has been printed."""
        if self._failure is not None:
            raise self._failure

    def _note(self, failure: Failure) -> None:
        """Print a failure of one server among several; raise any other."""
        if self.is_one or failure.code == ExitCode.USAGE:
            raise failure
        say(failure.words)
        self._failure = self._failure or Failure(failure.code, "")

    # All of them

    def each(self, do: Callable[[KestrelClient], T]) -> list[tuple[str, T]]:
        """Addresses and answers of the servers that answer. Raises Failure if none does.

        Servers that cannot be reached are not asked again.
        """
        answers = []
        for client in list(self.clients):
            try:
                answers.append((client.address, do(client)))
            except Failure as failure:
                self._note(failure)
                if failure.code in AWAY:
                    self.clients.remove(client)
        if not answers:
            self.end()
        return answers

    def queue_rows(
        self, patterns: Sequence[str] = (), keys: Collection[str] = (), *, per_server: bool = False
    ) -> list[QueueBlock]:
        """Figures of these queues, or of all, sorted by name, from the servers that answer.

        They are added up, or with `per_server` listed for each server with its address as `server`. With `keys`, other
        figures may be missing.
        """
        wanted = [os.fsencode(name) for name in patterns] if are_names(patterns) else []
        keys = {*keys, "stopped"} if keys else keys
        answers = self.each(lambda client: client.all_queue_stats(wanted, keys))
        if patterns:
            names = {str(block["queue"]) for _, blocks in answers for block in blocks if len(block) > 1}
            names = {name for pattern in patterns for name in alike(pattern, names)}
            answers = [(address, [block for block in blocks if block["queue"] in names]) for address, blocks in answers]
        self._stopped.clear()
        for address, blocks in answers:
            for block in blocks:
                if block.get("stopped") == 1:
                    self._stopped.setdefault(str(block["queue"]), []).append("" if self.is_one else address)
        if not per_server:
            rows = sum_blocks([blocks for _, blocks in answers])
        else:
            rows = [
                {"queue": block["queue"], "server": address, **block} for address, blocks in answers for block in blocks
            ]
        return sorted(rows, key=lambda row: str(row["queue"]))

    def must_be_running(self, names: Collection[str] = ()) -> None:
        """Print which queues of the latest `queue_rows` are stopped. Raises Failure if one of `names` is."""
        named = {name: servers for name, servers in self._stopped.items() if name in names}
        if named or self._stopped:
            from kestrelctl.remote.stopped import stopped_queues  # rare

            failure = stopped_queues(named or self._stopped)
            if named:
                raise failure
            say(failure.words)

    def items_of(self, queue: str) -> tuple[int, int] | None:
        """Items and open reads of a queue, summed over all servers. None = no server has the queue.

        Raises the failure of the first server that does not answer or has stopped the queue.
        """
        found: list[QueueBlock] = []
        for client in self.clients:
            block = client.queue_stats(os.fsencode(queue))
            if block.get("stopped") == 1:
                from kestrelctl.remote.stopped import stopped_queue  # rare

                raise stopped_queue(queue, "" if self.is_one else client.address)
            found += [block] if block else []
        counts = [sum(int(block.get(key, 0)) for block in found) for key in ("items", "open_transactions")]
        return (counts[0], counts[1]) if found else None

    def job_queue_rows(self, *, per_server: bool = False) -> list[QueueBlock]:
        """Figures of the job queues as from `queue_rows`, with their names as `job_queue`."""
        answers = self.each(_job_queues)
        if not per_server:
            rows = sum_blocks([blocks for _, blocks in answers])
        else:
            rows = [{**block, "server": address} for address, blocks in answers for block in blocks]
        named = [{"job_queue": row.pop("queue"), **row} for row in rows]
        return sorted(named, key=lambda row: str(row["job_queue"]))

    def jobs_must_be_served(self) -> None:
        """Raise Failure if a server reports no job queues because it cannot read the job log."""
        for address, figures in self.each(lambda client: client.server_stats()):
            if figures.get("jobs_stopped") == 1:
                from kestrelctl.remote.stopped import JOBS_REMEDY  # rare

                words = f"jobs of {address} are stopped: their log is damaged, and may hold jobs; {JOBS_REMEDY}"
                raise Failure(ExitCode.QUEUE_STOPPED, words)

    def server_stats(self) -> list[tuple[str, dict[str, int | str]]]:
        """The servers' own counters. Raises the failure of the first server that does not answer."""
        return [(client.address, client.server_stats()) for client in self.clients]

    def queue_stats(self) -> list[QueueBlock]:
        """The figures of the queues, summed over all servers. Raises the failure of the first that does not answer."""
        return sum_blocks([client.all_queue_stats() for client in self.clients])

    # Any of them

    def put_many(
        self, queue: bytes, batches: Iterable[list[bytes]], expire_s: int, delay_ms: int = 0, item_key: bytes = b""
    ) -> PutReport:
        """Put all items on the first server that can be reached: in random order or, with a key, in the key's order."""
        clients = self._in_any_order()
        if item_key:
            clients.sort(key=lambda client: preference(client.address, item_key))
        for client in clients:
            if not self.is_one:
                try:
                    client.must_be_known()
                except Failure as failure:
                    self._note(failure)
                    continue
            return client.put_many(queue, batches, expire_s, delay_ms=delay_ms, item_key=item_key)
        self.end()
        raise AssertionError("no server, and no reason why")

    def first(self, fetch: Callable[[KestrelClient, int], T | None], wait_ms: int) -> tuple[str, T] | None:
        """Address and result of the first server that has any; `fetch` gets the milliseconds to wait there.

        All servers are asked in random order; if none has a result, each is waited at in turn. None = time is over.
        Waiting goes on over restarts. Raises Failure if some could not be asked.
        """
        if self.is_one:
            found = self.clients[0].over_restarts(fetch, wait_ms)
            return None if found is None else (self.clients[0].address, found)
        until_s, turn_ms = time.monotonic() + wait_ms / 1000, 0
        away: dict[KestrelClient, Failure] = {}  # while they were waited at
        while self.clients:
            for client in self._in_any_order():
                try:
                    found = fetch(client, turn_ms)
                except Failure as failure:
                    if failure.code not in WITHOUT_ITEMS:
                        raise
                    if turn_ms and failure.code == ExitCode.UNREACHABLE:
                        away[client] = failure
                        client.start_over()
                    else:
                        self._note(failure)
                        self.clients.remove(client)
                    continue
                away.pop(client, None)
                if found is not None:
                    return client.address, found
            left_ms = round((until_s - time.monotonic()) * 1000)
            if left_ms <= 0 or not self.clients:
                break
            turn_ms = max(1, min(WAIT_TURN_MS, left_ms // len(self.clients)))
            if len(away) == len(self.clients):
                time.sleep(turn_ms / 1000)
        for lost in away.values():
            self._note(lost)
        self.end()
        return None

    def _in_any_order(self) -> list[KestrelClient]:
        return self.clients if self.is_one else sorted(self.clients, key=lambda client: os.urandom(8))
