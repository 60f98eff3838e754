"""Whether a cluster kept what it promises of jobs, as clients saw it and as the nodes show when looked into.

Jobs are judged as by Jepsen's total-queue: each ADDJOB was ok, refused or unknown. Neither the order of deliveries nor
linearizability is promised, or checked. `keeping` looks at copies, `answering` at what clients were told.
"""

import math
from typing import TYPE_CHECKING, Final

from kestreld.jobs.job import CTIME_BITS
from kestreld.jobs.replicated_jobs import ACKNOWLEDGED
from kestreld.jobs.store import JITTER_MS
from tests.simulation.cluster.answering import Answers
from tests.simulation.cluster.books import CAUSES, CLEARS, MOVES, Act, Sent
from tests.simulation.cluster.keeping import Keeping
from tests.simulation.cluster.watching import CLEARED, LET_GO_OF, LOST, RELOADED, Take
from tests.simulation.history import POWER_CUT

if TYPE_CHECKING:
    from tests.simulation.cluster.world import ClusterWorld

SECOND_US: Final = 1_000_000
A_TICK_US: Final = 20_000  # clocks are read in milliseconds, and may be a bit fast or slow
TOLD_US: Final = 50_000  # by then all nodes know what one was told, if nothing is wrong
WITH_US: Final = 1_500_000  # or if they have been up for each other for so long
SETTLED_US: Final = 2 * SECOND_US  # as long behind trouble, as they may have to connect and to ask first
assert CTIME_BITS


