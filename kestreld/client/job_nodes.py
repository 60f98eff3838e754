"""Rules that JobClient and AsyncJobClient share: which node to ask, how long to wait, when to send WORKING."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from random import Random
from threading import Lock
from typing import Any, Final

from kestreld import checks
from kestreld.client.job_commands import NODE_OF_ID, Job, JobCommand
from kestreld.client.job_connection import NodeHello, NodeLeaves
from kestreld.clock import Clock
from kestreld.errors import (
    ConnectionLost,
    JobRefused,
    KestrelError,
    LoginRefused,
    ServersAway,
    ServerUnfit,
    UnexpectedReply,
)

AWAY_MS: Final = 100  # how long a node is asked last, doubled each time up to the maximum
AWAY_MS_MAX: Final = 5000
NEVER_MET_MS_MAX: Final = 60_000  # for a node that only other nodes have named, and that was never reached
PRIORITY_MS: Final = 30_000  # how long a node's priorities of others count
PRIORITY_GOOD: Final = 1
PRIORITY_LEAVING: Final = 100
MOVE_EVERY_MS: Final = 5000
MOVE_JOBS_MIN: Final = 20  # jobs in that time, more than half of them from another node,
MOVE_TIMES: Final = 2  # and this many times as many as from the one in use
PAUSE_S: Final = 0.1  # before nodes that are all away are asked again
TURN_MS: Final = 30_000  # of one command that waits; longer waits repeat it
BEAT_SHARE: Final = 0.8  # of the retry time, as Disque's documentation advises
BEAT_MARGIN_S: Final = 0.75  # nodes queue up to 250 ms early, and the command has to get there
BEAT_AGAIN_S: Final = 0.5  # after a node did not take a WORKING
CLOSED: Final = "the client is closed"

log: Final = logging.getLogger("kestreld.client")


def now_ms() -> int:
    """Return the time on the monotonic clock, ms."""
    return Clock().monotonic_ms


def turns(timeout: float | None) -> Iterator[int]:
    """Iterate over the waits, ms, of the commands that a longer wait consists of. `timeout` in s, None = forever."""
    if timeout is None:
        return repeat(TURN_MS)
    wait_ms = checks.seconds_ms(timeout, "timeout", checks.FAR_MS)
    until_ms = now_ms() + wait_ms
    # Not a generator: an exception that a signal handler raises in one while it is dropped is lost.
    return chain([min(wait_ms, TURN_MS)], iter(lambda: max(0, min(until_ms - now_ms(), TURN_MS)), 0))


def beat_after_s(retry_s: int) -> float | None:
    """Return the time until the next WORKING, s. None = none: the job is not queued again by itself."""
    return min(retry_s * BEAT_SHARE, retry_s - BEAT_MARGIN_S) if retry_s else None


def no_more_beats(job: Job, refusal: JobRefused) -> None:
    """Log that WORKING was refused."""
    log.warning("%s may be delivered again: %s", job.id, refusal)


def acknowledged(job: Job, count: int) -> None:
    """Log a warning if a job was gone when it was acknowledged."""
    if not count:
        log.warning(
            "%s no longer existed when it was acknowledged: its TTL had expired, or another worker had acknowledged it",
            job.id,
        )


def not_given_back(job: Job, problem: KestrelError) -> None:
    """Log that a job could not be given back. The caller raises the job's own failure, which says more."""
    log.warning("cannot give back %s, which is queued again after its retry time: %s", job.id, problem)


