"""Whether jobs were kept: at so many nodes when ADDJOB was answered, and until they ended."""

from typing import TYPE_CHECKING, Final

from kestreld.jobs.replicated_jobs import ACKNOWLEDGED
from kestreld.jobs.store import DELETED, EXPIRED
from tests.simulation.cluster.books import CLEARS, Sent, Try
from tests.simulation.cluster.watching import CLEARED, DISK_LOST, LOST, RELOADED, Copy, Knowledge
from tests.simulation.history import POWER_CUT

if TYPE_CHECKING:
    from tests.simulation.cluster.world import ClusterWorld

SECOND_US: Final = 1_000_000
A_TICK_US: Final = 20_000
SYNC_LATE_MS: Final = 2000  # that a sync of a log may take beyond its time
DELETES: Final = frozenset({"delete", "empty"})


class Keeping:
    """Looks at each copy of each job."""

    def __init__(self, world: "ClusterWorld") -> None:
        self._world = world
        self._books = world.books
        self._watch = world.watch
        self.found: list[str] = []

    def violations(self) -> list[str]:
        self._owe_acks()
        for known in [known for some in self._watch.known.values() for known in some]:
            self._check_known(known)
        for job in self._books.jobs.values():
            for job_id, one in job.ids.items():
                copies = self._watch.copies.get(job_id, [])
                if one is not None:
                    self._check_copies(job, one, copies)
                    self._owe(one, copies)
                for copy in copies:
                    self._check_owed(job, copy)
                    self._check_expired(job, copy, copies)
                if one is not None:
                    self._check_kept(job, one, copies)
        return self.found

    def _violation(self, words: str) -> None:
        self.found.append(words)

    def _wanted(self, job: Sent, one: Try) -> int:
        """How many copies were promised."""
        if one.is_async:
            # A node that takes no copies itself sends the job to another one, and does not wait.
            return 0 if self._takes_none(one) else 1
        if self._may_be_of_another(job, one):
            return 1  # one that has ended before it had all copies: the job that is there is no less its own
        asked_for = self._watch.replicate.get(one.job_id, 1)
        # With a key it may be another ADDJOB that has made the job.
        return asked_for if len(job.tries) > 1 else one.replicate or asked_for

    def _may_be_of_another(self, job: Sent, one: Try) -> bool:
        """Whether an ADDJOB that came before the answer has made the job, which waits still, was given up, or whose
        node has died. It may have been sent later: nodes may be asked for a key for long.
        """
        return any(
            other.act.sent_us < one.act.served_us and (other.outcome != "ok" or other.act.served_us > one.act.served_us)
            for other in job.tries
            if other is not one
        )

    def _takes_none(self, one: Try) -> bool:
        """Whether the node where it was added may have kept no copy itself: it was leaving, or short of memory."""
        return any(act.kind in ("leave", "set") and act.host == one.act.host for act in self._books.acts)

    def _check_copies(self, job: Sent, one: Try, copies: list[Copy]) -> None:
        """When ADDJOB was answered so many nodes had a copy."""
        if any(known.since_us <= one.act.served_us for known in self._watch.known.get(one.job_id, [])):
            return  # acknowledged by who had got it when its retry time was over: there is no more to be held
        copies = [copy for copy in copies if copy.since_us <= one.act.served_us and not self._was_not_kept(one, copy)]
        hosts, wanted = {copy.host for copy in copies}, self._wanted(job, one)
        if len(hosts) < wanted:
            self._violation(f"job {job.number} was answered with {len(hosts)} copies of {wanted}")
        # With a key it may be another ADDJOB that has made the job.
        is_default = len(job.tries) == 1 and not (one.replicate or one.is_async)
        if self._world.plan.is_calm and is_default and self._watch.replicate[one.job_id] != 3:
            self._violation(f"job {job.number} has {self._watch.replicate[one.job_id]} copies by default")

    def _was_not_kept(self, one: Try, copy: Copy) -> bool:
        """Whether the node where the job was added has left it to others when these had it."""
        is_own = copy.host == one.act.host and copy.end == DELETED and copy.until_us <= one.act.served_us
        was_left = is_own and self._takes_none(one)
        return was_left and not self._was_deleted(one.job_id, self._books.by_id[one.job_id], copy)

    def _owe(self, one: Try, copies: list[Copy]) -> None:
        """That of the node which has answered counts, too."""
        for copy in copies:
            is_own = copy.host == one.act.host and copy.life == one.act.life.number
            if is_own and copy.since_us <= one.act.served_us and copy.is_owed_us < 0:
                copy.is_owed_us = one.act.served_us

    def _check_owed(self, job: Sent, copy: Copy) -> None:
        """What a node has said it holds is there after its next start."""
        if copy.end == LOST and not self._may_be_lost(copy):
            self._violation(
                f"job {job.number}: {copy.host} said at {copy.is_owed_us} that it held it, and has lost it at"
                f" {copy.until_us}: {copy.crash}"
            )

    def _owe_acks(self) -> None:
        """An acknowledgement that was answered counts, too."""
        for act in self._books.acts:
            if act.kind != "ack" or act.answered_us < 0 or act.error:
                continue
            for known in self._watch.known.get(act.ids[0], []):
                is_it = known.host == act.host and known.life == act.life.number and known.since_us <= act.served_us
                if is_it and known.is_owed_us < 0 and not 0 <= known.until_us < act.served_us:
                    known.is_owed_us = act.served_us

    def _check_known(self, known: Knowledge) -> None:
        """What a node has said it knows it knows after its next start."""
        if known.end == LOST and not self._may_be_lost(known):
            self._violation(
                f"{known.host} said at {known.is_owed_us} that it knows that {known.job_id!r} is acknowledged, and"
                f" has forgotten it at {known.until_us}: {known.crash}"
            )

    def _may_be_lost(self, copy: Copy | Knowledge) -> bool:
        """Whether the end of a process may take what it knew: it has no log, or it was not synced."""
        machine = self._world.by_host[copy.host]
        node = self._world.plan.nodes[machine.number]
        if not node.has_log or copy.crash == DISK_LOST or copy.is_owed_us < 0:
            return True
        if copy.crash != POWER_CUT:
            # What an earlier power cut left had to be repaired: what was not synced then may be lost by that.
            return bool(machine.repairs) and node.sync_ms != 0
        if node.sync_ms != 0 and copy.life != machine.life_at(copy.until_us):
            return True  # nobody syncs what a process has left that was killed
        if node.sync_ms is None or (node.sync_ms and machine.faults.failed):
            return True
        return node.sync_ms > 0 and copy.is_owed_us > copy.until_us - (node.sync_ms + SYNC_LATE_MS) * 1000

    def _check_expired(self, job: Sent, copy: Copy, copies: list[Copy]) -> None:
        """No copy goes before the TTL is over."""
        created_us = copies[0].since_us
        if copy.end != EXPIRED or any(one.host in self._world.troubles.stepped for one in copies):
            return
        if copy.until_us < created_us + job.ttl_s * SECOND_US - A_TICK_US:
            self._violation(
                f"job {job.number} with a TTL of {job.ttl_s} s has expired at {copy.host} at {copy.until_us}"
            )

    def _check_kept(self, job: Sent, one: Try, copies: list[Copy]) -> None:
        """It was there until somebody ended it, its TTL was over, or as many copies were lost as there had been."""
        job_id = one.job_id
        is_ended = any(
            act.kind in ("ack", "fastack") and job_id in act.ids and act.may_be_done for act in self._books.acts
        )
        if is_ended or any(copy.end == EXPIRED for copy in copies) or not self._wanted(job, one):
            return
        if not job.retry_s:
            self._check_came_once(job, one, copies)
            return
        lost = 0
        for copy in copies:
            if self._was_not_kept(one, copy):
                continue
            if copy.end == DELETED and self._may_be_of_another(job, one) and not self._was_deleted(job_id, job, copy):
                continue  # that one was given up, but where somebody was told of the job meanwhile
            if copy.end == DELETED:
                if not self._was_deleted(job_id, job, copy):
                    self._violation(f"job {job.number} was dropped by {copy.host} at {copy.until_us}, for no reason")
                lost += 1
            elif copy.end == ACKNOWLEDGED:
                self._violation(f"job {job.number} is acknowledged at {copy.host} at {copy.until_us}, and by nobody")
            elif copy.end in (LOST, CLEARED, RELOADED):
                lost += 1
        is_left = any(not copy.end for copy in copies)
        if not is_left and lost < self._wanted(job, one):
            ends = [(copy.host, copy.end, copy.until_us) for copy in copies]
            self._violation(f"job {job.number} is nowhere: {ends}")

    def _was_deleted(self, job_id: bytes, job: Sent, copy: Copy) -> bool:
        return any(
            act.kind in DELETES
            and act.sent_us <= copy.until_us
            and (job_id in act.ids if act.ids else act.concerns(job))
            and (act.host == copy.host or act.word == b"all")
            for act in self._books.acts
        )

    def _check_came_once(self, job: Sent, one: Try, copies: list[Copy]) -> None:
        """A job that is delivered at most once has come; or one that had it has crashed, or somebody took it away."""
        if self._watch.takes.get(one.job_id) or any(copy.end in (LOST, CLEARED, RELOADED) for copy in copies):
            return
        acts = [act for act in self._books.acts if (act.count != 0 or act.word == b"all") and act.concerns(job)]
        if any(act.kind in ("dequeue", "working", "delete", "empty") for act in acts):
            return
        hosts = {copy.host for copy in copies}
        if any(life.ended_us >= one.act.sent_us for host in hosts for life in self._world.by_host[host].lives):
            return  # nobody knows whether it was delivered before: it never is again
        if any(act.kind in ("forget", *CLEARS) and act.sent_us > one.act.sent_us for act in self._books.acts):
            return
        ends = [(copy.host, copy.end or "held", copy.until_us) for copy in copies]
        self._violation(f"job {job.number}, which comes at most once, has not come: {ends}")