class ClusterChecker:
    """Goes through a run."""

    def __init__(self, world: "ClusterWorld") -> None:
        self._world = world
        self._books = world.books
        self._watch = world.watch
        self._troubles = world.troubles
        self.found: list[str] = []

    def violations(self) -> list[str]:
        self._check_handouts()
        for job in self._books.jobs.values():
            for job_id in job.ids:
                takes = self._watch.takes.get(job_id, [])
                self._check_sent(job, takes)
                self._check_times(job, job_id, takes)
                self._check_once(job, takes)
                self._check_repeats(job, job_id, takes)
                self._check_acked(job, job_id, takes)
        self._check_doubled()
        self.found += Keeping(self._world).violations()
        self.found += Answers(self._world).violations()
        return self.found

    def _violation(self, words: str) -> None:
        self.found.append(words)

    # What may have happened

    def _created_us(self, job_id: bytes) -> int:
        return self._watch.copies[job_id][0].since_us

    def _acts(self, job: Sent, kinds: frozenset[str], from_us: int, until_us: int) -> list[Act]:
        """What somebody may have done to it in between."""
        return [
            act
            for act in self._books.acts
            if act.kind in kinds
            and act.count != 0
            and act.sent_us <= until_us
            and act.latest_us() >= from_us
            and act.concerns(job)
        ]

    def _was_stepped(self, job_id: bytes) -> bool:
        """Whether a node that has held it has had its clock set: after its next start its jobs may have another age."""
        return any(copy.host in self._troubles.stepped for copy in self._watch.copies[job_id])

    # Deliveries

    def _check_handouts(self) -> None:
        """What came to clients had been taken there."""
        for handout in self._books.handouts:
            takes = self._watch.takes.get(handout.job_id, [])
            if not any(one.host == handout.host and one.at_us <= handout.served_us for one in takes):
                self._violation(f"job {handout.job.number} came from {handout.host}, and was not taken there")

    def _check_sent(self, job: Sent, takes: list[Take]) -> None:
        """What was refused does not come."""
        if takes and all(one.outcome == "refused" for one in job.tries):
            self._violation(f"job {job.number} was refused, and came at {takes[0].at_us}")

    def _check_times(self, job: Sent, job_id: bytes, takes: list[Take]) -> None:
        """Not before its delay, not after its TTL, not out of a paused queue."""
        if not takes:
            return
        created_us = self._created_us(job_id)
        # The offset between two clocks is known to the shortest time that a frame took: with what each node adds to
        # that a job may live longer, by the delay of the slowest link for each time it was sent on.
        late_us = A_TICK_US + 3 * self._troubles.worst_delay_us
        for one in takes:
            if one.is_paused or self._was_paused(one):
                self._violation(
                    f"job {job.number} came at {one.at_us} out of {one.queue!r} at {one.host}, which is paused"
                )
            if self._was_stepped(job_id):
                continue
            if one.at_us > created_us + job.ttl_s * SECOND_US + late_us:
                self._violation(f"job {job.number} came at {one.at_us}, after its TTL of {job.ttl_s} s")
            is_early = one.at_us < created_us + job.delay_s * SECOND_US - A_TICK_US
            if is_early and not self._acts(job, MOVES, created_us, one.at_us):
                self._violation(f"job {job.number} came at {one.at_us}, before its delay of {job.delay_s} s was over")

    def _was_paused(self, take: Take) -> bool:
        """Whether clients know that the queue was paused there."""
        # Each word with when it was sent, and from when on it counts for certain.
        said: list[tuple[bytes, int, float]] = [(b"none", -1, -1)]
        for act in self._books.acts:
            if act.sent_us > take.at_us or act.kind not in ("pause", "pause all", *CLEARS):
                continue
            is_here = act.host == take.host
            if act.kind in CLEARS:
                said += [(b"none", act.sent_us, math.inf)] if is_here else []
            elif act.queue == take.queue and (is_here or act.kind == "pause all"):
                counts_us = act.answered_us + (0 if is_here else TOLD_US)
                is_sure = act.count == 1 and act.answered_us >= 0 and counts_us < take.at_us
                is_sure = is_sure and (is_here or not self._troubles.was_trouble(act.sent_us - TOLD_US, take.at_us))
                said.append((act.word, act.sent_us, counts_us if is_sure else math.inf))
        # Of two that were under way at the same time either may be the last.
        sure_us = max(sent_us for _, sent_us, counts_us in said if counts_us < math.inf)
        possible = {word for word, _, counts_us in said if counts_us >= sure_us}
        if any(life.ended_us >= 0 and life.ended_us < take.at_us for life in self._world.by_host[take.host].lives):
            possible.add(b"none")  # the log may not have it, or there is none
        return possible <= {b"out", b"all"}

    def _check_once(self, job: Sent, takes: list[Take]) -> None:
        """A job without a retry time comes once, unless it was moved to or from the dead letters.

        Its delay begins anew where a power cut took from a log that it was queued, and the node's clock was set back.
        """
        if job.retry_s or len(takes) < 2:
            return
        moves = self._acts(job, frozenset({"bury", "redrive"}), 0, takes[-1].at_us)
        is_due_unknown = bool(job.delay_s) and self._was_stepped(takes[0].job_id)
        if len(takes) > 1 + len(moves) and not is_due_unknown:
            times = [(one.host, one.at_us) for one in takes]
            self._violation(f"job {job.number} is delivered at most once, and came {times}")

    def _check_repeats(self, job: Sent, job_id: bytes, takes: list[Take]) -> None:
        """Each delivery after the first has a cause: its retry time, what clients did, or trouble."""
        if not job.retry_s:
            return
        created_us = self._created_us(job_id)
        retry_us = job.retry_s * SECOND_US - JITTER_MS * 1000 - A_TICK_US
        for number, one in enumerate(takes):
            if not number or self._troubles.was_trouble(created_us, one.at_us):
                continue
            causes = self._acts(job, CAUSES, created_us, one.at_us)
            # Clients may queue it before its delay is over, and its retry time counts from that.
            queued_us = min([created_us + job.delay_s * SECOND_US, *[max(act.sent_us, created_us) for act in causes]])
            retries = max(one.at_us - queued_us, 0) // retry_us
            if number > retries + len(causes):
                times = [(take.host, take.at_us) for take in takes[: number + 1]]
                self._violation(
                    f"job {job.number} came {times} without a cause: RETRY {job.retry_s}, {len(causes)} acts"
                )
                return

    # What is acknowledged

    def _check_acked(self, job: Sent, job_id: bytes, takes: list[Take]) -> None:
        """Once an acknowledgement was answered it stays so: trouble may delay that others learn of it."""
        for act in self._books.acts:
            if act.kind != "ack" or job_id not in act.ids or act.answered_us < 0 or act.error:
                continue
            if not act.count and (not job.retry_s or act.is_alone or self._was_leaving(act)):
                continue  # nobody knows whose job it is; and a node that leaves remembers nothing new
            for one in takes:
                if self._was_queued_by_who_forgot_to_have_let_go(job, job_id, one):
                    continue
                if one.at_us > act.answered_us + TOLD_US and self._must_know(job_id, act, one):
                    self._violation(
                        f"job {job.number} was acknowledged at {act.answered_us} at {act.host}, and came at {one.at_us}"
                        f" from {one.host}"
                    )
                    return

    def _was_queued_by_who_forgot_to_have_let_go(self, job: Sent, job_id: bytes, take: Take) -> bool:
        """Whether clients had an at-most-once job queued where a power cut took from a log that it had moved on."""
        if job.retry_s or not self._acts(job, frozenset({"bury", "redrive"}), 0, take.at_us):
            return False
        return any(
            copy.end == LET_GO_OF and 0 <= copy.until_us <= at_us <= take.at_us
            for copy in self._watch.copies[job_id]
            for at_us in self._unsynced_cuts_us(copy.host)
        )

    def _unsynced_cuts_us(self, host: str) -> list[int]:
        """When the power of a node was cut that does not sync its log before it answers."""
        machine = self._world.by_host[host]
        if self._world.plan.nodes[machine.number].sync_ms == 0:
            return []
        return [life.ended_us for life in machine.lives if life.how == POWER_CUT]

    def _was_leaving(self, act: Act) -> bool:
        return any(one.kind == "leave" and one.host == act.host for one in self._books.acts)

    def _must_know(self, job_id: bytes, act: Act, take: Take) -> bool:
        """Whether the node that delivers a job must know that it is acknowledged."""
        created_us = self._created_us(job_id)
        if not self._troubles.was_trouble(created_us, take.at_us):
            return True
        if (
            self._was_forgotten(job_id, take.at_us)
            or self._has_lost(job_id, take)
            or self._has_lost_owners(job_id, act)
        ):
            return False
        if self._was_with_the_one_asked(act, take):
            return True
        if self._troubles.was_trouble(act.sent_us, take.at_us, SETTLED_US):
            return False
        return not self._knowledge_was_lost(job_id, take.at_us)

    def _was_with_the_one_asked(self, act: Act, take: Take) -> bool:
        """Whether the node where it was acknowledged has been there ever since, and could tell the other one."""
        is_there = act.host in take.together or act.host == take.host
        since_us = take.at_us - WITH_US
        if not is_there or act.answered_us > since_us or 0 <= act.life.ended_us <= take.at_us:
            return False
        # Who has just got it from a node that could not be told cannot know either.
        copies = self._watch.copies.get(take.job_id, [])
        is_new = not any(one.host == take.host and one.since_us <= since_us for one in copies)
        if is_new and act.host != take.host:
            return False
        # Links that are cut, and processes that are stopped, are up for others until they do not answer for too long.
        if self._troubles.was_on_link(act.host, take.host, since_us, take.at_us):
            return False
        if any(self._world.by_host[host].stopped_us(since_us, take.at_us) for host in (act.host, take.host)):
            return False
        return not any(
            one.kind in CLEARS and one.host == act.host and one.sent_us <= take.at_us for one in self._books.acts
        )

    def _has_lost_owners(self, job_id: bytes, act: Act) -> bool:
        """Whether the node that was told had forgotten that there were others: the power was cut, and its log was not
        synced.
        """
        created_us = self._created_us(job_id)
        return any(created_us <= at_us <= act.sent_us for at_us in self._unsynced_cuts_us(act.host))

    def _has_lost(self, job_id: bytes, take: Take) -> bool:
        """Whether the node that delivers a job knew, and could forget it: its log was not synced, or it has none."""
        if any(
            one.host == take.host and one.end == ACKNOWLEDGED and 0 <= one.until_us <= at_us <= take.at_us
            for one in self._watch.copies[job_id]
            for at_us in self._unsynced_cuts_us(take.host)
        ):
            return True
        return any(
            one.host == take.host and one.end in (LOST, CLEARED, RELOADED) and one.until_us <= take.at_us
            for one in self._watch.known.get(job_id, [])
        )

    def _was_forgotten(self, job_id: bytes, at_us: int) -> bool:
        """Whether a holder was forgotten by somebody, who does not tell it any more."""
        hosts = {copy.host for copy in self._watch.copies[job_id]}
        return any(
            act.kind == "forget" and act.sent_us < at_us and self._watch.hosts.get(act.word) in hosts
            for act in self._books.acts
        )

    def _knowledge_was_lost(self, job_id: bytes, at_us: int) -> bool:
        """Whether nobody knows any more, as one of those who did has lost its memory."""
        known = self._watch.known.get(job_id, [])
        has_lost = any(one.end in (LOST, CLEARED, RELOADED) and one.until_us <= at_us for one in known)
        return has_lost and not any(one.since_us <= at_us and not 0 <= one.until_us <= at_us for one in known)

    # One queue at a time

    def _check_doubled(self) -> None:
        """Without trouble a job is in one queue at a time; if clients queue it at two nodes at once, not for long."""
        for one in self._watch.doubled:
            job = self._books.by_id.get(one.job_id)
            if job is None or self._troubles.was_trouble(self._created_us(one.job_id), one.at_us + TOLD_US):
                continue
            is_long = one.until_us < 0 or one.until_us - one.at_us > TOLD_US
            if is_long or not self._acts(job, MOVES, one.at_us - TOLD_US, one.at_us):
                self._violation(
                    f"job {job.number} was queued at {one.hosts} at {one.at_us}, for {one.until_us - one.at_us} us"
                )