class JobNodes:
    """Nodes that a client may ask: the configured ones, and those that they know. Threads may share it."""

    def __init__(
        self,
        addresses: Sequence[str],
        chance: Random,
        *,
        discovers: bool = True,
        read_clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        self._configured = chance.sample(addresses, len(addresses))
        self._chance = chance
        self._discovers = discovers
        self._now_ms = read_clock_ms
        self._lock = Lock()
        self._learned: list[str] = []
        self._away: dict[str, tuple[int, int]] = {}  # address -> end of the time it is away, and length of that
        self._ids: dict[str, bytes] = {}  # the beginnings of the ids of nodes that were reached
        self._addresses: dict[bytes, str] = {}  # beginning of a node's id -> its address
        self._priorities: dict[str, tuple[int, int]] = {}  # address -> priority in HELLO, and until when it counts
        self._origins = Counter[bytes]()  # of the jobs that came since then, by the beginning of the node's id
        self._counting_since_ms = self._now_ms()
        self._preferred = ""

    def after_fork(self) -> None:
        """Replace the lock, which a thread of the parent may hold."""
        self._lock = Lock()

    def met(self, address: str, hello: NodeHello) -> None:
        """Note that a node has introduced itself, and named the others."""
        if self._away.pop(address, None) is not None:
            log.info("%s is back", address)
        until_ms = self._now_ms() + PRIORITY_MS
        with self._lock:
            self._ids[address] = own = _beginning(hello.node_id)
            self._addresses[own] = address
            learned = [address] if address not in self._configured else []
            for node in hello.nodes:
                if node.id == hello.node_id:
                    self._priorities[address] = (node.priority, until_ms)
                elif node.address:
                    known = self._address_of(node.id, f"{'tls:' if address.startswith('tls:') else ''}{node.address}")
                    self._priorities[known] = (node.priority, until_ms)
                    if known not in self._configured:
                        learned.append(known)
            if self._discovers:
                self._learned = self._chance.sample(learned, len(learned))

    def _address_of(self, node_id: str, announced: str) -> str:
        """Return the address at which a node of that id was reached or configured, else the announced one."""
        known = self._addresses.get(_beginning(node_id), "")
        if known and (known in self._configured or known in self._ids):
            return known
        if self._discovers or announced in self._configured:
            self._addresses[_beginning(node_id)] = announced
        return announced

    def leave_out(self, address: str, reason: str) -> None:
        """Ask a node last for a while."""
        if address not in self._away:
            log.warning("%s is away: %s", address, reason)
        _, span_ms = self._away.get(address, (0, AWAY_MS // 2))
        is_reliable = address in self._configured or address in self._ids
        span_ms = min(2 * span_ms, AWAY_MS_MAX if is_reliable else NEVER_MET_MS_MAX)
        self._away[address] = (self._now_ms() + span_ms, span_ms)

    def leaves(self, address: str) -> None:
        """Note that a node is leaving: it hands out no jobs any longer, but knows those that it has handed out."""
        with self._lock:
            self._priorities[address] = (PRIORITY_LEAVING, self._now_ms() + PRIORITY_MS)

    def fetched(self, address: str, jobs: Sequence[Job]) -> None:
        """Note jobs that a node has handed out. If most come from another node, ask that one first from now on."""
        if not jobs:
            return
        with self._lock:
            self._origins.update([job.id[NODE_OF_ID].encode() for job in jobs])
            if self._now_ms() - self._counting_since_ms < MOVE_EVERY_MS:
                return
            origins, self._origins, self._counting_since_ms = self._origins, Counter(), self._now_ms()
            ((top, count),) = origins.most_common(1)
            here = origins[self._ids.get(address, b"")]
            is_most = 2 * count > origins.total() >= MOVE_JOBS_MIN and count >= MOVE_TIMES * here
            if is_most and (wanted := self._addresses.get(top, "")) and wanted not in (address, self._preferred):
                self._preferred = wanted
                log.info("switching to node %s: %d of %d jobs come from it", wanted, count, origins.total())

    def in_order(self, job_id: bytes, node: str = "") -> list[str]:
        """Return the addresses of all nodes in the order in which to ask them.

        The node that has handed out the job, or that it was added to, comes first, nodes that are away last.
        """
        now, home = self._now_ms(), node or self._addresses.get(job_id[NODE_OF_ID])

        def rank(address: str) -> tuple[int, bool, int, bool, bool]:
            until_ms, _ = self._away.get(address, (0, 0))
            priority, counts_until_ms = self._priorities.get(address, (PRIORITY_GOOD, 0))
            return (
                until_ms if until_ms > now else 0,
                address != home,
                priority if counts_until_ms > now else PRIORITY_GOOD,
                address != self._preferred,
                address not in self._configured,
            )

        return sorted([*self._configured, *self._learned], key=rank)


def _beginning(node_id: str) -> bytes:
    """Return the part of a node's id that is in the ids of its jobs."""
    return node_id[:8].encode()


class Attempts:
    """The attempts of one command at the nodes."""

    def __init__(self, nodes: JobNodes, command: JobCommand[Any], patience_ms: int) -> None:
        self._nodes = nodes
        self._command = command
        self._end_ms = now_ms() + patience_ms
        self._reasons: dict[str, str] = {}
        self._for_good: list[KestrelError] = []  # problems that a retry would not solve

    def addresses(self) -> list[str]:
        """Return the addresses of the nodes to ask, one after the other until one has carried out the command."""
        self._reasons, self._for_good = {}, []
        return self._nodes.in_order(self._command.job_id, self._command.node)

    def failed(self, address: str, problem: KestrelError) -> None:
        """Note a failed attempt. Raises the problem if the next node must not be asked."""
        if isinstance(problem, NodeLeaves):
            self._reasons[address] = problem.reason
            self._nodes.leaves(address)
            return
        if isinstance(problem, ServersAway):
            self._reasons |= problem.reasons
        elif isinstance(problem, ServerUnfit):
            self._reasons[address] = problem.reason
            if isinstance(problem, (LoginRefused, UnexpectedReply)):
                self._for_good.append(problem)
        elif isinstance(problem, ConnectionLost) and self._command.is_repeatable:
            self._reasons[address] = str(problem)
        else:
            raise problem
        self._nodes.leave_out(address, self._reasons[address])

    def pause_s(self) -> float:
        """Return the pause before the nodes are asked again, s. Raises their refusal, or ServersAway at the end."""
        if len(self._for_good) == len(self._reasons):
            raise self._for_good[0]
        if now_ms() >= self._end_ms:
            raise ServersAway(self._reasons)
        return PAUSE_S
