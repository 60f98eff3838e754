"""What JobClient and AsyncJobClient decide alike: which node to ask, how long to wait, when to say WORKING."""

import logging
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Final

from kestreld import checks
from kestreld.client.job_commands import NODE_OF_ID, Job, JobCommand
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

AWAY_MS: Final = 100  # for so long a node is asked last, twice as long each time, up to the most
AWAY_MS_MAX: Final = 5000
PAUSE_S: Final = 0.1  # before nodes that are all away are asked again
TURN_MS: Final = 30_000  # of one command that waits; who waits longer asks again
BEAT_SHARE: Final = 0.8  # of the retry time, as Disque's documentation advises
BEAT_MARGIN_S: Final = 0.75  # nodes queue up to 250 ms early, and the command has to get there
BEAT_AGAIN_S: Final = 0.5  # after a node did not take a WORKING
CLOSED: Final = "the client is closed"

log: Final = logging.getLogger("kestreld.client")


def now_ms() -> int:
    """On the monotonic clock."""
    return Clock().monotonic_ms


def turns(timeout: float | None) -> Iterator[int]:
    """How many ms each command of a longer wait waits. `timeout` in seconds, None = forever."""
    wait_ms = None if timeout is None else checks.seconds_ms(timeout, "timeout", checks.FAR_MS)
    until_ms = None if wait_ms is None else now_ms() + wait_ms
    yield TURN_MS if wait_ms is None else min(wait_ms, TURN_MS)
    while until_ms is None or until_ms > now_ms():
        yield TURN_MS if until_ms is None else max(1, min(until_ms - now_ms(), TURN_MS))


def beat_after_s(retry_s: int) -> float | None:
    """When to say WORKING again after a reply. None = never: the job is not queued again by itself."""
    return min(retry_s * BEAT_SHARE, retry_s - BEAT_MARGIN_S) if retry_s else None


def no_more_beats(job: Job, refusal: JobRefused) -> None:
    """WORKING was refused."""
    log.warning("%s may be delivered again: %s", job.id, refusal)


def acknowledged(job: Job, count: int) -> None:
    """So many jobs were there when this one was acknowledged."""
    if not count:
        log.warning("%s was gone when it was acknowledged: its TTL was over, or somebody else had done it", job.id)


def not_given_back(job: Job, problem: KestrelError) -> None:
    """What went wrong with the job itself is raised, and says more."""
    log.warning("%s is queued again once its retry time is over, as it could not be given back: %s", job.id, problem)


class JobNodes:
    """Threads may share it."""

    def __init__(self, addresses: Sequence[str], chance: Random) -> None:
        self._order = chance.sample(addresses, len(addresses))
        self._away: dict[str, tuple[int, int]] = {}  # until when, and how long that was
        self._addresses: dict[bytes, str] = {}  # by the beginning of the node's id

    def met(self, address: str, node_id: str) -> None:
        """It has introduced itself."""
        if self._away.pop(address, None) is not None:
            log.info("%s is back", address)
        self._addresses[node_id[:8].encode()] = address

    def leave_out(self, address: str, reason: str) -> None:
        """Ask it last for a while."""
        if address not in self._away:
            log.warning("%s is away: %s", address, reason)
        _, span_ms = self._away.get(address, (0, AWAY_MS // 2))
        span_ms = min(2 * span_ms, AWAY_MS_MAX)
        self._away[address] = (now_ms() + span_ms, span_ms)

    def in_order(self, job_id: bytes) -> list[str]:
        """All of them, the node of this job first, and those that are away last."""
        now, home = now_ms(), self._addresses.get(job_id[NODE_OF_ID])

        def rank(address: str) -> tuple[int, bool]:
            until_ms, _ = self._away.get(address, (0, 0))
            return until_ms if until_ms > now else 0, address != home

        return sorted(self._order, key=rank)


class Attempts:
    """One command's way over the nodes."""

    def __init__(self, nodes: JobNodes, command: JobCommand[Any], patience_ms: int) -> None:
        self._nodes = nodes
        self._command = command
        self._end_ms = now_ms() + patience_ms
        self._reasons: dict[str, str] = {}
        self._for_good: list[KestrelError] = []  # what would be the same a little later

    def addresses(self) -> list[str]:
        """Of the nodes to ask, one after the other until one has done it."""
        self._reasons, self._for_good = {}, []
        return self._nodes.in_order(self._command.job_id)

    def failed(self, address: str, problem: KestrelError) -> None:
        """Returns where the next node may be asked; raises the problem where that would be wrong."""
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
        """How long to wait before the nodes are asked again. Raises what they have said, ServersAway at the end."""
        if len(self._for_good) == len(self._reasons):
            raise self._for_good[0]
        if now_ms() >= self._end_ms:
            raise ServersAway(self._reasons)
        return PAUSE_S
